import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.evaluation.answer_evaluator import AnswerEvaluator, JudgedQuestion, mean_of_means
from denserk.evaluation.answer_measures import choose_answer_measures
from denserk.evaluation.evaluator import Evaluator, Ties
from denserk.records import Query

MEASURES = choose_answer_measures(["Success@1 Success@2 RR@3 P@2"])


def questions(hits, matches, extra=lambda qid: {}):
    return [
        JudgedQuestion(Query(qid, qid, (), extra(qid)), tuple(of), frozenset(matches))
        for qid, of in hits.items()
    ]


def measured(names, batches, measures=MEASURES, **options):
    evaluator = AnswerEvaluator(names, measures, **options)
    for batch in batches:
        evaluator.add(batch)
    return evaluator.results([()] * len(names))


def test_by_hand():
    hits = {
        "0": [{"a": 3.0, "x": 2.0, "b": 1.0}],
        "1": [{"a": 3.0, "b": 2.0, "x": 1.0}],
        "2": [{}],
        "3": [{"c": 1.0}],
    }
    (run,) = measured(["mine"], [questions(hits, ["x"])])
    assert run.per_query == {
        "Success@1": {"0": 0, "1": 0, "2": 0, "3": 0},
        "Success@2": {"0": 1, "1": 0, "2": 0, "3": 0},
        "RR@3": {"0": 1 / 2, "1": 1 / 3, "2": 0, "3": 0},
        "P@2": {"0": 1 / 2, "1": 0, "2": 0, "3": 0},
    }
    assert run.summary["RR@3"] == pytest.approx((1 / 2 + 1 / 3) / 4)
    assert (run.missing, run.ties, run.over_relations) == (("2",), Ties(0, ()), {})
    (left_out,) = measured(["mine"], [questions(hits, ["x"])], complete=False)
    assert left_out.summary["Success@2"] == 1 / 3


def test_several_runs_and_ties():
    hits = {"0": [{"a": 1.0, "b": 1.0}, {}], "1": [{"b": 1.0}, {"b": 1.0}]}
    first, second = measured(["one", "two"], [questions(hits, ["b"])])
    assert first.summary["Success@1"] == 1.0  # of the tied, trec_eval puts "b" before "a"
    assert first.ties == Ties(1, ("0",))
    assert second.per_query["Success@1"] == {"0": 0, "1": 1}
    assert second.missing == ("0",)


passages = st.sampled_from("abcdefgh")
runs = st.dictionaries(passages, st.integers(0, 9).map(float), max_size=6)
collections = st.dictionaries(st.sampled_from("0123456"), st.tuples(runs, runs), min_size=1)


@given(collections, st.sets(passages), st.integers(1, 4))
def test_batches_are_one_evaluation_and_success_is_the_hit_rate_over_judgements(
    hits, relevant, size
):
    """As MASTER's R@k: a query counts once if any relevant passage is among its first k."""
    every = questions(hits, relevant)
    batches = [every[start : start + size] for start in range(0, len(every), size)]
    results = measured(["one", "two"], batches)
    qrels = {qid: dict.fromkeys("abcdefgh", 0) | dict.fromkeys(relevant, 1) for qid in hits}
    for number, result in enumerate(results):
        run = {qid: of[number] for qid, of in hits.items() if of[number]}
        hit_rate = 0.0
        for of in run.values():  # trec_eval's order: ties by id descending
            first_two = sorted(of, key=lambda docid: (of[docid], docid), reverse=True)[:2]
            hit_rate += bool(relevant & set(first_two)) / len(hits)
        assert result.summary["Success@2"] == pytest.approx(hit_rate)
        if run:
            on_judgements = Evaluator(MEASURES, qrels).evaluate("same", run)
            assert result.per_query == on_judgements.per_query


def test_relations_count_alike_whatever_their_size():
    hits = {qid: [{"x" if qid != "P17-1" else "a": 1.0}] for qid in ("P17-0", "P17-1", "P20-0")}
    of = questions(hits, ["x"], lambda qid: {"relation": qid[:3]})
    (run,) = measured(["mine"], [of])
    assert run.summary["Success@1"] == pytest.approx(2 / 3)
    assert run.over_relations["Success@1"] == (1 / 2 + 1) / 2


def test_a_mean_of_nothing_is_no_number():
    assert math.isnan(mean_of_means({}, {}))
