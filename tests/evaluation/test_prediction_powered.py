"""Prediction-powered means beside literal restatements of their formulas."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from denserk.evaluation.prediction_powered import (
    Gain,
    MeanEstimate,
    confidence_interval,
    effective_queries,
    estimate_mean,
    least_correlation,
    p_value_of_mean,
    prediction_powered_mean,
    queries_off_the_mean,
)


def noisy(count, noise, *, slope=1.0, seed=0):
    """Return human values, and predicted ones that are `slope` times as large, with noise."""
    generator = np.random.default_rng(seed)
    human = generator.normal(0.5, 0.2, count)
    return human, slope * human + generator.normal(0, noise, count)


def mean_and_error(human, predicted, judged):
    """The estimate in plain arithmetic, with a slope from 0 to 1."""
    n, count = len(human), len(judged)
    mean_human, mean_predicted = statistics.fmean(human), statistics.fmean(predicted)
    squares = sum((f - mean_predicted) ** 2 for f in predicted)
    products = zip(human, predicted, strict=True)
    weight = sum((y - mean_human) * (f - mean_predicted) for y, f in products) / squares
    residuals = [y - weight * f for y, f in zip(human, predicted, strict=True)]
    rectifier = statistics.fmean(residuals)
    mean = weight * statistics.fmean(judged) + rectifier
    second = sum((e - rectifier) ** 2 for e in residuals)
    fourth = sum((e - rectifier) ** 4 for e in residuals)
    errors = second**2 / fourth
    assert errors > 3
    variance = second / (n - 2) * (1 + 1 / errors)
    shift = statistics.fmean(judged) - mean_predicted
    of_slope = variance * shift**2 / squares
    total = variance / n + of_slope + weight**2 * statistics.variance(judged) / count
    return mean, math.sqrt(total), weight


@pytest.mark.parametrize("seed", range(5))
def test_estimate_is_that_of_the_formulas(seed):
    human, judged = noisy(200, 0.3, seed=seed)
    estimate = prediction_powered_mean(human[:30], judged[:30], judged)
    mean, error, weight = mean_and_error(human[:30].tolist(), judged[:30].tolist(), judged.tolist())
    assert estimate.gain is Gain.HELPS
    assert estimate.powered == pytest.approx(MeanEstimate(mean, error, 28))
    assert estimate.weight == pytest.approx(weight)
    expected = np.corrcoef(human[:30], judged[:30])[0, 1]
    assert estimate.correlation == pytest.approx(expected)


def test_mean_is_that_of_ppi_with_separate_samples():
    """PPI++ has a sample with labels and one without; the same mean with its weight for them."""
    human, judged = noisy(200, 0.3)
    labelled, unlabelled = judged[:30], judged[30:]
    slope = np.cov(human[:30], labelled)[0, 1] / labelled.var(ddof=1)
    weight = slope / (1 + len(labelled) / len(unlabelled))  # power-tuned, as published
    mean = human[:30].mean() + weight * (unlabelled.mean() - labelled.mean())
    estimate = prediction_powered_mean(human[:30], labelled, judged)
    assert estimate.powered.mean == pytest.approx(mean)


def test_error_is_that_of_ppi_for_large_samples():
    human, judged = noisy(20_000, 0.3)
    n = 5_000
    labelled, unlabelled = judged[:n], judged[n:]
    slope = np.cov(human[:n], labelled)[0, 1] / labelled.var(ddof=1)
    weight = slope / (1 + n / len(unlabelled))
    variance = (weight * unlabelled).var() / len(unlabelled)
    variance += (human[:n] - weight * labelled).var() / n
    estimate = prediction_powered_mean(human[:n], labelled, judged)
    assert estimate.powered.error == pytest.approx(math.sqrt(variance), rel=0.01)


def test_predictions_that_are_half_as_large_have_weight_one():
    human, judged = noisy(200, 0.02, slope=0.5)
    estimate = prediction_powered_mean(human[:30], judged[:30], judged)
    assert estimate.weight == 1
    assert estimate.powered.mean == pytest.approx(judged.mean() + (human - judged)[:30].mean())
    assert estimate.powered.error < estimate.human.error


def test_opposite_predictions_have_weight_zero_and_change_nothing():
    human, judged = noisy(200, 0.02, slope=-1)
    estimate = prediction_powered_mean(human[:30], judged[:30], judged)
    assert estimate.gain is Gain.UNCORRELATED
    assert estimate.weight == 0
    assert estimate.powered == estimate.human == estimate_mean(human[:30])
    assert effective_queries(estimate) == 30


def test_perfect_predictions_count_three_errors_that_were_not_seen():
    human, _ = noisy(300, 0)
    estimate = prediction_powered_mean(human[:30], human[:30], human)
    assert estimate.powered.mean == pytest.approx(human.mean())
    residual_variance = 3 * 2 * human[:30].var(ddof=1) / 30
    shift = human.mean() - human[:30].mean()
    of_slope = shift**2 / (human[:30].var(ddof=1) * 29)
    variance = residual_variance * (1 / 30 + of_slope) + human.var(ddof=1) / 300
    assert estimate.powered.error == pytest.approx(math.sqrt(variance))
    assert 80 < effective_queries(estimate) < 300


def test_few_different_values_are_reported():
    human = np.array([1.0, 1.0, *[0.0] * 28])
    estimate = prediction_powered_mean(human, human, np.tile(human, 10))
    assert estimate.gain is Gain.TOO_FEW
    assert estimate.powered == estimate.human


def test_the_same_queries_give_no_gain():
    human, judged = noisy(30, 0.1)
    assert prediction_powered_mean(human, judged, judged).gain is Gain.NO_GAIN


def test_interval_and_p_value_are_those_of_the_t_test():
    values = np.random.default_rng(0).normal(0.1, 0.3, 25)
    test = stats.ttest_1samp(values, 0)
    expected = test.confidence_interval(0.9)
    estimate = estimate_mean(values)
    assert confidence_interval(estimate, 0.1) == pytest.approx((expected.low, expected.high))
    assert p_value_of_mean(estimate) == pytest.approx(test.pvalue)


def test_p_value_of_equal_values():
    assert p_value_of_mean(MeanEstimate(0.0, 0.0, 10)) == 1
    assert p_value_of_mean(MeanEstimate(0.2, 0.0, 10)) == 0


def test_threshold_is_where_a_regression_begins_to_help():
    """(1 - r**2) (n - 2) / (n - 3), the expected ratio of variances, is 1 there."""
    for count in (10, 30, 100):
        correlation = least_correlation(count)
        assert (1 - correlation**2) * (count - 2) / (count - 3) == pytest.approx(1)


values = st.lists(st.floats(0, 1, width=16), min_size=40, max_size=40)


@given(values, values, st.integers(4, 39), st.floats(-1, 1))
def test_estimates_of_any_values(human_values, predicted_values, count, shift):
    human, judged = np.array(human_values), np.array(predicted_values)
    estimate = prediction_powered_mean(human[:count], judged[:count], judged)
    assert all(map(math.isfinite, (*estimate.human, *estimate.powered)))
    assert 0 <= estimate.weight <= 1
    assert -1 <= estimate.correlation <= 1
    assert estimate.powered.error <= estimate.human.error
    assert effective_queries(estimate) >= count
    is_unchanged = estimate.powered == estimate.human
    assert is_unchanged == (estimate.gain is not Gain.HELPS)
    shifted = prediction_powered_mean(human[:count], judged[:count] + shift, judged + shift)
    if shifted.gain is estimate.gain:  # a shift of the predictions changes nothing but rounding
        assert shifted.powered == pytest.approx(estimate.powered, abs=1e-6)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=50))
def test_values_off_the_mean_are_at_most_all(sample):
    count = queries_off_the_mean(np.array(sample))
    assert 0 <= count <= len(sample) + 1e-9
    assert (count == 0) == (len(set(sample)) == 1)


def test_intervals_hold_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        truth = generator.random(200)
        predicted = np.clip(truth + generator.normal(0, 0.2, 200), 0, 1)
        estimate = prediction_powered_mean(truth[:30], predicted[:30], predicted)
        low, high = confidence_interval(estimate.powered, 0.05)
        held += low <= 0.5 <= high
    assert 0.925 <= held / 400 <= 0.98
