"""Power of paired tests, beside literal simulations and formulas."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from denserk.evaluation.t_test_power import (
    level_of_width,
    needed_queries,
    paired_power,
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


def test_the_level_of_an_interval():
    sample = np.random.default_rng(2).normal(0.1, 0.3, 30)
    bounds = stats.ttest_1samp(sample, 0).confidence_interval(0.99)
    half_width = (bounds.high - bounds.low) / 2
    assert level_of_width(half_width, sample.std(ddof=1), 30) == pytest.approx(0.01)
    assert math.isnan(level_of_width(0.1, 0.0, 30))
