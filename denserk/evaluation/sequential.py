"""Sequential comparison: which systems may be the best, valid at any time.

Test by betting: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"
(2024). A player who bets a share b of the capital on every query multiplies it by
1 + b * difference. If the mean difference is not above 0, the expected capital never exceeds 1, and
by Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.
"""

import itertools
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from denserk.errors import UsageError
from denserk.evaluation.intervals import DIGITS, ConfidenceInterval

Floats = NDArray[np.float64]

# The capital is divided among four bets. Half of it is bet boldly, because two systems often differ
# on few queries, or a little on most. The best share is the mean difference over the mean squared
# difference; where that is below 0.05, half of the lowest bet, no bet wins anything.
BETS = np.array([0.1, 0.25, 0.5, 0.99])
STAKES = np.array([1, 1, 1, 3]) / 6  # parts of the capital that the bets start with
ROUNDING = 1e-9  # of values that are just above 1


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

    def interval(self, system: str) -> ConfidenceInterval:
        """Return bounds of the mean difference of a system from the leader.

        With a probability of 1 - alpha the bounds of all systems hold together after every block,
        whichever system leads. With more than two systems that asks for more evidence than dropping
        one does, so the bounds of a dropped system may contain 0. It is compared on the queries
        that it has values of.
        """
        if system == self.leader:
            return ConfidenceInterval(0.0, 0.0)
        values = self._values[system]
        differences = values - self._values[self.leader][: len(values)]
        one_sided_tests = len(self.systems) * (len(self.systems) - 1)
        log_threshold = math.log(one_sided_tests / self.alpha)
        low = _lower_bound(differences, log_threshold)
        high = -_lower_bound(-differences, log_threshold)
        return ConfidenceInterval(low, high)


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
