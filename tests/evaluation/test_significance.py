"""Paired tests against scipy's, corrections against their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from denserk.evaluation.significance import (
    compare,
    correction_factors,
    randomisation_test,
    t_test,
)
from denserk.settings.comparison import Correction, PairedTest

SAMPLES = [np.random.default_rng(seed).normal(0.02, 0.2, 12 + 40 * seed) for seed in range(5)]


@pytest.mark.parametrize("sample", SAMPLES)
def test_t_test_is_scipys(sample: np.ndarray) -> None:
    assert t_test(sample) == pytest.approx(stats.ttest_1samp(sample, 0).pvalue, rel=1e-10)


@pytest.mark.parametrize("sample", SAMPLES[:2])
def test_confidence_interval_is_scipys(sample: np.ndarray) -> None:
    zero = dict.fromkeys(map(str, range(len(sample))), 0.0)
    run = {str(i): float(value) for i, value in enumerate(sample)}
    interval = stats.ttest_1samp(sample, 0).confidence_interval(0.9)
    found = compare(run, zero, PairedTest.T, confidence=0.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_few_queries_give_the_exact_randomisation_test() -> None:
    sample = SAMPLES[0]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(sample))))
    means = np.abs(signs @ sample)
    exact = (means >= abs(sample.sum()) - 1e-12).mean()
    assert randomisation_test(sample, 1 << len(sample), seed=1) == exact


def test_many_queries_come_near_scipys_permutation_test() -> None:
    sample = SAMPLES[2]
    theirs = stats.permutation_test(
        (sample, np.zeros_like(sample)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(3),
    ).pvalue
    assert randomisation_test(sample, 20_000, seed=3) == pytest.approx(theirs, abs=0.015)


def test_draws_depend_on_the_seed_alone() -> None:
    sample = SAMPLES[2]
    first, again, other = (randomisation_test(sample, 500, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("sample", "p"), [([0.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.5], 0.0), ([0.5], math.nan)]
)
def test_differences_without_spread(sample: list[float], p: float) -> None:
    assert t_test(np.array(sample)) == pytest.approx(p, nan_ok=True)


def test_no_difference_is_no_evidence() -> None:
    assert randomisation_test(np.zeros(5), 100, seed=1) == 1.0
    assert randomisation_test(np.zeros(100), 100, seed=1) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrections_keep_order_and_never_sharpen(p_values: list[float]) -> None:
    holm, bonferroni = (
        correction_factors(p_values, kind) for kind in (Correction.HOLM, Correction.BONFERRONI)
    )
    assert bonferroni == [len(p_values)] * len(p_values)
    assert all(1 <= h <= b * (1 + 1e-12) for h, b in zip(holm, bonferroni, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [holm[i] * p_values[i] for i in order]
    assert corrected == pytest.approx(sorted(corrected), rel=1e-12)
    assert correction_factors(p_values, Correction.NONE) == [1] * len(p_values)


def test_a_missing_p_value_is_not_counted() -> None:
    assert correction_factors([0.01, math.nan], Correction.BONFERRONI)[0] == 1


def test_wins_ties_losses_over_common_queries() -> None:
    run = {"a": 0.3, "b": 0.1 + 0.2, "c": 0.0, "d": 1.0}
    baseline = {"a": 0.1, "b": 0.3, "c": 0.5, "e": 1.0}
    found = compare(run, baseline, PairedTest.T)
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)
    assert found.mean == pytest.approx(-0.1)
    differences = np.array([0.2, 0.0, -0.5])
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))
