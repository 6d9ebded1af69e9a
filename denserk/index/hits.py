"""Hits in one order: score descending, row ascending. A hit is one integer key, sorted as such."""

import numpy as np
from numpy.typing import NDArray

from denserk.index.vector_index import Rows, Scores

# Of any shape: the score's bits, inverted so that high scores sort first, above 32 bits of row
Keys = NDArray[np.uint64]

NO_HIT = np.uint64(2**64 - 1)  # sorts behind every hit
MOST_ROWS = 2**32 - 1  # rows that fit into a key
HELD, SPARE = 4, 4096  # keys that BestHits holds for each hit that is wanted, and beside them
_SIGN, _LARGEST = np.uint32(31), np.uint32(0x7FFF_FFFF)
_HALF = np.uint64(32)


def hit_keys(scores: NDArray[np.float32], rows: NDArray[np.integer]) -> Keys:
    """The keys of hits; a negative row is no hit.

    >>> keys = np.sort(hit_keys(np.float32([1, -2, 3, 1]), np.array([7, 0, 1, 5])))
    >>> [part.tolist() for part in hits_of(keys)]
    [[3.0, 1.0, 1.0, -2.0], [1, 5, 7, 0]]
    """
    bits = (scores + np.float32(0)).view(np.uint32)  # adding 0 makes -0 and 0 one
    falling = np.where(bits >> _SIGN, bits, _LARGEST - bits).astype(np.uint64)
    keys = (falling << _HALF) | rows.astype(np.uint64)
    return np.where(rows < 0, NO_HIT, keys)


def hits_of(keys: Keys) -> tuple[Scores, Rows]:
    """Scores and rows of keys; -inf and -1 where there is no hit."""
    missing = keys == NO_HIT
    rows = (keys & np.uint64(MOST_ROWS)).astype(np.int64)
    rows[missing] = -1
    scores = scores_of(keys)
    scores[missing] = -np.inf
    return scores, rows


def scores_of(keys: Keys) -> Scores:
    """Scores of keys; NaN where there is no hit."""
    falling = (keys >> _HALF).astype(np.uint32)
    return np.where(falling >> _SIGN, falling, _LARGEST - falling).view(np.float32)


def in_order(scores: Scores, rows: Rows) -> tuple[Scores, Rows]:
    """(B, K) hits in the order of a result: score descending, row ascending; no hits stand last.

    >>> found = in_order(np.float32([[1, 2, 1]]), np.array([[4, 0, 3]]))
    >>> [part.tolist() for part in found]
    [[[2.0, 1.0, 1.0]], [[0, 3, 4]]]
    """
    return hits_of(np.sort(hit_keys(scores, rows), axis=1))


class BestHits:
    """The best hits of a batch of queries so far, and the floors that new ones must reach.

    When more hits are held than there is room for, floors rise to the worst hit that still counts.

    Args:
        floors: (B,) float32; changed in place.
        depth: hits wanted of a query.
    """

    def __init__(self, floors: NDArray[np.float32], depth: int) -> None:
        self.floors, self._depth = floors, depth
        self._type = np.min_scalar_type(len(floors))  # narrow integers are sorted by radix
        self._queries: list[NDArray[np.unsignedinteger]] = []
        self._keys: list[Keys] = []
        self._held, self._room = 0, HELD * depth * len(floors) + SPARE

    def add(self, queries: Rows, rows: Rows, scores: Scores) -> None:
        """Take (P,) hits; those below their query's floor are dropped."""
        good = np.flatnonzero(scores >= self.floors[queries])
        self._queries.append(queries[good].astype(self._type))
        self._keys.append(hit_keys(scores[good], rows[good]))
        self._held += len(good)
        if self._held > self._room:
            table = self.table()
            worst = table[:, -1]
            full = worst != NO_HIT
            self.floors[full] = np.maximum(self.floors[full], scores_of(worst[full]))
            filled = table != NO_HIT
            self._queries, self._keys = [np.nonzero(filled)[0].astype(self._type)], [table[filled]]
            self._held = len(self._keys[0])

    def table(self) -> Keys:
        """(B, depth) sorted keys, NO_HIT where a query has fewer hits."""
        queries = np.concatenate([np.empty(0, self._type), *self._queries])
        order = np.argsort(queries, kind="stable")
        sizes = np.bincount(queries, minlength=len(self.floors))
        table = np.full((len(self.floors), max(int(sizes.max()), self._depth)), NO_HIT)
        keys = np.concatenate([np.empty(0, np.uint64), *self._keys])
        table[np.arange(table.shape[1]) < sizes[:, None]] = keys[order]
        table.sort(axis=1)
        return table[:, : self._depth]
