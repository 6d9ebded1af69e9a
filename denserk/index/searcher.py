"""The interface of engines; several indexes as one; feedback; ranking; and search by passage ids.

Rows of an index are numbered from 0; `vectors_per_passage` consecutive rows are one passage. Hits
are ordered by score descending, then by row ascending.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Prf, RankingSettings, SearchSettings, Ties
from denserk.errors import InputError, NotFiniteError, UsageError
from denserk.io.run_columns import MANY_HITS, RankedWords, Words
from denserk.io.run_text import id_words
from denserk.records import best_first, document_of

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]  # (N, D)
Scores = NDArray[np.float32]  # (B, K), higher is closer, descending; -inf where there is no hit
Rows = NDArray[np.int64]  # (B, K), numbers of the rows of an index; -1 where there is no hit
PassageNames = Callable[[Rows], Sequence[str]]  # ids of (K,) passages, by their numbers
Hits = list[tuple[str, float]]  # (passage id, score), best first

SCORES = ".9g"  # all digits of a float32
LOW_31_BITS = 0x7FFFFFFF  # of a float32
SIGN_BIT = 0x80000000
LUCENE_PLACES = 6  # decimals of a score in Pyserini's and Anserini's runs
LUCENE_SCORES = f".{LUCENE_PLACES}f"
TAIL = 8  # hits fetched beyond those asked for, so that a tie at the cut is seen


class StoredVectors(Protocol):
    """(N, D) vectors in an array or in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N and D."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[Any]:
        """Consecutive vectors, or some by their sorted numbers."""


class SearchableIndex(Protocol):
    """An open index. Queries are (B, D) vectors, or an array of B texts for a BM25 index."""

    is_exhaustive: bool  # every row is compared: a deeper search then only adds hits
    dimension: int  # D; 0 for a BM25 index

    @property
    def breadth(self) -> tuple[str, ...]:
        """Options that make an approximate search find more, with their values."""

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded; ties at the cut are unspecified."""

    def __len__(self) -> int:
        """Number of rows."""


def recalls(hits: Rows, exact: Rows) -> NDArray[np.float64]:
    """Return the share of a query's exact rows among its hits: (B, K), (B, K) -> (B,).

    >>> recalls(np.array([[7, 3, 5, 9]]), np.array([[3, 7, 4, 5]])).tolist()
    [0.75]
    """
    is_match = hits[:, :, None] == exact[:, None]  # (B, K hits, K exact rows)
    shares: NDArray[np.float64] = is_match.any(axis=2).mean(axis=1)
    return shares


def padding(queries: int, depth: int) -> tuple[Scores, Rows]:
    """Return (B, K) scores and rows without a hit."""
    scores = np.full((queries, depth), -np.inf, np.float32)
    rows = np.full((queries, depth), -1, np.int64)
    return scores, rows


def in_order(scores: Scores, rows: Rows, depth: int | None = None) -> tuple[Scores, Rows]:
    """Order (B, K) hits and keep the best `depth`; a row -1 is no hit and stands last.

    >>> scores, rows = in_order(np.float32([[1, 2, 1]]), np.array([[4, 0, 3]]), 2)
    >>> scores.tolist(), rows.tolist()
    ([[2.0, 1.0]], [[0, 3]])
    """
    negative_scores = -np.where(rows < 0, np.float32(-np.inf), scores)
    unsigned_rows = rows.view(np.uint64)  # -1 is the largest one
    order = np.lexsort((unsigned_rows, negative_scores))[:, :depth]
    ordered_scores = -np.take_along_axis(negative_scores, order, axis=1)
    return ordered_scores, np.take_along_axis(rows, order, axis=1)


@dataclass
class ShardedIndex:
    """Several indexes as one, whose rows are numbered through all of them."""

    parts: Iterable[SearchableIndex]
    dimension: int
    is_exhaustive: bool = True

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options of its parts."""
        options: dict[str, None] = {}  # a set in order
        for part in self.parts:
            options.update(dict.fromkeys(part.breadth))
        return tuple(options)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows of all parts for (B, D) queries, padded."""
        best_scores, best_rows = padding(len(queries), depth)
        first_row = 0
        for part in self.parts:
            try:
                scores, rows = part.search(queries, min(depth, len(part)))
            except NotFiniteError as error:
                raise NotFiniteError(first_row + error.row) from None
            rows = np.where(rows < 0, -1, rows + first_row)
            all_scores = np.hstack([best_scores, scores])
            all_rows = np.hstack([best_rows, rows])
            best_scores, best_rows = in_order(all_scores, all_rows, depth)
            first_row += len(part)
        return best_scores, best_rows


class FeedbackIndex:
    """Pseudo-relevance feedback with dense vectors (Li et al., 2021, arXiv 2108.11044).

    The second of two searches is with moved queries. Of the K best passages p of a query q, the
    last N (`prf_negatives`) are negatives:

        average:  mean(q, p_1, ..., p_K)
        rocchio:  alpha q + beta mean(p_1, ..., p_K-N) - gamma mean(p_K-N+1, ..., p_K)
    """

    def __init__(self, index: SearchableIndex, size: int, settings: SearchSettings) -> None:
        if size > 1 or not hasattr(index, "reconstruct"):
            message = f"--prf {settings.prf}: the index does not return one vector per passage"
            raise UsageError(message, "use folders of vectors, flat indexes, or one index of faiss")
        self._index = index
        self._reconstruct = index.reconstruct
        self._settings = settings
        self.is_exhaustive = index.is_exhaustive
        self.dimension = index.dimension
        self.breadth = index.breadth

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for the moved (B, D) queries, padded."""
        _, rows = self._index.search(queries, self._settings.prf_depth)
        is_hit = rows >= 0
        passages = self._passage_vectors(rows, is_hit)
        if self._settings.prf is Prf.AVERAGE:
            counts = np.float32(1 + is_hit.sum(axis=1, keepdims=True))
            moved_queries = (queries + passages.sum(axis=1)) / counts
        else:
            moved_queries = self._rocchio(queries, passages, is_hit)
        return self._index.search(moved_queries, depth)

    def _passage_vectors(self, rows: Rows, is_hit: NDArray[np.bool_]) -> Vectors:
        """Return the (B, K, D) vectors of (B, K) rows; zero where there is no hit."""
        vectors = np.zeros((*rows.shape, self.dimension), np.float32)
        distinct_rows, positions = np.unique(rows[is_hit], return_inverse=True)
        vectors[is_hit] = self._reconstruct(distinct_rows)[positions]
        return vectors

    def _rocchio(self, queries: Vectors, passages: Vectors, is_hit: NDArray[np.bool_]) -> Vectors:
        """Move (B, D) queries towards the best of (B, K, D) passages, and away from the last."""
        settings = self._settings
        first_negative = passages.shape[1] - settings.prf_negatives
        positives = _mean_of_hits(passages[:, :first_negative], is_hit[:, :first_negative])
        negatives = _mean_of_hits(passages[:, first_negative:], is_hit[:, first_negative:])
        moved_queries: Vectors = settings.prf_alpha * queries + settings.prf_beta * positives
        moved_queries -= settings.prf_gamma * negatives
        return moved_queries


