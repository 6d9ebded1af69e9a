"""Power of paired tests, and randomised Tukey HSD, beside literal simulations and formulas."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from denserk.evaluation.inference import (
    critical_range,
    level_of_width,
    needed_queries,
    paired_power,
    permuted_ranges,
    range_p_value,
    smallest_difference,
)
from tests.benchmarks import power_replays


def literal_power(difference, deviation, query_count, level):
    """The chance that |t| is critical: over the deviations that samples of normal values have."""
    freedom = query_count - 1
    critical_value = stats.t.isf(level / 2, freedom)
    center = difference / deviation * math.sqrt(query_count)

    def density(ratio):  # of the sample's deviation to the true one
        beyond = stats.norm.sf(critical_value * ratio - center)
        beyond += stats.norm.cdf(-critical_value * ratio - center)
        return beyond * stats.chi.pdf(ratio * math.sqrt(freedom), freedom) * math.sqrt(freedom)

    return integrate.quad(density, 0, np.inf, epsabs=1e-10, limit=200)[0]


@pytest.mark.parametrize("query_count", [2, 3, 10, 50, 400])
@pytest.mark.parametrize("level", [0.05, 0.05 / 12])
def test_the_smallest_difference_has_the_power_by_integration(query_count, level):
    difference = smallest_difference(0.3, query_count, level)
    assert literal_power(difference, 0.3, query_count, level) == pytest.approx(0.8, abs=1e-6)


def test_a_published_number_of_pairs():
    """G*Power: 34 pairs for an effect of 0.5, 199 for 0.2, at 0.05 with a power of 80 %."""
    assert needed_queries(0.5, 1.0, 0.05) == 34
    assert needed_queries(-0.02, 0.1, 0.05) == 199


@pytest.mark.parametrize("difference", [2.0, 0.1, 0.01, 0.0003])
def test_needed_queries_are_the_fewest(difference):
    query_count = needed_queries(difference, 0.3, 0.01)
    assert paired_power(difference, 0.3, query_count, 0.01) >= 0.8
    if query_count > 2:
        assert paired_power(difference, 0.3, query_count - 1, 0.01) < 0.8


def test_without_spread_two_queries_are_enough():
    assert smallest_difference(0.0, 10, 0.05) == 0
    assert needed_queries(0.1, 0.0, 0.05) == 2


@pytest.mark.parametrize("query_count", [0, 1])
def test_below_two_queries_nothing_is_known(query_count):
    assert math.isnan(smallest_difference(0.3, query_count, 0.05))
    assert math.isnan(paired_power(0.1, 0.3, query_count, 0.05))


@pytest.mark.parametrize("difference", [0.0, math.nan, 1e-15, math.inf])
def test_no_number_of_queries_shows_nothing(difference):
    with pytest.raises(ValueError, match="no number of queries"):
        needed_queries(difference, 0.3, 0.05)


@pytest.mark.parametrize("level", [0.0, 5e-324, math.nan])
def test_no_number_of_queries_is_enough_without_a_level(level):
    with pytest.raises(ValueError, match="at the level"):
        needed_queries(0.05, 0.3, level)


def test_a_tiny_level_needs_three_queries():
    assert math.isnan(smallest_difference(0.3, 2, 1e-8))
    assert smallest_difference(0.3, 3, 1e-8) > 1000
    assert needed_queries(1e6, 0.3, 1e-8) == 3


@pytest.mark.parametrize("name", ["normal", "reciprocal ranks, 30 % changed"])
def test_replays_keep_the_power(name):
    random = np.random.default_rng(7)
    population = power_replays.populations(random)[name][:50_000]
    smallest = power_replays.replay_smallest(name, population, 100, 6, 4000, random)
    needed = power_replays.replay_needed(name, population, 0.06, 6, 4000, random)
    assert smallest.is_kept
    assert needed.is_kept


def test_replays_under_holm_keep_the_power():
    random = np.random.default_rng(8)
    values = random.normal(0.5, 0.2, 150) + random.normal(0.0, 0.2, (4, 150))
    runs = power_replays.Runs("toy", "nDCG@10", ("a", "b", "c", "d"), values)
    (row,) = power_replays.holm_rows([runs], 1000)
    assert row.is_kept


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
    monkeypatch.setattr("denserk.evaluation.inference.BLOCK", 30)
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


def test_the_level_of_an_interval():
    sample = np.random.default_rng(2).normal(0.1, 0.3, 30)
    bounds = stats.ttest_1samp(sample, 0).confidence_interval(0.99)
    half_width = (bounds.high - bounds.low) / 2
    assert level_of_width(half_width, sample.std(ddof=1), 30) == pytest.approx(0.01)
    assert math.isnan(level_of_width(0.1, 0.0, 30))


def test_tukey_keeps_the_level_among_equal_systems():
    random = np.random.default_rng(11)
    systems = power_replays.simulated_systems(4, random)["normal, all equal"]
    share = power_replays.share_of_errors(systems, 20, 200, random)
    assert share < 0.05 + 2 * 0.0154  # two standard errors of 200 replays
