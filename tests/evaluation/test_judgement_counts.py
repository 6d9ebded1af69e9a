import pytest

from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("NumQ", {"q1": 1, "q2": 1, "q3": 1}),
        ("NumRel", {"q1": 2, "q2": 0, "q3": 1}),
        ("NumRel(rel=2)", {"q1": 1, "q2": 0, "q3": 0}),
    ],
)
def test_counts_take_every_judged_query(measure: str, expected: dict[str, int]) -> None:
    judged = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"a": -1}, "q3": {"a": 1}}
    result = Evaluator(parse_measures([measure]).measures, judged).evaluate("r", {"q1": {"z": 1.0}})
    assert list(result.per_query.values()) == [expected]
    assert list(result.summary.values()) == [sum(expected.values())]
