"""Statistics of per-query values, on arrays alone."""

import math
import sys
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import UsageError

Values = NDArray[np.float64]  # (N,) of a measure, one for each query


# Sequential comparison: which systems may be the best, valid at any time
#
# Test by betting: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
# betting" (2024). A player who bets a share b of the capital on every query multiplies it by
# 1 + b * difference. If the mean difference is not above 0, the expected capital never exceeds 1,
# and by Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.

# The capital is divided: half is bet boldly, because two systems often differ on few queries, or a
# little on most. The best share is the mean difference over the mean squared difference; where that
# is below 0.05, half of the lowest bet, nothing is won.
BETS = np.array([0.1, 0.25, 0.5, 0.99])
STAKES = np.array([1, 1, 1, 3]) / 6  # parts of the capital that the bets start with
ROUNDING = 1e-9  # of values that are just above 1


class Interval(NamedTuple):
    """Bounds of a mean difference."""

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
        self._values: dict[str, Values] = {system: np.empty(0) for system in systems}
        # (bets,) for each pair: what the bets on "the first is better than the second" have become
        self._log_capital = {pair: np.log(STAKES) for pair in permutations(systems, 2)}

    def add(self, values: Mapping[str, Values]) -> None:
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
        for better, worse in permutations(self.remaining, 2):
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
        sums = {system: math.fsum(self._values[system]) for system in self.remaining}
        return max(self.remaining, key=sums.__getitem__)

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
        one: the bounds of a dropped system may contain 0. A dropped system is compared on the
        queries that it has values of.
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


def _checked(system: str, values: Mapping[str, Values]) -> Values:
    """Return the values of a system in a block, at most 1."""
    if system not in values:
        raise UsageError(f"the block has no values of {system}, which is not dropped")
    system_values = np.asarray(values[system], dtype=np.float64)
    is_valid = (system_values >= 0) & (system_values <= 1 + ROUNDING)
    if not is_valid.all():
        value = system_values[~is_valid][0]
        raise UsageError(f"{system} has the value {value}; values between 0 and 1 are compared")
    return np.minimum(system_values, 1.0)


def _log_growth(differences: Values, mean: float = 0.0) -> Values:
    """Return the logarithm of what each bet on "the mean is higher" multiplies its capital by.

    differences: (N,) between -1 and 1 -> (bets,). A whole stake can be lost, but no more: the
    difference that is furthest below the mean, -1, costs the stake.
    """
    returns = (differences - mean) / (1 + mean)  # -1 or more
    growth: Values = np.log1p(np.outer(BETS, returns)).sum(1)
    return growth


def _log_sum(logarithms: Values) -> float:
    """Return the logarithm of the sum of numbers that are given by their logarithms.

    >>> round(math.exp(_log_sum(np.log([1, 3]))), 12)
    4.0
    """
    return float(np.logaddexp.reduce(logarithms))


def _lower_bound(differences: Values, log_threshold: float) -> float:
    """Return the highest mean that bets on "the mean is higher" disprove; -1 if there is none."""
    from scipy.optimize import brentq

    def log_excess(mean: float) -> float:
        log_capital = np.log(STAKES) + _log_growth(differences, mean)
        return _log_sum(log_capital) - log_threshold

    lowest = -1 + 1e-9
    if len(differences) == 0 or log_excess(lowest) <= 0:
        return -1.0
    # the capital falls with the mean that is tested, and has not grown at the observed mean
    return float(brentq(log_excess, lowest, differences.mean()))


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
