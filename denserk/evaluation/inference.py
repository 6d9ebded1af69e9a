"""Statistics of paired values, as functions of numbers and arrays.

scipy is imported inside of functions, because most evaluations do not need it.
"""

import math
import warnings
from bisect import bisect_left

# Power of the paired t test: what a number of queries can show. Exact by the noncentral t
# distribution, as in Cohen, "Statistical Power Analysis for the Behavioral Sciences" (1988).

POWER = 0.8  # of a planned comparison, by convention
MOST_QUERIES = 1 << 62


def paired_power(difference: float, deviation: float, query_count: int, level: float) -> float:
    """Return the chance that a two-sided paired t test at `level` detects a true difference.

    `difference` and `deviation` are the true mean and standard deviation of the paired
    differences. NaN below two queries.

    >>> round(paired_power(0.05, 0.25, 200, 0.05), 3)
    0.804
    """
    from scipy.stats import nct, t

    if query_count < 2 or math.isnan(deviation):
        return math.nan
    if deviation == 0:
        return 1.0 if difference else level
    freedom = query_count - 1
    critical_value = t.isf(level / 2, freedom)
    noncentrality = abs(difference) / deviation * math.sqrt(query_count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two queries at a level below 0.0001
        upper_tail = nct.sf(critical_value, freedom, noncentrality)
        lower_tail = nct.sf(critical_value, freedom, -noncentrality)
    return float(upper_tail + lower_tail)


def smallest_difference(
    deviation: float, query_count: int, level: float, power: float = POWER
) -> float:
    """Return the smallest true difference that a two-sided paired t test at `level` detects.

    It detects that difference with a chance of `power`, if the paired differences have this
    standard deviation. NaN below two queries.

    >>> round(smallest_difference(0.25, 200, 0.05), 4)
    0.0498
    >>> smallest_difference(0.25, 1, 0.05)
    nan
    """
    from scipy.optimize import brentq

    if query_count < 2 or math.isnan(deviation) or math.isnan(level):
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
    if not difference or not math.isfinite(difference) or not math.isfinite(deviation):
        raise ValueError(f"no number of queries shows {difference} (deviation {deviation})")

    def detected_power(query_count: int) -> float:
        return paired_power(difference, deviation, query_count, level)

    most_queries = 2
    while detected_power(most_queries) < power:
        most_queries *= 2
        if most_queries > MOST_QUERIES:
            raise ValueError(f"no number of queries shows {difference} (deviation {deviation})")
    return bisect_left(range(most_queries), power, lo=2, key=detected_power)
