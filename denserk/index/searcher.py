"""The interface of engines, feedback, and ranking: passage ids of rows, ties, documents.

Rows of an index are numbered from 0; `vectors_per_passage` consecutive rows are one passage. Hits
are ordered by score descending, then by row ascending.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Prf, RankingSettings, SearchSettings, Ties
from denserk.errors import UsageError
from denserk.records import best_first

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]  # (N, D)
Scores = NDArray[np.float32]  # (B, K), higher is closer, descending; -inf where there is no hit
Rows = NDArray[np.int64]  # (B, K), numbers of the rows of an index; -1 where there is no hit
PassageNames = Callable[[Rows], Sequence[str]]  # ids of (K,) passages, by their numbers
Hits = list[tuple[str, float]]  # (passage id, score), best first

TAIL = 8  # hits fetched beyond those asked for, so that a tie at the cut is seen


class StoredVectors(Protocol):
    """(N, D) vectors in an array or in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N and D."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, wanted: slice | Rows, /) -> NDArray[Any]:
        """Consecutive vectors, or some by their sorted numbers."""


class SearchableIndex(Protocol):
    """An open index. Queries are (B, D) vectors, or an array of B texts for a BM25 index."""

    is_exhaustive: bool  # every row is compared: a deeper search then only adds hits
    dimension: int  # D; 0 for a BM25 index

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded; ties at the cut are unspecified."""

    def __len__(self) -> int:
        """Number of rows."""


def recalls(hits: Rows, exact: Rows) -> NDArray[np.float64]:
    """Return the share of a query's exact rows among its hits: (B, K), (B, K) -> (B,)."""
    shares: NDArray[np.float64] = (hits[:, :, None] == exact[:, None]).any(2).mean(1)
    return shares


def padding(queries: int, depth: int) -> tuple[Scores, Rows]:
    """Return (B, K) scores and rows without a hit."""
    return np.full((queries, depth), -np.inf, np.float32), np.full((queries, depth), -1, np.int64)


def in_order(scores: Scores, rows: Rows, depth: int | None = None) -> tuple[Scores, Rows]:
    """Order (B, K) hits and keep the best `depth`; a row -1 is no hit and stands last.

    >>> found = in_order(np.float32([[1, 2, 1]]), np.array([[4, 0, 3]]), 2)
    >>> [part.tolist() for part in found]
    [[[2.0, 1.0]], [[0, 3]]]
    """
    falling = -np.where(rows < 0, np.float32(-np.inf), scores)
    order = np.lexsort((rows.view(np.uint64), falling))[:, :depth]  # -1 is the largest unsigned
    return -np.take_along_axis(falling, order, 1), np.take_along_axis(rows, order, 1)


@dataclass
class ShardedIndex:
    """Several indexes as one, whose rows are numbered through all of them."""

    parts: Iterable[SearchableIndex]
    dimension: int
    is_exhaustive: bool = True

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows of all parts for (B, D) queries, padded."""
        scores, rows = padding(len(queries), depth)
        first = 0
        for part in self.parts:
            found, places = part.search(queries, min(depth, len(part)))
            places = np.where(places < 0, -1, places + first)
            scores, rows = in_order(np.hstack([scores, found]), np.hstack([rows, places]), depth)
            first += len(part)
        return scores, rows


class FeedbackIndex:
    """Pseudo-relevance feedback with dense vectors (Li et al., 2021, arXiv 2108.11044).

    The second of two searches is with moved queries. Of the K best passages p of a query q, the
    last N (`prf_negatives`) are negatives:

        average:  mean(q, p_1, ..., p_K)
        rocchio:  alpha q + beta mean(p_1, ..., p_K-N) - gamma mean(p_K-N+1, ..., p_K)
    """

    def __init__(self, index: SearchableIndex, size: int, settings: SearchSettings) -> None:
        if size > 1 or not hasattr(index, "reconstruct"):
            what = f"--prf {settings.prf}: the index does not return one vector per passage"
            raise UsageError(what, "use folders of vectors, flat indexes, or one index of faiss")
        self._index, self._vectors_of, self._settings = index, index.reconstruct, settings
        self.is_exhaustive, self.dimension = index.is_exhaustive, index.dimension

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for the moved (B, D) queries, padded."""
        settings = self._settings
        _, rows = self._index.search(queries, settings.prf_depth)
        found = rows >= 0
        numbers, places = np.unique(rows[found], return_inverse=True)
        passages = np.zeros((*rows.shape, self.dimension), np.float32)  # zero: not counted
        passages[found] = self._vectors_of(numbers)[places]

        def mean(part: slice, others: int = 0) -> Vectors:
            count = np.float32(others + found[:, part].sum(1, keepdims=True))
            middle: Vectors = (passages[:, part].sum(1) + others * queries) / np.maximum(count, 1)
            return middle

        if settings.prf is Prf.AVERAGE:
            return self._index.search(mean(slice(None), 1), depth)
        best = passages.shape[1] - settings.prf_negatives
        moved: Vectors = settings.prf_alpha * queries + settings.prf_beta * mean(slice(best))
        moved -= settings.prf_gamma * mean(slice(best, None))
        return self._index.search(moved, depth)


