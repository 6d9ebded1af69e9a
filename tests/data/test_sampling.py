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
def test_negatives_are_distinct_or_fill_up_a_group(sampling, count, epoch):
    size = sampling.group_size - 1
    places = choose_negatives(sampling, count, 7, epoch).tolist()
    assert len(places) == size
    if count >= size:
        assert set(places) <= set(range(count))
        assert len(set(places)) == size
        if sampling.negative is NegativeChoice.TOP:
            assert places == list(range(size))
    elif sampling.fill_negatives is FillNegatives.REPEAT:
        assert set(places) <= set(range(count))
    else:
        missing = [-1] * (size - count)
        assert places == [*range(count), *missing]
    assert choose_negatives(sampling, count, 7, epoch).tolist() == places


@given(st.integers(1, 9), st.integers(0, 100), SEEDS)
def test_rotation_visits_every_positive_in_turn(count, item, seed):
    rotate = SamplingSettings(positive=PositiveChoice.ROTATE, seed=seed)
    visits = [choose_positive(rotate, count, item, epoch) for epoch in range(count)]
    assert sorted(visits) == list(range(count))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 100), st.integers(0, 2**20))
def test_a_window_repeats_nothing_until_all_are_used(size, extra, item, seed):
    sampling = SamplingSettings(size + 1, seed=seed)
    count = size + extra
    epochs = count // size
    windows = [choose_negatives(sampling, count, item, epoch) for epoch in range(epochs)]
    assert len(np.unique(windows)) == epochs * size


def test_positives_rotate_and_windows_wrap_round_as_in_the_released_code():
    sampling = SamplingSettings(4, seed=42)  # windows of three
    positives = [choose_positive(sampling, 5, item=7, epoch=epoch) for epoch in range(6)]
    assert positives == [(7 + 42 + epoch) % 5 for epoch in range(6)]
    windows = [choose_negatives(sampling, 5, 7, epoch).tolist() for epoch in range(5)]
    places = [place for window in windows for place in window]
    assert places == places[:5] * 3
    assert sorted(places[:5]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("choice", [NegativeChoice.SHUFFLE, NegativeChoice.WINDOW])
def test_every_choice_is_as_likely(choice):
    sampling = SamplingSettings(4, negative=choice, positive=PositiveChoice.RANDOM)
    negatives = [choose_negatives(sampling, 10, item, 0)[0] for item in range(2000)]
    positives = [choose_positive(sampling, 10, item, 0) for item in range(2000)]
    for places in (negatives, positives):
        assert np.abs(np.bincount(places) - 200).max() < 4 * np.sqrt(200)


@given(st.integers(0, 60), st.integers(0, 60), SEEDS)
def test_a_smaller_choice_lies_in_a_larger(count, extra, seed):
    records = list(range(0, 300, 3))
    choice = choose_records(iter(records), count, seed)
    larger_choice = choose_records(iter(records), count + extra, seed)
    assert choice == sorted(set(choice))
    assert len(choice) == min(count, len(records))
    assert set(choice) <= set(larger_choice) <= set(records)


@given(st.integers(2, 12), st.data())
def test_random_passages_are_never_positives(population, data):
    any_row = st.integers(0, population - 1)
    positives = data.draw(st.lists(any_row, max_size=population - 1))
    rows = choose_random_passages(
        SamplingSettings(6), population, np.array(positives, dtype=np.int64), 3, 1
    )
    assert len(rows) == 5
    assert set(rows.tolist()) <= set(range(population)) - set(positives)
