"""The laws of drawing, each beside a literal restatement in Python's own integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data import sampling
from denserk.data.sampling import (
    Purpose,
    choose_items,
    choose_negatives,
    choose_positives,
    choose_records,
    choose_strangers,
    order_items,
    random_words,
)
from denserk.settings.training import FillNegatives, NegativeChoice, PositiveChoice

STEP = 0x9E3779B97F4A7C15
SEEDS = st.integers(-(2**40), 2**40)
EPOCHS = st.integers(0, 50)
COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def mix(word):
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def random_word(seed, purpose, item, epoch, number):
    state = mix((seed + STEP) % 2**64)
    for part in (purpose, item, epoch):
        state = mix((state + (part + 1) * STEP) % 2**64)
    return mix((state + (number + 1) * STEP) % 2**64)


def shuffle(count, seed, purpose, item, epoch):
    return sorted(range(count), key=lambda n: random_word(seed, purpose, item, epoch, n))


def positive(choice, count, item, seed, epoch):
    if choice is PositiveChoice.FIRST:
        return 0
    if choice is PositiveChoice.ROTATE:
        return (item + seed + epoch) % count
    return random_word(seed, Purpose.POSITIVE, item, epoch, 0) % count


def negatives(choice, count, item, seed, epoch, wanted, fill=FillNegatives.REPEAT):
    if count < wanted and fill is FillNegatives.MASK:
        return [*range(count), *[-1] * (wanted - count)]
    if count < wanted:
        return [
            random_word(seed, Purpose.REPLACEMENT, item, epoch, n) % count for n in range(wanted)
        ]
    if choice is NegativeChoice.TOP:
        return list(range(wanted))
    if choice is NegativeChoice.SHUFFLE:
        return shuffle(count, seed, Purpose.SHUFFLE, item, epoch)[:wanted]
    offset = epoch * wanted % count
    return (shuffle(count, 0, Purpose.WINDOW, item + seed, 0) * 2)[offset : offset + wanted]


def test_words_are_splitmix64():
    # the first outputs of SplitMix64 seeded with 1234567, as its authors' C code prints them
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + STEP) % 2**64
        outputs.append(mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(SEEDS, st.sampled_from(Purpose), st.integers(0, 2**40), EPOCHS)
def test_words(seed, purpose, item, epoch):
    drawn = random_words(seed, purpose, np.array([item, 0]), epoch, 3)
    expected = [[random_word(seed, purpose, i, epoch, n) for n in range(3)] for i in (item, 0)]
    assert drawn.tolist() == expected


@given(st.sampled_from(PositiveChoice), COUNTS, SEEDS, EPOCHS)
def test_positives(choice, counts, seed, epoch):
    items = np.arange(len(counts)) * 7
    drawn = choose_positives(choice, np.array(counts), items, seed, epoch)
    expected = [
        positive(choice, c, int(i), seed, epoch) for c, i in zip(counts, items, strict=True)
    ]
    assert drawn.tolist() == expected


@given(
    *(st.sampled_from(NegativeChoice), st.sampled_from(FillNegatives)),
    *(COUNTS, st.integers(0, 2**20), EPOCHS, st.integers(0, 8)),
)
def test_negatives(choice, fill, counts, seed, epoch, wanted):
    items = np.arange(len(counts)) * 7
    drawn = choose_negatives(choice, np.array(counts), items, seed, epoch, wanted, fill)
    assert drawn.tolist() == [
        negatives(choice, c, int(i), seed, epoch, wanted, fill)
        for c, i in zip(counts, items, strict=True)
    ]


@given(st.sampled_from(NegativeChoice), COUNTS, EPOCHS, st.integers(1, 8))
def test_no_visit_knows_its_neighbours(choice, counts, epoch, wanted):
    items, lengths = np.arange(len(counts)), np.array(counts)
    together = choose_negatives(choice, lengths, items, 42, epoch, wanted)
    alone = [
        choose_negatives(choice, lengths[i : i + 1], items[i : i + 1], 42, epoch, wanted)[0]
        for i in items
    ]
    np.testing.assert_array_equal(together, alone)


@given(st.integers(1, 9), st.integers(0, 100), SEEDS)
def test_rotation_visits_every_positive_in_turn(count, item, seed):
    counts, items = np.array([count]), np.array([item])
    visits = [
        int(choose_positives(PositiveChoice.ROTATE, counts, items, seed, epoch)[0])
        for epoch in range(count)
    ]
    assert sorted(visits) == list(range(count))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 100), st.integers(0, 2**20))
def test_a_window_repeats_nothing_until_all_are_used(wanted, extra, item, seed):
    count = wanted + extra
    laps = count // wanted
    counts, items = np.array([count]), np.array([item])
    seen = [
        choose_negatives(NegativeChoice.WINDOW, counts, items, seed, epoch, wanted)
        for epoch in range(laps)
    ]
    assert len(np.unique(seen)) == laps * wanted


@pytest.mark.parametrize("choice", [NegativeChoice.SHUFFLE, NegativeChoice.WINDOW])
def test_every_negative_is_as_likely(choice):
    items = np.arange(10_000)
    first = choose_negatives(choice, np.full(10_000, 10), items, 42, 0, 3)[:, 0]
    assert np.abs(np.bincount(first) - 1000).max() < 4 * np.sqrt(1000)


@given(st.integers(0, 60), st.integers(0, 60), SEEDS)
def test_a_smaller_choice_lies_in_a_larger(small, more, seed):
    items = np.arange(0, 300, 3)
    chosen, larger = (choose_items(items, count, seed).tolist() for count in (small, small + more))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(small, len(items))
    assert set(chosen) <= set(larger) <= set(items.tolist())


@given(st.integers(0, 40), st.integers(1, 30), SEEDS, st.sampled_from([1, 7, 4096]))
def test_a_stream_s_choice_is_that_of_its_numbers(total, count, seed, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK", block)
        chosen = choose_records((str(number) for number in range(total)), count, seed)
    assert chosen == [str(i) for i in choose_items(np.arange(total), count, seed)]


@given(SEEDS, EPOCHS)
def test_an_order_holds_every_item_once_and_changes(seed, epoch):
    items = np.arange(5, 105)
    order = order_items(items, seed, epoch)
    assert sorted(order) == items.tolist()
    expected = sorted(items, key=lambda i: random_word(seed, Purpose.ORDER, int(i), epoch, 0))
    assert order.tolist() == expected
    assert order.tolist() != order_items(items, seed, epoch + 1).tolist()


@given(st.integers(2, 12), st.data())
def test_strangers_are_never_positives(population, data):
    rows = st.integers(0, population - 1)
    own = data.draw(st.lists(rows, max_size=population - 1))
    others = [row for row in range(population) if row not in own]
    drawn = choose_strangers(population, np.array(own, dtype=np.int64), 3, 42, 1, 5)
    words = [random_word(42, Purpose.STRANGER, 3, 1, number) for number in range(5)]
    assert drawn.tolist() == [others[word % len(others)] for word in words]
