"""What `denserk choose` prints; tests/tasks/test_choose.py has what it decides."""

import io

import pytest

from denserk.commands.app import run
from tests.support.console import Terminal
from tests.support.toy import QRELS


def write_run(path, docid_of):
    path.write_text("".join(f"{qid} Q0 {docid_of(qid)} 1 1.0 run\n" for qid in QRELS))


def test_a_choice_is_printed(toy, monkeypatch, capfd):
    monkeypatch.chdir(toy)
    write_run(toy / "good.trec", lambda qid: next(iter(QRELS[qid])))
    write_run(toy / "bad.trec", lambda qid: "d2")
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates bm25 --candidates good.trec --candidates bad.trec"
    assert run(["choose", *inputs.split(), *candidates.split()]) == 0
    out, err = capfd.readouterr()
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header[:4] == ["system", "may be best", "queries", "mean"]
    assert {row[0] for row in rows} == {"bm25", "good", "bad"}
    assert "undecided; any of these may be the best" in err  # of three queries
    assert "choice/index.html: report" in err
    assert run(["choose", *inputs.split(), *candidates.split()]) == 2
    assert "choice is not empty" in capfd.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_decision_is_printed_on_a_terminal(toy, monkeypatch, capfd, is_terminal, quiet):
    """With --quiet, too; elsewhere stdout has the rows of the table alone."""
    monkeypatch.chdir(toy)
    write_run(toy / "good.trec", lambda qid: next(iter(QRELS[qid])))
    write_run(toy / "bad.trec", lambda qid: "d2")
    stdout = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", stdout)
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates good.trec --candidates bad.trec"
    console = ["--quiet"] if quiet else []
    assert run(["choose", *inputs.split(), *candidates.split(), *console]) == 0
    decision = "any of these may be the best: good, bad"
    assert (decision in stdout.getvalue()) is is_terminal
    assert (decision in capfd.readouterr().err) is not (is_terminal or quiet)
    if not is_terminal:
        rows = [line.split("\t") for line in stdout.getvalue().splitlines()]
        assert len({len(row) for row in rows}) == 1


def test_the_table_fits_a_terminal_of_80_columns(toy, monkeypatch):
    monkeypatch.chdir(toy)
    monkeypatch.setenv("COLUMNS", "80")
    write_run(toy / "finetuned.trec", lambda qid: next(iter(QRELS[qid])))
    write_run(toy / "minilm.trec", lambda qid: "d2")
    stdout = Terminal()
    monkeypatch.setattr("sys.stdout", stdout)
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates finetuned.trec --candidates minilm.trec --candidates bm25"
    assert run(["choose", *inputs.split(), *candidates.split()]) == 0
    table, _, _ = stdout.getvalue().partition("undecided")
    assert "…" not in table
    rows = [line for line in table.splitlines() if line.startswith(("finetuned", "minilm", "bm25"))]
    assert len(rows) == 6  # of the comparison, and below it of the costs
    assert all(len(row) <= 80 for row in rows)


def test_a_command_that_builds_the_leader_again_is_printed(toy, monkeypatch, capfd):
    monkeypatch.chdir(toy)
    write_run(toy / "bad.trec", lambda qid: "d2")
    inputs = "--corpus corpus.jsonl --topics queries.tsv --qrels qrels.txt --output choice"
    candidates = "--candidates bm25 --candidates bad.trec --budget 0s --set block-size=1"
    assert run(["choose", *inputs.split(), *candidates.split()]) == 0
    messages = capfd.readouterr().err
    assert "  denserk index --type bm25 --corpus corpus.jsonl --output winner/bm25" in messages
    assert "--resume continues" in messages
