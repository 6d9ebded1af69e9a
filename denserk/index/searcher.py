"""The interface of engines, and ranking: passage ids of rows, ties, passages to documents.

Rows of an index are numbered from 0; `vectors_per_passage` consecutive rows are one passage. Hits
are ordered by score descending, then by row ascending.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import RankingSettings, SearchSettings, Ties
from denserk.records import best_first

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]  # (N, D)
Scores = NDArray[np.float32]  # (B, K), higher is closer, descending; -inf where there is no hit
Rows = NDArray[np.int64]  # (B, K), numbers of the rows of an index; -1 where there is no hit
PassageNames = Callable[[Rows], Sequence[str]]  # ids of (K,) passages, by their numbers
Hits = list[tuple[str, float]]  # (passage id, score), best first
Ranked = tuple[list[str], Scores]  # K passage ids and their (K,) scores, best first

SPARE = 8  # hits fetched beyond those asked for, so that a tie at the cut is seen


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

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded; ties at the cut are unspecified."""

    def __len__(self) -> int:
        """Number of rows."""


class VectorIndex(SearchableIndex, Protocol):
    """An open index of vectors."""

    dimension: int  # D, of vectors and queries


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
class TieCount:
    """Count of hits that have the same score as the hit above them, and of their queries."""

    order: str = "by descending id"
    hits: int = 0
    queries: int = 0

    def add(self, scores: NDArray[np.floating[Any]]) -> None:
        """Count the equal scores of one query, given (K,) scores, best first."""
        tied = int(np.count_nonzero(scores[1:] == scores[:-1]))
        self.hits += tied
        self.queries += tied > 0

    def report(self, settings: RankingSettings) -> None:
        """Log how many ties were broken, if any."""
        if self.hits:
            then = "scores kept" if settings.ties is Ties.KEEP else "scores made to decrease"
            logger.info(
                f"ties: {self.hits:,} hits of {self.queries:,} queries have the score of the hit "
                f"above; ordered {self.order}, {then}"
            )


def strictly_decreasing(scores: Scores) -> Scores:
    """Lower tied scores, (K,) float32 in descending order, to the next lower float32."""
    if (scores[1:] < scores[:-1]).all():
        return scores
    lowered = scores.copy()
    for i in range(1, len(lowered)):
        if lowered[i] >= lowered[i - 1]:
            lowered[i] = np.nextafter(lowered[i - 1], np.float32(-np.inf))
    return lowered


def ordered(
    docids: Sequence[str],
    scores: Sequence[float],
    settings: RankingSettings,
    ties: TieCount | None = None,
) -> Hits:
    """Rank K scored passages of a query: best first, equal scores by descending id."""
    best = _best_of_each(zip(docids, scores, strict=True), settings)
    hits = list(islice(best_first(best.items()), settings.kept))
    found = np.array([score for _, score in hits])
    if ties is not None:
        ties.add(found)
    if not hits or settings.ties is Ties.KEEP:
        return hits
    lowered = strictly_decreasing(found.astype(np.float32)).tolist()
    return [(name, score) for (name, _), score in zip(hits, lowered, strict=True)]


def _best_of_each(hits: Iterable[tuple[str, float]], settings: RankingSettings) -> dict[str, float]:
    """Return the best score of each passage, or of each document if passages are merged."""
    best: dict[str, float] = {}
    for name, score in hits:
        if settings.max_passage:
            name = name.partition(settings.max_passage_delimiter)[0]
        best[name] = max(score, best.get(name, score))
    return best


class Searcher:
    """Searches an index and returns passage ids.

    Equal scores are ordered by descending id, also at the cut: an exhaustive index is searched
    deeper until the last score fetched is below the last one kept. The same deepening finds enough
    passages if several rows belong to one. `engine_order` keeps the engine's own order of equal
    scores; `ties` counts them.
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
        self._index, self._ids, self.settings = index, ids, settings
        self._size, self._engine_order = vectors_per_passage, engine_order
        self.ties = TieCount("as the engine orders them") if engine_order else TieCount()

    def search(
        self, qids: Sequence[str], queries: NDArray[Any]
    ) -> Iterator[tuple[str, list[str], Scores]]:
        """Yield (query id, K passage ids, (K,) scores) for (B, D) vectors, or B texts for BM25."""
        for first in range(0, len(qids), self.settings.query_batch):
            batch = slice(first, first + self.settings.query_batch)
            answers = self._batch(qids[batch], queries[batch])
            for qid, (names, scores) in zip(qids[batch], answers, strict=True):
                self.ties.add(scores)
                keep = self.settings.ties is Ties.KEEP
                yield qid, names, scores if keep else strictly_decreasing(scores)

    def _batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Ranked]:
        total, wanted = max(len(self._index), 1), self.settings.kept
        depth = min(self.settings.hits * self._size + SPARE, total)
        results: list[Ranked] = [([], np.empty(0, np.float32)) for _ in qids]
        open_queries = list(range(len(qids)))
        while open_queries:
            found, rows = self._index.search(queries[open_queries], depth)
            passages, places = np.unique(rows // self._size, return_inverse=True)
            numbers = passages[passages >= 0]
            no_hit = [""] * (len(passages) - len(numbers))
            names = np.array([*no_hit, *self._ids(numbers)], object)[places.reshape(rows.shape)]
            deeper = []
            for i, query in enumerate(open_queries):
                valid = int((rows[i] >= 0).sum())
                line = found[i, :valid], rows[i, :valid], names[i, :valid]
                docids, scores = self._ranked(qids[query], *line)
                results[query] = docids[:wanted], scores[:wanted]
                short = len(docids) < wanted
                tied = self._index.is_exhaustive and not short and scores[wanted - 1] == line[0][-1]
                if (short or tied) and valid == depth < total:
                    deeper.append(query)
            open_queries, depth = deeper, min(4 * depth, total)
        return results

    def _ranked(self, qid: str, scores: Scores, rows: Rows, names: NDArray[np.object_]) -> Ranked:
        """Return every passage or document once, equal scores by descending id."""
        if self.settings.remove_query or self.settings.max_passage:
            best = _best_of_each(zip(names.tolist(), scores.tolist(), strict=True), self.settings)
            if self.settings.remove_query:
                best.pop(qid, None)
            hits = list(best.items()) if self._engine_order else best_first(best.items())
            return [name for name, _ in hits], np.array([score for _, score in hits], np.float32)
        if self._size > 1:
            firsts = np.sort(np.unique(rows // self._size, return_index=True)[1])
            scores, names = scores[firsts], names[firsts]
        docids: list[str] = names.tolist()
        tied = np.flatnonzero(scores[1:] == scores[:-1])
        if len(tied) and not self._engine_order:
            places = np.union1d(tied, tied + 1).tolist()
            pairs = [(float(scores[place]), docids[place]) for place in places]
            for place, (_, docid) in zip(places, sorted(pairs, reverse=True), strict=True):
                docids[place] = docid
        return docids, scores
