"""`denserk.evaluate`: names in messages, and measures that judgments in memory do not allow."""

import pytest

import denserk
from denserk.errors import DenserkError, InputError, MeasureError, MismatchError
from tests.support.console import warnings_of

QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 1}}


def test_messages_have_the_names_that_were_given(caplog):
    runs = {"BM25": {"q1": {"d1": 1.0}}, "dense": {"q1": {"d2": 1.0}, "q2": {"d1": 1.0}}}
    denserk.evaluate(runs, QRELS, "ndcg@10")
    assert [line.partition(":")[0] for line in warnings_of(caplog)] == ["BM25"]
    with pytest.raises(MismatchError, match="dense answers queries 'q9'"):
        denserk.evaluate({"BM25": {"q1": {"d1": 1.0}}, "dense": {"q9": {"d1": 1.0}}}, QRELS)


@pytest.mark.peer
def test_judgments_in_memory_have_no_sub_topics():
    pytest.importorskip("pyndeval")
    with pytest.raises(InputError, match="without sub-topics, which alpha_nDCG@10"):
        denserk.evaluate({"q1": {"d1": 1.0}}, QRELS, "alpha_nDCG@10 nDCG@10")


def test_a_grade_that_no_provider_takes_is_named():
    with pytest.raises(InputError, match="relevance 5 for query q1, passage d1") as caught:
        denserk.evaluate({"q1": {"d1": 1.0}}, {"q1": {"d1": 5}}, "ERR@10 RR@10")
    assert "'RR@10'" in str(caught.value.hint)


def test_an_accuracy_that_is_undefined_points_to_success():
    with pytest.raises(MeasureError, match="Success@1"):
        denserk.evaluate({"q1": {"d1": 1.0}}, QRELS, "Accuracy@1")


def test_a_mean_that_is_no_number_is_said(caplog):
    mean = denserk.evaluate({"q1": {"d2": 1.0}}, QRELS, "Accuracy@1")["Accuracy@1"]
    assert mean != mean
    assert any("Accuracy@1 is undefined for every query" in line for line in warnings_of(caplog))


def failing(*_: object, **__: object) -> dict[str, float]:
    raise RuntimeError("out of\n cheese")


def test_whatever_a_provider_raises_names_the_measure(monkeypatch):
    monkeypatch.setattr("ir_measures.bin.msmarco_eval.compute_metrics", failing)
    with pytest.raises(DenserkError, match=r"RR@10: msmarco cannot .*out of cheese") as caught:
        denserk.evaluate({"q1": {"d1": 1.0}}, QRELS, "RR@10 nDCG@10")
    assert "'nDCG@10'" in str(caught.value.hint)
