"""Power of the paired t test: what a number of queries can show.

Exact by the noncentral t distribution, as in Cohen, "Statistical Power Analysis for the Behavioral
Sciences" (1988). scipy is imported inside of functions, because most evaluations do not need it.
"""

import math
import sys
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
