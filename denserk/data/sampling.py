"""Random choices of training: functions of seed, item and epoch, never of batch, rank or worker.

A visit is one item (its number in the prepared data) in one epoch.
"""

from collections.abc import Iterable
from enum import IntEnum
from heapq import heappush, heappushpop
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from denserk.config.training import FillNegatives, NegativeChoice, PositiveChoice

Items = NDArray[np.int64]
Words = NDArray[np.uint64]
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


def random_words(seed: int, purpose: int, items: Items, epoch: int, width: int) -> Words:
    """Return random words of visits: (B,) items -> (B, width).

    Philox is counter-based: the key is (seed, purpose), the counter (item, epoch), which is four
    times as fast as a `generator` for every item.
    """
    philox = np.random.Philox(key=np.array([seed % 2**64, purpose], dtype=np.uint64))
    state: Any = philox.state
    words = np.empty((len(items), width), dtype=np.uint64)
    for row, item in enumerate(items.tolist()):
        state["state"]["counter"] = np.array([0, 0, item, epoch], dtype=np.uint64)
        philox.state = state
        words[row] = philox.random_raw(width)
    return words


def choose_items(items: Items, count: int, seed: int) -> Items:
    """Choose `count` items, in order; with the same seed a smaller choice lies in a larger.

    >>> small, large = (choose_items(np.arange(100), count, seed=1) for count in (10, 20))
    >>> len(small), set(small) <= set(large)
    (10, True)
    """
    drawn = generator(seed, Purpose.SUBSET).random(len(items))
    return items[np.sort(np.argsort(drawn, kind="stable")[:count])]


def choose_records(records: Iterable[R], count: int, seed: int) -> list[R]:
    """Choose the records of a stream that `choose_items` chooses by number.

    Only the choice is held in memory.

    >>> numbers = choose_items(np.arange(10), 3, seed=1)
    >>> choose_records("abcdefghij", 3, seed=1) == ["abcdefghij"[n] for n in numbers]
    True
    """
    draw = generator(seed, Purpose.SUBSET).random
    kept: list[tuple[float, int, R]] = []  # a heap, the first to go at its top
    for number, record in enumerate(records):
        entry = (-draw(), -number, record)
        if len(kept) < count:
            heappush(kept, entry)
        elif kept:
            heappushpop(kept, entry)
    return [record for _, _, record in sorted(kept, key=lambda entry: -entry[1])]


def order_items(items: Items, seed: int, epoch: int) -> Items:
    """Return the items in the order of an epoch."""
    order: Items = generator(seed, Purpose.ORDER, epoch).permutation(items)
    return order


def choose_positive(choice: PositiveChoice, count: int, item: int, seed: int, epoch: int) -> int:
    """Choose the positive of a visit: its place among the item's `count` positives.

    >>> [choose_positive(PositiveChoice.ROTATE, 3, item, seed=42, epoch=1) for item in (0, 1)]
    [1, 2]
    """
    if choice is PositiveChoice.FIRST:
        return 0
    if choice is PositiveChoice.ROTATE:
        return (item + seed + epoch) % count
    return int(generator(seed, Purpose.POSITIVE, item, epoch).integers(count))


def choose_negatives(
    choice: NegativeChoice,
    count: int,
    item: int,
    seed: int,
    epoch: int,
    wanted: int,
    fill: FillNegatives = FillNegatives.MASK,
) -> Items:
    """Choose the negatives of a visit: (wanted,) places among the item's, -1 for a missing one.

    An item with fewer than `wanted` uses all of them, or draws with replacement, whatever the
    choice. A window starts at (epoch * wanted) modulo `count` and wraps round.

    >>> visits = [choose_negatives(NegativeChoice.WINDOW, 9, 0, 42, epoch, 3) for epoch in range(3)]
    >>> sorted(np.concatenate(visits).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    places = np.arange(wanted)
    if count < wanted:
        if fill is FillNegatives.REPEAT:
            return generator(seed, Purpose.REPLACEMENT, item, epoch).integers(count, size=wanted)
        return np.where(places < count, places, -1)
    if choice is NegativeChoice.TOP:
        return places
    if choice is NegativeChoice.SHUFFLE:
        return generator(seed, Purpose.SHUFFLE, item, epoch).permutation(count)[:wanted]
    shuffled = generator(item + seed, Purpose.WINDOW).permutation(count)
    return shuffled[(epoch * wanted + places) % count]


def choose_random_passages(
    population: int, positives: Items, item: int, seed: int, epoch: int, wanted: int
) -> Items:
    """Draw random negatives for an item without negatives, never one of its positives.

    Args:
        population: number of passages, more than the item's positives.
        positives: the rows of the item's positives.
        item: the item.
        seed: of the run.
        epoch: from 0.
        wanted: negatives of a visit.

    Returns:
        (wanted,) rows, drawn with replacement.

    >>> choose_random_passages(3, np.array([0, 2]), 5, seed=42, epoch=0, wanted=2).tolist()
    [1, 1]
    """
    own = np.unique(positives)
    draw = generator(seed, Purpose.RANDOM_PASSAGE, item, epoch)
    rows = draw.integers(population - len(own), size=wanted)
    for row in own:  # ascending, so each shift past a positive is final
        rows += rows >= row
    return rows
