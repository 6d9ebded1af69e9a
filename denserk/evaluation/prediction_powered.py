"""Prediction-powered means: few queries have values by human labels, many by predicted labels.

The few are among the many, and the mean is that over the population of queries of which the many
are a sample. Angelopoulos, Duchi and Zrnic, "PPI++: Efficient Prediction-Powered Inference" (2023),
in the form for samples within each other, where the power-tuned weight is the slope of the
regression of human values on predicted ones.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.evaluation.intervals import DIGITS, ConfidenceInterval

Floats = NDArray[np.float64]

LEAST_QUERIES = 4  # human-judged ones; a slope leaves n - 2 degrees of freedom
LEAST_ERRORS = 3  # of `queries_off_the_mean`, for a variance that can be relied on


class Gain(StrEnum):
    """Whether predicted labels make an interval shorter, and if not, why not."""

    HELPS = "helps"
    UNCORRELATED = "uncorrelated"  # the correlation is too low to gain by
    NO_GAIN = "no gain"  # the interval with predictions is as long as that without
    TOO_FEW = "too few values"  # almost all human-judged queries have the same value


class MeanEstimate(NamedTuple):
    """An estimate of the mean over the population of queries."""

    mean: float
    error: float  # standard error
    freedom: int  # degrees of freedom of Student's t


class PoweredEstimate(NamedTuple):
    """Estimates of one mean without and with predicted labels."""

    human: MeanEstimate  # of the human-judged queries alone
    powered: MeanEstimate  # of both; the same as `human` where predictions do not help
    weight: float  # of the predicted values, from 0 to 1
    correlation: float  # of human and predicted values on the human-judged queries
    gain: Gain


def estimate_mean(values: Floats) -> MeanEstimate:
    """Return Student's estimate of the mean of a population, of a random sample (n,) from it."""
    count = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    return MeanEstimate(float(values.mean()), error, count - 1)


def confidence_interval(estimate: MeanEstimate, alpha: float) -> ConfidenceInterval:
    """Return the two-sided interval of level 1 - alpha.

    >>> low, high = confidence_interval(MeanEstimate(0.5, 0.1, 10), 0.05)
    >>> round(low, 3), round(high, 3)
    (0.277, 0.723)
    """
    from scipy.stats import t  # slow to import

    half_width = float(t.ppf(1 - alpha / 2, estimate.freedom)) * estimate.error
    return ConfidenceInterval(estimate.mean - half_width, estimate.mean + half_width)


def p_value_of_mean(estimate: MeanEstimate) -> float:
    """Return the two-sided p-value of the hypothesis that the mean is 0.

    >>> round(p_value_of_mean(MeanEstimate(0.223, 0.1, 10)), 2)
    0.05
    """
    from scipy.stats import t  # slow to import

    if estimate.error == 0:
        return 1.0 if estimate.mean == 0 else 0.0
    return 2 * float(t.sf(abs(estimate.mean) / estimate.error, estimate.freedom))


def least_correlation(count: int) -> float:
    """Return the correlation above which predictions help on average, with `count` human values.

    The slope of a regression is estimated, too. With normal values this multiplies the variance
    (1 - r**2) of the residuals by (n - 2) / (n - 3), so that it is below 1 where r is above this.

    >>> least_correlation(102)
    0.1
    """
    return 1 / math.sqrt(count - 2)


def queries_off_the_mean(values: Floats) -> float:
    """Return how many of the values, (n,), are so far off the mean that the variance rests on them.

    It is n divided by the kurtosis: about k where k of many values are 1 and the others 0, n / 3
    for normal values, 0 where all are equal.

    >>> round(queries_off_the_mean(np.array([1.0, 1.0, *[0.0] * 998])), 1)
    2.0
    """
    squares = (values - values.mean()).round(DIGITS) ** 2
    if not squares.any():
        return 0.0
    return float(squares.sum()) ** 2 / float((squares**2).sum())


