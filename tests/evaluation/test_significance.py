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
from denserk.evaluation.results import EvaluationResult
from denserk.evaluation.significance import compare, correction_factors, p_value
from denserk.evaluation.tables import render

SAMPLES = [np.random.default_rng(seed).normal(0.02, 0.2, 12 + 40 * seed) for seed in (0, 2)]


def randomised(sample: np.ndarray, permutations: int, seed: int = 1) -> float:
    test = PairedTest.RANDOMISATION
    settings = ComparisonSettings(test=test, permutations=permutations, test_seed=seed)
    return p_value(sample, settings)


def test_randomisation_test() -> None:
    sample = SAMPLES[0]
    signs = np.array(list(itertools.product([-1, 1], repeat=len(sample))))
    exact = (np.abs(signs @ sample) >= abs(sample.sum()) - 1e-12).mean()
    assert randomised(sample, 1 << len(sample)) == exact
    sample = SAMPLES[1]
    theirs = stats.permutation_test(
        (sample, np.zeros_like(sample)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(3),
    ).pvalue
    assert randomised(sample, 20_000, seed=3) == pytest.approx(theirs, abs=0.015)
    first, again, other = (randomised(sample, 500, seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("sample", "p"), [([0.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.5], 0.0), ([0.5], math.nan)]
)
def test_differences_without_spread(sample: list[float], p: float) -> None:
    assert p_value(np.array(sample), ComparisonSettings()) == pytest.approx(p, nan_ok=True)
    assert randomised(np.zeros(100), 100) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrections_keep_order_and_never_sharpen(p_values: list[float]) -> None:
    holm, bonferroni = (
        correction_factors(p_values, kind) for kind in (Correction.HOLM, Correction.BONFERRONI)
    )
    assert bonferroni == [len(p_values)] * len(p_values)
    assert all(1 <= h <= b * (1 + 1e-12) for h, b in zip(holm, bonferroni, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [holm[i] * p_values[i] for i in order]
    assert corrected == pytest.approx(sorted(corrected), rel=1e-12)
    assert correction_factors([0.01, math.nan], Correction.BONFERRONI)[0] == 1


def test_wins_ties_losses_over_common_queries() -> None:
    run = {"a": 0.3, "b": 0.1 + 0.2, "c": 0.0, "d": 1.0}
    baseline = {"a": 0.1, "b": 0.3, "c": 0.5, "e": 1.0}
    measures = parse_measures(["RR@10"]).measures
    per_query = {"run": {"RR@10": run}, "base": {"RR@10": baseline}}
    settings = ComparisonSettings(alpha=0.1)
    found = compare(per_query, measures, "base", settings).differences["run"]["RR@10"]
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)
    differences = np.array([0.2, 0.0, -0.5])
    theirs = stats.ttest_1samp(differences, 0)
    interval = theirs.confidence_interval(0.9)
    assert (found.mean, found.p) == pytest.approx((-0.1, theirs.pvalue))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))


RANKS = {
    "base": [5, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 1],
    "far": [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1],
    "near": [4, 4, 5, 4, 5, 5, 5, 4, 5, 4, 5, 1],
}


def result(*names: str, **settings: Any) -> EvaluationResult:
    """Runs whose relevant passage stands at each query's rank."""
    measures = parse_measures(["RR@10 P@1 NumRelRet"]).measures
    evaluator = Evaluator(measures, {f"q{n}": {"a": 1} for n in range(12)})
    runs = []
    for name in names:
        hits = {
            f"q{n}": {"a" if p == rank else f"x{p}": 9.0 - p for p in range(1, 6)}
            for n, rank in enumerate(RANKS[name])
        }
        runs.append(evaluator.evaluate(name, hits))
    values = {run.name: run.per_query for run in runs}
    comparison = compare(values, measures, "base", ComparisonSettings(**settings))
    return replace(evaluator.result(runs), comparison=comparison)


@pytest.mark.parametrize("correction", [Correction.HOLM, Correction.BONFERRONI])
def test_an_interval_leaves_out_0_exactly_where_p_is_below_the_level(correction) -> None:
    def differences(**given: float) -> Any:
        found = result("base", "far", "near", correction=correction, **given).comparison
        assert found is not None
        return {name: each["RR@10"] for name, each in found.differences.items()}

    levels = {name: each.corrected for name, each in differences().items() if each.corrected < 1}
    assert levels
    for name, p in levels.items():
        for alpha in (p * 0.99, min(p * 1.01, 0.999)):
            found = differences(alpha=alpha)[name]
            assert (found.low * found.high > 0) is (p < alpha)


def test_lines_and_json_hold_every_value() -> None:
    found = result("base", "far")
    lines = render(found, ReportSettings(), OutputFormat.TSV).splitlines()
    assert {"far\tRR@10:wins\t11", "far\tRR@10:ties\t1"} <= set(lines)
    comparison = orjson.loads(render(found, ReportSettings(), OutputFormat.JSON))["comparison"]
    assert (comparison["baseline"], comparison["runs"]["far"]["RR@10"]["losses"]) == ("base", 0)
    assert set(comparison["runs"]["far"]) == {"RR@10", "P@1"}  # a count is not compared
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
    marked = [line.split(" & ")[0] for line in latex.splitlines() if line.count(r"$^{\dagger}$")]
    assert [name for name in marked if not name.startswith("\\caption")] == ["far"]


def test_a_caption_says_that_nothing_differs() -> None:
    latex = render(result("base", "near"), ReportSettings(), OutputFormat.LATEX)
    assert "No run differs significantly from base (two-sided paired t test; p $<$ 0.05; " in latex
    assert "dagger" not in latex


def test_what_was_not_tested_is_not_significant() -> None:
    """A single query gives no p-value, however large the difference."""
    measures = parse_measures(["RR@10"]).measures
    evaluator = Evaluator(measures, {"q1": {"a": 1}})
    hits = {"good": {"q1": {"a": 1.0}}, "bad": {"q1": {"b": 1.0}}}
    runs = [evaluator.evaluate(name, hits_of_run) for name, hits_of_run in hits.items()]
    values = {run.name: run.per_query for run in runs}
    comparison = compare(values, measures, "bad", ComparisonSettings())
    assert not comparison.significant("good", "RR@10")
    found = replace(evaluator.result(runs), comparison=comparison)
    assert "No difference from bad could be tested." in render(
        found, ReportSettings(), OutputFormat.LATEX
    )
