import os

import pytest

from tests.support import faults

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def denserk(*arguments, **variables):
    """A command in its own process; what it prints, as bytes."""
    return faults.denserk(*arguments, env=os.environ | variables, text=False)


def test_results_and_messages_are_utf8_in_an_ascii_locale(tmp_path):
    run_file, qrels = tmp_path / "run.trec", tmp_path / "qrels.txt"
    run_file.write_text("qü Q0 d1 1 1.0 x\n", "utf-8")
    qrels.write_text("qü 0 d1 1\n", "utf-8")
    evaluate = ["eval", "--run", run_file, "--qrels", qrels, "-m", "RR@10"]
    done = denserk(*evaluate, "-q", "-o", "trec_eval", **ASCII)
    assert done.returncode == 0, done.stderr
    assert "\tqü\t1.0000\n".encode() in done.stdout
    qrels.write_text("qü 0 d1 né\n", "utf-8")
    done = denserk(*evaluate, **ASCII)
    assert done.returncode == 1, done.stderr
    assert "né".encode() in done.stderr


@pytest.mark.parametrize(
    ("name", "variables"),
    [(b"\xe9.jsonl", {}), ("é.jsonl".encode(), ASCII)],
    ids=["bytes", "ascii"],
)
def test_a_path_that_cannot_be_decoded_is_rejected(tmp_path, name, variables):
    output = tmp_path / "index"
    done = denserk("index", "--type", "bm25", "--corpus", name, "--output", output, **variables)
    assert done.returncode == 2
    error, hint = done.stderr.decode().splitlines()
    assert error.startswith("error: an argument is not valid")
    assert "export LC_ALL=C.UTF-8" in hint
    assert not output.exists()
