import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from denserk.commands.app import run
from tests.conftest import PASSAGES


def test_from_pipe_to_pipe(toy, monkeypatch):
    data, pipe = (toy / "corpus.jsonl").read_bytes(), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe, flush=lambda: None))
    assert run(["convert", "-", "-", "--kind", "corpus", "--to", "tevatron", "--quiet"]) == 0
    lines = pipe.getvalue().decode().splitlines()
    assert len(lines) == len(PASSAGES)
    assert lines[1] == '{"docid":"d2","title":"Bank","text":"money in the bank"}'


def test_a_reader_that_leaves_early_is_no_failure(tmp_path):
    line = json.dumps({"_id": "d", "title": "", "text": "word " * 100}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(line * 5000)
    command = [sys.executable, "-m", "denserk", "convert", "corpus.jsonl", "-", "--to", "marco"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("d\tword")
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert "rror" not in told


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["nothing.tsv", "new.jsonl"], 2, "nothing.tsv: no such file"),
        (["-", "new.jsonl"], 2, "add --kind with one of corpus, queries"),
        (["corpus.jsonl", "-"], 2, "add --to with one of anserini, beir, tevatron"),
        (
            ["corpus.jsonl", "x", "--kind", "qrels", "--to", "trec"],
            1,
            "corpus.jsonl, line 1: found",
        ),
    ],
)
def test_refusals(arguments, status, told, toy, monkeypatch, capsys):
    monkeypatch.chdir(toy)
    assert run(["convert", *arguments]) == status
    assert told in capsys.readouterr().err
    assert sorted(item.name for item in toy.iterdir()) == [
        "corpus.jsonl",
        "qrels.txt",
        "queries.tsv",
    ]
