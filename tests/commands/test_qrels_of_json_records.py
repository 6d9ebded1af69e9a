"""Qrels of JSON records, lines or an array, are taken by every command that reads qrels."""

import json
from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run

BEIR = [
    {"query-id": "q1", "corpus-id": "d2", "score": 1},
    {"query-id": "q2", "corpus-id": "d1", "score": 2},
    {"query-id": "q1", "corpus-id": "d9", "score": 0},
]
OTHER_NAMES = [
    {"qid": qrel["query-id"], "docid": qrel["corpus-id"], "relevance": qrel["score"]}
    for qrel in BEIR
]


def as_lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.trec").write_text("q1 Q0 d1 1 0.9 t\nq1 Q0 d2 2 0.5 t\nq2 Q0 d1 1 1.5 t\n")
    return tmp_path


WITH_A_DICT_FIRST = [{"meta": {"a": 1}, **qrel} for qrel in BEIR]
WITH_A_LIST_FIRST = [{"meta": [1], **qrel} for qrel in BEIR]


@pytest.mark.parametrize("records", [BEIR, OTHER_NAMES, WITH_A_DICT_FIRST, WITH_A_LIST_FIRST])
@pytest.mark.parametrize("write", [as_lines, json.dumps, lambda rows: json.dumps(rows, indent=1)])
@pytest.mark.parametrize("name", ["file", "qrels.jsonl"])
def test_eval_takes_them_in_any_position(name, write, records, capsys):
    Path(name).write_text(write(records))
    for inputs in (["run.trec", name], [name, "run.trec"], ["run.trec", "--qrels", name]):
        assert run(["eval", *inputs, "-m", "nDCG@10", "--quiet"]) == 0
        assert capsys.readouterr().out == "nDCG@10\t0.8155\n"
    assert denserk.evaluate("run.trec", name, "nDCG@10")["nDCG@10"] == pytest.approx(
        0.81546, abs=1e-5
    )


def test_convert_and_tune():
    Path("q.json").write_text(json.dumps(BEIR))
    assert run(["convert", "q.json", "qrels.txt"]) == 0
    assert Path("qrels.txt").read_text() == "q1 0 d2 1\nq2 0 d1 2\nq1 0 d9 0\n"
    Path("other.trec").write_text("q1 Q0 d2 1 0.9 t\nq2 Q0 d1 1 1.5 t\n")
    assert run(["fuse", "run.trec", "other.trec", "--tune", "q.json", "--output", "fused"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query-id": "q1", "corpus-id": "d2", "score": 0.5}', "line 1: found relevance '0.5'"),
        (as_lines(BEIR) + '{"query-id": "q1", "score": 1}', "line 4: found the columns query-id"),
        (as_lines(BEIR) + '{"query-id": "q1", "cor', "line 4: found a line that is not JSON"),
        (json.dumps(BEIR)[:-30], 'found \'{"query-id": "q1", "'),
        (as_lines([*BEIR, {**BEIR[0], "score": 2}]), "line 4: found relevance 2 for query q1"),
    ],
)
def test_broken_records(text, message, capsys):
    Path("qrels.json").write_text(text)
    assert run(["eval", "run.trec", "qrels.json"]) == 1
    assert message in capsys.readouterr().err
