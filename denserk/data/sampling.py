"""Which queries, positives and negatives a visit uses: pure functions of seed, item and epoch.

A visit is one query (an item: its number in the prepared data) in one epoch. Nothing here knows of
batches, ranks or workers, so that none of them can change what is drawn. Randomness comes from a
counter: `random_words` hashes (seed, purpose, item, epoch, number) to 64 bits, and a shuffle is the
order of such words.
"""

from collections.abc import Iterable
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from denserk.settings.training import FillNegatives, NegativeChoice, PositiveChoice

Items = NDArray[np.int64]
Words = NDArray[np.uint64]
R = TypeVar("R")

BLOCK = 4096
"""Records of a stream whose words are drawn at once."""

STEP = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
MAX_WORD = np.uint64(0xFFFFFFFFFFFFFFFF)


class Purpose(IntEnum):
    """What a random word is for; different purposes never share one."""

    SUBSET = 1
    ORDER = 2
    POSITIVE = 3
    WINDOW = 4
    SHUFFLE = 5
    REPLACEMENT = 6
    STRANGER = 7
    BLOCK = 8
    SPANS = 9
    MASKING = 16
    """And all numbers above it."""


def _mix(words: Words) -> Words:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * FACTORS[1]
    return words ^ (words >> np.uint64(31))


def random_words(seed: int, purpose: int, items: Items, epoch: int, width: int) -> Words:
    """Random words of visits: (B,) items -> (B, width).

    >>> random_words(42, Purpose.ORDER, np.array([7]), 0, 2).tolist()
    [[4110593793985678374, 9864490034784049988]]
    """
    state = _mix(np.array([seed % 2**64], dtype=np.uint64) + STEP)
    for part in (np.array([purpose]), items, np.array([epoch])):
        state = _mix(state + (part.astype(np.uint64) + np.uint64(1)) * STEP)
    numbers = np.arange(1, width + 1, dtype=np.uint64)
    return _mix(state[:, None] + numbers * STEP)


def choose_items(items: Items, count: int, seed: int) -> Items:
    """A random choice of `count` items, ascending; at equal seed a smaller one lies in a larger.

    >>> small, large = (choose_items(np.arange(100), count, seed=1) for count in (10, 20))
    >>> len(small), set(small) <= set(large)
    (10, True)
    """
    drawn = random_words(seed, Purpose.SUBSET, items, 0, 1)[:, 0]
    return np.sort(items[np.argsort(drawn, kind="stable")[:count]])


def choose_records(records: Iterable[R], count: int, seed: int) -> list[R]:
    """What `choose_items` chooses of a stream's records, in their order.

    Only the choice is held in memory.

    >>> choose_records("abcdefghij", 3, seed=1)
    ['f', 'h', 'j']
    >>> choose_items(np.arange(10), 3, seed=1).tolist()
    [5, 7, 9]
    """
    stream, start = iter(records), 0
    kept: list[tuple[int, int, R]] = []  # a heap, the first to go at its top
    while block := list(islice(stream, BLOCK)):
        numbers = np.arange(start, start + len(block))
        drawn = random_words(seed, Purpose.SUBSET, numbers, 0, 1)[:, 0]
        for number, word, record in zip(numbers.tolist(), drawn.tolist(), block, strict=True):
            heappush(kept, (-word, -number, record))
            if len(kept) > count:
                heappop(kept)
        start += len(block)
    return [record for _, _, record in sorted(kept, key=lambda entry: -entry[1])]


def order_items(items: Items, seed: int, epoch: int) -> Items:
    """The items in the order of an epoch."""
    drawn = random_words(seed, Purpose.ORDER, items, epoch, 1)[:, 0]
    return items[np.argsort(drawn, kind="stable")]


