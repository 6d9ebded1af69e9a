"""Randomised Tukey HSD, beside literal simulations and formulas."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from denserk.evaluation.tukey import critical_range, permuted_ranges, range_p_value
from tests.benchmarks import power_replays


def test_ranges_are_those_of_all_orders():
    values = np.array([[0.1, 0.9, 0.4], [0.3, 0.2, 0.4], [0.8, 0.5, 0.4]])
    orders = list(itertools.permutations(range(3)))
    exact_ranges = []
    for first, second in itertools.product(orders, orders):
        means = (values[list(first), 0] + values[list(second), 1] + 0.4) / 3
        exact_ranges.append(np.ptp(means))
    ranges = permuted_ranges(values, 20_000, seed=3)
    for difference in (0.1, 0.2, 0.3):
        exact_p = np.mean(np.array(exact_ranges) >= difference - 1e-12)
        assert range_p_value(difference, ranges) == pytest.approx(exact_p, abs=0.02)


@pytest.mark.parametrize("system_count", [2, 4, 8])
def test_many_queries_give_the_studentised_range(system_count):
    """By the central limit theorem, the ranges are those of normal means."""
    values = np.random.default_rng(5).normal(0, 1, (system_count, 400))
    ranges = permuted_ranges(values, 4000, seed=1)
    error = math.sqrt(values.var(0, ddof=1).mean() / 400)
    expected = stats.norm.rvs(size=(20_000, system_count), random_state=2)
    expected_quantile = np.quantile(np.ptp(expected, axis=1), 0.95) * error
    assert critical_range(ranges, 0.05) == pytest.approx(expected_quantile, rel=0.04)


def test_ranges_depend_on_the_seed_alone():
    values = np.random.default_rng(5).random((3, 40))
    assert (permuted_ranges(values, 300, seed=1) == permuted_ranges(values, 300, seed=1)).all()
    assert (permuted_ranges(values, 300, seed=1) != permuted_ranges(values, 300, seed=2)).any()


def test_blocks_cover_all_permutations(monkeypatch):
    monkeypatch.setattr("denserk.evaluation.tukey.BLOCK", 30)
    done_counts: list[int] = []
    values = np.random.default_rng(5).random((3, 40))
    ranges = permuted_ranges(values, 25, 1, done_counts.append)
    assert len(ranges) == 25
    assert done_counts == [10, 10, 5]
    assert (np.diff(ranges) >= 0).all()


def test_equal_systems_are_never_different():
    ranges = permuted_ranges(np.full((3, 10), 0.1), 100, seed=1)
    assert range_p_value(0.0, ranges) == 1.0


@given(
    st.lists(st.floats(0, 1), min_size=19, max_size=200),
    st.sampled_from([0.05, 0.1, 0.05 / 3]),
    st.floats(0, 1),
)
def test_a_difference_beyond_the_critical_range_is_significant(values, level, difference):
    ranges = np.sort(np.array(values))
    critical = critical_range(ranges, level)
    if abs(difference - critical) > 1e-9:
        assert (range_p_value(difference, ranges) < level) == (difference > critical)


def test_tukey_keeps_the_level_among_equal_systems():
    random = np.random.default_rng(11)
    systems = power_replays.simulated_systems(4, random)["normal, all equal"]
    share = power_replays.share_of_errors(systems, 20, 200, random)
    assert share < 0.05 + 2 * 0.0154  # two standard errors of 200 replays
