"""Bounds over unjudged hits, held to all completions of the judgments."""

import shutil
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denserk.config.evaluation import EvaluationSettings
from denserk.errors import UsageError
from denserk.evaluation.completions import MOST_EXACT
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.unjudged_results import Decision
from denserk.tasks.evaluate import RelevanceJudgments
from denserk.tasks.evaluate_unjudged import bound_runs

MEASURES = (
    *("nDCG@3", "nDCG@10", "nDCG", "nDCG(gains={0:0,1:4,2:1})@4", "nDCG(gains={0:2,1:5})"),
    *("P@3", "P(rel=2)@5", "R@3", "R(rel=2)@5", "RR", "RR@3", "RR(rel=2)", "RR(rel=2)@4"),
    *("Success@1", "Success(rel=2)@3", "AP", "AP@3", "AP(rel=2)", "Rprec", "Rprec(rel=2)"),
)
MOST_COMPLETIONS = 4096
DOCIDS = [f"d{number}" for number in range(14)]


def bounds_of(runs, grades, measures, **options):
    """Bounds of runs in memory."""
    choice = EvaluationSettings(measures=tuple(measures), **options)
    result = bound_runs(list(runs.items()), RelevanceJudgments(grades), choice)
    assert result.unjudged is not None
    return result.unjudged


def values_of_completions(runs, judged, unjudged, highest, measure):
    """The values of each run (C, R) for all C completions, each of which is a query."""
    completions = product(range(highest + 1), repeat=len(unjudged))
    grades = {}
    for number, completion in enumerate(completions):
        grades[f"c{number}"] = {**judged, **dict(zip(unjudged, completion, strict=True))}
    evaluator = Evaluator(parse_measures([measure]).measures, grades)
    values = []
    for name, hits in runs.items():
        result = evaluator.evaluate(name, dict.fromkeys(grades, hits))
        (of_queries,) = result.per_query.values()
        values.append([of_queries[qid] for qid in grades])
    return np.array(values).T


def unjudged_hits(runs, judged, measure):
    """The unjudged hits of a query down to the depth of a measure, in its provider's order."""
    ascending = measure.NAME == "RR" and "cutoff" in measure.params
    unjudged = []
    for hits in runs.values():
        if ascending:
            ranked = sorted(hits, key=lambda docid: (-hits[docid], docid))
        else:
            ranked = sorted(hits, key=lambda docid: (hits[docid], docid), reverse=True)
        for docid in ranked[: measure.params.get("cutoff")]:
            if docid not in judged and docid not in unjudged:
                unjudged.append(docid)
    return unjudged


@st.composite
def queries(draw):
    """Two runs of a query, with ties, and grades of some passages."""
    scores = st.integers(0, 6).map(float)
    hits = st.dictionaries(st.sampled_from(DOCIDS), scores, min_size=1, max_size=9)
    highest = draw(st.sampled_from([1, 1, 2, 3, 3]))
    grade = st.integers(-1, highest)
    judged = draw(st.dictionaries(st.sampled_from(DOCIDS), grade, max_size=12))
    judged["elsewhere"] = highest
    return {"a": draw(hits), "b": draw(hits)}, judged, highest


@pytest.mark.parametrize("measure", MEASURES)
def test_bounds_are_the_extremes_of_all_completions(measure):
    @settings(max_examples=25, deadline=None)
    @given(queries())
    def check(query):
        runs, judged, highest = query
        (parsed,) = parse_measures([measure]).measures
        unjudged = unjudged_hits(runs, judged, parsed)
        if (highest + 1) ** len(unjudged) > MOST_COMPLETIONS:
            return
        values = values_of_completions(runs, judged, unjudged, highest, measure)
        query_runs = {name: {"q": hits} for name, hits in runs.items()}
        bounds = bounds_of(query_runs, {"q": judged}, [measure])
        intervals = [bounds.runs[name][str(parsed)].interval for name in runs]
        intervals.append(bounds.differences["b"][str(parsed)].interval)
        columns = [*values.T, values[:, 1] - values[:, 0]]
        for interval, column in zip(intervals, columns, strict=True):
            assert interval.exact
            assert interval.low == pytest.approx(column.min(), abs=1e-12)
            assert interval.high == pytest.approx(column.max(), abs=1e-12)

    check()


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a script in Perl")
def test_exponential_gains_are_bounded_within_the_digits_of_gdeval():
    runs = {"a": {"d1": 3.0, "d2": 2.0, "d3": 1.0}, "b": {"d3": 2.0, "d4": 1.0, "d1": 0.5}}
    judged = {"d1": 1, "d5": 2}
    measure = "nDCG(dcg='exp-log2')@2"
    values = values_of_completions(runs, judged, ["d2", "d3", "d4"], 2, measure)
    bounds = bounds_of({name: {"q": runs[name]} for name in runs}, {"q": judged}, [measure])
    for position, name in enumerate(runs):
        interval = bounds.runs[name][measure].interval
        assert interval.low == values[:, position].min()
        assert interval.high == values[:, position].max()
    difference = bounds.differences["b"][measure].interval
    assert difference.low == pytest.approx((values[:, 1] - values[:, 0]).min(), abs=1.1e-5)
    assert difference.high == pytest.approx((values[:, 1] - values[:, 0]).max(), abs=1.1e-5)