def choose_positives(
    choice: PositiveChoice, counts: Items, items: Items, seed: int, epoch: int
) -> Items:
    """The positive of each visit, as a position in the item's list.

    Args:
        choice: the law.
        counts: (B,) how many positives each item has, at least 1.
        items: (B,).
        seed: of the run.
        epoch: from 0.

    >>> two = np.array([3, 3])
    >>> choose_positives(PositiveChoice.ROTATE, two, np.array([0, 1]), seed=42, epoch=1).tolist()
    [1, 2]
    """
    if choice is PositiveChoice.FIRST:
        return np.zeros_like(items)
    if choice is PositiveChoice.ROTATE:
        return (items + seed + epoch) % counts
    drawn = random_words(seed, Purpose.POSITIVE, items, epoch, 1)[:, 0]
    return (drawn % counts.astype(np.uint64)).astype(np.int64)


def choose_negatives(
    choice: NegativeChoice,
    counts: Items,
    items: Items,
    seed: int,
    epoch: int,
    wanted: int,
    fill: FillNegatives = FillNegatives.MASK,
) -> Items:
    """The negatives of each visit: (B, wanted) positions in the item's list, -1 for none.

    An item with fewer than `wanted` uses all of them, or draws with replacement, whatever the law.
    A window starts at (epoch * wanted) modulo the item's count and wraps round.

    Args:
        choice: the law.
        counts: (B,) how many negatives each item may choose from, at least 1.
        items: (B,).
        seed: of the run.
        epoch: from 0.
        wanted: negatives of a visit.
        fill: what an item with fewer has in their place.

    >>> one = np.array([9]), np.array([0])
    >>> visits = [choose_negatives(NegativeChoice.WINDOW, *one, 42, epoch, 3) for epoch in range(3)]
    >>> sorted(np.concatenate(visits, axis=None).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    columns = np.broadcast_to(np.arange(wanted), (len(items), wanted))
    if choice is NegativeChoice.TOP:
        chosen = columns
    else:
        if choice is NegativeChoice.WINDOW:
            columns = (epoch * wanted + columns) % counts[:, None]
        width = max(int(counts.max(initial=0)), wanted)
        shuffled = _shuffled(choice, counts, items, seed, epoch, width)
        chosen = np.take_along_axis(shuffled, columns, axis=1)
    short = counts < wanted
    if short.any():
        if fill is FillNegatives.REPEAT:
            drawn = random_words(seed, Purpose.REPLACEMENT, items, epoch, wanted)
            filled = (drawn % counts.astype(np.uint64)[:, None]).astype(np.int64)
        else:
            places = np.arange(wanted)
            filled = np.where(places < counts[:, None], places, -1)
        chosen = np.where(short[:, None], filled, chosen)
    return chosen


def _shuffled(
    choice: NegativeChoice, counts: Items, items: Items, seed: int, epoch: int, width: int
) -> Items:
    """(B, width) positions, those of each item in random order at its start."""
    if choice is NegativeChoice.WINDOW:
        words = random_words(0, Purpose.WINDOW, items + seed, 0, width)
    else:
        words = random_words(seed, Purpose.SHUFFLE, items, epoch, width)
    words[np.arange(width) >= counts[:, None]] = MAX_WORD
    order: Items = np.argsort(words, axis=1, kind="stable")
    return order


def choose_strangers(
    population: int, positives: Items, item: int, seed: int, epoch: int, wanted: int
) -> Items:
    """Rows of random passages for an item without negatives; its own positives are not among them.

    Args:
        population: rows there are, more than the item's positives.
        positives: the rows of the item's positives.
        item: the item.
        seed: of the run.
        epoch: from 0.
        wanted: negatives of a visit.

    Returns:
        (wanted,) rows, drawn with replacement.

    >>> choose_strangers(3, np.array([0, 2]), 5, seed=42, epoch=0, wanted=2).tolist()
    [1, 1]
    """
    own = np.unique(positives)
    words = random_words(seed, Purpose.STRANGER, np.array([item]), epoch, wanted)[0]
    rows: Items = (words % np.uint64(population - len(own))).astype(np.int64)
    for row in own:  # ascending, so each shift past a positive is final
        rows += rows >= row
    return rows
