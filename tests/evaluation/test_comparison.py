from html import unescape
from typing import Any

import numpy as np
import orjson
import pytest
from scipy import stats

from denserk.errors import UsageError
from denserk.evaluation.comparison import compare_with
from denserk.evaluation.evaluator import EvaluationResult, Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.table import FORMATS
from denserk.settings.comparison import ComparisonSettings, Correction
from denserk.settings.evaluation import OutputFormat, ReportSettings

QUERIES = [f"q{number}" for number in range(12)]
JUDGED = {qid: {"a": 1} for qid in QUERIES}


def run_of(ranks: list[int]) -> dict[str, dict[str, float]]:
    """A run whose relevant passage stands at each query's rank."""
    return {
        qid: {"a" if place == rank else f"x{place}": 10.0 - place for place in range(1, 6)}
        for qid, rank in zip(QUERIES, ranks, strict=True)
    }


RUNS = {
    "base": run_of([5, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 1]),
    "far": run_of([1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1]),
    "near": run_of([4, 4, 5, 4, 5, 5, 5, 4, 5, 4, 5, 1]),
}


def result(*names: str, **settings: Any) -> EvaluationResult:
    measures = parse_measures(["RR@10 P@1 NumRelRet"]).measures
    evaluator = Evaluator(measures, JUDGED)
    runs = tuple(evaluator.evaluate(name, RUNS[name]) for name in names)
    comparison = compare_with(
        {run.name: run.per_query for run in runs}, measures, "base", ComparisonSettings(**settings)
    )
    return EvaluationResult(measures, 1, evaluator.queries, runs, evaluator.providers, comparison)


def test_p_values_are_scipys_corrected_over_all_tests() -> None:
    found = result("base", "far", "near", correction=Correction.BONFERRONI)
    assert found.comparison is not None
    for run in found.runs[1:]:
        for measure in ("RR@10", "P@1"):
            ours = found.comparison.differences[run.name][measure]
            values = (
                [each.per_query[measure][qid] for qid in QUERIES] for each in (run, found.runs[0])
            )
            p = stats.ttest_rel(*map(np.array, values)).pvalue
            expected = 1.0 if np.isnan(p) else p
            assert ours.p == pytest.approx(expected)
            assert ours.corrected == pytest.approx(min(1.0, 4 * expected))


def test_counts_are_not_compared() -> None:
    found = result("base", "far").comparison
    assert found is not None
    assert set(found.differences["far"]) == {"RR@10", "P@1"}


def test_the_baseline_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="base is the only run"):
        result("base")


@pytest.mark.parametrize("form", [OutputFormat.TABLE, OutputFormat.MARKDOWN])
def test_tables_mark_what_differs_and_say_how_it_was_tested(form: OutputFormat) -> None:
    text = unescape(FORMATS[form](result("base", "far", "near"), ReportSettings(places=2)))
    measures = text.partition("difference")[0]
    marked = [line for line in measures.splitlines() if "†" in line]
    assert len(marked) == 1
    assert "far" in marked[0]
    assert "11/1/0" in text
    assert "† differs from base (p < 0.05; paired t-test; Holm's correction of p and " in text
    assert "interval for 4 tests)" in text


def test_lines_and_json_hold_every_figure() -> None:
    found = result("base", "far")
    lines = FORMATS[OutputFormat.TSV](found, ReportSettings()).splitlines()
    assert "far\tRR@10:wins\t11" in lines
    assert "far\tRR@10:ties\t1" in lines
    comparison = orjson.loads(FORMATS[OutputFormat.JSON](found, ReportSettings()))["comparison"]
    assert comparison["baseline"] == "base"
    assert comparison["runs"]["far"]["RR@10"]["losses"] == 0


def test_trec_eval_has_no_lines_for_it() -> None:
    with pytest.raises(UsageError, match="no lines for --baseline"):
        FORMATS[OutputFormat.TREC_EVAL](result("base", "far"), ReportSettings())