def _mean_of_hits(passages: Vectors, is_hit: NDArray[np.bool_]) -> Vectors:
    """Return the (B, D) means of the hits among (B, K, D) passages; the others are zero."""
    counts = np.float32(is_hit.sum(axis=1, keepdims=True))
    means: Vectors = passages.sum(axis=1) / np.maximum(counts, 1)
    return means


def strictly_decreasing(scores: Scores) -> Scores:
    """Lower tied scores, (K,) float32 in descending order, to the next lower float32."""
    if (scores[1:] < scores[:-1]).all():
        return scores
    # Every float32 has a whole number, by its bits: the next lower float32 has the next lower one.
    # The number of a lowered score is the lesser of its own and of that of the score above, less
    # 1: the least of its own and of those of all scores above, each less the distance in rows.
    bits = scores.view(np.int32).astype(np.int64)
    numbers = np.where(bits < 0, -(bits & LOW_31_BITS), bits)
    rows = np.arange(len(scores))
    lowered_numbers = np.minimum.accumulate(numbers + rows) - rows
    is_negative = lowered_numbers < 0
    lowered_bits = np.where(is_negative, -lowered_numbers - SIGN_BIT, lowered_numbers)
    lowered = lowered_bits.astype(np.int32).view(np.float32)
    return np.where(lowered_numbers == numbers, scores, lowered)


