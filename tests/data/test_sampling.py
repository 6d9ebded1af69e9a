import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.training import FillNegatives, NegativeChoice, PositiveChoice, SamplingSettings
from denserk.data.sampling import (
    choose_negatives,
    choose_positive,
    choose_random_passages,
    choose_records,
)

SEEDS = st.integers(1 - 2**31, 2**31 - 1)
EPOCHS = st.integers(0, 50)


@given(
    st.builds(
        SamplingSettings,
        group_size=st.integers(1, 9),
        negative=st.sampled_from(NegativeChoice),
        fill_negatives=st.sampled_from(FillNegatives),
        seed=SEEDS,
    ),
    st.integers(1, 12),
    EPOCHS,
)
def test_negatives(sampling, count, epoch):
    wanted = sampling.group_size - 1
    drawn = choose_negatives(sampling, count, 7, epoch).tolist()
    assert len(drawn) == wanted
    if count < wanted and sampling.fill_negatives is FillNegatives.MASK:
        assert drawn == [*range(count), *[-1] * (wanted - count)]
    else:
        assert set(drawn) <= set(range(count))
        assert count < wanted or len(set(drawn)) == wanted
        if sampling.negative is NegativeChoice.TOP and count >= wanted:
            assert drawn == list(range(wanted))
    assert choose_negatives(sampling, count, 7, epoch).tolist() == drawn


@given(st.integers(1, 9), st.integers(0, 100), SEEDS)
def test_rotation_visits_every_positive_in_turn(count, item, seed):
    rotate = SamplingSettings(positive=PositiveChoice.ROTATE, seed=seed)
    visits = [choose_positive(rotate, count, item, epoch) for epoch in range(count)]
    assert sorted(visits) == list(range(count))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 100), st.integers(0, 2**20))
def test_a_window_repeats_nothing_until_all_are_used(wanted, extra, item, seed):
    sampling, count = SamplingSettings(wanted + 1, seed=seed), wanted + extra
    laps = count // wanted
    seen = [choose_negatives(sampling, count, item, epoch) for epoch in range(laps)]
    assert len(np.unique(seen)) == laps * wanted


@pytest.mark.parametrize("choice", [NegativeChoice.SHUFFLE, NegativeChoice.WINDOW])
def test_every_choice_is_as_likely(choice):
    sampling = SamplingSettings(4, negative=choice, positive=PositiveChoice.RANDOM)
    negatives = [choose_negatives(sampling, 10, item, 0)[0] for item in range(2000)]
    positives = [choose_positive(sampling, 10, item, 0) for item in range(2000)]
    for drawn in (negatives, positives):
        assert np.abs(np.bincount(drawn) - 200).max() < 4 * np.sqrt(200)


@given(st.integers(0, 60), st.integers(0, 60), SEEDS)
def test_a_smaller_choice_lies_in_a_larger(small, more, seed):
    items = list(range(0, 300, 3))
    chosen, larger = (choose_records(iter(items), count, seed) for count in (small, small + more))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(small, len(items))
    assert set(chosen) <= set(larger) <= set(items)


@given(st.integers(2, 12), st.data())
def test_random_passages_are_never_positives(population, data):
    rows = st.integers(0, population - 1)
    own = data.draw(st.lists(rows, max_size=population - 1))
    drawn = choose_random_passages(
        SamplingSettings(6), population, np.array(own, dtype=np.int64), 3, 1
    )
    assert set(drawn.tolist()) <= set(range(population)) - set(own)
