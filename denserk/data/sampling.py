"""Random choices of training: functions of seed, item and epoch, never of batch, rank or worker.

A visit is one item (its number in the prepared data) in one epoch.
"""

from collections.abc import Iterable
from enum import IntEnum
from heapq import nsmallest
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from denserk.config.training import FillNegatives, NegativeChoice, PositiveChoice, SamplingSettings

Items = NDArray[np.int64]
R = TypeVar("R")


class Purpose(IntEnum):
    """What a random number is for; different purposes never share one."""

    SUBSET = 1
    ORDER = 2
    POSITIVE = 3
    WINDOW = 4
    SHUFFLE = 5
    REPLACEMENT = 6
    RANDOM_PASSAGE = 7
    BLOCK = 8
    SPANS = 9
    MASKING = 16  # and all numbers above it


def generator(seed: int, purpose: int, *parts: int) -> np.random.Generator:
    """Return the random generator of a purpose and, for example, an item and an epoch."""
    return np.random.default_rng([part % 2**64 for part in (seed, purpose, *parts)])


def keyed_uniform(key: np.random.Generator, rows: Items, count: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1): (B,) -> (B, count).

    Those of a row follow from the generator's state and the row's number alone, and the first ones
    of a row are the same for every `count`. They are made by the finaliser of SplitMix64.
    """
    start = _mixed(rows.astype(np.uint64) + key.integers(2**64, size=1, dtype=np.uint64))
    offsets = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = _mixed(start[:, None] + offsets) >> np.uint64(11)
    return bits.astype(np.float64) / 2**53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def choose_records(records: Iterable[R], count: int, seed: int) -> list[R]:
    """Choose `count` records of a stream, in order; only the choice is held in memory.

    With the same seed a smaller choice lies in a larger.
    """
    draw = generator(seed, Purpose.SUBSET).random
    drawn = ((draw(), number, record) for number, record in enumerate(records))
    chosen = nsmallest(count, drawn, key=itemgetter(0, 1))
    return [record for _, _, record in sorted(chosen, key=itemgetter(1))]


def choose_positive(sampling: SamplingSettings, count: int, item: int, epoch: int) -> int:
    """Choose the positive of a visit: its place among the item's `count` positives."""
    match sampling.positive:
        case PositiveChoice.FIRST:
            return 0
        case PositiveChoice.ROTATE:
            return (item + sampling.seed + epoch) % count
        case PositiveChoice.RANDOM:
            draw = generator(sampling.seed, Purpose.POSITIVE, item, epoch)
            return int(draw.integers(count))


def choose_negatives(sampling: SamplingSettings, count: int, item: int, epoch: int) -> Items:
    """Choose the negatives of a visit: places among the item's `count`, -1 for a missing one.

    An item with fewer than `group_size` - 1 uses all of them, or draws with replacement, whatever
    the choice. A window starts at (epoch * (`group_size` - 1)) modulo `count` and wraps round.
    """
    size = sampling.group_size - 1
    seed = sampling.seed
    first_places = np.arange(size)
    if count < size:
        if sampling.fill_negatives is FillNegatives.REPEAT:
            return generator(seed, Purpose.REPLACEMENT, item, epoch).integers(count, size=size)
        return np.where(first_places < count, first_places, -1)
    match sampling.negative:
        case NegativeChoice.TOP:
            return first_places
        case NegativeChoice.SHUFFLE:
            return generator(seed, Purpose.SHUFFLE, item, epoch).permutation(count)[:size]
        case NegativeChoice.WINDOW:
            shuffled = generator(item + seed, Purpose.WINDOW).permutation(count)
            return shuffled[(epoch * size + first_places) % count]


def choose_random_passages(
    sampling: SamplingSettings, population: int, positives: Items, item: int, epoch: int
) -> Items:
    """Draw random negatives for an item without negatives: (group_size - 1,) rows of passages.

    They are drawn with replacement among `population` passages, never one of the item's positives.
    """
    positive_rows = np.unique(positives)
    draw = generator(sampling.seed, Purpose.RANDOM_PASSAGE, item, epoch)
    rows = draw.integers(population - len(positive_rows), size=sampling.group_size - 1)
    for positive_row in positive_rows:  # ascending, so each shift past a positive is final
        rows += rows >= positive_row
    return rows
