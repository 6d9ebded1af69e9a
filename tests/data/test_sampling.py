"""Random choices keep their laws, whatever the batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.training import FillNegatives, NegativeChoice, PositiveChoice
from denserk.data.sampling import (
    Purpose,
    choose_items,
    choose_negatives,
    choose_positive,
    choose_random_passages,
    choose_records,
    order_items,
    random_words,
)

SEEDS = st.integers(-(2**40), 2**40)
EPOCHS = st.integers(0, 50)


@given(SEEDS, st.sampled_from(Purpose), st.integers(0, 2**40), EPOCHS)
def test_words_depend_on_their_item_alone(seed, purpose, item, epoch):
    together = random_words(seed, purpose, np.array([item, 0]), epoch, 3)
    alone = random_words(seed, purpose, np.array([item]), epoch, 2)
    assert together[0, :2].tolist() == alone[0].tolist()
    others = [
        random_words(seed + 1, purpose, np.array([item]), epoch, 2),
        random_words(seed, purpose + 1, np.array([item]), epoch, 2),
        random_words(seed, purpose, np.array([item + 1]), epoch, 2),
        random_words(seed, purpose, np.array([item]), epoch + 1, 2),
    ]
    assert len({tuple(words[0].tolist()) for words in [alone, *others]}) == 5


def test_words_are_uniform():
    bits = random_words(1, 2, np.arange(2000), 0, 5).ravel() >> np.uint64(60)
    assert np.abs(np.bincount(bits) - 625).max() < 5 * np.sqrt(625)


@given(
    st.sampled_from(NegativeChoice),
    st.sampled_from(FillNegatives),
    st.integers(1, 12),
    SEEDS,
    EPOCHS,
    st.integers(0, 8),
)
def test_negatives(choice, fill, count, seed, epoch, wanted):
    drawn = choose_negatives(choice, count, 7, seed, epoch, wanted, fill).tolist()
    assert len(drawn) == wanted
    if count < wanted and fill is FillNegatives.MASK:
        assert drawn == [*range(count), *[-1] * (wanted - count)]
    else:
        assert set(drawn) <= set(range(count))
        assert count < wanted or len(set(drawn)) == wanted
        if choice is NegativeChoice.TOP and count >= wanted:
            assert drawn == list(range(wanted))
    assert choose_negatives(choice, count, 7, seed, epoch, wanted, fill).tolist() == drawn


@given(st.integers(1, 9), st.integers(0, 100), SEEDS)
def test_rotation_visits_every_positive_in_turn(count, item, seed):
    rotate = PositiveChoice.ROTATE
    visits = [choose_positive(rotate, count, item, seed, epoch) for epoch in range(count)]
    assert sorted(visits) == list(range(count))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 100), st.integers(0, 2**20))
def test_a_window_repeats_nothing_until_all_are_used(wanted, extra, item, seed):
    count = wanted + extra
    laps = count // wanted
    seen = [
        choose_negatives(NegativeChoice.WINDOW, count, item, seed, epoch, wanted)
        for epoch in range(laps)
    ]
    assert len(np.unique(seen)) == laps * wanted


@pytest.mark.parametrize("choice", [NegativeChoice.SHUFFLE, NegativeChoice.WINDOW])
def test_every_negative_is_as_likely(choice):
    first = [choose_negatives(choice, 10, item, 42, 0, 3)[0] for item in range(2000)]
    assert np.abs(np.bincount(first) - 200).max() < 4 * np.sqrt(200)


def test_every_positive_is_as_likely():
    drawn = [choose_positive(PositiveChoice.RANDOM, 5, item, 42, 0) for item in range(1000)]
    assert np.abs(np.bincount(drawn) - 200).max() < 4 * np.sqrt(200)


@given(st.integers(0, 60), st.integers(0, 60), SEEDS)
def test_a_smaller_choice_lies_in_a_larger(small, more, seed):
    items = np.arange(0, 300, 3)
    chosen, larger = (choose_items(items, count, seed).tolist() for count in (small, small + more))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(small, len(items))
    assert set(chosen) <= set(larger) <= set(items.tolist())


@given(st.integers(0, 40), st.integers(1, 30), SEEDS)
def test_a_stream_s_choice_is_that_of_its_numbers(total, count, seed):
    chosen = choose_records((str(number) for number in range(total)), count, seed)
    assert chosen == [str(i) for i in choose_items(np.arange(total), count, seed)]


@given(SEEDS, EPOCHS)
def test_an_order_holds_every_item_once_and_changes(seed, epoch):
    items = np.arange(5, 105)
    order = order_items(items, seed, epoch)
    assert sorted(order) == items.tolist()
    assert order.tolist() != order_items(items, seed, epoch + 1).tolist()


@given(st.integers(2, 12), st.data())
def test_random_passages_are_never_positives(population, data):
    rows = st.integers(0, population - 1)
    own = data.draw(st.lists(rows, max_size=population - 1))
    drawn = choose_random_passages(population, np.array(own, dtype=np.int64), 3, 42, 1, 5)
    assert set(drawn.tolist()) <= set(range(population)) - set(own)