def strictly_decreasing(scores: Scores) -> Scores:
    """Lower tied scores, (K,) float32 in descending order, to the next lower float32."""
    if (scores[1:] < scores[:-1]).all():
        return scores
    lowered = scores.copy()
    for i in range(1, len(lowered)):
        if lowered[i] >= lowered[i - 1]:
            lowered[i] = np.nextafter(lowered[i - 1], np.float32(-np.inf))
    return lowered


class Ranking:
    """Ranks the scored passages of queries by the options of a run, and counts tied scores.

    Equal scores are ordered by descending id, or left in the `engine_order`.
    """

    def __init__(self, settings: RankingSettings, *, engine_order: bool = False) -> None:
        self._settings, self._engine_order = settings, engine_order
        self.tied_hits = self.tied_queries = 0

    def best(self, qid: str, docids: Iterable[str], scores: Iterable[float]) -> Hits:
        """Return every passage once, or with --max-passage every document, the best first."""
        best: dict[str, float] = {}
        for name, score in zip(docids, scores, strict=True):
            if self._settings.max_passage:
                name = name.partition(self._settings.max_passage_delimiter)[0]
            if name not in best or score > best[name]:
                best[name] = score
        if self._settings.remove_query:
            best.pop(qid, None)
        return list(best.items()) if self._engine_order else best_first(best.items())

    def final(self, hits: Hits) -> Hits:
        """Return the hits of a query that its run lists, with tied scores lowered."""
        hits = hits[: self._settings.kept]
        scores = np.array([score for _, score in hits])
        tied = int(np.count_nonzero(scores[1:] == scores[:-1]))
        self.tied_hits += tied
        self.tied_queries += tied > 0
        if self._settings.ties is Ties.KEEP:
            return hits
        lowered = strictly_decreasing(scores.astype(np.float32)).tolist()
        return [(name, score) for (name, _), score in zip(hits, lowered, strict=True)]

    def report(self) -> None:
        """Log how many ties were broken, if any."""
        if self.tied_hits:
            order = "as the engine orders them" if self._engine_order else "by descending id"
            keep = self._settings.ties is Ties.KEEP
            logger.info(
                f"ties: {self.tied_hits:,} hits of {self.tied_queries:,} queries have the score of "
                f"the hit above; ordered {order}, scores {'kept' if keep else 'made to decrease'}"
            )


class Searcher:
    """Searches an index and returns passage ids.

    Ties at the cut are ordered by id too: an exhaustive index is searched deeper until the last
    score fetched is below the last one kept. The same deepening finds enough passages if several
    rows belong to one.
    """

    def __init__(
        self,
        index: SearchableIndex,
        ids: PassageNames,
        settings: SearchSettings,
        vectors_per_passage: int = 1,
        *,
        engine_order: bool = False,
    ) -> None:
        self._size, self._ids, self.settings = vectors_per_passage, ids, settings
        self._index = FeedbackIndex(index, self._size, settings) if settings.prf else index
        self.ranking = Ranking(settings, engine_order=engine_order)

    def search(self, qids: Sequence[str], queries: NDArray[Any]) -> Iterator[tuple[str, Hits]]:
        """Yield (query id, hits) for (B, D) vectors, or an array of B texts for BM25."""
        for first in range(0, len(qids), self.settings.query_batch):
            batch = slice(first, first + self.settings.query_batch)
            answers = self._batch(qids[batch], queries[batch])
            for qid, hits in zip(qids[batch], answers, strict=True):
                yield qid, self.ranking.final(hits)

    def _batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Hits]:
        total, wanted = max(len(self._index), 1), self.settings.kept
        depth = min(self.settings.hits * self._size + TAIL, total)
        results: list[Hits] = [[] for _ in qids]
        unfinished = list(range(len(qids)))
        while unfinished:
            scores, rows = self._index.search(queries[unfinished], depth)
            passages = np.where(rows < 0, -1, rows // self._size)
            numbers = np.unique(passages[passages >= 0])
            names = dict(zip(numbers.tolist(), self._ids(numbers), strict=True))
            deeper = []
            for query, found, line in zip(unfinished, scores.tolist(), passages, strict=True):
                docids = [names[number] for number in line[line >= 0].tolist()]
                hits = self.ranking.best(qids[query], docids, found[: len(docids)])
                results[query] = hits[:wanted]
                short = len(hits) < wanted
                tied = self._index.is_exhaustive and not short and hits[wanted - 1][1] == found[-1]
                if (short or tied) and len(docids) == depth < total:
                    deeper.append(query)
            unfinished, depth = deeper, min(4 * depth, total)
        return results