class Ranking:
    """Ranks the scored passages of queries by the options of a run, and counts tied scores.

    Equal scores are ordered by descending id, or left in the `engine_order`, as its scores are.
    """

    def __init__(self, settings: RankingSettings, *, engine_order: bool = False) -> None:
        self._settings = settings
        self._engine_order = engine_order
        default_ties = Ties.KEEP if engine_order else Ties.BREAK
        self.ties = settings.ties or default_ties
        self.tied_hits = 0
        self.tied_queries = 0

    def best(self, qid: str, docids: Iterable[str], scores: Iterable[float]) -> Hits:
        """Return every passage once, or with --max-passage every document, the best first."""
        best_scores: dict[str, float] = {}  # by passage or document
        for name, score in zip(docids, scores, strict=True):
            if self._settings.max_passage:
                name = document_of(name, self._settings.max_passage_delimiter)
            if name not in best_scores or score > best_scores[name]:
                best_scores[name] = score
        if self._settings.remove_query:
            best_scores.pop(qid, None)
        if self._engine_order:
            return list(best_scores.items())
        return best_first(best_scores.items())

    def final(self, hits: Hits) -> Hits:
        """Return the hits of a query that its run lists, with tied scores lowered."""
        hits = hits[: self._settings.kept]
        scores = np.array([score for _, score in hits])
        self._count_ties(scores)
        if self.ties is Ties.KEEP:
            return hits
        lowered = strictly_decreasing(scores.astype(np.float32)).tolist()
        return [(name, score) for (name, _), score in zip(hits, lowered, strict=True)]

    def final_columns(self, hits: RankedWords) -> RankedWords:
        """Return the hits of `final` for hits that are columns."""
        hits = hits.first(self._settings.kept)
        self._count_ties(hits.scores)
        if self.ties is Ties.KEEP:
            return hits
        lowered = strictly_decreasing(hits.scores.astype(np.float32))
        return RankedWords(hits.words, lowered.astype(np.float64))

    def _count_ties(self, scores: NDArray[np.float64]) -> None:
        """Count the scores of a query's hits that are equal to the one above."""
        tied_hits = int(np.count_nonzero(scores[1:] == scores[:-1]))
        self.tied_hits += tied_hits
        if tied_hits:
            self.tied_queries += 1

    def report(self) -> None:
        """Log in which order hits of equal scores stand, if there are any."""
        if not self.tied_hits:
            return
        hits = f"{self.tied_hits:,} hits of {self.tied_queries:,} queries"
        if self._engine_order:
            message = f"equal scores: {hits} score as the hit above, and stand in Lucene's order"
        else:
            message = f"equal scores: {hits} score as the hit above, and stand by descending id"
        if self.ties is Ties.BREAK:
            message += (
                "; each is written with the next lower score, so that all tools read one order"
            )
        logger.info(message)


