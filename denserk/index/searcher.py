"""Queries x index -> ranked passages: names for rows, one order, a depth that is deep enough."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.formats.names import Names
from denserk.index.index_folder import PART, PassageIds
from denserk.index.shard_ids import ShardIds
from denserk.index.vector_index import Rows, Scores, SearchableIndex
from denserk.records import best_first
from denserk.settings.retrieval import RankingSettings, SearchSettings, Ties

logger = logging.getLogger(__name__)

Hits = list[tuple[str, float]]
"""(passage id, score), best first."""
Ids = Names | Sequence[str]
"""Passage ids, mapped from a file where they are, or strings."""
Ranked = tuple[Ids, Scores]
"""K passage ids and their (K,) scores, best first."""

SPARE = 8
"""Hits fetched beyond those asked for, so that a tie at the cut is seen."""


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


def ordered(
    docids: Sequence[str],
    scores: Sequence[float],
    settings: RankingSettings,
    ties: TieCount | None = None,
) -> Hits:
    """A query's scored passages as the run has them: best first, equal scores by descending id.

    Args:
        docids: K passages.
        scores: K scores.
        settings: depth, documents, ties.
        ties: counts the hits whose scores are equal.

    >>> ordered(["d1", "d2", "d3"], [1.0, 1.0, 5.0], RankingSettings(hits=2))
    [('d3', 5.0), ('d2', 1.0)]
    """
    names: Sequence[str] = docids
    if settings.max_passage:
        names = [docid.partition(settings.max_passage_delimiter)[0] for docid in docids]
    best: dict[str, float] = {}
    for name, score in best_first(zip(names, scores, strict=True)):
        best.setdefault(name, score)
    hits = list(islice(best.items(), settings.kept))
    if ties is not None:
        ties.add(np.array([score for _, score in hits]))
    return hits if settings.ties is Ties.KEEP else without_ties(hits)


class Searcher:
    """Searches an index and names what it finds.

    Equal scores are ordered by descending id, also at the cut: an index that compares every row is
    searched deeper until the last score fetched lies below the last one kept. The same deepening
    finds enough passages where several rows share one.

    Args:
        index: an open index.
        ids: the id of each row.
        settings: depth, filters, ties.
        vectors_per_passage: how many neighbouring rows are one passage; above 1, ids end in "#"
            and a number.
        engine_order: keep the engine's own order of equal scores.

    Attributes:
        ties: equal scores among the hits so far.
    """

    def __init__(
        self,
        index: SearchableIndex,
        ids: Sequence[str],
        settings: SearchSettings,
        vectors_per_passage: int = 1,
        *,
        engine_order: bool = False,
    ) -> None:
        self._index, self._ids, self._settings = index, ids, settings
        self._size, self._engine_order = vectors_per_passage, engine_order
        self.ties = TieCount("as the engine orders them") if engine_order else TieCount()

    def search(self, qids: Sequence[str], queries: NDArray[Any]) -> Iterator[tuple[str, Hits]]:
        """Yields (query id, its hits) in the order of the queries.

        Args:
            qids: B query ids.
            queries: (B, D) vectors, or an array of B texts for a BM25 index.
        """
        for qid, docids, scores in self.ranked(qids, queries):
            yield qid, list(zip(docids, scores.tolist(), strict=True))

    def ranked(
        self, qids: Sequence[str], queries: NDArray[Any]
    ) -> Iterator[tuple[str, Sequence[str], Scores]]:
        """Yield (query id, K passage ids, (K,) scores)."""
        for first in range(0, len(qids), self._settings.query_batch):
            batch = slice(first, first + self._settings.query_batch)
            answers = self._batch(qids[batch], queries[batch])
            for qid, (names, scores) in zip(qids[batch], answers, strict=True):
                self.ties.add(scores)
                if self._settings.ties is not Ties.KEEP:
                    scores = strictly_decreasing(scores)
                yield qid, names.strings() if isinstance(names, Names) else names, scores

    def _batch(self, qids: Sequence[str], queries: NDArray[Any]) -> list[Ranked]:
        total = max(len(self._index), 1)
        depth = min(self._settings.hits * self._size + SPARE, total)
        results: list[Ranked] = [([], np.empty(0, np.float32)) for _ in qids]
        open_queries = list(range(len(qids)))
        while open_queries:
            scores, rows = self._index.search(queries[open_queries], depth)
            unfinished = []
            for i, query in enumerate(open_queries):
                results[query], deeper = self._answer(qids[query], scores[i], rows[i], depth)
                if deeper:
                    unfinished.append(query)
            open_queries, depth = unfinished, min(4 * depth, total)
        return results

    def _answer(self, qid: str, scores: Scores, rows: Rows, depth: int) -> tuple[Ranked, bool]:
        """The ordered hits of one query, and whether a deeper search could change them."""
        valid = int((rows >= 0).sum())
        scores, rows = scores[:valid], rows[:valid]
        name = self._renamed if self._settings.remove_query or self._settings.max_passage else None
        names, found = name(qid, scores, rows) if name else self._named(scores, rows)
        wanted = self._settings.kept
        names = names.at(slice(wanted)) if isinstance(names, Names) else names[:wanted]
        found = found[:wanted]
        ran_out = valid < depth or depth >= len(self._index)
        short = len(found) < wanted
        tied = not short and self._index.is_exhaustive and bool(found[-1] == scores[-1])
        return (names, found), (short or tied) and not ran_out

    def _named(self, scores: Scores, rows: Rows) -> Ranked:
        """Every hit by its passage's id, once each, equal scores by descending id."""
        if self._size > 1:
            firsts = np.sort(np.unique(rows // self._size, return_index=True)[1])
            scores, rows = scores[firsts], rows[firsts]
        tied = np.flatnonzero(scores[1:] == scores[:-1])
        if len(tied) and not self._engine_order:
            tied = np.union1d(tied, tied + 1)
            names = self._ids_of(rows[tied])
            strings = names.strings() if isinstance(names, Names) else names
            keys = list(zip(scores[tied].tolist(), strings, strict=True))
            order = sorted(range(len(tied)), key=keys.__getitem__, reverse=True)
            rows = rows.copy()
            rows[tied] = rows[tied[order]]
        return self._ids_of(rows), scores

    def _ids_of(self, rows: Rows) -> Ids:
        """What rows are called in the run."""
        if isinstance(self._ids, ShardIds):
            return self._ids.passages(rows)
        if not isinstance(self._ids, PassageIds):
            names = [self._ids[row] for row in rows.tolist()]
            return [name.rpartition(PART)[0] for name in names] if self._size > 1 else names
        found = self._ids.names(rows)
        if self._size == 1:
            return found
        digits = np.array([len(f"{PART}{part}") for part in range(self._size)])
        return found._replace(ends=found.ends - digits[rows % self._size])

    def _renamed(self, qid: str, scores: Scores, rows: Rows) -> Ranked:
        """The same, where some hits are left out or go by their document's id."""
        found = self._ids_of(rows)
        names: Sequence[str] = found.strings() if isinstance(found, Names) else found
        if self._settings.max_passage:
            names = [name.partition(self._settings.max_passage_delimiter)[0] for name in names]
        best: dict[str, float] = {}
        for name, score in zip(names, scores.tolist(), strict=True):
            if not (self._settings.remove_query and name == qid):
                best.setdefault(name, score)
        hits = list(best.items()) if self._engine_order else best_first(best.items())
        return [name for name, _ in hits], np.array([score for _, score in hits], np.float32)
