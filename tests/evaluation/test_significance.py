import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from denserk.config.evaluation import (
    ComparisonSettings,
    Correction,
    OutputFormat,
    PairedTest,
    ReportSettings,
)
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import Difference, EvaluationResult
from denserk.evaluation.significance import compare, correction_factors, p_value
from denserk.evaluation.tables import render, tables

SAMPLES = [np.random.default_rng(seed).normal(0.02, 0.2, 12 + 40 * seed) for seed in (0, 2)]


def randomised(sample: np.ndarray, permutations: int, seed: int = 1) -> float:
    test = PairedTest.RANDOMISATION
    settings = ComparisonSettings(test=test, permutations=permutations, test_seed=seed)
    return p_value(sample, settings)


def test_few_differences_are_tested_with_all_signs() -> None:
    sample = SAMPLES[0]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(sample))))
    exact = (np.abs(signs @ sample) >= abs(sample.sum()) - 1e-12).mean()
    assert randomised(sample, 2 ** len(sample)) == exact


def test_many_differences_are_tested_with_random_signs() -> None:
    sample = SAMPLES[1]
    scipy_p = stats.permutation_test(
        (sample, np.zeros_like(sample)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(3),
    ).pvalue
    assert randomised(sample, 20_000, seed=3) == pytest.approx(scipy_p, abs=0.015)


def test_a_seed_gives_the_same_signs() -> None:
    sample = SAMPLES[1]
    assert randomised(sample, 500, seed=1) == randomised(sample, 500, seed=1)
    assert randomised(sample, 500, seed=1) != randomised(sample, 500, seed=2)


@pytest.mark.parametrize(
    ("sample", "p"), [([0.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.5], math.nan), ([0.5], math.nan)]
)
def test_differences_without_spread(sample: list[float], p: float) -> None:
    assert p_value(np.array(sample), ComparisonSettings()) == pytest.approx(p, nan_ok=True)
    assert randomised(np.zeros(100), 100) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrections_keep_order_and_never_sharpen(p_values: list[float]) -> None:
    test_count = len(p_values)
    assert set(correction_factors(p_values, Correction.BONFERRONI)) == {test_count}
    holm_factors = correction_factors(p_values, Correction.HOLM)
    assert all(1 <= factor <= test_count * (1 + 1e-12) for factor in holm_factors)
    ascending = sorted(zip(p_values, holm_factors, strict=True))
    corrected = [p * factor for p, factor in ascending]
    assert corrected == pytest.approx(sorted(corrected), rel=1e-12)


def test_nan_does_not_count_as_a_test() -> None:
    assert correction_factors([0.01, math.nan], Correction.BONFERRONI)[0] == 1


def test_wins_ties_losses_over_common_queries() -> None:
    run = {"a": 0.3, "b": 0.1 + 0.2, "c": 0.0, "d": 1.0}
    baseline = {"a": 0.1, "b": 0.3, "c": 0.5, "e": 1.0}
    measures = parse_measures(["RR@10"]).measures
    per_query = {"run": {"RR@10": run}, "base": {"RR@10": baseline}}
    settings = ComparisonSettings(alpha=0.1)
    difference = compare(per_query, measures, "base", settings).differences["run"]["RR@10"]
    assert (difference.wins, difference.ties, difference.losses) == (1, 1, 1)
    sample = np.array([0.2, 0.0, -0.5])
    test = stats.ttest_1samp(sample, 0)
    interval = test.confidence_interval(0.9)
    assert (difference.mean, difference.p) == pytest.approx((-0.1, test.pvalue))
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.effect == pytest.approx(sample.mean() / sample.std(ddof=1))


# of the relevant passage, for each of twelve queries
RANKS = {
    "base": [5, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 1],
    "far": [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1],
    "near": [4, 4, 5, 4, 5, 5, 5, 4, 5, 4, 5, 1],
}


def hits_with_a_at(rank: int) -> dict[str, float]:
    """Five hits, with passage a at a rank."""
    docids = ["x1", "x2", "x3", "x4"]
    docids.insert(rank - 1, "a")
    return {docid: -float(position) for position, docid in enumerate(docids)}


def result(*names: str, **settings: Any) -> EvaluationResult:
    """Runs of `RANKS`, compared with the one called base."""
    measures = parse_measures(["RR@10 P@1 NumRelRet"]).measures
    evaluator = Evaluator(measures, {f"q{number}": {"a": 1} for number in range(12)})
    runs = []
    for name in names:
        run = {f"q{number}": hits_with_a_at(rank) for number, rank in enumerate(RANKS[name])}
        runs.append(evaluator.evaluate(name, run))
    values = {run.name: run.per_query for run in runs}
    comparison = compare(values, measures, "base", ComparisonSettings(**settings))
    return replace(evaluator.result(runs), comparison=comparison)


def excludes_0(difference: Difference) -> bool:
    return difference.low > 0 or difference.high < 0


@pytest.mark.parametrize("correction", [Correction.HOLM, Correction.BONFERRONI])
def test_an_interval_leaves_out_0_exactly_where_p_is_below_the_level(correction) -> None:
    def difference_of(run: str, alpha: float) -> Difference:
        comparison = result("base", "far", "near", correction=correction, alpha=alpha).comparison
        assert comparison is not None
        return comparison.differences[run]["RR@10"]

    for run in ("far", "near"):
        p = difference_of(run, alpha=0.05).corrected
        if p < 1:
            assert not excludes_0(difference_of(run, alpha=p * 0.99))
            assert excludes_0(difference_of(run, alpha=min(p * 1.01, 0.999)))
    assert difference_of("far", alpha=0.05).corrected < 1


def test_lines_and_json_hold_every_value() -> None:
    compared = result("base", "far")
    lines = render(compared, ReportSettings(), OutputFormat.TSV).splitlines()
    assert "far\tRR@10:wins\t11" in lines
    assert "far\tRR@10:ties\t1" in lines
    comparison = orjson.loads(render(compared, ReportSettings(), OutputFormat.JSON))["comparison"]
    assert comparison["baseline"] == "base"
    assert comparison["runs"]["far"]["RR@10"]["losses"] == 0
    assert set(comparison["runs"]["far"]) == {"RR@10", "P@1"}  # a count is not compared


def test_with_queries_each_line_has_the_same_columns() -> None:
    report = ReportSettings(per_query=True)
    lines = render(result("base", "far"), report, OutputFormat.TSV).splitlines()
    assert "far\tall\tRR@10:wins\t11" in lines
    assert {line.count("\t") for line in lines} == {3}


@pytest.mark.parametrize(
    ("settings", "test"),
    [
        ({}, "t"),
        ({"test": PairedTest.RANDOMISATION}, "randomisation"),
        ({"correction": Correction.TUKEY, "permutations": 100}, "tukey"),
    ],
)
def test_json_names_the_test_of_the_p_values(settings, test) -> None:
    text = render(result("base", "far", **settings), ReportSettings(), OutputFormat.JSON)
    assert orjson.loads(text)["comparison"]["test"] == test


@pytest.mark.parametrize(
    ("settings", "is_named"),
    [
        ({}, False),
        ({"test": PairedTest.RANDOMISATION}, True),
        ({"correction": Correction.TUKEY, "permutations": 100}, False),
    ],
)
def test_an_interval_that_is_not_of_the_test_is_named(settings, is_named) -> None:
    table = render(result("base", "far", **settings), ReportSettings(), OutputFormat.TABLE)
    assert ("interval: Student's t" in table) is is_named


def test_without_a_mean_nothing_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    measures = parse_measures(["NumRet GMAP"]).measures
    evaluator = Evaluator(measures, {"q1": {"a": 1}})
    runs = [evaluator.evaluate(name, {"q1": {"a": 1.0}}) for name in ("base", "run")]
    values = {run.name: run.per_query for run in runs}
    comparison = compare(values, measures, "base", ComparisonSettings())
    assert "NumRet, GMAP" in caplog.text
    compared = replace(evaluator.result(runs), comparison=comparison)
    assert len(tables(compared, ReportSettings())) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"test": PairedTest.RANDOMISATION},
        {"test": PairedTest.RANDOMISATION, "permutations": 5},
        {"correction": Correction.TUKEY, "permutations": 100},
    ],
)
def test_an_undefined_value_makes_nothing_significant(settings) -> None:
    measures = parse_measures(["AP"]).measures
    values = {"a": 0.9, "b": 0.8, "c": 0.9, "d": math.nan, "e": 0.9, "f": 0.8, "g": 0.9}
    per_query = {"run": {"AP": values}, "base": {"AP": dict.fromkeys(values, 0.1)}}
    comparison = compare(per_query, measures, "base", ComparisonSettings(alpha=0.5, **settings))
    assert math.isnan(comparison.differences["run"]["AP"].corrected)
    assert not comparison.significant("run", "AP")