def test_a_difference_of_ap_with_many_unjudged_hits_has_outer_bounds():
    random = Random(3)
    docids = [f"d{number}" for number in range(MOST_EXACT + 8)]
    runs = {name: {"q": {docid: random.random() for docid in docids}} for name in "ab"}
    grades = {"q": {"d0": 1, "d1": 0}}
    bounds = bounds_of(runs, grades, ["AP"])
    interval = bounds.differences["b"]["AP"].interval
    assert not interval.exact
    assert bounds.runs["b"]["AP"].interval.exact
    for _ in range(300):
        completion = {docid: random.randint(0, 1) for docid in docids}
        judged = {"q": {**completion, **grades["q"]}}
        evaluator = Evaluator(parse_measures(["AP"]).measures, judged)
        first, second = (evaluator.evaluate(name, runs[name]).summary["AP"] for name in runs)
        assert interval.low <= second - first <= interval.high
    lists = [bounds.runs[name]["AP"].interval for name in "ab"]
    assert interval.high < lists[1].high - lists[0].low  # narrower than both runs on their own


def random_collection(random, query_count=30):
    """Two runs with ties and missing queries, and graded judgments of half of their hits."""
    runs: dict[str, dict[str, dict[str, float]]] = {"a": {}, "b": {}}
    grades = {}
    for number in range(query_count):
        qid = f"q{number}"
        docids = [f"d{random.randrange(200)}" for _ in range(40)]
        grades[qid] = {docid: random.choice([-1, 0, 0, 1, 2, 3]) for docid in docids[:20]}
        for hits_by_qid in runs.values():
            if random.random() < 0.9:
                hits = random.sample(docids, 25)
                hits_by_qid[qid] = {docid: float(random.randrange(12)) for docid in hits}
    return runs, grades


@pytest.mark.parametrize("complete", [True, False])
def test_values_are_those_of_the_evaluation_to_the_digit_and_lie_within_the_bounds(complete):
    runs, grades = random_collection(Random(1))
    parsed = parse_measures(MEASURES).measures
    evaluator = Evaluator(parsed, grades, complete=complete)
    bounds = bounds_of(runs, grades, MEASURES, complete=complete)
    for name, hits in runs.items():
        result = evaluator.evaluate(name, hits)
        for measure in map(str, parsed):
            bounded = bounds.runs[name][measure]
            assert bounded.value == result.summary[measure]
            assert bounded.per_query.keys() == result.per_query[measure].keys()
            if (
                "gains={0:2" not in measure
            ):  # there, a hit of grade 0 gains more than an unjudged one
                for qid, value in result.per_query[measure].items():
                    interval = bounded.per_query[qid]
                    assert interval.low <= value <= interval.high
    queries = bounds.differences["b"]["nDCG@10"].per_query
    if complete:
        assert set(queries) == set(grades)
    else:
        assert set(queries) == set(runs["a"]) & set(runs["b"])


def test_with_all_hits_judged_bounds_are_the_value():
    runs, grades = random_collection(Random(2))
    for qid, of_query in grades.items():
        for hits_by_qid in runs.values():
            for docid in hits_by_qid.get(qid, {}):
                of_query.setdefault(docid, 0)
    bounds = bounds_of(runs, grades, MEASURES)
    for name in runs:
        for bounded in bounds.runs[name].values():
            assert bounded.interval.low == bounded.value == bounded.interval.high
    assert set(bounds.hits.values()) == {0}


