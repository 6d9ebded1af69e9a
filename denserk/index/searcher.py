"""Search by passage ids: enough hits of each query, without those that are excluded, ranked."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import SearchSettings, Ties
from denserk.errors import InputError, NotFiniteError
from denserk.index.engines import (
    Rows,
    Scores,
    SearchableIndex,
)
from denserk.index.feedback import FeedbackIndex
from denserk.index.ranking import Hits, Ranking
from denserk.io.run_columns import MANY_HITS, RankedWords, Words
from denserk.io.run_text import id_words
from denserk.records import document_of

logger = logging.getLogger(__name__)
PassageNames = Callable[[Rows], Sequence[str]]  # ids of (K,) passages, by their numbers
SCORES = ".9g"  # all digits of a float32
LUCENE_PLACES = 6  # decimals of a score in Pyserini's and Anserini's runs
LUCENE_SCORES = f".{LUCENE_PLACES}f"
TAIL = 8  # hits fetched beyond those asked for, so that a tie at the cut is seen


class Searcher:
    """Searches an index and returns passage ids.

    Ties at the cut are ordered by id too: an exhaustive index is searched deeper until the last
    score fetched is below the last one kept. The same deepening finds enough passages if several
    rows belong to one. For passages that are excluded for a query, as many rows more are fetched.

    In the `engine_order`, Lucene's, hits are those of Pyserini's run: -k hits are fetched,
    and the query is removed from them.

    `ids` returns the ids of passages by their numbers: that of a passage is its first row, divided
    by `vectors_per_passage`.

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
        self._vectors_per_passage = vectors_per_passage
        self._ids_of = ids
        self._folder_of = folder_of
        self._engine_order = engine_order
        self._excluded: Mapping[str, AbstractSet[str]] = {}  # passages by query
        self.settings = settings
        self.ranking = Ranking(settings, engine_order=engine_order)
        self._query_count = 0
        self._short_query_count = 0  # with fewer hits than wanted

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
        """Yield what `search` yields, but as columns where that is quicker."""
        _reject_queries_not_finite(qids, queries)
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
        if self._short_query_count:
            option = " or ".join(self._index.breadth) or "the breadth of the search"
            logger.warning(
                f"{self._short_query_count:,} of {self._query_count:,} queries have fewer than "
                f"{self.settings.kept:,} hits, although the index has more passages: raise {option}"
            )

    def _search_batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Hits | RankedWords]:
        """Return the hits of a batch of queries, no more than `kept` for each."""
        row_count = max(len(self._index), 1)  # an index is searched for at least one row
        depth = (self.settings.hits + self._most_excluded(qids)) * self._vectors_per_passage
        if not self._engine_order:
            depth += TAIL
        depth = min(depth, row_count)
        hits_of_queries: list[Hits | RankedWords] = [[] for _ in qids]
        exhausted_queries: set[int] = set()  # for which the index has no more rows
        pending_queries = list(range(len(qids)))
        while pending_queries:
            scores, rows = self._search_index(queries[pending_queries], depth)
            hit_ids = self._hit_ids_of(rows)
            deeper_queries = []
            for query, query_scores, query_rows in zip(pending_queries, scores, rows, strict=True):
                count = int(np.count_nonzero(query_rows >= 0))  # -1, behind all hits, is no row
                hits = self._hits(qids[query], query_scores[:count], query_rows[:count], hit_ids)
                hits_of_queries[query] = _first_hits(hits, self.settings.kept)
                if count < depth:
                    exhausted_queries.add(query)
                elif depth < row_count and self._needs_more(hits, float(query_scores[-1])):
                    deeper_queries.append(query)
            pending_queries = deeper_queries
            depth = min(4 * depth, row_count)
        self._count_short(hits_of_queries, exhausted_queries)
        return hits_of_queries

    def _hits(self, qid: str, scores: Scores, rows: Rows, hit_ids: "_HitIds") -> Hits | RankedWords:
        """Return the hits of a query's (K,) rows, the best first."""
        columns = self._columns(scores, rows, hit_ids)
        if columns is not None:
            return columns
        passages = rows // self._vectors_per_passage
        docids = [hit_ids.docids[position] for position in hit_ids.positions_of(passages)]
        values = self._scores(scores)
        if self._excluded:
            docids, values = self._without_excluded(qid, docids, values)
        return self.ranking.best(qid, docids, values)

    def _columns(self, scores: Scores, rows: Rows, hit_ids: "_HitIds") -> RankedWords | None:
        """Return (K,) rows as columns of hits, the best first.

        Returns None where the hits may be others than the rows or stand in another order, where
        ids cannot be held as numbers, and for few hits, of which lists are as quick.
        """
        settings = self.settings
        removes_hits = settings.remove_query or self._excluded
        joins_rows = settings.max_passage or self._vectors_per_passage > 1
        if removes_hits or joins_rows or self._engine_order:
            return None
        if len(rows) < MANY_HITS or hit_ids.words is None:
            return None
        ascending_rows = np.sort(rows)  # each row is a passage here
        has_repeated_row = (ascending_rows[1:] == ascending_rows[:-1]).any()
        if has_repeated_row:
            return None
        positions = np.searchsorted(hit_ids.numbers, rows)
        return RankedWords(hit_ids.words[:, positions], scores.astype(np.float64)).best_first()

    def _most_excluded(self, qids: Sequence[str]) -> int:
        """Return the largest number of passages that are excluded for one of the queries."""
        return max((len(self._excluded.get(qid, ())) for qid in qids), default=0)

    def _without_excluded(
        self, qid: str, docids: Sequence[str], scores: Sequence[float]
    ) -> tuple[list[str], list[float]]:
        """Return the passages of a query that are not excluded, and their scores.

        In the engine's order no more than -k remain, from which the query is removed later, as
        where nothing is excluded.
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
        """Return the index's hits; raise an InputError where a score is not finite."""
        try:
            scores, rows = self._index.search(queries, depth)
        except NotFiniteError as error:
            raise self._damaged_index(error.row) from None
        damaged_rows = rows[~np.isfinite(scores) & (rows >= 0)]
        if len(damaged_rows):
            raise self._damaged_index(int(damaged_rows[0]))
        return scores, rows

    def _damaged_index(self, row: int) -> InputError:
        """Return the error that names the passage of a row without a finite score."""
        passage = row // self._vectors_per_passage
        (docid,) = self._ids_of(np.array([passage]))
        folder = self._folder_of(passage)
        return InputError(
            folder,
            None,
            f"a score of passage {docid} that is not a finite number",
            "finite vectors and scores",
            f"{folder} is damaged, or another tool wrote it so: --verify compares it with its "
            "checksums; make it again with --overwrite",
        )

    def _hit_ids_of(self, rows: Rows) -> "_HitIds":
        """Return the ids of the passages of (B, K) rows."""
        numbers = rows[rows >= 0] // self._vectors_per_passage
        numbers.sort()  # quicker than the hashing of np.unique
        is_new = np.ones(len(numbers), bool)
        is_new[1:] = numbers[1:] != numbers[:-1]
        distinct_numbers = numbers[is_new]
        return _HitIds(distinct_numbers, self._ids_of(distinct_numbers))

    def _scores(self, scores: Scores) -> list[float]:
        """Return a query's (K,) scores; Lucene's are rounded as Pyserini writes them.

        Scores that a run shows as equal are tied then.
        """
        values: list[float] = scores.tolist()
        if self._engine_order:
            return [round(value, LUCENE_PLACES) for value in values]
        return values

    def _needs_more(self, hits: Hits | RankedWords, last_score: float) -> bool:
        """Return whether passages beyond those fetched may belong to the hits of a query."""
        if self._engine_order and not self.settings.max_passage:
            return False  # Pyserini fetches no more either
        kept = self.settings.kept
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
        self._query_count += len(hits_of_queries)
        if self._index.is_exhaustive:
            return
        for query in exhausted_queries:
            if len(hits_of_queries[query]) < self.settings.kept:
                self._short_query_count += 1


class _HitIds:
    """The ids of the N passages that a batch hits, in the order of their numbers (N,)."""

    def __init__(self, numbers: Rows, docids: Sequence[str]) -> None:
        self.numbers = numbers
        self.docids = docids

    @cached_property
    def words(self) -> Words | None:
        """The bytes of the ids as numbers (W, N); None if these cannot hold them, as long ids."""
        return id_words(self.docids)

    def positions_of(self, numbers: Rows) -> list[int]:
        """Return where passages, by their (K,) numbers, stand among `docids`."""
        positions: list[int] = np.searchsorted(self.numbers, numbers).tolist()
        return positions


def _first_hits(hits: Hits | RankedWords, count: int) -> Hits | RankedWords:
    """Return the `count` best hits of a query."""
    return hits.first(count) if isinstance(hits, RankedWords) else hits[:count]


def _reject_queries_not_finite(qids: Sequence[str], queries: NDArray[Any]) -> None:
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
