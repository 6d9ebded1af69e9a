import math
from dataclasses import replace

import pytest

from denserk.evaluation.evaluator import EvaluationResult, Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.query_differences import main_measure, query_rows, reference_of
from denserk.settings.comparison import ComparisonSettings
from denserk.tasks.evaluate import compare_runs

JUDGEMENTS = {f"q{n}": {"a": 1} for n in range(1, 5)}
GOOD = {"q1": {"a": 1.0}, "q2": {"b": 2.0, "a": 1.0}, "q3": {"b": 1.0}, "q4": {"a": 1.0}}
BAD = {"q1": {"a": 1.0}, "q2": {"a": 1.0}, "q3": {"a": 1.0}}


@pytest.fixture
def result() -> EvaluationResult:
    measures = parse_measures(["NumRet", "RR@10"]).measures
    evaluator = Evaluator(measures, JUDGEMENTS, complete=False)
    runs = tuple(evaluator.evaluate(name, run) for name, run in (("good", GOOD), ("bad", BAD)))
    return EvaluationResult(measures, 1, evaluator.queries, runs, evaluator.providers)


def test_what_moved_most_comes_first_and_what_is_not_known_last(result: EvaluationResult) -> None:
    rows = query_rows(result, "RR@10", 0)
    assert [(row.qid, row.difference) for row in rows[:3]] == [("q3", 1.0), ("q2", 0.5), ("q1", 0)]
    assert rows[3].qid == "q4"
    assert rows[3].values[0] == 1.0
    assert math.isnan(rows[3].values[1])
    assert [row.difference for row in query_rows(result, "RR@10", 1)[:2]] == [-1.0, -0.5]


def test_of_one_run_the_lowest_come_first(result: EvaluationResult) -> None:
    rows = query_rows(replace(result, runs=result.runs[:1]), "RR@10", 0)
    assert [row.qid for row in rows] == ["q3", "q2", "q1", "q4"]


def test_main_measure_and_reference(result: EvaluationResult) -> None:
    assert main_measure(result) == "RR@10"
    assert reference_of(result) == 0
    compared = compare_runs(result, ["good", "bad"], ComparisonSettings(baseline="bad"))
    assert reference_of(compared) == 1
