"""Statistics of per-query values, as functions of numbers and arrays.

scipy is imported inside of functions, because most evaluations do not need it.
"""

import itertools
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import UsageError

Floats = NDArray[np.float64]

DIGITS = 12  # of a mean or difference; smaller ones come from the order of a sum

# Power of the paired t test: what a number of queries can show. Exact by the noncentral t
# distribution, as in Cohen, "Statistical Power Analysis for the Behavioral Sciences" (1988).

POWER = 0.8  # of a planned comparison, by convention
MOST_QUERIES = 1 << 50  # that `needed_queries` returns, about
LEAST_LEVEL_OF_TWO = 1e-4  # below it, the power of two queries takes seconds to compute


def paired_power(difference: float, deviation: float, query_count: int, level: float) -> float:
    """Return the chance that a two-sided paired t test at `level` detects a true difference.

    `difference` and `deviation` are the true mean and standard deviation of the paired
    differences. NaN below two queries, and of two queries at a level below 0.0001.

    >>> round(paired_power(0.05, 0.25, 200, 0.05), 3)
    0.804
    """
    from scipy.stats import nct, t

    if query_count < _fewest_queries(level) or math.isnan(deviation) or not level > 0:
        return math.nan
    if deviation == 0:
        return 1.0 if difference else level
    freedom = query_count - 1
    critical_value = t.isf(level / 2, freedom)
    noncentrality = abs(difference) / deviation * math.sqrt(query_count)
    upper_tail = nct.sf(critical_value, freedom, noncentrality)
    lower_tail = nct.sf(critical_value, freedom, -noncentrality)
    return float(upper_tail + lower_tail)


def _fewest_queries(level: float) -> int:
    """Return the fewest queries whose power at a level `paired_power` computes."""
    return 2 if level >= LEAST_LEVEL_OF_TWO else 3


def smallest_difference(
    deviation: float, query_count: int, level: float, power: float = POWER
) -> float:
    """Return the smallest true difference that a two-sided paired t test at `level` detects.

    It detects that difference with a chance of `power`, if the paired differences have this
    standard deviation. NaN where `paired_power` is.

    >>> round(smallest_difference(0.25, 200, 0.05), 4)
    0.0498
    >>> smallest_difference(0.25, 1, 0.05)
    nan
    """
    from scipy.optimize import brentq

    if query_count < _fewest_queries(level) or math.isnan(deviation) or not level > 0:
        return math.nan
    if deviation == 0 or power <= level:
        return 0.0

    def missing_power(effect: float) -> float:
        return paired_power(effect, 1.0, query_count, level) - power

    highest_effect = 1.0  # of differences in standard deviations
    while missing_power(highest_effect) < 0:
        highest_effect *= 2
    effect = brentq(missing_power, 0.0, highest_effect, xtol=1e-12)
    return float(effect) * deviation


def needed_queries(difference: float, deviation: float, level: float, power: float = POWER) -> int:
    """Return the fewest queries with which a two-sided paired t test detects a true difference.

    It detects the difference with a chance of `power`, if the paired differences have this
    standard deviation.

    Raises:
        ValueError: The difference is 0, or so small that no number of queries shows it, or the
            level is too small to compute with.

    >>> needed_queries(0.05, 0.25, 0.05)
    199
    """
    if not level >= sys.float_info.min:
        raise ValueError(f"no number of queries shows a difference at the level {level}")
    sizes_are_known = math.isfinite(difference) and math.isfinite(deviation)
    if not sizes_are_known or difference**2 * MOST_QUERIES <= deviation**2:
        raise ValueError(f"no number of queries shows {difference} (deviation {deviation})")

    def power_of(query_count: int) -> float:
        return paired_power(difference, deviation, query_count, level)

    fewest_queries = _fewest_queries(level)
    enough_queries = fewest_queries
    while power_of(enough_queries) < power:
        enough_queries *= 2
    return bisect_left(range(enough_queries), power, lo=fewest_queries, key=power_of)


# The power above is that of normal differences. In replays of simulated and real differences, a
# power of 80 % was right within 3 points where the means of samples had at most so much skewness
# and kurtosis.
MOST_SKEWNESS = 0.08  # of the mean: that of the differences / sqrt(N)
MOST_KURTOSIS = 0.25  # of the mean, in excess of the normal one: that of the differences / N


