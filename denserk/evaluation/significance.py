"""Paired significance tests of runs against a baseline, with effect sizes and corrections.

The t-test and the randomisation test are those that Smucker, Allan and Carterette, "A Comparison of
Statistical Significance Tests for Information Retrieval Evaluation" (2007), recommend; Holm's
correction is from "A Simple Sequentially Rejective Multiple Test Procedure" (1979). Randomised
Tukey HSD is in `tukey`.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import PREVIOUS, ComparisonSettings, Correction, PairedTest
from denserk.errors import UsageError
from denserk.evaluation.intervals import DIGITS
from denserk.evaluation.measures import Measure, is_mean
from denserk.evaluation.power import with_power
from denserk.evaluation.results import Comparison, Difference, RunResult
from denserk.evaluation.t_test_power import level_of_width
from denserk.evaluation.tukey import critical_range, permuted_ranges, range_p_value
from denserk.reporting import track

logger = logging.getLogger(__name__)

Differences = NDArray[np.float64]  # (N,) run minus baseline, one for each query
PerQuery = Mapping[str, Mapping[str, float]]  # measure -> query id -> value

BLOCK = 1 << 22  # random signs in memory at once
MOST_RUNS = 12  # of two systems over seeds; they are divided in at most 924 ways


def compare(
    runs: Mapping[str, PerQuery],
    measures: Sequence[Measure],
    baseline: str,
    settings: ComparisonSettings,
    systems: Mapping[str, RunResult] | None = None,
) -> Comparison:
    """Test every other run against the baseline, and correct all tests together.

    The baseline "previous" is of each run the one before it. Two runs are compared on the queries
    that both have a value for; by Tukey's test, on those that all runs have a value for. `systems`
    are runs over seeds, of which no power is known.
    """
    baseline_of = baselines_of(list(runs), baseline)
    if not baseline_of:
        raise UsageError(
            f"--baseline {baseline}: {' '.join(runs)} is the only run",
            "name a run to compare with it",
        )
    if baseline == PREVIOUS and baseline not in runs:
        baseline = "the previous run"
    compared_measures = _compared_measures(measures, baseline)
    if settings.correction is Correction.TUKEY:
        runs = _on_common_queries(runs, compared_measures)
    tests: list[_Test] = []
    for run, baseline_run in baseline_of.items():
        for measure in compared_measures:
            tests.append(_tested(run, baseline_run, measure, runs, settings, systems))
    if settings.correction is Correction.TUKEY:
        outcomes = _tukey_outcomes(tests, runs, settings)
    else:
        outcomes = _corrected_outcomes(tests, settings)
    differences: dict[str, dict[str, Difference]] = {run: {} for run in baseline_of}
    for test, outcome in zip(tests, outcomes, strict=True):
        difference = _difference_of_outcome(test.sample, test.p, outcome)
        if systems is None:
            difference = with_power(difference, test.sample, outcome.level, settings.alpha)
        differences[test.run][test.measure] = difference
    spread = {} if systems is None else _common_spreads(tests, systems)
    return Comparison(baseline, settings, differences, spread)


def _compared_measures(measures: Sequence[Measure], baseline: str) -> list[str]:
    """Return the measures that are means over queries; warn if there is none to compare."""
    compared_measures = [str(measure) for measure in measures if is_mean(measure)]
    if not compared_measures:
        names = ", ".join(map(str, measures))
        logger.warning(
            f"--baseline {baseline}: {names}: counts and geometric means are not compared"
        )
    return compared_measures


class _Test(NamedTuple):
    """A test of a run against its baseline, before the correction."""

    run: str
    baseline: str
    measure: str
    sample: Differences
    p: float


class Outcome(NamedTuple):
    """What a test says after the correction."""

    corrected: float  # the p-value
    low: float  # of the interval
    high: float
    level: float  # of the t test whose power is stated for this test: see `power`


def _tested(
    run: str,
    baseline: str,
    measure: str,
    runs: Mapping[str, PerQuery],
    settings: ComparisonSettings,
    systems: Mapping[str, RunResult] | None,
) -> _Test:
    """Test a run against its baseline by a measure."""
    sample = _paired_differences(runs[run][measure], runs[baseline][measure])
    if systems is None:
        _warn_of_equal_differences(sample, run, baseline, measure, settings)
        p = p_value(sample, settings)
    else:
        p = seeds_p_value(systems[run], systems[baseline], measure, settings)
    return _Test(run, baseline, measure, sample, p)


def baselines_of(runs: Sequence[str], baseline: str) -> dict[str, str]:
    """Return the baseline of each other run.

    >>> baselines_of(["a", "b", "c"], "a")
    {'b': 'a', 'c': 'a'}
    >>> baselines_of(["a", "b", "c"], "previous")
    {'b': 'a', 'c': 'b'}
    """
    if baseline == PREVIOUS and baseline not in runs:
        return {run: previous_run for previous_run, run in pairwise(runs)}
    return {run: baseline for run in runs if run != baseline}


def _paired_differences(
    values: Mapping[str, float], baseline_values: Mapping[str, float]
) -> Differences:
    """Return the differences on the queries that both runs have a value for."""
    differences = [
        values[qid] - baseline_value
        for qid, baseline_value in baseline_values.items()
        if qid in values
    ]
    return np.array(differences).round(DIGITS)


def _warn_of_equal_differences(
    sample: Differences, run: str, baseline: str, measure: str, settings: ComparisonSettings
) -> None:
    """Warn where a t test has no answer, as the runs differ by the same value on each query."""
    is_t_test = settings.test is PairedTest.T and settings.correction is not Correction.TUKEY
    if is_t_test and len(sample) > 1 and not _has_spread(sample) and sample.any():
        logger.warning(
            f"{run}: {measure} differs from that of {baseline} by {sample[0]:+.4g} on each of "
            f"{len(sample):,} queries; a t test needs differences that vary: "
            f"--test {PairedTest.RANDOMISATION} does not"
        )


def _has_spread(values: NDArray[np.float64]) -> bool:
    """Return whether (N,) values are not all alike."""
    return len(values) > 1 and bool(np.ptp(values))


def _common_spreads(
    tests: Sequence[_Test], systems: Mapping[str, RunResult]
) -> dict[tuple[str, str], float]:
    """Return the spread over seeds that the two systems of each test share, by run and measure."""
    spreads = {}
    for test in tests:
        system = systems[test.run]
        baseline_system = systems[test.baseline]
        spreads[test.run, test.measure] = _common_spread(system, baseline_system, test.measure)
    return spreads


def _common_spread(system: RunResult, baseline_system: RunResult, measure: str) -> float:
    """Return the root mean square of two systems' standard deviations over seeds."""
    deviation = system.spread.get(measure, 0.0)
    baseline_deviation = baseline_system.spread.get(measure, 0.0)
    return math.hypot(deviation, baseline_deviation) / math.sqrt(2)


