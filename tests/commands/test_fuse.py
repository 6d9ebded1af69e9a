"""`denserk fuse`: its runs, its errors, its place in a pipe; the old spellings of commands."""

import io
import sys

import pytest

from denserk.commands.app import run

ONE = "q1 Q0 d1 1 3 a\nq1 Q0 d2 2 2 a\n"
OTHER = "q1 Q0 d2 1 9 b\nq1 Q0 d3 2 8 b\n"
FUSED = "q1 Q0 d2 1 0.0325224735 x\nq1 Q0 d1 2 0.0163934417 x\nq1 Q0 d3 3 0.0161290318 x\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(ONE)
    (tmp_path / "b").write_text(OTHER)
    return tmp_path


def test_runs_are_fused(files):
    assert run(["fuse", "a", "b", "--tag", "x", "--output", "out", "--quiet"]) == 0
    assert (files / "out").read_text() == FUSED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fuse", "a"], "two runs or more are needed"),
        (["fuse", "a", "nowhere"], "nowhere: no such file"),
        (["fuse", "a", "b", "--weights", "1,x"], "--weights: found 'x', expected a number"),
        (["search", "--index", "s-*", "--topics", "t"], "--index s-*: the pattern matches nothing"),
        (["search", "--index", "i", "--index", "i", "--topics", "t"], "--index i is given twice"),
        (["search", "--fuse", "a", "b"], "denserk search --fuse is now: denserk fuse RUN RUN"),
        (["search", "--rerank=m", "--run", "a"], "--rerank is now: denserk rerank --model MODEL"),
        (["search", "--suite", "dl19"], "--suite is now: denserk benchmark NAME --model MODEL"),
        (["eval", "a", "--suite", "dl19"], "--suite is now: denserk benchmark NAME --runs RUN"),
        (["eval", "--list_suites"], "eval --list-suites is now: denserk benchmark --list"),
        (["expand", "--corpus", "a"], "denserk expand is now: denserk generate --corpus CORPUS"),
    ],
)
def test_wrong_usage_leaves_nothing(files, capsys, arguments, message):
    assert run([*arguments, "--output", "out"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1 or "is now" not in err
    assert not (files / "out").exists()


def test_from_standard_input_to_standard_output(files, capsysbinary, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OTHER.encode())))
    assert run(["fuse", "a", "-", "--tag", "x", "--output", "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode() == FUSED
    assert b"standard input: trec run" in err