def test_hits_below_the_cut_off_are_not_counted_as_unjudged():
    runs = {"a": {"q": {"d1": 3.0, "d2": 2.0, "d3": 1.0}}}
    bounds = bounds_of(runs, {"q": {"d1": 1}}, ["nDCG@2", "RR"])
    assert bounds.hits == {"nDCG@2": 1, "RR": 2}


def test_hits_of_a_third_run_count_for_the_ideal_ranking():
    runs = {"a": {"q": {"d1": 1.0}}, "b": {"q": {"d1": 1.0}}, "c": {"q": {"d2": 1.0}}}
    bounds = bounds_of(runs, {"q": {"d1": 1, "d3": 2}}, ["R@5", "P@5"])
    assert bounds.runs["a"]["R@5"].interval.low == pytest.approx(1 / 3)
    assert bounds.runs["a"]["R@5"].interval.high == pytest.approx(1 / 2)
    assert bounds.differences["b"]["R@5"].interval.decision is Decision.EQUAL


def test_a_relevance_level_above_all_grades_leaves_nothing_open():
    runs = {"a": {"q": {"d1": 1.0, "d2": 2.0}}}
    bounds = bounds_of(runs, {"q": {"d1": 1}}, ["P(rel=2)@2", "AP(rel=2)", "Rprec(rel=2)"])
    for bounded in bounds.runs["a"].values():
        assert bounded.interval.low == bounded.interval.high == 0.0


def test_decisions():
    runs = {
        "base": {"q": {"d1": 1.0}},
        "same": {"q": {"d1": 2.0}},
        "more": {"q": {"d1": 2.0, "new": 1.0}},
        "other": {"q": {"new": 2.0, "d3": 1.0}},
    }
    bounds = bounds_of(runs, {"q": {"d1": 1, "d3": 0}}, ["P@2", "Success@1"])
    decisions = {
        run: {measure: value.interval.decision for measure, value in of.items()}
        for run, of in bounds.differences.items()
    }
    assert decisions["same"] == {"P@2": Decision.EQUAL, "Success@1": Decision.EQUAL}
    assert decisions["more"]["P@2"] is Decision.NOT_LOWER
    assert decisions["other"]["P@2"] is Decision.NOT_HIGHER
    bounds = bounds_of(runs, {"q": {"d1": 1, "d3": 0, "new": 0}}, ["P@2"])
    assert bounds.differences["other"]["P@2"].interval.decision is Decision.LOWER


def test_the_baseline_is_the_first_run_or_the_previous_one():
    runs = {name: {"q": {"d1": 1.0}} for name in "abc"}
    assert bounds_of(runs, {"q": {"d1": 1}}, ["P@1"]).baseline_of == {"b": "a", "c": "a"}
    choice = EvaluationSettings(measures=("P@1",))
    judgments = RelevanceJudgments({"q": {"d1": 1}})
    result = bound_runs(list(runs.items()), judgments, choice, "previous")
    assert result.unjudged is not None
    assert result.unjudged.baseline_of == {"b": "a", "c": "b"}


def test_measures_say_what_they_assume():
    bounds = bounds_of({"a": {"q": {"d1": 1.0}}}, {"q": {"d1": 1}}, ["nDCG@5 RR@5 Judged@5 AP"])
    assert bounds.assuming == ("nDCG@5", "AP")
    assert bounds.not_assuming == ("RR@5",)


@pytest.mark.parametrize("measure", ["Bpref", "ERR@10", "GMAP", "NumRet", "P(judged_only=True)@5"])
def test_other_measures_are_rejected_with_those_that_are_bounded(measure):
    with pytest.raises(UsageError, match="no bounds over unjudged hits") as error:
        bounds_of({"a": {"q": {"d1": 1.0}}}, {"q": {"d1": 1}}, [measure])
    assert "nDCG@k" in (error.value.hint or "")


def test_thousands_of_queries_with_twenty_unjudged_hits_are_bounded_in_seconds():
    random = Random(4)
    runs: dict[str, dict[str, dict[str, float]]] = {"a": {}, "b": {}}
    grades = {}
    for number in range(2000):
        qid = f"q{number}"
        grades[qid] = {"judged": 3}
        for name, hits_by_qid in runs.items():
            hits_by_qid[qid] = {f"{name}{rank}": -float(rank) for rank in range(10)}
    runs["b"]["q0"] = {f"a{random.randrange(30)}": 1.0}
    bounds = bounds_of(runs, grades, ["nDCG@10"])
    assert bounds.differences["b"]["nDCG@10"].interval.exact
