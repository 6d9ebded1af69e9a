"""Queries x index -> ranked passages: names for rows, one order, a depth that is deep enough."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.index.vector_index import Rows, Scores, SearchableIndex
from denserk.settings.retrieval import SearchSettings, Ties

Hits = list[tuple[str, float]]
"""(passage id, score), best first."""

SPARE = 8
"""Hits fetched beyond those asked for, so that a tie at the cut is seen."""


def strictly_decreasing(scores: Scores) -> Scores:
    """Scores without ties: each is below the one before it, at most by the next lower float32.

    Args:
        scores: (K,) float32, descending.

    >>> import numpy as np
    >>> strictly_decreasing(np.array([2, 1, 1, 1], dtype=np.float32)).tolist()
    [2.0, 1.0, 0.9999999403953552, 0.9999998807907104]
    """
    if (scores[1:] < scores[:-1]).all():
        return scores
    lowered = scores.copy()
    for i in range(1, len(lowered)):
        if lowered[i] >= lowered[i - 1]:
            lowered[i] = np.nextafter(lowered[i - 1], np.float32(-np.inf))
    return lowered


def without_ties(hits: Hits) -> Hits:
    """Ordered hits with strictly decreasing scores."""
    if not hits:
        return hits
    names, scores = zip(*hits, strict=True)
    lowered = strictly_decreasing(np.array(scores, np.float32))
    return list(zip(names, lowered.tolist(), strict=True))


def ordered(docids: Sequence[str], scores: Sequence[float], settings: SearchSettings) -> Hits:
    """A query's scored passages as the run has them: best first, ties by id.

    >>> ordered(["d2", "d1", "d3"], [1.0, 1.0, 5.0], SearchSettings(hits=2))
    [('d3', 5.0), ('d1', 1.0)]
    """
    names: Sequence[str] = docids
    if settings.max_passage:
        names = [docid.partition(settings.max_passage_delimiter)[0] for docid in docids]
    best: dict[str, float] = {}
    for name, score in sorted(zip(names, scores, strict=True), key=lambda hit: (-hit[1], hit[0])):
        best.setdefault(name, score)
    hits = list(islice(best.items(), settings.kept))
    return hits if settings.ties is Ties.KEEP else without_ties(hits)


class Searcher:
    """Searches an index and names what it finds.

    Equal scores fall by id, also at the cut: an index that compares every row is searched deeper
    until the last score fetched lies below the last one kept. The same deepening finds enough
    passages where several rows share one.

    Args:
        index: an open index.
        ids: the id of each row.
        settings: depth, filters, ties.
        vectors_per_passage: how many neighbouring rows are one passage; above 1, ids end in "#"
            and a number.
    """

    def __init__(
        self,
        index: SearchableIndex,
        ids: Sequence[str],
        settings: SearchSettings,
        vectors_per_passage: int = 1,
    ) -> None:
        self._index, self._ids, self._settings = index, ids, settings
        self._size = vectors_per_passage

    def _name(self, row: int) -> str:
        """What a row is called in the run."""
        name = self._ids[row]
        if self._size > 1:
            name = name.rpartition("#")[0]
        if self._settings.max_passage:
            name = name.partition(self._settings.max_passage_delimiter)[0]
        return name

    def _hits(self, qid: str, scores: Scores, rows: Rows, depth: int) -> tuple[Hits, bool]:
        """The ordered hits of one query, and whether a deeper search could change them."""
        valid = int((rows >= 0).sum())
        scores = scores[:valid]
        names = map(self._name, rows[:valid].tolist())
        found = list(zip(names, scores.tolist(), strict=True))
        if self._settings.remove_query:
            found = [hit for hit in found if hit[0] != qid]
        if self._size > 1 or self._settings.max_passage:
            best: dict[str, float] = {}
            for name, score in found:
                best.setdefault(name, score)
            found = list(best.items())
        if (scores[1:] == scores[:-1]).any():
            found.sort(key=lambda hit: (-hit[1], hit[0]))
        kept = found[: self._settings.kept]
        ran_out = valid < depth or depth >= len(self._index)
        short = len(kept) < self._settings.kept
        tied = not short and self._index.is_exhaustive and kept[-1][1] == float(scores[-1])
        return kept, (short or tied) and not ran_out

    def search(self, qids: Sequence[str], queries: NDArray[Any]) -> Iterator[tuple[str, Hits]]:
        """Yields (query id, its hits) in the order of the queries.

        Args:
            qids: B query ids.
            queries: (B, D) vectors, or an array of B texts for an index of words.
        """
        for first in range(0, len(qids), self._settings.query_batch):
            batch = slice(first, first + self._settings.query_batch)
            for qid, hits in zip(
                qids[batch], self._batch(qids[batch], queries[batch]), strict=True
            ):
                yield qid, self._untied(hits)

    def _batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Hits]:
        total = max(len(self._index), 1)
        depth = min(self._settings.hits * self._size + SPARE, total)
        results: list[Hits] = [[] for _ in qids]
        open_queries = list(range(len(qids)))
        while open_queries:
            scores, rows = self._index.search(queries[open_queries], depth)
            unfinished = []
            for i, query in enumerate(open_queries):
                results[query], deeper = self._hits(qids[query], scores[i], rows[i], depth)
                if deeper:
                    unfinished.append(query)
            open_queries, depth = unfinished, min(4 * depth, total)
        return results

    def _untied(self, hits: Hits) -> Hits:
        return hits if self._settings.ties is Ties.KEEP else without_ties(hits)
