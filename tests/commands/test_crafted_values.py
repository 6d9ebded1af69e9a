"""Numbers out of range, endless lines, odd white space, markup: one clear line, or as it stands."""

import gzip
import json
import subprocess
import sys
from functools import partial

import pytest

from denserk.commands.app import run
from tests.faults import limit_file_size


@pytest.fixture
def short_lines(monkeypatch):
    """Lowers the limit of a line to 2 MiB."""
    for module in ("files", "runs"):
        monkeypatch.setattr(f"denserk.io.{module}.LONGEST_LINE", 1 << 21)


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize(("start", "suffix"), [(b"", ".gz"), (b"q1 Q0 d1 1 2.5 t\n", "")])
def test_an_endless_line(tmp_path, capfd, start, suffix):
    """A gzip bomb of blanks would grow to the limit of the memory."""
    bomb = tmp_path / f"run.trec{suffix}"
    data = start + b" " * (1 << 23)
    bomb.write_bytes(gzip.compress(data) if suffix else data)
    (tmp_path / "qrels").write_text("q1 0 d1 1\n")
    (tmp_path / "q.tsv").write_text("q1\tone\n")
    evaluate = ["eval", "--run", str(bomb), "--qrels", str(tmp_path / "qrels")]
    convert = ["convert", str(bomb), str(tmp_path / "o"), "--to", "jsonl"]
    index = ["index", "--type", "bm25", "--corpus", str(bomb), "--output", str(tmp_path / "i")]
    for command in (evaluate, convert, index):
        assert run(command) in (1, 2), command
        line = capfd.readouterr().err.splitlines()[-1]
        assert "defect" not in line
        if command is evaluate or (command is convert and start):
            assert "a line of 2,097,152 bytes or more" in line


def test_queries_of_a_run_are_the_same_to_all_readers(tmp_path, capfd):
    """Columns are separated by white space, Unicode's included: no id holds any of it."""
    run_file, qrels = tmp_path / "run.trec", tmp_path / "qrels"
    run_file.write_text("q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 2.4 t\n\u00a0q2\u2003Q0 d1 1 2.5 t\n")
    run_file.write_text(f"{run_file.read_text()}\x1cq2 Q0 d2 2 2.4 t\n")
    qrels.write_text("q1 0 d1 1\nq2 0 d1 1\n")
    (tmp_path / "q.tsv").write_text("q1\tone\nq2\ttwo\n")
    passages = [json.dumps({"_id": docid, "text": "one"}) for docid in ("d1", "d2")]
    (tmp_path / "c.jsonl").write_text("\n".join([*passages, ""]))
    evaluate = ["eval", "--run", str(run_file), "--qrels", str(qrels)]
    mine = ["mine-negatives", "--topics", str(tmp_path / "q.tsv"), "--qrels", str(qrels)]
    mine += ["--run", str(run_file), "--corpus", str(tmp_path / "c.jsonl")]
    assert run([*evaluate, "-m", "RR@10", "-q", "-o", "tsv"]) == 0
    assert "q2\tRR@10\t1.0000" in capfd.readouterr().out
    assert run([*mine, "--output", str(tmp_path / "o.jsonl")]) == 0
    lines = (tmp_path / "o.jsonl").read_text().splitlines()
    mined = {r["query_id"]: r for r in map(json.loads, lines)}
    for qid in ("q1", "q2"):
        assert [p["docid"] for p in mined[qid]["negative_passages"]] == ["d2"]


def test_words_that_do_not_fit_on_the_disk(tmp_path):
    """NumPy says how many bytes it wrote, and not that there was no room."""
    texts = (json.dumps({"_id": f"d{n}", "text": f"word{n} river{n}"}) for n in range(900))
    (tmp_path / "c.jsonl").write_text("\n".join([*texts, ""]))
    command = [sys.executable, "-m", "denserk", "index", "--type", "bm25", "--quiet"]
    command += ["--corpus", str(tmp_path / "c.jsonl"), "--output", str(tmp_path / "i")]
    limit = partial(limit_file_size, 6_000)  # the ids fit, the scores do not
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert ended.returncode == 1
    assert "cannot be written: " in ended.stderr.splitlines()[0]


def test_markdown_shows_names_as_they_are(tmp_path, capfd):
    evil = tmp_path / "<img src=x onerror=alert(1)>|[a](b)`.trec"
    evil.write_text("q1 Q0 d1 1 2.5 t\n")
    (tmp_path / "b.trec").write_text("q1 Q0 d1 1 2.5 t\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\n")
    runs = ["--run", str(evil), "--run", str(tmp_path / "b.trec")]
    assert run(["eval", *runs, "--qrels", str(tmp_path / "qrels"), "-o", "markdown"]) == 0
    out = capfd.readouterr().out
    assert "<" not in out
    assert "&lt;img src=x onerror=alert(1)&gt;\\|\\[a\\](b)\\`" in out
