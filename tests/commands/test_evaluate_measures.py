"""Measures that cannot be computed from the files, and those of sub-topics."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from denserk.commands.app import run

SUBTOPICS = "q0 0 d0 1\nq0 1 d0 1\nq0 0 d1 1\n"
OF_SUBTOPICS = "alpha_nDCG@10 alpha_DCG@5 ERR_IA@10 nERR_IA@10 NRBP nNRBP AP_IA P_IA@10 StRecall@10"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("qrels.txt").write_text("q1 0 d1 5\nq1 0 d2 1\nq2 0 d3 2\n")
    Path("run.trec").write_text("q1 Q0 d1 1 3 a\nq1 Q0 d2 2 2 a\nq2 Q0 d1 1 3 a\nq2 Q0 d3 2 2 a\n")
    Path("subtopics.txt").write_text(SUBTOPICS)
    Path("first.trec").write_text("q0 Q0 d0 1 1 t\n")
    Path("second.trec").write_text("q0 Q0 d1 1 1 t\n")
    return tmp_path


def theirs(qrels: str, run_file: str, measures: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "ir_measures", qrels, run_file, measures]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
@pytest.mark.parametrize(("name", "alpha_ndcg"), [("first", "0.8638"), ("second", "0.4319")])
def test_measures_of_sub_topics_are_those_of_ir_measures(name, alpha_ndcg, capsys):
    pytest.importorskip("pyndeval")
    for measure in [*OF_SUBTOPICS.split(), "alpha_nDCG(alpha=0.3)@10", "AP_IA(rel=2)", "AP"]:
        assert run(["eval", f"{name}.trec", "subtopics.txt", "-m", measure, "--quiet"]) == 0
        assert capsys.readouterr().out == theirs("subtopics.txt", f"{name}.trec", measure)
    options = ["-m", f"alpha_nDCG@10 AP_IA(rel=2) {OF_SUBTOPICS} nDCG@10", "--quiet"]
    assert run(["eval", f"{name}.trec", "subtopics.txt", *options]) == 0
    together = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert together["alpha_nDCG@10"] == alpha_ndcg
    for measure, value in together.items():
        expected = theirs("subtopics.txt", f"{name}.trec", measure)
        assert f"{measure}\t{value}\n" == expected


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
def test_measures_of_sub_topics_take_other_grades_in_other_sub_topics(capsys):
    pytest.importorskip("pyndeval")
    Path("web.txt").write_text("q0 1 d0 1\nq0 2 d0 0\nq0 2 d1 2\nq9 1 d5 1\n")
    assert run(["eval", "first.trec", "web.txt", "-m", "ERR_IA@5 StRecall@5", "--quiet"]) == 0
    assert capsys.readouterr().out == theirs("web.txt", "first.trec", "ERR_IA@5 StRecall@5")


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
@pytest.mark.parametrize(
    "qrels", ["q0 0 d0 1\nq0 0 d1 1\n", "query-id\tcorpus-id\tscore\nq0\td0\t1\n"]
)
def test_measures_of_sub_topics_are_rejected_by_name_without_sub_topics(qrels, capsys):
    pytest.importorskip("pyndeval")
    Path("plain.txt").write_text(qrels)
    assert run(["eval", "first.trec", "plain.txt", "-m", "nDCG@5 alpha_nDCG@10 NRBP"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert "plain.txt: found judgments without sub-topics" in err
    assert "alpha_nDCG@10" in err


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
@pytest.mark.parametrize(
    "measure", ["alpha_nDCG", "alpha_nDCG@100", "P_IA(judged_only=True)@5", "NRBP(alpha=5.0)"]
)
def test_parameters_that_pyndeval_cannot_compute_are_usage_errors(measure, capsys):
    pytest.importorskip("pyndeval")
    assert run(["eval", "first.trec", "subtopics.txt", "-m", measure]) == 2
    assert measure in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_measures_of_sub_topics_name_the_package_they_need(capsys, monkeypatch):
    monkeypatch.setattr("ir_measures.pyndeval._is_available", False)
    assert run(["eval", "first.trec", "subtopics.txt", "-m", "alpha_nDCG@10"]) == 2
    assert "pip install ir-measures[pyndeval]" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_passage_with_one_grade_in_several_sub_topics_counts_once(capsys):
    assert run(["eval", "first.trec", "subtopics.txt", "-m", "nDCG@10", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out == theirs("subtopics.txt", "first.trec", "nDCG@10") == "nDCG@10\t0.6131\n"


@pytest.mark.usefixtures("folder")
def test_a_passage_with_two_grades_is_rejected_and_the_sub_topics_are_named(capsys):
    Path("web.txt").write_text("q0 1 d0 1\nq0 2 d0 0\n")
    assert run(["eval", "first.trec", "web.txt", "-m", "nDCG@10"]) == 1
    err = capsys.readouterr().err
    assert "web.txt, line 2: found relevance 0 for query q0, passage d0, and 1 above" in err
    assert "alpha_nDCG@10" in err


def test_json_lines_with_another_grade_in_another_sub_topic_are_rejected(folder, capsys):
    line = '{{"qid": "q0", "docid": "d0", "relevance": {}, "subtopic_id": "{}"}}\n'
    Path("web.jsonl").write_text(line.format(1, "a") + line.format(0, "b"))
    command = ["eval", "--run", "first.trec", "--qrels", "web.jsonl"]
    assert run([*command, "-m", "nDCG@10"]) == 1
    assert "web.jsonl, line 2: found relevance 0" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_sub_topics_survive_a_conversion(capsys):
    assert run(["convert", "subtopics.txt", "copy.txt", "--to", "trec"]) == 0
    assert Path("copy.txt").read_text() == SUBTOPICS
    capsys.readouterr()
    assert run(["convert", "subtopics.txt", "copy.tsv", "--to", "beir"]) == 0
    assert "without the iterations or sub-topics" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("measure", ["ERR@10", "nDCG(dcg='exp-log2')@10"])
def test_a_grade_above_gdeval_s_is_named_with_its_line(measure, capsys):
    assert run(["eval", "run.trec", "qrels.txt", "-m", f"{measure} nDCG@10 RR@10"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert (
        "qrels.txt, line 1: found relevance 5 for query q1, passage d1; expected a grade up to 4"
        in err
    )
    assert measure in err
    assert "-m 'nDCG@10 RR@10'" in err
    assert "internal error" not in err


@pytest.mark.usefixtures("folder")
def test_an_undefined_accuracy_points_to_success(capsys):
    assert run(["eval", "run.trec", "qrels.txt", "-m", "Accuracy@1 nDCG@10"]) == 1
    err = capsys.readouterr().err
    assert "Success@1" in err
    assert "-m 'nDCG@10'" in err


@pytest.mark.usefixtures("folder")
def test_an_accuracy_that_is_defined_says_what_it_is(capsys):
    Path("run.trec").write_text("q1 Q0 d9 1 3 a\nq1 Q0 d2 2 2 a\nq2 Q0 d8 1 3 a\n")
    assert run(["eval", "run.trec", "qrels.txt", "-m", "Accuracy@5"]) == 0
    out, err = capsys.readouterr()
    assert out == theirs("qrels.txt", "run.trec", "Accuracy@5")
    assert "1 of 2 judged queries" in err
    assert "Success@5" in err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("grade", ["20000", "1000000000", "100000000000000000"])
def test_a_grade_that_trec_eval_cannot_hold_is_no_silent_zero(grade, capsys):
    Path("qrels.txt").write_text(f"q1 0 d1 1\nq2 0 d3 {grade}\n")
    measures = "nDCG RR@5 P@5" if grade == "20000" else "AP nDCG@5 RR@5"
    assert run(["eval", "run.trec", "qrels.txt", "-m", measures]) == 1
    err = capsys.readouterr().err
    others = "RR@5 P@5" if grade == "20000" else "RR@5"
    assert f"-m '{others}' computes the other measures" in err
    assert run(["eval", "run.trec", "qrels.txt", "-m", others]) == 0
    assert f"qrels.txt, line 2: found relevance {grade} for query q2, passage d3" in err


@pytest.mark.usefixtures("folder")
def test_one_measure_has_no_effect_on_another(capsys):
    Path("qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 2\nq2 0 d3 1\n")
    measures = [
        *("nDCG(gains={1: 5, 2: 1})@5", "nDCG@5", "AP(judged_only=True)", "NumRet", "AP"),
        *("ERR@5", "nDCG(dcg='exp-log2')@5", "ERR@2", "P(rel=2)@2", "P@2", "SetF(beta=0.5)"),
    ]
    alone = {}
    for measure in measures:
        assert run(["eval", "run.trec", "qrels.txt", "-m", measure, "--quiet"]) == 0
        name, value = capsys.readouterr().out.split()
        alone[name] = value
    assert run(["eval", "run.trec", "qrels.txt", "-m", " ".join(measures), "--quiet"]) == 0
    assert dict(line.split("\t") for line in capsys.readouterr().out.splitlines()) == alone


@pytest.mark.usefixtures("folder")
def test_all_trec_says_what_it_leaves_out(capsys):
    assert run(["eval", "run.trec", "qrels.txt", "-m", "all_trec", "-l", "2"]) == 0
    assert "gm_bpref num_nonrel_judged_ret relstring" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_common_spellings_are_understood(capsys):
    Path("qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 2\nq2 0 d3 1\n")
    measures = "ndcg@10 mrr recall@100 Hits@5 map"
    assert run(["eval", "run.trec", "qrels.txt", "-m", measures, "--quiet"]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["nDCG@10", "RR", "R@100", "Success@5", "AP"]


@pytest.mark.usefixtures("folder")
def test_each_file_is_named_with_what_it_was_taken_for(capsys):
    Path("queries.tsv").write_text("q1\twhen does the moon rise over the sea\n")
    assert run(["eval", "run.trec", "queries.tsv"]) == 2
    err = capsys.readouterr().err
    assert "run.trec is a run" in err
    assert "queries.tsv is neither a run nor qrels (it looks like corpus or queries)" in err
    assert "queries.tsv: trec run" not in err
    assert run(["eval", "run.trec"]) == 2
    err = capsys.readouterr().err
    assert "no qrels file given: run.trec is a run" in err
    assert "--draw 50" in err


@pytest.mark.usefixtures("folder")
def test_a_score_of_mteb_s_predictions_is_named_by_query_and_passage(capsys):
    predictions = '{"mteb_model_meta": {}, "default": {"test": {"q1": {"d1": 1.0, "d2": null}}}}'
    Path("predictions.json").write_text(predictions)
    assert run(["eval", "predictions.json", "qrels.txt", "-m", "nDCG@10"]) == 1
    assert "query q1, passage d2" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
def test_commands_that_read_no_sub_topics_reject_their_measures_by_name(capsys):
    pytest.importorskip("pyndeval")
    files = ["first.trec", "subtopics.txt"]
    assert run(["eval", *files, "-m", "alpha_nDCG@10", "--explain", "q0"]) == 2
    assert "alpha_nDCG@10" in capsys.readouterr().err
    tune = ["--tune", "subtopics.txt", "--measure", "alpha_nDCG@10"]
    assert run(["fuse", "first.trec", "second.trec", *tune]) == 2
    assert "alpha_nDCG@10" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
@pytest.mark.parametrize("column", ["subtopic_id", "iteration"])
def test_sub_topics_of_parquet_and_json_lines(column, capsys):
    pytest.importorskip("pyndeval")
    names = ("query_id", column, "docid", "relevance")
    rows = [
        dict(zip(names, (qid, subtopic, docid, int(grade)), strict=True))
        for qid, subtopic, docid, grade in map(str.split, SUBTOPICS.splitlines())
    ]
    pq.write_table(pa.Table.from_pylist(rows), "qrels.parquet")
    Path("qrels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("qrels.parquet", "qrels.jsonl"):
        command = ["eval", "--run", "second.trec", "--qrels", name, "-m", "alpha_nDCG@10"]
        assert run([*command, "--quiet"]) == 0
        assert capsys.readouterr().out == "alpha_nDCG@10\t0.4319\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.peer
@pytest.mark.parametrize("field", ["subtopic_id", "iteration"])
def test_sub_topics_of_ir_datasets(field, capsys, monkeypatch):
    pytest.importorskip("pyndeval")
    judged = [("d0", 1, "0"), ("d0", 0, "1"), ("d1", 1, "1")]
    records = [
        SimpleNamespace(query_id="q0", doc_id=docid, relevance=grade, **{field: subtopic})
        for docid, grade, subtopic in judged
    ]
    dataset = SimpleNamespace(has_qrels=lambda: True, qrels_iter=lambda: iter(records))
    package = pytest.importorskip("ir_datasets")
    monkeypatch.setattr(package, "load", lambda _: dataset)
    command = ["eval", "--run", "first.trec", "--qrels", "irds:web", "--quiet"]
    assert run([*command, "-m", "StRecall@5"]) == 0
    assert capsys.readouterr().out == "StRecall@5\t0.5000\n"
    assert run([*command, "-m", "nDCG@5"]) == 1
    assert "found relevance 0 for query q0, passage d0, and 1 above" in capsys.readouterr().err
