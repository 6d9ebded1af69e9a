"""Poolings and normalisation in NumPy: the vectors that `representation` computes in torch.

torch is slow to import, and one query needs none of it. Sums are added in the order in which torch
adds them, so that vectors are equal byte by byte. Whether they are depends on torch's build: what
relies on it compares some vectors first (`compiled_queries.keep`).

`hidden`: (B, T, H) float32. `mask`: (B, T) bool, True = a real token.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]

# All of these are torch's own, of its sums and norms on a CPU
LEVELS = 4  # of partial sums
LEAST_POWER = 4  # a partial sum has at least 2 ** 4 terms
WIDTH = 32  # dimensions that are added at once
STRIDE = 4  # sums of the tokens of the other dimensions
LANES = 8  # partial sums of a norm
LEAST_NORM = 1e-12  # as `torch.nn.functional.normalize` has it


def pool_cls(hidden: Array, mask: Mask) -> Array:
    """Return the state of position 0: (B, T, H) -> (B, H)."""
    states: Array = hidden[:, 0]
    return states


def pool_mean(hidden: Array, mask: Mask) -> Array:
    """Return the mean over real tokens: (B, T, H) -> (B, H)."""
    is_real = mask[:, :, None]
    total = sum_of_tokens(np.where(is_real, hidden, np.float32(0)))
    count = np.maximum(is_real.sum(axis=1), 1).astype(np.float32)
    mean: Array = total / count
    return mean


def pool_max(hidden: Array, mask: Mask) -> Array:
    """Return the maximum over real tokens, one dimension at a time: (B, T, H) -> (B, H)."""
    largest: Array = np.where(mask[:, :, None], hidden, np.float32(-np.inf)).max(axis=1)
    return largest


def pool_last(hidden: Array, mask: Mask) -> Array:
    """Return the state of the last real token: (B, T, H) -> (B, H)."""
    last_positions = (mask * np.arange(mask.shape[1])).argmax(axis=1)
    states: Array = hidden[np.arange(len(hidden)), last_positions]
    return states


POOLINGS: dict[str, Callable[[Array, Mask], Array]] = {
    "cls": pool_cls,
    "mean": pool_mean,
    "max": pool_max,
    "last": pool_last,
}


def sum_of_tokens(hidden: Array) -> Array:
    """Add up the tokens' states in torch's order: (B, T, H) -> (B, H).

    The last dimensions, which do not fill torch's registers, are added in another order: four sums
    of every fourth token, and then the tokens that are left.

    >>> sum_of_tokens(np.ones((1, 40, 2), np.float32)).tolist()
    [[40.0, 40.0]]
    """
    count, _, size = hidden.shape
    wide = size - size % WIDTH
    total = np.empty((count, size), np.float32)
    total[:, :wide] = _sum_in_levels(hidden[:, :, :wide])
    if wide < size:
        total[:, wide:] = _sum_in_strides(hidden[:, :, wide:])
    return total


def _sum_in_strides(hidden: Array) -> Array:
    """Add up every fourth token's states, these sums, and the tokens that are left over.

    (B, T, H) -> (B, H).
    """
    tokens = hidden.shape[1]
    end = tokens - tokens % STRIDE  # of the tokens that the strides have
    total = _sum_in_levels(hidden[:, 0:end:STRIDE])
    later_sums = [_sum_in_levels(hidden[:, start:end:STRIDE]) for start in range(1, STRIDE)]
    for token in range(end, tokens):
        total += hidden[:, token]
    for later_sum in later_sums:
        total += later_sum
    return total


def _sum_in_levels(hidden: Array) -> Array:
    """Add up the tokens' states: (B, T, H) -> (B, H).

    Each 2 ** power tokens are a partial sum of the first level, so many of these one of the second.
    """
    count, tokens, size = hidden.shape
    power = max(LEAST_POWER, max(tokens - 1, 0).bit_length() // LEVELS)
    step = 1 << power
    sums = np.zeros((LEVELS, count, size), np.float32)
    end = tokens - tokens % step  # of the last whole step
    for start in range(0, end, step):
        for token in range(start, start + step):
            sums[0] += hidden[:, token]
        _carry(sums, start + step, power)
    for token in range(end, tokens):
        sums[0] += hidden[:, token]
    for level in range(1, LEVELS):
        sums[0] += sums[level]
    total: Array = sums[0]
    return total


def _carry(sums: NDArray[Any], tokens: int, power: int) -> None:
    """Add the sums of a level that is full to those of the next; so many tokens are added."""
    for level in range(1, LEVELS):
        sums[level] += sums[level - 1]
        sums[level - 1] = 0
        # `tokens` has a digit for each level, in base 2 ** power: where it is 0, the level is full
        if tokens & (((1 << power) - 1) << (level * power)):
            return


def l2_normalised(vectors: Array) -> Array:
    """Return (B, D) vectors, L2-normalised; zero stays zero."""
    lengths = np.maximum(_norms(vectors), np.float32(LEAST_NORM))
    normalised: Array = np.divide(vectors, lengths[:, None])
    return normalised


def _norms(vectors: Array) -> Array:
    """Return the (B,) lengths of (B, D) vectors, squares added in torch's order.

    >>> _norms(np.float32([[3, 4]])).tolist()
    [5.0]
    """
    squares: Array = vectors * vectors
    count, dimension = squares.shape
    end = dimension - dimension % LANES
    lanes = np.zeros((count, LANES), np.float32)
    for start in range(0, end, LANES):
        lanes += squares[:, start : start + LANES]
    total: Array = lanes[:, 0].copy()
    for lane in range(1, LANES):
        total += lanes[:, lane]
    for column in range(end, dimension):
        total += squares[:, column]
    lengths: Array = np.sqrt(total)
    return lengths