def prediction_powered_mean(
    human: Floats, predicted: Floats, all_predicted: Floats
) -> PoweredEstimate:
    """Estimate a mean from few human values and many predicted ones.

    Args:
        human: values by human labels, of n queries drawn at random from the N: (n,)
        predicted: values by predicted labels, of the same n queries in the same order: (n,)
        all_predicted: values by predicted labels of all N queries, the n among them: (N,)

    The estimate is the mean of human values plus weight * (mean of all predicted values - mean of
    the n predicted values). Its variance is that over samples of N queries and draws of n of them:

        residual variance / n + weight**2 * variance of predicted values / N

    plus a covariance where the weight is cut at 0 or 1, and plus what the slope, being estimated,
    adds. With few residuals off their mean the sample shows too little of how wrong predictions can
    be, so the residual variance is raised: see `_residual_variance`. Both together keep the
    coverage at n = 30 where errors of predictions are rare.

    >>> human = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    >>> predicted = np.array([0.1, 0.8, 0.2, 0.7, 0.9, 0.3, 0.6, 0.2])
    >>> all_predicted = np.concatenate([predicted, np.full(92, 0.7)])
    >>> estimate = prediction_powered_mean(human, predicted, all_predicted)
    >>> estimate.human.mean, round(estimate.powered.mean, 3), estimate.gain.value
    (0.5, 0.707, 'helps')
    """
    human_estimate = estimate_mean(human)
    correlation = _correlation(human, predicted)

    def without_predictions(reason: Gain) -> PoweredEstimate:
        return PoweredEstimate(human_estimate, human_estimate, 0.0, correlation, reason)

    if queries_off_the_mean(human) < LEAST_ERRORS:
        return without_predictions(Gain.TOO_FEW)
    if correlation <= least_correlation(len(human)):
        return without_predictions(Gain.UNCORRELATED)
    regression = _regression_estimate(human, predicted, all_predicted)
    if regression.estimate.error >= human_estimate.error:
        return without_predictions(Gain.NO_GAIN)
    return PoweredEstimate(
        human_estimate, regression.estimate, regression.weight, correlation, Gain.HELPS
    )


def _correlation(human: Floats, predicted: Floats) -> float:
    """Return Pearson's correlation; 0 where a side is constant."""
    human_deviations = (human - human.mean()).round(DIGITS)
    predicted_deviations = (predicted - predicted.mean()).round(DIGITS)
    scale = math.sqrt(float((human_deviations**2).sum() * (predicted_deviations**2).sum()))
    if scale == 0:
        return 0.0
    correlation = float(human_deviations @ predicted_deviations) / scale
    return min(1.0, max(-1.0, correlation))


class _RegressionEstimate(NamedTuple):
    """An estimate with predictions, and their weight."""

    estimate: MeanEstimate
    weight: float


def _regression_estimate(
    human: Floats, predicted: Floats, all_predicted: Floats
) -> _RegressionEstimate:
    """Return the estimate with predictions, and their weight; see `prediction_powered_mean`."""
    count = len(human)
    deviations = predicted - predicted.mean()
    sum_of_squares = float((deviations**2).sum())
    slope = float(deviations @ human) / sum_of_squares
    weight = min(1.0, max(0.0, slope))
    shift = float(all_predicted.mean() - predicted.mean())
    mean = float(human.mean()) + weight * shift
    residuals = human - weight * predicted
    residual_variance = _residual_variance(residuals, float(human.var(ddof=1)))
    error_of_slope = shift**2 / sum_of_squares
    variance_by_residuals = residual_variance * (1 / count + error_of_slope)
    # cov(residual, predicted value) is (slope - weight) * the variance of predicted values
    factor = weight**2 + 2 * weight * (slope - weight)
    variance_by_predictions = factor * float(all_predicted.var(ddof=1)) / len(all_predicted)
    error = math.sqrt(variance_by_residuals + variance_by_predictions)
    return _RegressionEstimate(MeanEstimate(mean, error, count - 2), weight)


def _residual_variance(residuals: Floats, human_variance: float) -> float:
    """Return the variance of the residuals (n,) of a regression, raised for rare errors.

    First, one more error is counted, of the size of those that the residuals have. Then, if there
    are fewer than LEAST_ERRORS, each absent one is counted as the error of a prediction that knows
    nothing. That is the difference of two independent values, with twice the variance of one.
    """
    count = len(residuals)
    variance = float(((residuals - residuals.mean()) ** 2).sum()) / (count - 2)
    error_count = queries_off_the_mean(residuals)
    if error_count > 0:
        variance *= 1 + 1 / error_count
    absent_errors = max(0.0, LEAST_ERRORS - error_count)
    return variance + absent_errors * 2 * human_variance / count


def effective_queries(estimate: PoweredEstimate) -> float:
    """Return how many human-judged queries alone would have the error of the powered estimate."""
    if estimate.gain is not Gain.HELPS:
        return float(estimate.human.freedom + 1)
    ratio = estimate.human.error / estimate.powered.error
    return (estimate.human.freedom + 1) * ratio**2
