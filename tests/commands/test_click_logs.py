"""`denserk convert` of click logs."""

import json
import os
from pathlib import Path
from threading import Thread

import pytest

import denserk
from denserk.commands.app import run

LOG = "query,docid,clicks\nwho runs,d1,12\nwho runs,d2,1\nwhat is it,d1,2\nwhat is it,d3,1\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text(LOG)
    Path("corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": f"text {n}"}) + "\n" for n in range(1, 4))
    )
    return tmp_path


def lines(name):
    return Path(name).read_text().splitlines()


def test_queries_qrels_and_training_data_of_a_log_fit_together(capsys):
    assert run(["convert", "clicks.csv", "queries.tsv"]) == 0
    assert run(["convert", "clicks.csv", "qrels.txt", "--set", "click-grades=2,10"]) == 0
    assert "left out, below 2 clicks: 2 passages" in capsys.readouterr().err
    command = "convert clicks.csv train.jsonl --corpus corpus.jsonl --set click-grades=2,10"
    assert run(command.split()) == 0
    runs_qid, is_it_qid = (line.split("\t")[0] for line in lines("queries.tsv"))
    assert [line.split("\t")[1] for line in lines("queries.tsv")] == ["who runs", "what is it"]
    assert lines("qrels.txt") == [f"{runs_qid} 0 d1 2", f"{is_it_qid} 0 d1 1"]
    runs_example, is_it_example = map(json.loads, lines("train.jsonl"))
    assert (runs_example["query_id"], runs_example["query"]) == (runs_qid, "who runs")
    assert is_it_example["query_id"] == is_it_qid
    (passage,) = runs_example["positive_passages"]
    assert (passage["docid"], passage["text"]) == ("d1", "text 1")


def test_a_log_of_ids_takes_the_texts_of_queries():
    Path("log.tsv").write_text("qid\tdocid\tclicks\n7\td1\t3\n")
    Path("q.tsv").write_text("7\twho runs\n")
    command = "convert log.tsv train.jsonl --to flag --corpus corpus.jsonl --queries q.tsv"
    assert run(command.split()) == 0
    assert json.loads(lines("train.jsonl")[0]) == {
        "query": "who runs",
        "pos": ["text 1"],
        "neg": [],
    }


def test_a_log_is_evaluated_with_as_qrels(capsys):
    assert run(["convert", "clicks.csv", "queries.tsv"]) == 0
    runs_qid, is_it_qid = (line.split("\t")[0] for line in lines("queries.tsv"))
    Path("run.trec").write_text(
        f"{runs_qid} Q0 d1 1 2 t\n{runs_qid} Q0 d2 2 1 t\n{is_it_qid} Q0 d2 1 1 t\n"
    )
    capsys.readouterr()
    assert run(["eval", "run.trec", "clicks.csv", "-m", "R@10", "--quiet"]) == 0
    assert capsys.readouterr().out == "R@10\t0.5000\n"


def test_python():
    denserk.convert("clicks.csv", "qrels.txt", click_grades=[1, 3, 10])
    assert [line.split()[-1] for line in lines("qrels.txt")] == ["3", "1", "1", "1"]


def test_a_pipe():
    os.mkfifo("pipe")
    writer = Thread(target=Path("pipe").write_text, args=(LOG,))
    writer.start()
    options = "convert pipe qrels.txt --kind qrels --set click-grades=2,10"
    assert run(options.split()) == 0
    writer.join()
    assert [line.split()[-1] for line in lines("qrels.txt")] == ["2", "1"]


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ("clicks.csv qrels.txt --set click-grades=3,1", 2, "numbers must rise"),
        ("clicks.csv qrels.txt --set click-grades=0", 2, "at least 1"),
        ("clicks.csv queries.tsv --set click-grades=1,2", 2, "not used by queries"),
        ("plain.txt qrels.tsv --kind qrels --set click-grades=1,2", 2, "plain.txt is no click log"),
        ("clicks.csv out --to trec", 2, "add --kind with one of queries, qrels, training"),
        ("clicks.csv qrels.txt --set click-grades=100", 1, "found no passage with 100 clicks"),
    ],
)
def test_wrong_options(options, status, message, capsys):
    Path("plain.txt").write_text("q1 0 d1 1\n")
    assert run(["convert", *options.split()]) == status
    assert message in capsys.readouterr().err
