"""Paired significance tests of runs against a baseline, with effect sizes and corrections.

The t-test and the randomisation test are those that Smucker, Allan and Carterette, "A Comparison of
Statistical Significance Tests for Information Retrieval Evaluation" (2007), recommend; Holm's
correction is from "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import PREVIOUS, ComparisonSettings, Correction, PairedTest
from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_mean
from denserk.evaluation.results import Comparison, Difference, RunResult

Differences = NDArray[np.float64]  # (N,) run minus baseline, one for each query
PerQuery = Mapping[str, Mapping[str, float]]  # measure -> query id -> value

BLOCK = 1 << 22  # random signs in memory at once
MOST_RUNS = 12  # of two systems over seeds; they are divided in at most 924 ways
DIGITS = 12  # of a difference; smaller ones come from the order of a sum


def compare(
    runs: Mapping[str, PerQuery],
    measures: Sequence[Measure],
    baseline: str,
    settings: ComparisonSettings,
    systems: Mapping[str, RunResult] | None = None,
) -> Comparison:
    """Test every other run against the baseline, and correct all tests together.

    The baseline "previous" is of each run the one before it. Two runs are compared on the queries
    that both have a value for. `systems` are runs over seeds.
    """
    others = {name: baseline for name in runs if name != baseline}
    if baseline == PREVIOUS and baseline not in runs:
        others, baseline = dict(zip([*runs][1:], runs, strict=False)), "the previous run"
    if not others:
        raise UsageError(f"--baseline {baseline} is the only run", "name a run to compare with it")
    samples, p_values, spread = {}, [], {}
    for run, against in others.items():
        for name in (str(measure) for measure in measures if is_mean(measure)):
            mine, theirs = runs[run][name], runs[against][name]
            values = np.array([mine[qid] - theirs[qid] for qid in theirs if qid in mine])
            samples[run, name] = values.round(DIGITS)
            if systems is None:
                p_values.append(p_value(samples[run, name], settings))
            else:
                pair = systems[run], systems[against]
                p_values.append(seeds_p_value(*pair, name, settings))
                deviations = [system.spread.get(name, 0.0) for system in pair]
                spread[run, name] = math.hypot(*deviations) / math.sqrt(2)
    factors = correction_factors(p_values, settings.correction)
    found: dict[str, dict[str, Difference]] = {run: {} for run in others}
    for ((run, name), sample), p, factor in zip(samples.items(), p_values, factors, strict=True):
        found[run][name] = describe(sample, p, factor, settings.alpha)
    return Comparison(baseline, settings, found, spread)


def seeds_p_value(
    one: RunResult, other: RunResult, measure: str, settings: ComparisonSettings
) -> float:
    """Return the two-sided p-value of two systems, each with runs over seeds.

    If the systems do not differ, each query's values might as well be divided among them in any
    other way. The p-value is the share of random divisions, each query on its own and the observed
    one among them, whose difference of means is as large.
    """
    mine, theirs = ([run.per_query[measure] for run in system.seeds] for system in (one, other))
    if len(mine) + len(theirs) > MOST_RUNS:
        raise UsageError(f"--seeds: {one.name} and {other.name} have more than {MOST_RUNS} runs")
    qids = [qid for qid in theirs[0] if all(qid in run for run in (*mine, *theirs))]
    values = np.array([[run[qid] for qid in qids] for run in (*mine, *theirs)])
    places = range(len(values))
    divisions = [list(chosen) for chosen in combinations(places, len(mine))]
    means = [values[chosen].mean(0) - np.delete(values, chosen, 0).mean(0) for chosen in divisions]
    table = np.array(means).round(DIGITS)  # (divisions, queries); the observed one is the first
    observed = abs(table[0].sum()) - 10.0**-DIGITS * len(qids)
    random, extreme = np.random.default_rng(settings.test_seed), 0
    rows = max(1, BLOCK // max(1, len(qids)))
    for start in range(0, settings.permutations, rows):
        shape = (min(rows, settings.permutations - start), len(qids))
        drawn = random.integers(0, len(divisions), shape)
        sums = table[drawn, np.arange(len(qids))].sum(1)
        extreme += int((np.abs(sums) >= observed).sum())
    return (extreme + 1) / (settings.permutations + 1)


def t_test(differences: Differences) -> Any:
    """Return scipy's result of the two-sided paired t-test."""
    from scipy.stats import ttest_1samp  # slow to import, and most evaluations need no test

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of differences that are all alike, or fewer than two
        return ttest_1samp(differences, 0.0)


