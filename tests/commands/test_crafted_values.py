"""Hostile inputs: Unicode white space, markup, control characters, a full disk."""

import json
import subprocess
import sys
from functools import partial

import pytest

from denserk.commands.app import run
from tests.faults import limit_file_size


@pytest.fixture
def files(toy, monkeypatch):
    monkeypatch.chdir(toy)
    return toy


def test_all_readers_see_the_same_queries_in_a_run(files, capfd):
    """Columns are separated by white space, Unicode's included: no id holds any of it."""
    run_file = (
        "q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 2.4 t\n\u00a0q2\u2003Q0 d1 1 2.5 t\n\x1cq2 Q0 d2 2 2.4 t\n"
    )
    (files / "run.trec").write_text(run_file)
    (files / "qrels").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    evaluate = ["eval", "run.trec", "qrels", "-m", "RR@10", "-q", "-o", "tsv"]
    mine = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels", "--run", "run.trec"]
    mine += ["--corpus", "corpus.jsonl", "--output", "o.jsonl", "--skip-missing"]
    assert run(evaluate) == 0
    assert "q2\tRR@10\t1.0000" in capfd.readouterr().out
    assert run(mine) == 0
    mined = map(json.loads, (files / "o.jsonl").read_text().splitlines())
    negatives = {one["query_id"]: [p["docid"] for p in one["negative_passages"]] for one in mined}
    assert negatives == {"q1": ["d2"], "q2": ["d2"]}


def test_terms_that_do_not_fit_on_the_disk(tmp_path):
    texts = (json.dumps({"_id": f"d{n}", "text": f"word{n} river{n}"}) for n in range(900))
    (tmp_path / "c.jsonl").write_text("\n".join([*texts, ""]))
    command = [sys.executable, "-m", "denserk", "index", "--type", "bm25", "--quiet"]
    command += ["--corpus", str(tmp_path / "c.jsonl"), "--output", str(tmp_path / "i")]
    limit = partial(limit_file_size, 6_000)  # the ids fit, the scores do not
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert ended.returncode == 1
    assert "cannot be written: " in ended.stderr.splitlines()[0]


def test_markdown_escapes_names(files, capfd):
    evil = "<img src=x onerror=alert(1)>|[a](b)`.trec"
    for name in (evil, "b.trec"):
        (files / name).write_text("q1 Q0 d1 1 2.5 t\n")
    assert run(["eval", evil, "b.trec", "qrels.txt", "-o", "markdown"]) == 0
    out = capfd.readouterr().out
    assert "<" not in out
    assert "&lt;img src=x onerror=alert(1)&gt;\\|\\[a\\](b)\\`" in out


def test_control_characters_and_endless_ids_do_not_reach_the_terminal(files, capfd):
    docid = "\x1b]0;owned\x07\x1b[2J" + "d" * 4096
    (files / "evil.trec").write_text(f"q1 Q0 {docid} 1 1.0 t\n" * 2)
    assert run(["eval", "evil.trec", "qrels.txt"]) == 1
    err = capfd.readouterr().err
    assert "\x1b" not in err
    assert "\\x1b" in err
    assert all(len(line) < 2000 for line in err.splitlines())
