"""What a search holds on to: rows that may be among a query's best, and how good they must be."""

import numpy as np
from numpy.typing import NDArray

from denserk.index.hit_keys import NO_HIT, Keys, hit_keys, scores_of

Queries = NDArray[np.uint16]
"""Which query of the batch a hit belongs to."""
MOST_QUERIES = 2**16
HELD = 4
"""Hits held for each one asked for, before the worst are let go."""
SPARE = 4096
"""As many more."""


class Candidates:
    """Hits of a batch of queries, each at least as good as its query's floor.

    A floor is a score that hits must reach. Once more hits are held than there is room for, it
    rises to the score of the worst hit that can still be among the best `depth`.

    Args:
        floors: (B,) float32, where to begin; belongs to this object from then on.
        depth: hits wanted of a query.
        passage_size: how many neighbouring rows are one passage, of which the best row counts.
    """

    def __init__(self, floors: NDArray[np.float32], depth: int, passage_size: int = 1) -> None:
        self.floors = floors
        self._depth, self._size = depth, passage_size
        self._queries: list[Queries] = []
        self._keys: list[Keys] = []
        self._held = 0
        self._room = HELD * depth * passage_size * len(floors) + SPARE

    def add(
        self, queries: NDArray[np.integer], rows: NDArray[np.integer], scores: NDArray[np.float32]
    ) -> None:
        """Takes (P,) hits; those below their query's floor are let go."""
        good = np.flatnonzero(scores >= self.floors[queries])
        self._queries.append(queries[good].astype(np.uint16))
        self._keys.append(hit_keys(scores[good], rows[good]))
        self._held += len(good)
        if self._held > self._room:
            self._let_go()

    def absorb(self, other: "Candidates") -> None:
        """Takes the hits of another part of the rows, and the higher of the two floors."""
        np.maximum(self.floors, other.floors, out=self.floors)
        self._queries += other._queries
        self._keys += other._keys
        self._held += other._held

    def finish(self) -> tuple[Keys, list[int]]:
        """The best keys, and the queries whose floor was too high: fewer than `depth` reached it.

        Returns:
            (B, depth) sorted keys, filled up with NO_HIT, and numbers of queries.
        """
        best = self.best()
        missing = self._depth - best.shape[1]
        best = np.pad(best, ((0, 0), (0, max(missing, 0))), constant_values=NO_HIT)
        # what another part let go may have reached this part's lower floor, but no higher one
        below = np.flatnonzero((best[:, -1] == NO_HIT) | ~(scores_of(best[:, -1]) >= self.floors))
        return best, below.tolist()

    def best(self) -> Keys:
        """(B, K) sorted keys, K at most the depth; NO_HIT where a query has fewer hits.

        Of a passage's rows the best one stands for it, the lowest of equals.
        """
        table = self._table()
        if self._size > 1:
            table = np.stack([self._of_each_passage(line) for line in table])
        return table[:, : self._depth]

    def _table(self) -> Keys:
        """(B, W) sorted keys, filled up with NO_HIT."""
        count = len(self.floors)
        queries = np.concatenate([np.empty(0, np.uint16), *self._queries])
        keys = np.concatenate([np.empty(0, np.uint64), *self._keys])
        order = np.argsort(queries, kind="stable")
        sizes = np.bincount(queries, minlength=count)
        table = np.full((count, int(sizes.max(initial=0))), NO_HIT)
        table[np.arange(table.shape[1]) < sizes[:, None]] = keys[order]
        table.sort(axis=1)
        return table

    def _of_each_passage(self, line: Keys) -> Keys:
        """The first key of each passage, in order; as many as there are, then NO_HIT."""
        found = line[line != NO_HIT]
        passages = (found & np.uint64(2**32 - 1)) // np.uint64(self._size)
        firsts = np.sort(np.unique(passages, return_index=True)[1])
        best = np.full_like(line, NO_HIT)
        best[: len(firsts)] = found[firsts]
        return best

    def _let_go(self) -> None:
        """Raises each floor to its query's worst hit that still counts, and drops what is below."""
        best = self.best()
        if best.shape[1] >= self._depth:
            last = best[:, self._depth - 1]
            reached = last != NO_HIT
            self.floors[reached] = np.maximum(self.floors, scores_of(last))[reached]
        filled = best != NO_HIT
        queries = np.broadcast_to(np.arange(len(best), dtype=np.uint16)[:, None], best.shape)
        self._queries, self._keys = [queries[filled]], [best[filled]]
        self._held = len(self._keys[0])
