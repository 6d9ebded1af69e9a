"""Whether two runs differ: paired tests over queries, with effect sizes and corrections.

The t-test and the randomisation test are those that Smucker, Allan and Carterette, "A Comparison of
Statistical Significance Tests for Information Retrieval Evaluation" (2007), recommend; Holm's
correction is of "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        low, high: the confidence interval of the mean, of Student's t.
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


def correct(p_values: Sequence[float], correction: Correction) -> list[float]:
    """P-values of several tests, corrected for there being several; NaN stays out of the count.

    >>> correct([0.01, 0.04, 0.03], Correction.HOLM)
    [0.03, 0.06, 0.06]
    >>> correct([0.01, 0.04, 0.03], Correction.BONFERRONI)
    [0.03, 0.12, 0.09]
    """
    known = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    corrected = list(p_values)
    if correction is Correction.NONE:
        return corrected
    highest = 0.0
    for rank, i in enumerate(sorted(known, key=lambda i: p_values[i])):
        factor = len(known) - (rank if correction is Correction.HOLM else 0)
        value = min(1.0, factor * p_values[i])
        highest = max(highest, value) if correction is Correction.HOLM else value
        corrected[i] = highest
    return corrected


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
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * deviation / math.sqrt(n) if n > 1 else mean
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