def roughness(differences: Floats) -> float:
    """Return how far the mean of differences, (N,), is from normal, and its power from exact.

    Up to 1, a power of 80 % is right within 3 points. For M queries like these it is sqrt(N / M)
    times as high. NaN if all differences are equal.

    >>> differences = np.array([0.0] * 58 + [0.5, 1.0])
    >>> roughness(differences) > 1, roughness(np.linspace(-1, 1, 60)) < 1
    (True, True)
    """
    query_count = len(differences)
    if query_count < 2 or not np.ptp(differences):
        return math.nan
    scaled = (differences - differences.mean()) / differences.std()
    skewness = abs(float((scaled**3).mean())) / math.sqrt(query_count)
    kurtosis = max(0.0, float((scaled**4).mean()) - 3) / query_count
    return max(skewness / MOST_SKEWNESS, math.sqrt(kurtosis / MOST_KURTOSIS))


def is_rough(roughness_of_sample: float, sample_count: int, query_count: int) -> bool:
    """Return whether the power of so many queries may be off by more than 3 points.

    `roughness_of_sample` is that of differences of `sample_count` queries of the same kind.

    >>> is_rough(1.5, 50, 60), is_rough(1.5, 50, 500), is_rough(math.nan, 50, 60)
    (True, False, False)
    """
    return roughness_of_sample * math.sqrt(sample_count / query_count) > 1


def level_of_width(half_width: float, deviation: float, query_count: int) -> float:
    """Return the level of the paired t test whose interval has a half-width.

    It stands for another test with an interval of that width: both reject 0 for the same mean
    differences. NaN below two queries, or if the deviation is 0.

    >>> from scipy.stats import t
    >>> half_width = t.isf(0.025, 99) * 0.2 / math.sqrt(100)
    >>> round(level_of_width(half_width, 0.2, 100), 6)
    0.05
    """
    from scipy.stats import t

    if query_count < 2 or not deviation > 0:
        return math.nan
    statistic = half_width / deviation * math.sqrt(query_count)
    return float(2 * t.sf(statistic, query_count - 1))


# Randomised Tukey HSD ("honestly significant difference"): all pairs of several systems at once.
# If no systems differ, the values of a query might as well belong to them in any other order. The
# difference of two systems is significant if the range of all means, highest minus lowest, is
# rarely as large in random orders: Carterette, "Multiple Testing in Statistical Analysis of
# Systems-Based Information Retrieval Experiments" (2012); Sakai, "Laboratory Experiments in
# Information Retrieval" (2018).

MOST_ORDERED = 7  # systems whose orders are all listed: 5,040
ORDERS = 5040  # drawn for each query of more systems
BLOCK = 1 << 18  # means in memory at once


