import io
import sys
from types import SimpleNamespace

import pytest

from denserk.commands.app import run

RUN = "q1 Q0 d3 1 9 t\nq1 Q0 d10 2 8 t\nq2 Q0 d2 1 5 t\nq3 Q0 d1 1 3 t\n"


@pytest.fixture
def mine(toy, monkeypatch):
    """`mine("--depth", "9")`: the exit status."""
    monkeypatch.chdir(toy)
    (toy / "run.trec").write_text(RUN)
    inputs = ["--topics", "queries.tsv", "--qrels", "qrels.txt", "--corpus", "corpus.jsonl"]

    def mined(*given):
        outputs = [] if "--output" in given else ["--output", "out.jsonl"]
        runs = [] if "--run" in given else ["--run", "run.trec"]
        return run(["mine-negatives", *inputs, *runs, *outputs, *given])

    return mined


def test_from_pipe_to_pipe(mine, monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(RUN.encode())))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe, flush=lambda: None))
    assert mine("--run", "-", "--output", "-", "--output_format", "negatives", "--quiet") == 0
    assert pipe.getvalue() == b"q1\td10\nq2\td2\nq3\td1\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--run", "nothing.trec"], 2, "nothing.trec: no such file"),
        (["--run", "qrels.txt"], 1, "exchange run and qrels"),
        (["--shard-num", "9"], 2, "--shard-num 9: there are 3 queries"),
        (["--teacher", "nowhere/model"], 1, "nowhere/model"),
        (["--set", "answer-bearing=drop"], 2, "add --answers"),
    ],
)
def test_refusals(arguments, status, told, mine, toy, capsys):
    assert mine(*arguments) == status
    assert told in capsys.readouterr().err
    assert not (toy / "out.jsonl").exists()
