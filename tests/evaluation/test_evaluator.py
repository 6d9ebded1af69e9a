import shutil
import struct
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import DenserkError, MismatchError
from denserk.evaluation.evaluator import Evaluator, count_ties, some, without_own_query
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import Ties

MEASURES = parse_measures(["nDCG@3 AP RR P@3 R@3 RR@3"]).measures
IDS = st.sampled_from(["D9", "D10", "d1", "d2", "900", "1000", "ä", "z"])
NEAR = st.sampled_from([1.0, 1.0 + 1e-9, 1.0 + 1e-6, 2.0, -3.5, 80.0, 80.000001])
RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "other"]), st.dictionaries(IDS, NEAR), max_size=4
)
JUDGEMENTS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    st.dictionaries(IDS, st.integers(-1, 3), min_size=1),
    min_size=1,
)


def as_float32(score: float) -> float:
    (value,) = struct.unpack("f", struct.pack("f", score))
    assert isinstance(value, float)
    return value


def literal(hits: dict[str, float], grades: dict[str, int]) -> dict[str, float]:
    """trec_eval 9's measures of one query, restated: float32 scores, ties by id descending."""
    ranked = sorted(hits, key=lambda d: (as_float32(hits[d]), d.encode()), reverse=True)
    gains = [max(grades.get(docid, 0), 0) for docid in ranked]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)
    relevant = sum(gain > 0 for gain in ideal)
    ranks = [rank for rank, gain in enumerate(gains, 1) if gain]

    def dcg(values: list[int]) -> float:
        return sum(gain / log2(rank + 1) for rank, gain in enumerate(values[:3], 1))

    ascending = sorted(hits, key=lambda d: (-hits[d], d))
    first = [rank for rank, docid in enumerate(ascending[:3], 1) if grades.get(docid, 0) > 0]
    return {
        "nDCG@3": dcg(gains) / dcg(ideal) if relevant else 0.0,
        "AP": sum(i / rank for i, rank in enumerate(ranks, 1)) / relevant if relevant else 0.0,
        "RR": 1 / ranks[0] if ranks else 0.0,
        "P@3": sum(rank <= 3 for rank in ranks) / 3,
        "R@3": sum(rank <= 3 for rank in ranks) / relevant if relevant else 0.0,
        "RR@3": 1 / first[0] if first else 0.0,
    }


@given(RUNS, JUDGEMENTS)
def test_equals_a_literal_restatement_on_runs_full_of_ties(
    run: dict[str, dict[str, float]], judgements: dict[str, dict[str, int]]
) -> None:
    evaluator = Evaluator(MEASURES, judgements)
    if not any(run.get(qid) for qid in judgements):
        with pytest.raises(MismatchError):
            evaluator.evaluate("run", run)
        return
    result = evaluator.evaluate("run", run)
    for qid, grades in judgements.items():
        expected = literal(run.get(qid, {}), grades)
        assert {name: values[qid] for name, values in result.per_query.items()} == pytest.approx(
            expected
        )
    for name, values in result.per_query.items():
        assert list(values) == list(judgements)
        assert result.summary[name] == pytest.approx(sum(values.values()) / len(judgements))


@pytest.mark.peer
@given(RUNS, JUDGEMENTS)
def test_equals_pytrec_eval(
    run: dict[str, dict[str, float]], judgements: dict[str, dict[str, int]]
) -> None:
    import pytrec_eval

    if not any(run.get(qid) for qid in judgements):
        return
    names = {
        "nDCG@3": "ndcg_cut_3",
        "AP": "map",
        "RR": "recip_rank",
        "P@3": "P_3",
        "R@3": "recall_3",
    }
    theirs = pytrec_eval.RelevanceEvaluator(judgements, set(names.values())).evaluate(run)
    ours = Evaluator(MEASURES, judgements).evaluate("run", run).per_query
    for name, theirs_name in names.items():
        for qid in judgements:
            assert ours[name][qid] == theirs.get(qid, {}).get(theirs_name, 0.0)


@given(RUNS, JUDGEMENTS)
def test_without_ties_all_providers_agree_on_the_reciprocal_rank(
    run: dict[str, dict[str, float]], judgements: dict[str, dict[str, int]]
) -> None:
    strict = {
        qid: {docid: float(-rank) for rank, docid in enumerate(hits)} for qid, hits in run.items()
    }
    if not any(run.get(qid) for qid in judgements):
        return
    cut = {qid: dict(list(hits.items())[:3]) for qid, hits in strict.items()}
    evaluator = Evaluator(MEASURES, judgements)
    result = evaluator.evaluate("run", strict)
    assert result.ties == Ties(0, ())
    assert result.per_query["RR@3"] == evaluator.evaluate("cut", cut).per_query["RR"]


def test_missing_and_unjudged_queries_are_named_and_empty_ones_are_missing() -> None:
    judgements = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}}
    result = Evaluator(MEASURES, judgements).evaluate(
        "run", {"x": {"a": 1.0}, "q2": {"a": 1.0}, "q3": {}}
    )
    assert result.missing == ("q1", "q3")
    assert result.unjudged == ("x",)
    assert result.summary["RR"] == 1 / 3


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (
            {"7": {"a": 1.0}},
            "run answers queries '7'; the judgments are for queries 'q1': none in common",
        ),
        ({}, "run holds no hit at all; the judgments are for queries 'q1'"),
        ({"q1": {}}, "run holds no hit at all; the judgments are for queries 'q1'"),
    ],
)
def test_no_query_in_common(run: dict[str, dict[str, float]], told: str) -> None:
    with pytest.raises(MismatchError) as caught:
        Evaluator(MEASURES, {"q1": {"a": 1}}).evaluate("run", run)
    assert caught.value.message == told


def test_the_run_is_left_as_it_was() -> None:
    run = {"q1": {"a": 1.0, "q1": 2.0}, "q2": {}}
    without_own_query(run)
    Evaluator(MEASURES, {"q1": {"a": 1}}).evaluate("run", run)
    assert run == {"q1": {"a": 1.0, "q1": 2.0}, "q2": {}}


@pytest.mark.parametrize(
    ("scores", "lines"),
    [([3.0, 2.0, 1.0], 0), ([1.0, 1.0, 1.0], 2), ([80.0, 80.000001], 1), ([0.0, -0.0], 1)],
)
def test_ties_are_counted_in_float32(scores: list[float], lines: int) -> None:
    run = {"q": {str(i): score for i, score in enumerate(scores)}, "p": {"a": scores[0]}}
    assert count_ties(run) == Ties(lines, ("q",) if lines else ())


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_gdeval_takes_any_query_id() -> None:
    measures = parse_measures(["ERR@20"]).measures
    judgements = {"a-1": {"x": 1}, "b-1": {"x": 4}, "missing": {"x": 1}}
    run = {"b-1": {"x": 1.0}, "a-1": {"x": 1.0}, "unjudged": {"x": 1.0}}
    result = Evaluator(measures, judgements).evaluate("run", run)
    assert result.per_query["ERR@20"] == {"a-1": 1 / 16, "b-1": 15 / 16, "missing": 0.0}


def test_a_division_by_zero_is_told() -> None:
    measures = parse_measures(["Accuracy"]).measures
    with pytest.raises(DenserkError, match="Accuracy cannot be computed"):
        Evaluator(measures, {"q": {"a": 1}}).evaluate("run", {"q": {"a": 1.0}})


def test_a_few_names() -> None:
    assert some([]) == ""
    assert some(["a", "b", "c"]) == "'a', 'b', 'c'"


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
