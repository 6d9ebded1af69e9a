"""Hits: the interface of the engines that find them, their order, and the best hits of a scan.

Hits are ordered by score descending, then by row ascending.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.errors import UsageError

Vectors = NDArray[np.float32]  # (N, D)
Scores = NDArray[np.float32]  # (B, K), higher is closer, descending; -inf where there is no hit
Rows = NDArray[np.int64]  # (B, K), numbers of the rows of an index; -1 where there is no hit
# Of any shape: the score's bits, inverted so that high scores sort first, above 32 bits of row
Keys = NDArray[np.uint64]

NO_HIT = np.uint64(2**64 - 1)  # sorts behind every hit
MOST_ROWS = 2**32 - 1  # rows that fit into a key
HELD, SPARE = 4, 4096  # keys that BestHits holds for each hit that is wanted, and beside them
_SIGN, _LARGEST = np.uint32(31), np.uint32(0x7FFF_FFFF)
_HALF = np.uint64(32)


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
    """An open index, whose rows count from 0.

    Queries are (B, D) vectors, or an array of B texts for a BM25 index.
    """

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row is compared: a deeper search then only adds hits."""

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded.

        Which of those tied at the cut are returned depends on the engine.
        """

    def __len__(self) -> int:
        """Number of rows."""


class VectorIndex(SearchableIndex, Protocol):
    """An open index of vectors."""

    @property
    def dimension(self) -> int:
        """D, of vectors and queries."""


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


def check_rows(count: int) -> None:
    """Raise a UsageError for more vectors than rows fit into keys."""
    if count > MOST_ROWS:
        raise UsageError(
            f"{count:,} vectors: an exact search takes at most {MOST_ROWS:,}",
            "search the shards in several runs, then merge the runs with "
            "denserk fuse --method linear --normalization none",
        )


def hit_keys(scores: NDArray[np.float32], rows: NDArray[np.integer]) -> Keys:
    """Return the keys of hits.

    >>> keys = np.sort(hit_keys(np.float32([1, -2, 3, 1]), np.array([7, 0, 1, 5])))
    >>> [part.tolist() for part in hits_of(keys)]
    [[3.0, 1.0, 1.0, -2.0], [1, 5, 7, 0]]
    """
    if rows.size and int(rows.max()) >= MOST_ROWS:
        raise OverflowError(f"row {rows.max():,} does not fit into a key")
    bits = (scores + np.float32(0)).view(np.uint32)  # adding 0 makes -0 and 0 one
    falling = np.where(bits >> _SIGN, bits, _LARGEST - bits).astype(np.uint64)
    return (falling << _HALF) | rows.astype(np.uint64)


def hits_of(keys: Keys) -> tuple[Scores, Rows]:
    """Return scores and rows of keys; -inf and -1 where there is no hit."""
    missing = keys == NO_HIT
    rows = (keys & np.uint64(MOST_ROWS)).astype(np.int64)
    rows[missing] = -1
    scores = scores_of(keys)
    scores[missing] = -np.inf
    return scores, rows


def scores_of(keys: Keys) -> Scores:
    """Return the scores of keys; NaN where there is no hit."""
    falling = (keys >> _HALF).astype(np.uint32)
    return np.where(falling >> _SIGN, falling, _LARGEST - falling).view(np.float32)


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