def interval(run: RunResult, measure: Measure, alpha: float) -> tuple[float, float]:
    """Return Student's t interval of a mean over queries; NaN for other summaries."""
    values = np.array([*run.per_query[str(measure)].values()])
    if not is_mean(measure) or len(values) < 2:
        return math.nan, math.nan
    found = t_test(values).confidence_interval(1 - alpha)
    return float(found.low), float(found.high)


def p_value(differences: Differences, settings: ComparisonSettings) -> float:
    """Return the two-sided p-value of a test; NaN below two queries.

    In the randomisation test each difference might as well have the other sign. The p-value is the
    share of random signs, the observed ones among them, that give a mean as large. If there are no
    more than `permutations` ways to set the signs, all are taken, and p is exact.
    `scipy.stats.permutation_test` gives the same in 25 times the time.

    >>> p_value(np.array([1.0, 1.0, 1.0]), ComparisonSettings(test=PairedTest.RANDOMISATION))
    0.25
    """
    if len(differences) < 2:
        return math.nan
    if not differences.any():
        return 1.0
    if settings.test is PairedTest.T:
        return float(t_test(differences).pvalue)
    moved = differences[differences != 0]
    observed = abs(moved.sum()) - 10.0**-DIGITS * len(differences)
    permutations = settings.permutations
    if 2 ** len(moved) <= permutations:
        sums = np.zeros(1)
        for value in moved:
            sums = np.concatenate([sums - value, sums + value])
        return float((np.abs(sums) >= observed).mean())
    random = np.random.default_rng(settings.test_seed)
    rows = max(1, BLOCK // len(moved))
    extreme = 0
    for start in range(0, permutations, rows):
        shape = (min(rows, permutations - start), len(moved))
        signs = random.integers(0, 2, shape, dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= observed).sum())
    return (extreme + 1) / (permutations + 1)


def correction_factors(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Return the factor of each p-value of several tests; NaN values do not count as tests.

    >>> correction_factors([0.01, 0.04, 0.03], Correction.HOLM)
    [3.0, 1.5, 2.0]
    >>> correction_factors([0.01, 0.04, 0.03], Correction.BONFERRONI)
    [3.0, 3.0, 3.0]
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    factors = [1.0] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(tested if correction is not Correction.NONE else ()):
        factors[i] = float(len(tested))
        if correction is Correction.HOLM:
            factors[i] -= rank
            highest = max(highest, factors[i] * p)
            if p > 0:  # no corrected value is below that of a smaller p-value
                factors[i] = max(factors[i], highest / p)
    return factors


def describe(differences: Differences, p: float, factor: float, alpha: float) -> Difference:
    """Describe the differences of a run from a baseline, tested with a p-value and its factor.

    The interval is that of level 1 - alpha / factor, so that the interval of a t-test excludes 0
    exactly where the corrected p-value is below alpha.
    """
    n, mean = len(differences), float(differences.mean()) if len(differences) else math.nan
    bounds = t_test(differences).confidence_interval(1 - alpha / factor)
    effect = math.nan
    if n > 1 and np.ptp(differences):
        effect = mean / float(differences.std(ddof=1))
    elif n > 1:
        effect = math.copysign(math.inf, mean) if mean else 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    corrected = p if math.isnan(p) else min(1.0, factor * p)
    low, high = float(bounds.low), float(bounds.high)
    return Difference(mean, low, high, effect, p, wins, n - wins - losses, losses, corrected)
