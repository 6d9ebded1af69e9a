"""Commands in an ASCII locale: UTF-8 in and out, and paths that cannot be decoded."""

import os

import pytest

from tests.support import faults

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def denserk(*arguments, **variables):
    """A command in its own process; what it prints, as bytes."""
    return faults.denserk(*arguments, env=os.environ | variables, text=False)


def test_results_and_messages_are_utf8_in_an_ascii_locale(tmp_path):
    run_file = tmp_path / "run.trec"
    qrels = tmp_path / "qrels.txt"
    run_file.write_text("qü Q0 d1 1 1.0 x\n", "utf-8")
    qrels.write_text("qü 0 d1 1\n", "utf-8")
    evaluate = ["eval", "--run", run_file, "--qrels", qrels, "-m", "RR@10"]
    process = denserk(*evaluate, "-q", "-o", "trec_eval", **ASCII)
    assert process.returncode == 0, process.stderr
    assert "\tqü\t1.0000\n".encode() in process.stdout
    qrels.write_text("qü 0 d1 né\n", "utf-8")
    process = denserk(*evaluate, **ASCII)
    assert process.returncode == 1, process.stderr
    assert "né".encode() in process.stderr


@pytest.mark.parametrize(
    ("name", "variables"),
    [(b"\xe9.jsonl", {}), ("é.jsonl".encode(), ASCII)],
    ids=["bytes", "ascii"],
)
def test_a_path_that_cannot_be_decoded_is_rejected(tmp_path, name, variables):
    output = tmp_path / "index"
    process = denserk("index", "--type", "bm25", "--corpus", name, "--output", output, **variables)
    assert process.returncode == 2
    error, hint = process.stderr.decode().splitlines()
    assert error.startswith("error: an argument is not valid")
    assert "export LC_ALL=C.UTF-8" in hint
    assert not output.exists()