def test_a_baseline_needs_another_run() -> None:
    with pytest.raises(UsageError, match="base is the only run"):
        result("base")


@pytest.mark.parametrize(
    ("settings", "details"),
    [
        ({}, r"two-sided paired t test; p $<$ 0.05; Holm correction for 4 tests"),
        (
            {
                "test": PairedTest.RANDOMISATION,
                "correction": Correction.BONFERRONI,
                "alpha": 0.01,
            },
            r"two-sided paired randomisation test; p $<$ 0.01; Bonferroni correction for 4 tests",
        ),
        (
            {"correction": Correction.NONE},
            r"two-sided paired t test; p $<$ 0.05; no correction for 4 tests",
        ),
    ],
)
def test_a_caption_names_test_level_and_correction(settings, details) -> None:
    latex = render(result("base", "far", "near", **settings), ReportSettings(), OutputFormat.LATEX)
    assert rf"$^{{\dagger}}$ differs significantly from base ({details}).}}" in latex
    rows = [line for line in latex.splitlines() if " & " in line]
    assert [row.split(" & ")[0] for row in rows if r"$^{\dagger}$" in row] == ["far"]


def test_a_caption_says_that_nothing_differs() -> None:
    latex = render(result("base", "near"), ReportSettings(), OutputFormat.LATEX)
    assert "No run differs significantly from base (two-sided paired t test; p $<$ 0.05; " in latex
    assert "dagger" not in latex


