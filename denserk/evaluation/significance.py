"""Whether two runs differ: paired tests over queries, with effect sizes and corrections.

The t-test and the randomisation test are those that Smucker, Allan and Carterette, "A Comparison of
Statistical Significance Tests for Information Retrieval Evaluation" (2007), recommend; Holm's
correction is of "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from denserk.settings.comparison import Correction, PairedTest

Values = NDArray[np.float64]

BLOCK = 1 << 22
"""Signs that are drawn at once."""
SAME = 1e-12
"""Differences below this are ties: they come of the order of a sum."""


@dataclass(frozen=True)
class Difference:
    """How a run differs from a baseline in one measure, over n queries.

    Attributes:
        mean: of the differences, run minus baseline.
        low, high: the confidence interval of the mean, of Student's t; wider after a correction.
        effect: Cohen's d of paired samples: the mean over the differences' standard deviation.
        p: the test's two-sided p-value, before any correction.
        wins, ties, losses: queries on which the run is better, equal, worse.
        corrected: the p-value after the correction; equal to `p` until then.
    """

    mean: float
    low: float
    high: float
    effect: float
    p: float
    wins: int
    ties: int
    losses: int
    corrected: float


def t_test(differences: Values) -> float:
    """The two-sided p-value of the paired t-test; NaN for fewer than two queries.

    Args:
        differences: (n,), run minus baseline.

    >>> round(t_test(np.array([0.1, 0.3, 0.2, -0.1])), 4)
    0.2394
    """
    n = len(differences)
    if n < 2:
        return math.nan
    deviation = differences.std(ddof=1)
    if deviation <= SAME:
        return 1.0 if abs(differences.mean()) <= SAME else 0.0
    t = differences.mean() / (deviation / math.sqrt(n))
    from scipy.special import stdtr  # takes as long to import as an evaluation without it

    return float(2 * stdtr(n - 1, -abs(t)))


def randomisation_test(differences: Values, permutations: int, seed: int) -> float:
    """The two-sided p-value of the paired randomisation test.

    Under the null hypothesis each difference might as well have the other sign. The p-value is the
    share of random signs, the observed ones counted among them, that give a mean as large. Where
    there are no more than `permutations` ways to set the signs, all are taken, and p is exact.

    Args:
        differences: (n,), run minus baseline.
        permutations: how many signs are drawn.
        seed: of the draws.

    >>> randomisation_test(np.array([1.0, 1.0, 1.0]), 1000, seed=1)
    0.25
    """
    n = len(differences)
    if n < 2:
        return math.nan
    moved = differences[np.abs(differences) > SAME]
    observed = abs(moved.sum()) - SAME * max(1, n)
    if len(moved) < 63 and 2 ** len(moved) <= permutations:
        sums = np.zeros(1)
        for value in moved:
            sums = np.concatenate([sums - value, sums + value])
        return float((np.abs(sums) >= observed).mean())
    random = np.random.default_rng(seed)
    extreme, left = 0, permutations
    while left:
        count = min(left, max(1, BLOCK // max(1, len(moved))))
        signs = random.integers(0, 2, (count, len(moved)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= observed).sum())
        left -= count
    return (extreme + 1) / (permutations + 1)


def correction_factors(p_values: Sequence[float], correction: Correction) -> list[float]:
    """What each p-value of several tests is multiplied by; NaN stays out of the count.

    >>> correction_factors([0.01, 0.04, 0.03], Correction.HOLM)
    [3.0, 1.5, 2.0]
    >>> correction_factors([0.01, 0.04, 0.03], Correction.BONFERRONI)
    [3.0, 3.0, 3.0]
    """
    known = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    factors = [1.0] * len(p_values)
    if correction is Correction.NONE:
        return factors
    highest = 0.0
    for rank, i in enumerate(sorted(known, key=lambda i: p_values[i])):
        factors[i] = float(len(known))
        if correction is Correction.HOLM:
            factors[i] -= rank
            highest = max(highest, factors[i] * p_values[i])
            if p_values[i] > 0:  # no corrected value is below that of a smaller p-value
                factors[i] = max(factors[i], highest / p_values[i])
    return factors


def correct(difference: Difference, factor: float, alpha: float) -> Difference:
    """A difference with its p-value corrected and its interval widened alike.

    The p-value is multiplied by the factor, and the interval is that of level 1 - alpha / factor.
    So an interval of a t-test leaves out 0 exactly where the corrected p-value is below alpha.

    Args:
        difference: its interval is that of level 1 - alpha.
        factor: see `correction_factors`.
        alpha: the level of the tests.
    """
    if math.isnan(difference.p):
        return difference
    from scipy.special import stdtrit

    degrees = difference.wins + difference.ties + difference.losses - 1
    wider = stdtrit(degrees, 1 - alpha / factor / 2) / stdtrit(degrees, 1 - alpha / 2)
    half = float(wider) * (difference.high - difference.mean)
    return replace(
        difference,
        corrected=min(1.0, factor * difference.p),
        low=difference.mean - half,
        high=difference.mean + half,
    )


def compare(
    run: Mapping[str, float],
    baseline: Mapping[str, float],
    test: PairedTest,
    *,
    confidence: float = 0.95,
    permutations: int = 100_000,
    seed: int = 42,
) -> Difference:
    """A run against a baseline, over the queries that both have a value for.

    Args:
        run: query id -> value.
        baseline: query id -> value.
        test: which test.
        confidence: of the interval.
        permutations: of the randomisation test.
        seed: of its draws.
    """
    queries = [qid for qid in baseline if qid in run]
    differences = np.array([run[qid] - baseline[qid] for qid in queries], dtype=np.float64)
    from scipy.special import stdtrit

    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    deviation = float(differences.std(ddof=1)) if n > 1 else math.nan
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * deviation / math.sqrt(n or 1)
    if deviation > SAME:
        effect = mean / deviation
    else:
        effect = 0.0 if abs(mean) <= SAME else math.copysign(math.inf, mean)
    if test is PairedTest.T:
        p = t_test(differences)
    else:
        p = randomisation_test(differences, permutations, seed)
    return Difference(
        mean=mean,
        low=mean - half,
        high=mean + half,
        effect=effect if n > 1 else math.nan,
        p=p,
        wins=int((differences > SAME).sum()),
        ties=int((np.abs(differences) <= SAME).sum()),
        losses=int((differences < -SAME).sum()),
        corrected=p,
    )
