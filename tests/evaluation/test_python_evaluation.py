"""`denserk.evaluate`: names in messages, and measures that judgments in memory do not allow."""

import re
from pathlib import Path
from typing import Any

import pytest

import denserk
from denserk.errors import DenserkError, InputError, MeasureError, MismatchError, UsageError
from tests.support.console import warnings_of

QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 1}}


def test_messages_have_the_names_that_were_given(caplog):
    runs = {"BM25": {"q1": {"d1": 1.0}}, "dense": {"q1": {"d2": 1.0}, "q2": {"d1": 1.0}}}
    denserk.evaluate(runs, QRELS, "ndcg@10")
    assert [line.partition(":")[0] for line in warnings_of(caplog)] == ["BM25"]
    with pytest.raises(MismatchError, match="dense answers queries 'q9'"):
        denserk.evaluate({"BM25": {"q1": {"d1": 1.0}}, "dense": {"q9": {"d1": 1.0}}}, QRELS)


def test_a_report_of_runs_in_memory_is_that_of_files(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    runs = {"good": {"q1": {"d1": 1.0}}, "bad": {"q1": {"d2": 1.0}, "q2": {"d2": 1.0}}}
    topics = {"q1": "where is the river", "q2": "who sleeps"}
    corpus = [{"id": "d1", "text": "to the south"}, {"id": "d2", "text": "the cat"}]
    expected = denserk.evaluate(runs, QRELS, "RR@10", baseline="bad")
    values = denserk.evaluate(
        runs,
        QRELS,
        "RR@10",
        baseline="bad",
        report="memory",
        report_ids=["q2"],
        topics=topics,
        corpus=corpus,
        plot=tmp_path / "runs.svg",
    )
    assert values == expected
    assert Path("runs.svg").is_file()
    page = Path("memory/index.html").read_text("utf-8")
    assert "to the south" in page
    assert "who sleeps" in page.partition('id="selected"')[2].partition("</section>")[0]
    paths = {}
    for name, run in runs.items():
        denserk.Run(run).save(f"{name}.trec")
        paths[name] = f"{name}.trec"
    Path("qrels").write_text("q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 1\n")
    denserk.evaluate(
        paths,
        "qrels",
        "RR@10",
        baseline="bad",
        report="files",
        report_ids="q2",
        topics=topics,
        corpus=corpus,
    )

    def without_title_and_plots(folder):
        return re.sub(
            "<svg.*?</svg>|Runs on qrels|Runs|data:[^ ]*", "", text_of(folder), flags=re.S
        )

    def text_of(folder):
        return Path(folder, "index.html").read_text("utf-8")

    assert without_title_and_plots("memory") == without_title_and_plots("files")


def test_a_table_of_trec_eval_names_the_tag_of_a_file(tmp_path):
    run = tmp_path / "bm25.trec"
    run.write_text("q1 Q0 d1 1 3 mytag\n")
    evaluation = denserk.evaluate(run, QRELS, "runid RR", details=True)
    assert evaluation.table("trec_eval").splitlines()[0].split() == ["runid", "all", "mytag"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": {"q1": "a"}}, "only for a report"),
        ({"report_ids": ["q1"]}, "report-ids needs --report"),
        ({"report": "page", "report_ids": ["q3"]}, "no query 'q3'"),
        ({"report": "page", "corpus": "gone.jsonl"}, "gone.jsonl"),
    ],
)
def test_a_report_that_cannot_be_written(options, message, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        denserk.evaluate({"q1": {"d1": 1.0}}, QRELS, "RR@10", **options)


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


def test_predicted_labels_in_memory_give_what_files_give(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    predicted = {f"q{number}": {"d1": number % 2, "d2": 1} for number in range(60)}
    drawn_qids = denserk.draw_queries(predicted, 20, seed=1)
    assert denserk.draw_queries(predicted, 10, seed=1) == drawn_qids[:10]
    human = {qid: {**predicted[qid], "d3": 1} for qid in drawn_qids}
    human[drawn_qids[0]] = {"d1": 1, "d2": 0}
    runs = {
        "a": {qid: {"d1": 2.0, "d2": 1.0} for qid in predicted},
        "b": {qid: {"d2": 2.0, "d1": 1.0} for qid in predicted},
    }
    details = denserk.evaluate(
        runs, human, "RR@10", predicted=predicted, baseline="a", details=True
    )
    assert details.predicted is not None
    assert details.predicted.means["a"]["RR@10"].gain == "helps"
    assert details.predicted.differences["b"]["RR@10"].powered.mean > 0
    assert "with predictions" in details.table()
    assert "no draw shows" in warnings_of(caplog)[-1]
    for name, qrels in (("human", human), ("judge", predicted)):
        lines = [f"{q} 0 {d} {g}\n" for q, grades in qrels.items() for d, g in grades.items()]
        Path(f"{name}.qrels").write_text("".join(lines))
    of_files = denserk.evaluate(
        runs, "human.qrels", "RR@10", predicted="judge.qrels", baseline="a", details=True
    )
    assert of_files.predicted == details.predicted


def test_wrong_draws_are_named():
    with pytest.raises(UsageError, match="2 queries only"):
        denserk.draw_queries(["q1", "q2"], 3)
    wrong_calls: list[tuple[Any, Any]] = [("q1", 1), (["q1"], 0), (["q1"], "1")]
    for queries, count in wrong_calls:
        with pytest.raises(UsageError):
            denserk.draw_queries(queries, count)


def test_predicted_labels_need_means():
    with pytest.raises(UsageError, match="NumQ"):
        denserk.evaluate({"q1": {"d1": 1.0}}, QRELS, "NumQ", predicted=QRELS)
