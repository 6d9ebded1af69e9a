"""Measures against sums written out by hand."""

from math import log2

import pytest

from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures

JUDGED = {"q": {"a": 3, "b": 1, "c": 0, "d": 2}}
"""a, b and d are relevant; c was judged and is not."""
RANKED = ["b", "x", "d", "c", "y"]
"""Found at 1 and 3; x and y were never judged; a was not found."""


IDEAL = 3 / log2(2) + 2 / log2(3) + 1 / log2(4)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("nDCG", (1 / log2(2) + 2 / log2(4)) / IDEAL),
        ("nDCG@2", (1 / log2(2)) / (3 / log2(2) + 2 / log2(3))),
        ("nDCG(gains={3: 7, 2: 3})@3", (1 / log2(2) + 3 / log2(4)) / (7 + 3 / log2(3) + 1 / 2)),
        ("nDCG(judged_only=True)@3", (1 / log2(2) + 2 / log2(3)) / IDEAL),
        ("RR(rel=2)@10", 1 / 3),
        ("RR(rel=2)@2", 0.0),
        ("AP@2", (1 / 1) / 3),
        ("AP(rel=2)", (1 / 3) / 2),
        ("P@5", 2 / 5),
        ("P(rel=2)@5", 1 / 5),
        ("R@1000", 2 / 3),
        ("R(rel=2)@5", 1 / 2),
        ("Success@1", 1.0),
        ("Success(rel=2)@2", 0.0),
        ("Judged@5", 3 / 5),
        ("Judged@2", 1 / 2),
        ("SetF", 2 * (2 / 5) * (2 / 3) / (2 / 5 + 2 / 3)),
        ("Bpref", (1 + 1) / 3),
        ("NumRel", 3),
        ("NumRel(rel=2)", 2),
    ],
)
def test_one_query(measure: str, expected: float) -> None:
    run = {"q": {docid: 10.0 - rank for rank, docid in enumerate(RANKED)}}
    (parsed,) = parse_measures([measure]).measures
    summary = Evaluator([parsed], JUDGED).evaluate("run", run).summary
    assert summary[str(parsed)] == pytest.approx(expected, abs=1e-12)


def test_means_are_over_judged_queries_and_a_missing_one_counts_as_0() -> None:
    judged = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}, "q4": {"a": 1}}
    run = {
        "q1": {"a": 2.0, "b": 1.0},
        "q2": {"b": 2.0, "a": 1.0},
        "q3": {"a": 1.0},
        "unjudged": {"a": 1.0},
    }
    measures = parse_measures(["RR@10 NumQ"]).measures
    assert Evaluator(measures, judged).evaluate("run", run).summary == {
        "RR@10": (1 / 1 + 1 / 2 + 0 + 0) / 4,
        "NumQ": 4,
    }
    assert Evaluator(measures, judged, complete=False).evaluate("run", run).summary == {
        "RR@10": (1 / 1 + 1 / 2 + 0) / 3,
        "NumQ": 3,
    }
