"""How the sentences of a document make blocks and spans: pure functions of their lengths."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from denserk.data.masking import shares

LOWER = np.uint64(32)


def block_limits(draws: NDArray[np.uint64], target: int, short: float) -> NDArray[np.int64]:
    """The longest that each block may be: the target, or, for a share of them, anything below.

    Args:
        draws: (N,) random words.
        target: pieces of a whole block.
        short: share of the blocks whose limit is drawn from 1 to the target.
    """
    # the upper bits say whether, the lower half how long
    lengths = (((draws & np.uint64(2**32 - 1)) * np.uint64(target)) >> LOWER).astype(np.int64) + 1
    return np.where(shares(draws) <= short, lengths, target)


def pack(lengths: Sequence[int], limits: Iterable[int]) -> list[int]:
    """Sentences -> blocks, as Condenser packs them: the pieces of each block.

    A sentence that would take a block past its limit begins the next block; one that is longer
    than a limit is a block of its own. The last block is what is left.

    >>> pack([5, 7, 3, 9, 2], [12, 12, 12]), pack([20, 3, 1], [12, 12])
    ([12, 12, 2], [20, 4])
    """
    room = iter(limits)
    blocks: list[int] = []
    filled = limit = 0
    for length in lengths:
        if filled and filled + length > limit:
            blocks.append(filled)
            filled = 0
        if not filled:
            limit = next(room) if length else limit
        filled += length
    return [*blocks, filled] if filled else blocks


def windows(length: int, size: int) -> list[int]:
    """A text cut into windows: the pieces of each.

    >>> windows(7, 3)
    [3, 3, 1]
    """
    return [min(size, length - start) for start in range(0, length, size)]