def test_what_was_not_tested_is_not_significant() -> None:
    """A single query gives no p-value, however large the difference."""
    measures = parse_measures(["RR@10"]).measures
    evaluator = Evaluator(measures, {"q1": {"a": 1}})
    runs = [
        evaluator.evaluate("good", {"q1": {"a": 1.0}}),
        evaluator.evaluate("bad", {"q1": {"b": 1.0}}),
    ]
    values = {run.name: run.per_query for run in runs}
    comparison = compare(values, measures, "bad", ComparisonSettings())
    assert not comparison.significant("good", "RR@10")
    compared = replace(evaluator.result(runs), comparison=comparison)
    latex = render(compared, ReportSettings(), OutputFormat.LATEX)
    assert "No difference from bad could be tested." in latex


def test_the_same_difference_on_each_query_has_no_t_test(caplog: pytest.LogCaptureFixture) -> None:
    measures = parse_measures(["RR@10"]).measures
    values = {"base": {"RR@10": {"a": 0.5, "b": 0.5}}, "run": {"RR@10": {"a": 1.0, "b": 1.0}}}
    comparison = compare(values, measures, "base", ComparisonSettings())
    difference = comparison.differences["run"]["RR@10"]
    assert not comparison.significant("run", "RR@10")
    assert difference.mean == 0.5
    unknown = (difference.p, difference.low, difference.high, difference.effect)
    assert all(map(math.isnan, unknown))
    assert "on each of 2 queries" in caplog.text


def test_equal_runs_have_a_difference_of_0() -> None:
    measures = parse_measures(["RR@10"]).measures
    values_of_run = {"RR@10": {"a": 0.5, "b": 1.0}}
    values = {"base": values_of_run, "run": values_of_run}
    comparison = compare(values, measures, "base", ComparisonSettings())
    difference = comparison.differences["run"]["RR@10"]
    assert (difference.low, difference.high, difference.effect, difference.p) == (0, 0, 0, 1)
