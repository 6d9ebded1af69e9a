"""Locales other than UTF-8, and file names that are not UTF-8."""

import os
import subprocess
import sys

import pytest

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def denserk(*arguments, **variables):
    """A command in its own process; what it prints, as bytes."""
    return subprocess.run(
        [sys.executable, "-m", "denserk", *arguments],
        env=os.environ | variables,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def umlauts(tmp_path):
    """A run and qrels whose query id is not ASCII."""
    (tmp_path / "run.trec").write_text("qü Q0 d1 1 1.0 x\n", "utf-8")
    (tmp_path / "qrels.txt").write_text("qü 0 d1 1\n", "utf-8")
    return tmp_path / "run.trec", tmp_path / "qrels.txt"


def test_results_are_utf8_in_an_ascii_locale(umlauts):
    done = denserk("eval", *umlauts, "-q", "-m", "RR@10", "-o", "trec_eval", **ASCII)
    assert done.returncode == 0, done.stderr
    assert "\tqü\t1.0000\n".encode() in done.stdout


def test_messages_are_utf8_in_an_ascii_locale(umlauts):
    run_file, qrels = umlauts
    qrels.write_text("qü 0 d1 né\n", "utf-8")
    done = denserk("eval", "--run", run_file, "--qrels", qrels, **ASCII)
    assert done.returncode == 1, done.stderr
    assert "né".encode() in done.stderr


@pytest.mark.parametrize(
    ("name", "variables"),
    [(b"\xe9.jsonl", {}), ("é.jsonl".encode(), ASCII)],
    ids=["bytes", "ascii"],
)
def test_a_path_that_cannot_be_decoded_is_rejected(tmp_path, name, variables):
    corpus = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - Path takes no bytes
    with open(corpus, "w") as out:  # noqa: PTH123
        out.write('{"_id": "d1", "text": "red boat"}\n')
    done = denserk(
        "index", "--type", "bm25", "--corpus", corpus, "--output", tmp_path / "index", **variables
    )
    assert done.returncode == 2
    (error, hint) = done.stderr.decode().splitlines()
    assert error.endswith(f"argument {corpus!r} is not valid {'ascii' if variables else 'utf-8'}")
    assert "export LC_ALL=C.UTF-8" in hint
    assert not (tmp_path / "index").exists()
