"""Which unjudged hits are chosen to be judged."""

from random import Random

import pytest

from denserk.config.evaluation import EvaluationSettings
from denserk.errors import UsageError
from denserk.evaluation.unjudged_results import Decision, JudgingPlan
from denserk.tasks.evaluate import RelevanceJudgments
from denserk.tasks.evaluate_unjudged import bound_runs
from tests.benchmarks import unjudged_replays as replays


def plan_of(runs, grades, measure="P@3", count=100, **options) -> JudgingPlan:
    """What to judge of runs in memory."""
    settings = EvaluationSettings(measures=(measure,))
    judgments = RelevanceJudgments(grades)
    result = bound_runs(list(runs.items()), judgments, settings, to_judge=count, **options)
    assert result.unjudged is not None
    assert result.unjudged.plan is not None
    return result.unjudged.plan


def is_open(runs, grades, measure):
    """Whether some difference of runs is open."""
    settings = EvaluationSettings(measures=(measure,))
    bounds = bound_runs(list(runs.items()), RelevanceJudgments(grades), settings).unjudged
    assert bounds is not None
    return any(of[measure].interval.is_open for of in bounds.differences.values())


RUNS = {
    "a": {"q": {"d1": 9.0, "d2": 8.0, "a1": 7.0}, "r": {"d1": 9.0, "d2": 8.0, "both": 7.0}},
    "b": {"q": {"d1": 9.0, "b1": 8.0, "b2": 7.0}, "r": {"d1": 9.0, "d3": 8.0, "both": 7.0}},
}
GRADES = {"q": {"d1": 1, "d2": 0, "d5": 0}, "r": {"d1": 1, "d2": 0, "d3": 0}}


def test_a_hit_that_both_runs_return_is_not_judged_for_precision():
    plan = plan_of(RUNS, GRADES)
    assert {pair.docid for pair in plan.pairs} == {"a1", "b1", "b2"}
    assert plan.sufficient == 3
    assert (plan.run, plan.baseline, plan.measure) == ("b", "a", "P@3")


def test_a_hit_of_a_third_run_is_not_judged_for_the_first_relevant_hit():
    third_run = {"q": {"c1": 9.0}, "r": {"c2": 9.0}}
    plan = plan_of({**RUNS, "c": third_run}, {"q": {"d5": 1}, "r": {"d1": 1}}, "RR@2")
    assert (plan.run, plan.baseline) == ("b", "a")
    assert plan.pairs
    assert {pair.docid for pair in plan.pairs} <= {"d1", "d2", "b1"}


def test_once_a_run_is_likely_higher_its_lower_bound_is_raised_first():
    runs: dict[str, dict[str, dict[str, float]]] = {"a": {}, "b": {}}
    grades = {}
    for number in range(20):
        qid = f"q{number}"
        runs["a"][qid] = {"both": 2.0, f"a{number}": 1.0}
        runs["b"][qid] = {"both": 2.0, f"b{number}": 1.0}
        grades[qid] = {"both": 0}
        if number < 8:
            grades[qid] |= {f"a{number}": 0, f"b{number}": 1}
    plan = plan_of(runs, grades, "P@2", count=12)
    assert plan.share_higher is not None
    assert plan.share_higher > 0.99
    # if none of these is relevant, b is higher whatever its own hits are
    assert {pair.docid for pair in plan.pairs} == {f"a{number}" for number in range(8, 20)}


def test_as_long_as_the_sign_is_uncertain_the_least_certain_grade_comes_first():
    runs = {
        "a": {"q": {"d1": 2.0, "a1": 1.0}, "r": {"d1": 2.0, "a1": 1.0}},
        "b": {"q": {"d1": 2.0, "b1": 1.0}, "r": {"d1": 2.0, "b1": 1.0}},
    }
    # a1 is relevant with a probability of 0.32 for q, of 0.18 for r
    plan = plan_of(runs, {"q": {"d1": 0, "b1": 1}, "r": {"d1": 0, "b1": 0}}, "P@2")
    assert plan.share_higher is not None
    assert plan.share_higher < 0.99
    assert [pair.qid for pair in plan.pairs] == ["q", "r"]


def test_as_long_as_the_sign_is_uncertain_a_hit_that_counts_more_comes_first():
    first_is_unjudged = {"a1": 5.0, "d1": 4.0, "d2": 3.0}
    last_is_unjudged = {"d1": 5.0, "d2": 4.0, "a1": 3.0}
    runs = {
        "a": {"q": last_is_unjudged, "r": first_is_unjudged, "s": {"d1": 5.0}},
        "b": {"q": {"b1": 5.0}, "r": {"b1": 5.0}, "s": {"b1": 5.0}},
    }
    grades = {qid: {"d1": 0, "d2": 0, "b1": 1} for qid in "qr"} | {"s": {"d1": 1, "b1": 0}}
    plan = plan_of(runs, grades, "nDCG@3")
    assert plan.share_higher is not None
    assert 0.01 < plan.share_higher < 0.99
    assert [pair.qid for pair in plan.pairs] == ["r", "q"]


