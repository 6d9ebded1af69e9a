"""A hit as one whole number: sorting numbers orders hits by score descending, row ascending."""

import numpy as np
from numpy.typing import NDArray

from denserk.index.vector_index import Rows, Scores

Keys = NDArray[np.uint64]
"""Of any shape: the score's bits, flipped so that they fall, above 32 bits of row."""

NO_HIT = np.uint64(2**64 - 1)
"""Sorts behind every hit."""
MOST_ROWS = 2**32 - 1
"""Rows that fit into a key."""
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
