"""Statistics of paired values, as functions of numbers and arrays.

scipy is imported inside of functions, because most evaluations do not need it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import permutations as all_orders

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DIGITS = 12  # of a difference; smaller ones come from the order of a sum

# Power of the paired t test: what a number of queries can show. Exact by the noncentral t
# distribution, as in Cohen, "Statistical Power Analysis for the Behavioral Sciences" (1988).

POWER = 0.8  # of a planned comparison, by convention
MOST_QUERIES = 1 << 50
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
    """Return the fewest queries of which a test at a level has a power."""
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
        ValueError: The difference is 0, or so small that no number of queries shows it.

    >>> needed_queries(0.05, 0.25, 0.05)
    199
    """
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


# The t test's power is that of normal differences. By replays of simulated and real differences it
# is right within 3 points of 80 % where the means of samples have so little skewness and kurtosis.
MOST_SKEWNESS = 0.08  # of the mean: that of the differences / sqrt(N)
MOST_KURTOSIS = 0.25  # of the mean, in excess of the normal one: that of the differences / N


def roughness(differences: Floats) -> float:
    """Return how far the power for differences, (N,), is from exact: above 1, over 3 points.

    That of M queries like these is sqrt(N / M) times as high. NaN without deviation.

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


def level_of_width(half_width: float, deviation: float, query_count: int) -> float:
    """Return the level of the paired t test whose interval is as wide as another one.

    That test rejects 0 for the same means. NaN below two queries, or without deviation.

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
        orders = np.array(list(all_orders(range(system_count))))
    sums = np.zeros((count, system_count))
    for values in values_by_query:
        if system_count > MOST_ORDERED:
            unordered = np.tile(np.arange(system_count), (ORDERS, 1))
            orders = random.permuted(unordered, axis=1)
        chosen_orders = random.integers(0, len(orders), count)
        sums += values[orders][chosen_orders]
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

    It is infinite where so few permutations show nothing at that level.

    >>> ranges = np.arange(1, 100) / 100
    >>> critical_range(ranges, 0.05), range_p_value(0.96, ranges), range_p_value(0.97, ranges)
    (0.96, 0.05, 0.04)
    >>> critical_range(ranges, 0.01)
    inf
    """
    # of the ranges, so many at most are as large as a difference that is significant
    extreme_count = math.ceil(level * (len(ranges) + 1) * (1 - 1e-12)) - 2
    if extreme_count < 0:
        return math.inf
    return float(ranges[len(ranges) - 1 - extreme_count])