@pytest.mark.parametrize("measure", ["nDCG@5", "P@5", "R@5", "RR@5", "AP@5", "Rprec", "Success@5"])
def test_judging_all_that_is_sufficient_decides_whatever_the_grades(measure):
    random = Random(measure)
    for _ in range(2):
        runs = {
            name: {
                f"q{number}": {f"d{random.randrange(9)}": random.random() for _ in range(6)}
                for number in range(4)
            }
            for name in "ab"
        }
        grades = {f"q{number}": {"d0": 1, "d1": 0, "d2": 2} for number in range(4)}
        plan = plan_of(runs, grades, measure)
        assert len(plan.pairs) == plan.sufficient
        assert bool(plan.pairs) == is_open(runs, grades, measure)
        for pair in plan.pairs:
            grades[pair.qid][pair.docid] = random.randint(0, 2)
        assert not is_open(runs, grades, measure)


def test_what_is_decided_needs_no_judgment():
    grades = {"q": {**GRADES["q"], "a1": 0, "b1": 1, "b2": 0}, "r": GRADES["r"]}
    plan = plan_of(RUNS, grades)
    assert plan.pairs == ()
    assert plan.sufficient == 0
    assert plan.likely is None


def test_of_several_runs_the_first_open_difference_is_planned():
    runs = {"a": RUNS["a"], "copy": RUNS["a"], "b": RUNS["b"]}
    assert plan_of(runs, GRADES).run == "b"


def test_without_judged_hits_of_both_kinds_nothing_is_estimated():
    positives = {qid: {"d1": 1, "d2": 1} for qid in GRADES}
    plan = plan_of(RUNS, positives)
    assert plan.share_higher is None
    assert plan.likely is None
    assert plan.pairs


def test_a_plan_is_the_same_each_time_and_counts_lie_in_order():
    random = Random(5)
    runs = {
        name: {
            f"q{n}": {f"d{random.randrange(40)}": random.random() for _ in range(10)}
            for n in range(9)
        }
        for name in "ab"
    }
    grades = {
        f"q{n}": {f"d{d}": random.choice([0, 0, 1, 2]) for d in range(0, 40, 2)} for n in range(9)
    }
    plan = plan_of(runs, grades, "nDCG@10", count=5)
    assert plan == plan_of(runs, grades, "nDCG@10", count=5)
    assert len(plan.pairs) == 5
    assert plan.likely is not None
    assert plan.very_likely is not None
    assert 0 < plan.likely <= plan.very_likely <= plan.sufficient


def test_one_run_has_no_difference_to_judge():
    with pytest.raises(UsageError, match="a difference"):
        plan_of({"a": RUNS["a"]}, GRADES)


def test_runs_without_a_common_query_have_no_difference_to_judge():
    runs = {"a": {"q": {"a1": 1.0}}, "b": {"r": {"b1": 1.0}}}
    settings = EvaluationSettings(measures=("P@3",), complete=False)
    sources = list(runs.items())
    bounds = bound_runs(sources, RelevanceJudgments(GRADES), settings).unjudged
    assert bounds is not None
    assert bounds.differences["b"]["P@3"].interval.decision is Decision.NO_QUERY
    with pytest.raises(UsageError, match="no query counts for both b and a"):
        bound_runs(sources, RelevanceJudgments(GRADES), settings, to_judge=3)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_in_replays_the_truth_lies_within_the_bounds(share):
    random = Random(6)
    grades = {}
    runs: dict[str, dict[str, dict[str, float]]] = {"a": {}, "b": {}}
    for number in range(8):
        qid = f"q{number}"
        docids = [f"d{position}" for position in range(14)]
        grades[qid] = {docid: random.choice([0, 0, 1, 2]) for docid in docids}
        grades[qid]["elsewhere"] = 2  # so that the highest grade is never dropped
        for hits_by_qid in runs.values():
            hits_by_qid[qid] = {docid: random.random() for docid in random.sample(docids, 11)}
    pair = replays.Pair("toy", runs, grades)
    kept = replays.with_dropped_labels(pair, share, random)
    tally = replays.Tally()
    replays.count_bounds(pair, kept, tally)
    assert tally.inside == tally.values > 0
    protocol = replays.Protocol("nDCG@10", round_share=0.5, most_share=1.0, confidence=0.99)
    replays.judge_in_rounds(pair, kept, protocol, tally)
    assert tally.ends["sure", True] == 1  # with everything judged the sign is the true one