def seeds_p_value(
    system: RunResult, baseline_system: RunResult, measure: str, settings: ComparisonSettings
) -> float:
    """Return the two-sided p-value of two systems, each with runs over seeds.

    If the systems do not differ, each query's values might as well be divided among them in any
    other way. The p-value is the share of random divisions, each query on its own and the observed
    one among them, whose difference of means is as large.
    """
    runs = [run.per_query[measure] for run in system.seeds]
    baseline_runs = [run.per_query[measure] for run in baseline_system.seeds]
    all_runs = runs + baseline_runs
    if len(all_runs) > MOST_RUNS:
        names = f"{system.name} and {baseline_system.name}"
        raise UsageError(f"--seeds: {names} have more than {MOST_RUNS} runs")
    qids = [qid for qid in baseline_runs[0] if all(qid in run for run in all_runs)]
    values = np.array([[run[qid] for qid in qids] for run in all_runs])
    differences = _differences_by_division(values, len(runs))
    division_count, query_count = differences.shape
    observed = abs(differences[0].sum()) - 10.0**-DIGITS * query_count

    def draw_sums(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        divisions = random.integers(0, division_count, (count, query_count))
        sums: NDArray[np.float64] = differences[divisions, np.arange(query_count)].sum(1)
        return sums

    return _share_as_large(draw_sums, observed, query_count, settings)


def _share_as_large(
    draw_sums: Callable[[np.random.Generator, int], NDArray[np.float64]],
    observed: float,
    query_count: int,
    settings: ComparisonSettings,
) -> float:
    """Return the share of sums that are as large as the observed one, which is among them.

    `draw_sums` returns that many random sums over the queries. The share is NaN where the observed
    sum is.
    """
    if math.isnan(observed):
        return math.nan
    random = np.random.default_rng(settings.test_seed)
    extreme_count = 0
    block_size = max(1, BLOCK // max(1, query_count))
    for start in range(0, settings.permutations, block_size):
        sums = draw_sums(random, min(block_size, settings.permutations - start))
        extreme_count += int((np.abs(sums) >= observed).sum())
    return (extreme_count + 1) / (settings.permutations + 1)


def _differences_by_division(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the difference of means for each way to choose `count` of the runs, by query.

    values: (runs, queries) -> (divisions, queries). The first division is the observed one.
    """
    differences = []
    for division in combinations(range(len(values)), count):
        rows = list(division)
        mean = values[rows].mean(0)
        mean_of_rest = np.delete(values, rows, 0).mean(0)
        differences.append(mean - mean_of_rest)
    return np.array(differences).round(DIGITS)


def t_test(differences: Differences) -> Any:
    """Return scipy's result of the two-sided paired t-test."""
    from scipy.stats import ttest_1samp  # slow to import, and most evaluations need no test

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of differences that are almost alike
        return ttest_1samp(differences, 0.0)


def interval(run: RunResult, measure: Measure, alpha: float) -> tuple[float, float]:
    """Return Student's t interval of a mean over queries; NaN for other summaries."""
    values = np.array([*run.per_query[str(measure)].values()])
    if not is_mean(measure):
        return math.nan, math.nan
    return _t_interval(values, alpha)


def _t_interval(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return Student's t interval of the mean of (N,) values at a significance level.

    Where all are alike nothing is known of their spread: NaN, but for differences that are all 0.
    """
    if len(values) > 1 and not values.any():
        return 0.0, 0.0
    if not _has_spread(values):
        return math.nan, math.nan
    bounds = t_test(values).confidence_interval(1 - level)
    return float(bounds.low), float(bounds.high)


def p_value(differences: Differences, settings: ComparisonSettings) -> float:
    """Return the two-sided p-value of a test.

    It is NaN below two queries, where a difference is NaN, and by the t-test where all differences
    are the same, but not 0.

    In the randomisation test each difference might as well have the other sign. The p-value is the
    share of random signs, the observed ones among them, that give a mean as large. If there are no
    more than `permutations` ways to set the signs, all are taken, and p is exact.
    `scipy.stats.permutation_test` gives the same in 25 times the time.

    >>> p_value(np.array([1.0, 1.0, 1.0]), ComparisonSettings(test=PairedTest.RANDOMISATION))
    0.25
    """
    if len(differences) < 2 or np.isnan(differences).any():
        return math.nan
    if not differences.any():
        return 1.0
    if settings.test is PairedTest.T:
        if not _has_spread(differences):
            return math.nan
        return float(t_test(differences).pvalue)
    nonzero = differences[differences != 0]
    observed = abs(nonzero.sum()) - 10.0**-DIGITS * len(differences)
    if 2 ** len(nonzero) <= settings.permutations:
        sums = _sums_of_all_signs(nonzero)
        return float((np.abs(sums) >= observed).mean())

    def draw_sums(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        signs = random.integers(0, 2, (count, len(nonzero)), dtype=np.int8) * 2 - 1
        sums: NDArray[np.float64] = signs @ nonzero
        return sums

    return _share_as_large(draw_sums, observed, len(nonzero), settings)


def _sums_of_all_signs(values: Differences) -> NDArray[np.float64]:
    """Return the sums of values with each choice of their signs: (N,) -> (2**N,).

    >>> _sums_of_all_signs(np.array([1.0, 2.0])).tolist()
    [-3.0, -1.0, 1.0, 3.0]
    """
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def correction_factors(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Return the factor of each p-value of several tests; NaN values do not count as tests.

    >>> correction_factors([0.01, 0.04, 0.03], Correction.HOLM)
    [3.0, 1.5, 2.0]
    >>> correction_factors([0.01, 0.04, 0.03], Correction.BONFERRONI)
    [3.0, 3.0, 3.0]
    """
    factors = [1.0 for _ in p_values]
    tested = [position for position, p in enumerate(p_values) if not math.isnan(p)]
    if correction is Correction.BONFERRONI:
        for position in tested:
            factors[position] = float(len(tested))
    if correction is Correction.HOLM:
        tested.sort(key=p_values.__getitem__)
        highest = 0.0  # of the corrected values
        for rank, position in enumerate(tested):
            p = p_values[position]
            factor = float(len(tested) - rank)
            highest = max(highest, factor * p)
            if p > 0:  # no corrected value is below that of a smaller p-value
                factor = max(factor, highest / p)
            factors[position] = factor
    return factors


def _corrected_outcomes(tests: Sequence[_Test], settings: ComparisonSettings) -> Iterator[Outcome]:
    """Yield the outcomes of tests whose p-values are multiplied by the factors of a correction."""
    p_values = [test.p for test in tests]
    factors = correction_factors(p_values, settings.correction)
    level = _level_of_power(p_values, settings)
    for test, factor in zip(tests, factors, strict=True):
        outcome = _corrected_outcome(test.sample, test.p, factor, settings.alpha)
        yield outcome._replace(level=level)


def _corrected_outcome(differences: Differences, p: float, factor: float, alpha: float) -> Outcome:
    """Return the outcome of a test whose p-value is multiplied by a factor.

    The interval is that of level 1 - alpha / factor, so that the interval of a t-test excludes 0
    exactly where the corrected p-value is below alpha.
    """
    level = alpha / factor
    low, high = _t_interval(differences, level)
    corrected = p if math.isnan(p) else min(1.0, factor * p)
    return Outcome(corrected, low, high, level)


def _level_of_power(p_values: Sequence[float], settings: ComparisonSettings) -> float:
    """Return the level at which a difference is significant whatever the other tests say.

    Of m tests it is alpha / m by Bonferroni's correction, and by Holm's, whose first step it is:
    later steps have higher levels, but only after the smaller p-values were significant.
    """
    test_count = sum(not math.isnan(p) for p in p_values)
    if settings.correction is Correction.NONE or test_count == 0:
        return settings.alpha
    return settings.alpha / test_count


def _on_common_queries(
    runs: Mapping[str, PerQuery], measures: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the values of the queries for which all runs have one, in the same order."""
    common: dict[str, dict[str, dict[str, float]]] = {run: {} for run in runs}
    for measure in measures:
        values_by_run = {run: per_query[measure] for run, per_query in runs.items()}
        qids = list(next(iter(values_by_run.values())))
        for values in values_by_run.values():
            qids = [qid for qid in qids if qid in values]
        for run, values in values_by_run.items():
            common[run][measure] = {qid: values[qid] for qid in qids}
    return common


def _tukey_outcomes(
    tests: Sequence[_Test], runs: Mapping[str, PerQuery], settings: ComparisonSettings
) -> Iterator[Outcome]:
    """Yield the outcomes of randomised Tukey HSD, over all runs for each measure.

    Several measures are corrected by Bonferroni: within a measure more than one pair may differ,
    and Holm's later steps would then not keep the level over all of them.
    """
    measures = list(dict.fromkeys(test.measure for test in tests))
    measure_count = len(measures)
    ranges_by_measure = {}
    unit_count = measure_count * settings.permutations
    with track("permuting runs within queries", unit_count, "permutations") as progress:
        for measure in measures:
            rows = [list(per_query[measure].values()) for per_query in runs.values()]
            ranges_by_measure[measure] = permuted_ranges(
                np.array(rows), settings.permutations, settings.test_seed, progress.advance
            )
    for test in tests:
        ranges = ranges_by_measure[test.measure]
        half_width = critical_range(ranges, settings.alpha / measure_count)
        yield _tukey_outcome(test, ranges, half_width, measure_count)


def _tukey_outcome(
    test: _Test, ranges: Differences, half_width: float, measure_count: int
) -> Outcome:
    """Return what the ranges of all runs' means, ascending, say of the difference of two."""
    query_count = len(test.sample)
    if query_count < 2 or np.isnan(test.sample).any():
        return Outcome(math.nan, math.nan, math.nan, math.nan)
    mean = float(test.sample.mean())
    corrected = min(1.0, measure_count * range_p_value(mean, ranges))
    low = round(mean - half_width, DIGITS)
    high = round(mean + half_width, DIGITS)
    deviation = float(test.sample.std(ddof=1))
    return Outcome(corrected, low, high, level_of_width(half_width, deviation, query_count))


def describe(differences: Differences, p: float, factor: float, alpha: float) -> Difference:
    """Describe the differences of a run from a baseline, tested with a p-value and its factor."""
    return _difference_of_outcome(differences, p, _corrected_outcome(differences, p, factor, alpha))


def _difference_of_outcome(differences: Differences, p: float, outcome: Outcome) -> Difference:
    """Describe the differences of a run from a baseline, and the outcome of their test."""
    query_count = len(differences)
    mean = float(differences.mean()) if query_count > 0 else math.nan
    wins = int((differences > 0).sum())
    losses = int((differences < 0).sum())
    return Difference(
        mean=mean,
        low=outcome.low,
        high=outcome.high,
        effect=_effect(differences, mean),
        p=p,
        wins=wins,
        ties=query_count - wins - losses,
        losses=losses,
        corrected=outcome.corrected,
    )


def _effect(differences: Differences, mean: float) -> float:
    """Return Cohen's d; NaN where the differences do not vary, and are not all 0."""
    if _has_spread(differences):
        return mean / float(differences.std(ddof=1))
    if len(differences) > 1 and not mean:
        return 0.0
    return math.nan