class Searcher:
    """Searches an index and returns passage ids.

    Ties at the cut are ordered by id too: an exhaustive index is searched deeper until the last
    score fetched is below the last one kept. The same deepening finds enough passages if several
    rows belong to one. Passages that are excluded for a query are removed from what the index
    returns, which is as many rows more.

    In the `engine_order`, Lucene's, hits are those of Pyserini's run: `hits` are fetched, and the
    query is removed from them.

    `folder_of` names, in errors, the folder of a passage by its number.
    """

    def __init__(
        self,
        index: SearchableIndex,
        ids: PassageNames,
        settings: SearchSettings,
        vectors_per_passage: int = 1,
        *,
        engine_order: bool = False,
        folder_of: Callable[[int], str] = lambda passage: "the index",
    ) -> None:
        if settings.prf:
            index = FeedbackIndex(index, vectors_per_passage, settings)
        self._index = index
        self._size = vectors_per_passage
        self._ids = ids
        self._folder_of = folder_of
        self._engine_order = engine_order
        self._excluded: Mapping[str, AbstractSet[str]] = {}  # passages by query
        self.settings = settings
        self.ranking = Ranking(settings, engine_order=engine_order)
        self.queries = 0
        self.short_queries = 0

    @property
    def score_format(self) -> str:
        """The format of scores in a run: that of Pyserini where they are Lucene's own."""
        has_scores_of_lucene = self._engine_order and self.ranking.ties is Ties.KEEP
        return LUCENE_SCORES if has_scores_of_lucene else SCORES

    def exclude(self, passages_by_query: Mapping[str, AbstractSet[str]]) -> None:
        """Remove passages from the hits of queries, before these are ranked and cut.

        With --max-passage a document may be named, too.
        """
        self._excluded = passages_by_query

    def search(self, qids: Sequence[str], queries: NDArray[Any]) -> Iterator[tuple[str, Hits]]:
        """Yield (query id, hits) for (B, D) vectors, or an array of B texts for BM25."""
        for qid, hits in self.ranked_hits(qids, queries):
            yield qid, hits.as_list() if isinstance(hits, RankedWords) else hits

    def ranked_hits(
        self, qids: Sequence[str], queries: NDArray[Any]
    ) -> Iterator[tuple[str, Hits | RankedWords]]:
        """Yield what `search` yields, column by column where that takes fewer steps."""
        _refuse_queries_not_finite(qids, queries)
        for first in range(0, len(qids), self.settings.query_batch):
            batch = slice(first, first + self.settings.query_batch)
            hits_of_queries = self._search_batch(qids[batch], queries[batch])
            for qid, hits in zip(qids[batch], hits_of_queries, strict=True):
                if isinstance(hits, RankedWords):
                    yield qid, self.ranking.final_columns(hits)
                else:
                    yield qid, self.ranking.final(hits)

    def report(self) -> None:
        """Log how equal scores are ordered, and warn of short lists."""
        self.ranking.report()
        self.warn_of_short_lists()

    def warn_of_short_lists(self) -> None:
        """Warn if an approximate index found fewer hits than wanted, though it has more."""
        if self.short_queries:
            option = " or ".join(self._index.breadth) or "the breadth of the search"
            logger.warning(
                f"{self.short_queries:,} of {self.queries:,} queries have fewer than "
                f"{self.settings.kept:,} hits, although the index has more passages: raise {option}"
            )

    def _search_batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Hits | RankedWords]:
        """Return the hits of a batch of queries."""
        total = max(len(self._index), 1)
        depth = (self.settings.hits + self._most_excluded(qids)) * self._size
        if not self._engine_order:
            depth += TAIL
        depth = min(depth, total)
        hits_of_queries: list[Hits | RankedWords] = [[] for _ in qids]
        exhausted_queries: set[int] = set()  # for which the index has no more rows
        pending_queries = list(range(len(qids)))
        while pending_queries:
            scores, rows = self._search_index(queries[pending_queries], depth)
            names = self._names_of(rows)
            deeper_queries = []
            for query, query_scores, query_rows in zip(pending_queries, scores, rows, strict=True):
                count = int(np.count_nonzero(query_rows >= 0))
                hits = self._hits(qids[query], query_scores[:count], query_rows[:count], names)
                hits_of_queries[query] = _first_hits(hits, self.settings.kept)
                if count < depth:
                    exhausted_queries.add(query)
                elif depth < total and self._needs_more(hits, float(query_scores[-1])):
                    deeper_queries.append(query)
            pending_queries = deeper_queries
            depth = min(4 * depth, total)
        self._count_short(hits_of_queries, exhausted_queries)
        return hits_of_queries

    def _hits(self, qid: str, scores: Scores, rows: Rows, names: "_Names") -> Hits | RankedWords:
        """Return the hits of a query's (K,) rows, the best first."""
        columns = self._columns(scores, rows, names)
        if columns is not None:
            return columns
        docids = [names.docids[row] for row in names.positions_of(rows // self._size)]
        values = self._scores(scores)
        if self._excluded:
            docids, values = self._without_excluded(qid, docids, values)
        return self.ranking.best(qid, docids, values)

    def _columns(self, scores: Scores, rows: Rows, names: "_Names") -> RankedWords | None:
        """Return (K,) rows as columns of hits, the best first.

        Returns None where the hits may be others than the rows or stand in another order, where
        ids have no words, and for few hits, of which lists are as quick.
        """
        settings = self.settings
        removes_hits = settings.remove_query or self._excluded
        joins_rows = settings.max_passage or self._size > 1
        if removes_hits or joins_rows or self._engine_order:
            return None
        if len(rows) < MANY_HITS or names.words is None:
            return None
        ascending_rows = np.sort(rows)
        has_repeated_row = (ascending_rows[1:] == ascending_rows[:-1]).any()
        if has_repeated_row:
            return None
        positions = np.searchsorted(names.numbers, rows)
        return RankedWords(names.words[:, positions], scores.astype(np.float64)).best_first()

    def _most_excluded(self, qids: Sequence[str]) -> int:
        """Return the largest number of passages that are excluded for one of some queries."""
        return max((len(self._excluded.get(qid, ())) for qid in qids), default=0)

    def _without_excluded(
        self, qid: str, docids: Sequence[str], scores: Sequence[float]
    ) -> tuple[list[str], list[float]]:
        """Return the passages of a query that are not excluded, and their scores.

        In the engine's order they are as many as without exclusions: `hits`.
        """
        excluded = self._excluded.get(qid, frozenset())
        remaining = []
        for docid, score in zip(docids, scores, strict=True):
            document = docid
            if self.settings.max_passage:
                document = document_of(docid, self.settings.max_passage_delimiter)
            if excluded.isdisjoint((docid, document)):
                remaining.append((docid, score))
        if self._engine_order:
            remaining = remaining[: self.settings.hits]
        return [docid for docid, _ in remaining], [score for _, score in remaining]

    def _search_index(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the index's hits; an error names a passage whose score is not finite."""
        try:
            scores, rows = self._index.search(queries, depth)
            damaged_rows = rows[~np.isfinite(scores) & (rows >= 0)]
            if len(damaged_rows):
                raise NotFiniteError(int(damaged_rows[0]))
        except NotFiniteError as error:
            passage = error.row // self._size
            (docid,) = self._ids(np.array([passage]))
            folder = self._folder_of(passage)
            raise InputError(
                folder,
                None,
                f"a score of passage {docid} that is not a finite number",
                "finite vectors and scores",
                f"{folder} is damaged, or another tool wrote it so: --verify compares it with its "
                "checksums; make it again with --overwrite",
            ) from None
        return scores, rows

    def _names_of(self, rows: Rows) -> "_Names":
        """Return the ids of the passages of (B, K) rows."""
        numbers = np.sort(rows[rows >= 0] // self._size)  # quicker than the hashing of np.unique
        is_new = np.ones(len(numbers), bool)
        is_new[1:] = numbers[1:] != numbers[:-1]
        distinct_numbers = numbers[is_new]
        return _Names(distinct_numbers, self._ids(distinct_numbers))

    def _scores(self, scores: Scores) -> list[float]:
        """Return a query's (K,) scores; Lucene's have the digits that Pyserini writes."""
        values: list[float] = scores.tolist()
        if self._engine_order:
            return [round(value, LUCENE_PLACES) for value in values]
        return values

    def _needs_more(self, hits: Hits | RankedWords, last_score: float) -> bool:
        """Return whether passages beyond those fetched may belong to the hits of a query."""
        kept = self.settings.kept
        if self._engine_order and not self.settings.max_passage:
            return False
        if len(hits) < kept:
            return True
        if isinstance(hits, RankedWords):
            last_kept_score = float(hits.scores[kept - 1])
        else:
            last_kept_score = hits[kept - 1][1]
        return self._index.is_exhaustive and last_kept_score == last_score

    def _count_short(
        self, hits_of_queries: Sequence[Hits | RankedWords], exhausted_queries: set[int]
    ) -> None:
        """Count queries with fewer hits than wanted, though an approximate index has more rows."""
        self.queries += len(hits_of_queries)
        if self._index.is_exhaustive:
            return
        for query in exhausted_queries:
            if len(hits_of_queries[query]) < self.settings.kept:
                self.short_queries += 1


class _Names:
    """The ids of N passages, by their ascending numbers (N,)."""

    def __init__(self, numbers: Rows, docids: Sequence[str]) -> None:
        self.numbers = numbers
        self.docids = docids

    @cached_property
    def words(self) -> Words | None:
        """The words of the ids; None if these have none: see `run_text.id_words`."""
        return id_words(self.docids)

    def positions_of(self, numbers: Rows) -> list[int]:
        """Return where passages, by their numbers, stand among the ids."""
        positions: list[int] = np.searchsorted(self.numbers, numbers).tolist()
        return positions


def _first_hits(hits: Hits | RankedWords, count: int) -> Hits | RankedWords:
    return hits.first(count) if isinstance(hits, RankedWords) else hits[:count]


def _refuse_queries_not_finite(qids: Sequence[str], queries: NDArray[Any]) -> None:
    """Reject (B, D) vectors of which one is not finite, by its query id."""
    if queries.dtype.kind != "f":  # texts
        return
    is_finite = np.isfinite(queries).all(axis=1)
    if not is_finite.all():
        qid = qids[int(np.argmin(is_finite))]
        raise InputError(
            f"query {qid}",
            None,
            "a vector with a number that is not finite",
            "finite numbers",
            "check the vectors of the queries, or the weights of the model that encoded them",
        )