def permuted_ranges(
    values: Floats,
    permutations: int,
    seed: int,
    advance: Callable[[int], object] = lambda count: None,
) -> Floats:
    """Return the ranges of the systems' means over queries in random orders, ascending.

    values: (systems, queries) -> (permutations,). The values of each query are permuted on their
    own. `advance` is called with the number of permutations whenever some are done.

    >>> permuted_ranges(np.array([[0.0], [0.5], [1.0]]), 3, seed=1).tolist()
    [1.0, 1.0, 1.0]
    """
    random = np.random.default_rng(seed)
    system_count, query_count = values.shape
    differs = np.ptp(values, axis=0) > 0  # queries without differences do not change the range
    values_by_query = values.T[differs]
    block_size = max(1, BLOCK // system_count)
    ranges = []
    for start in range(0, permutations, block_size):
        count = min(block_size, permutations - start)
        sums = _permuted_sums(values_by_query, count, random)
        ranges.append(np.ptp(sums, axis=1) / max(1, query_count))
        advance(count)
    return np.sort(np.concatenate(ranges))


def _permuted_sums(values_by_query: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return the systems' sums over queries in random orders.

    values_by_query: (queries, systems) -> (count, systems).
    """
    system_count = values_by_query.shape[1]
    if system_count <= MOST_ORDERED:
        orders = np.array(list(itertools.permutations(range(system_count))))  # (orders, systems)
    sums = np.zeros((count, system_count))
    for values in values_by_query:
        if system_count > MOST_ORDERED:
            unordered = np.tile(np.arange(system_count), (ORDERS, 1))
            orders = random.permuted(unordered, axis=1)
        ordered_values = values[orders]
        rows = random.integers(0, len(orders), count)
        sums += ordered_values[rows]
    return sums


def range_p_value(difference: float, ranges: Floats) -> float:
    """Return the share of ranges, ascending, that are as large as a difference of two means.

    The observed order is counted among them.

    >>> range_p_value(-0.3, np.array([0.1, 0.2, 0.3]))
    0.5
    """
    smallest_range = abs(difference) - 10.0**-DIGITS
    extreme_count = len(ranges) - int(np.searchsorted(ranges, smallest_range))
    return (extreme_count + 1) / (len(ranges) + 1)


def critical_range(ranges: Floats, level: float) -> float:
    """Return the largest difference whose p-value is not below a level, by ranges, ascending.

    It is infinite where there are too few permutations for a p-value below that level.

    >>> ranges = np.arange(1, 100) / 100
    >>> critical_range(ranges, 0.05), range_p_value(0.96, ranges), range_p_value(0.97, ranges)
    (0.96, 0.05, 0.04)
    >>> critical_range(ranges, 0.01)
    inf
    """
    # A p-value is below the level if fewer than level * (len(ranges) + 1) - 1 ranges are as large
    # as the difference; 1e-12 keeps rounding from raising a product that is a whole number.
    extreme_count = math.ceil(level * (len(ranges) + 1) * (1 - 1e-12)) - 2
    if extreme_count < 0:
        return math.inf
    return float(ranges[len(ranges) - 1 - extreme_count])


# Sequential comparison: which systems may be the best, valid at any time
#
# Test by betting: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
# betting" (2024). A player who bets a share b of the capital on every query multiplies it by
# 1 + b * difference. If the mean difference is not above 0, the expected capital never exceeds 1,
# and by Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.

# The capital is divided among four bets. Half of it is bet boldly, because two systems often differ
# on few queries, or a little on most. The best share is the mean difference over the mean squared
# difference; where that is below 0.05, half of the lowest bet, no bet wins anything.
BETS = np.array([0.1, 0.25, 0.5, 0.99])
STAKES = np.array([1, 1, 1, 3]) / 6  # parts of the capital that the bets start with
ROUNDING = 1e-9  # of values that are just above 1


class Interval(NamedTuple):
    """Bounds of a mean or of a mean difference."""

    low: float
    high: float


class SequentialComparison:
    """Compare systems on a growing number of queries, and drop those that are not the best.

    After each block of queries, a system is dropped if the evidence against its being the best
    reaches 2 / alpha. However many systems and blocks there are, and whenever and for whatever
    reason they end,

    - a system of the highest mean is ever dropped with a probability of at most alpha / 2,
    - one system remains alone, although another is as good or better, with one of at most alpha.

    Means are those of the population that the queries come from. Assumed: queries are a random
    sample in random order, so that earlier ones say nothing about later ones. Values are between 0
    and 1.

    >>> comparison = SequentialComparison(["good", "bad"])
    >>> comparison.add({"good": np.ones(5), "bad": np.zeros(5)})
    >>> comparison.remaining
    ('good', 'bad')
    >>> comparison.add({"good": np.ones(5), "bad": np.zeros(5)})
    >>> comparison.remaining, comparison.dropped
    (('good',), {'bad': 10})
    """

    def __init__(self, systems: Sequence[str], alpha: float = 0.05) -> None:
        if len(systems) < 2 or len(set(systems)) < len(systems):
            raise UsageError(f"two or more different systems are compared, not {list(systems)}")
        if not 0 < alpha < 1:
            raise UsageError(f"alpha is between 0 and 1, not {alpha}")
        self.systems = tuple(systems)
        self.alpha = alpha
        self.threshold = 2 / alpha  # of the evidence that drops a system
        self.query_count = 0
        self.remaining = self.systems
        self.dropped: dict[str, int] = {}  # system -> number of queries after which it was dropped
        self._values: dict[str, Floats] = {system: np.empty(0) for system in systems}
        # for each pair, (bets,): the capital of each bet on "the first is better than the second"
        self._log_capital = {pair: np.log(STAKES) for pair in itertools.permutations(systems, 2)}

    def add(self, values: Mapping[str, Floats]) -> None:
        """Add a block: the values of each remaining system on the same queries in the same order.

        Values of dropped systems are ignored. The order of queries within a block has no effect.
        """
        block = {system: _checked(system, values) for system in self.remaining}
        sizes = {system: len(system_values) for system, system_values in block.items()}
        if len(set(sizes.values())) > 1:
            raise UsageError(f"the systems have values of different numbers of queries: {sizes}")
        self.query_count += sizes[self.remaining[0]]
        for system, system_values in block.items():
            self._values[system] = np.concatenate([self._values[system], system_values])
        for better, worse in itertools.permutations(self.remaining, 2):
            differences = block[better] - block[worse]
            self._log_capital[better, worse] += _log_growth(differences)
        self._drop()

    def _drop(self) -> None:
        """Drop all systems with enough evidence against them.

        Never the leader: bets on systems that are dropped may still count against it.
        """
        leader = self.leader
        worse = [
            system
            for system in self.remaining
            if system != leader and self._log_evidence(system) >= math.log(self.threshold)
        ]
        for system in worse:
            self.dropped[system] = self.query_count
        self.remaining = tuple(system for system in self.remaining if system not in worse)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each system over the queries that it has values of; NaN without queries."""
        means = {}
        for system, values in self._values.items():
            means[system] = float(values.mean()) if len(values) > 0 else math.nan
        return means

    @property
    def leader(self) -> str:
        """The remaining system with the highest mean; of equal ones, the first."""
        means = self.means
        return max(self.remaining, key=lambda system: round(means[system], DIGITS))

    def evidence(self, system: str) -> float:
        """Return the e-value against "this system is the best".

        It is the mean, over all other systems, of the capital won by bets on "the other system is
        better". What was bet on a system that is dropped stays as it was then. The expectation for
        the best system is at most 1, at any time.
        """
        return math.exp(min(self._log_evidence(system), math.log(sys.float_info.max)))

    def _log_evidence(self, system: str) -> float:
        others = [other for other in self.systems if other != system]
        log_capitals = [self._log_capital[other, system] for other in others]
        return _log_sum(np.concatenate(log_capitals)) - math.log(len(others))

    def interval(self, system: str) -> Interval:
        """Return bounds of the mean difference of a system from the leader.

        With a probability of 1 - alpha the bounds of all systems hold together after every block,
        whichever system leads. With more than two systems that asks for more evidence than dropping
        one does, so the bounds of a dropped system may contain 0. It is compared on the queries
        that it has values of.
        """
        if system == self.leader:
            return Interval(0.0, 0.0)
        values = self._values[system]
        differences = values - self._values[self.leader][: len(values)]
        one_sided_tests = len(self.systems) * (len(self.systems) - 1)
        log_threshold = math.log(one_sided_tests / self.alpha)
        low = _lower_bound(differences, log_threshold)
        high = -_lower_bound(-differences, log_threshold)
        return Interval(low, high)


def _checked(system: str, values: Mapping[str, Floats]) -> Floats:
    """Return the values of a system in a block, at most 1."""
    if system not in values:
        raise UsageError(f"the block has no values of {system}, which is not dropped")
    system_values = np.asarray(values[system], dtype=np.float64)
    is_valid = (system_values >= 0) & (system_values <= 1 + ROUNDING)
    if not is_valid.all():
        value = system_values[~is_valid][0]
        raise UsageError(f"{system} has the value {value}; values between 0 and 1 are compared")
    return np.minimum(system_values, 1.0)


def _log_growth(differences: Floats, mean: float = 0.0) -> Floats:
    """Return the logarithm of what each bet on "the mean is higher" multiplies its capital by.

    differences: (N,) between -1 and 1 -> (bets,). A difference of -1, the lowest, loses what was
    bet on the query, and no more.
    """
    returns = (differences - mean) / (1 + mean)  # of 1 that is bet: -1 or more
    growth: Floats = np.log1p(np.outer(BETS, returns)).sum(1)
    return growth


def _log_sum(logarithms: Floats) -> float:
    """Return the logarithm of the sum of numbers that are given by their logarithms.

    >>> round(math.exp(_log_sum(np.log([1, 3]))), 12)
    4.0
    """
    return float(np.logaddexp.reduce(logarithms))


def _lower_bound(differences: Floats, log_threshold: float) -> float:
    """Return the highest mean that bets on "the mean is higher" disprove; -1 if there is none."""
    from scipy.optimize import brentq

    def log_excess(mean: float) -> float:
        log_capital = np.log(STAKES) + _log_growth(differences, mean)
        return _log_sum(log_capital) - log_threshold

    lowest = -1 + 1e-9
    if len(differences) == 0 or log_excess(lowest) <= 0:
        return -1.0
    # the higher the tested mean, the lower the capital; at the observed mean it is 1 at most
    return float(brentq(log_excess, lowest, differences.mean()))


# Prediction-powered means
#
# Few queries have values by human labels, many by predicted labels, the few among the many. The
# mean is that over the population of queries of which the many are a sample. Angelopoulos, Duchi
# and Zrnic, "PPI++: Efficient Prediction-Powered Inference" (2023), in the form for samples within
# each other, where the power-tuned weight is the slope of the regression of human values on
# predicted ones.

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


def confidence_interval(estimate: MeanEstimate, alpha: float) -> Interval:
    """Return the two-sided interval of level 1 - alpha.

    >>> low, high = confidence_interval(MeanEstimate(0.5, 0.1, 10), 0.05)
    >>> round(low, 3), round(high, 3)
    (0.277, 0.723)
    """
    from scipy.stats import t  # slow to import

    half_width = float(t.ppf(1 - alpha / 2, estimate.freedom)) * estimate.error
    return Interval(estimate.mean - half_width, estimate.mean + half_width)


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
