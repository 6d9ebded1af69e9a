"""How runs are named to `search --fuse`; its errors; its place in a pipe."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from denserk.cli.app import run
from tests.suite_copies import write_beir

ONE = "q1 Q0 d1 1 3 a\nq1 Q0 d2 2 2 a\n"
OTHER = "q1 Q0 d2 1 9 b\nq1 Q0 d3 2 8 b\n"
FUSED = "q1 Q0 d2 1 0.0325224735 x\nq1 Q0 d1 2 0.0163934417 x\nq1 Q0 d3 3 0.0161290318 x\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(ONE)
    (tmp_path / "b").write_text(OTHER)
    return tmp_path


@pytest.mark.parametrize(
    "runs", [["--fuse", "a", "b"], ["--fuse", "a", "--fuse", "b"], ["b", "--fuse", "a"]]
)
def test_runs_stand_behind_one_option_or_each_behind_its_own(files, runs):
    assert run(["search", *runs, "--tag", "x", "--output", "out", "--quiet"]) == 0
    assert (files / "out").read_text() == FUSED


def test_weights_go_by_order(files):
    command = ["search", "--method", "linear", "--norm", "none", "--ties", "keep", "--quiet"]
    command.append("--overwrite")
    for runs, best in ((["a", "b"], "d1"), (["b", "a"], "d2")):
        assert run([*command, "--weights", "1,0.01", "--output", "out", "--fuse", *runs]) == 0
        assert (files / "out").read_text().split()[2] == best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fuse", "a"], "--fuse needs two runs or more"),
        (["--fuse", "a", "--fuse", "b", "a"], "not both, since weights go by order"),
        (["a", "--index", "i", "--topics", "t"], "what is a for?"),
        (["--fuse", "a", "nowhere"], "nowhere: no such file"),
        (["--fuse", "a", "b", "--index", "i"], "--fuse reads runs alone, and --index not"),
        (["--index", "i", "--topics", "t", "--alpha", "0.5"], "--alpha is for fusion"),
        (["--index", "s-*", "--topics", "t"], "--index s-*: the pattern matches nothing"),
        (["--index", "i", "--index", "i", "--topics", "t"], "--index i is given twice"),
        (["--fuse", "a", "b", "--weights", "1,x"], "a comma list of numbers is expected"),
    ],
)
def test_wrong_usage_leaves_nothing(files, capsys, arguments, message):
    assert run(["search", *arguments, "--output", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (files / "out").exists()


def test_from_standard_input_to_standard_output(files, capsysbinary, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OTHER.encode())))
    assert run(["search", "--fuse", "a", "-", "--tag", "x", "--output", "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode() == FUSED
    assert b"standard input: trec run" in err


def test_fusion_needs_no_torch(files):
    command = "import sys; from denserk.cli.app import run; status = run(sys.argv[1:]); "
    check = "assert not {'torch', 'transformers', 'faiss'} & sys.modules.keys(); sys.exit(status)"
    arguments = ["search", "--fuse", "a", "b", "--output", "out"]
    done = subprocess.run(
        [sys.executable, "-c", command + check, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def scifact(tmp_path, monkeypatch):
    """A BEIR folder whose queries.jsonl holds more queries than its test split judges."""
    monkeypatch.chdir(write_beir(tmp_path, "scifact"))
    Path("qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nunjudged\td10\t1\n")
    asked = ["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "index"]
    assert run([*asked, "--quiet"]) == 0


@pytest.mark.usefixtures("scifact")
@pytest.mark.parametrize(("split", "qids"), [("test", ["q1", "q2", "q3"]), ("train", ["unjudged"])])
def test_one_split_of_beirs_queries(tiny, capsys, split, qids):
    asked = ["--topics", "queries.jsonl", "--qrels", f"qrels/{split}.tsv", "--output"]
    assert run(["search", "--index", "index", *asked, "run.jsonl", "--output-format", "jsonl"]) == 0
    assert f"{len(qids)} of 4 queries are judged in qrels/{split}.tsv" in capsys.readouterr().err
    hits = map(json.loads, Path("run.jsonl").read_text().splitlines())
    assert list(dict.fromkeys(hit["qid"] for hit in hits)) == qids
    encoded = ["encode", "--model", str(tiny()), "--quiet", *asked, "vectors"]
    assert run(encoded) == 0
    assert Path("vectors/block-00000.docid").read_text().split() == qids
    encoded[encoded.index("--qrels") + 1] = "qrels/other.tsv"
    Path("qrels/other.tsv").write_text("q1 0 d1 1\n")
    assert run([*encoded, "--resume"]) == 1
    assert "qrels" in capsys.readouterr().err


@pytest.mark.usefixtures("scifact")
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--topics", "queries.jsonl", "--qrels", "no.tsv"], 1, "no.tsv judges queries such as x"),
        (["--encoded-queries", "v", "--qrels", "no.tsv"], 2, "--qrels no.tsv: it selects the quer"),
        (["--suite", "beir/scifact", "--qrels", "no.tsv"], 2, "--qrels cannot be given too"),
        (["--topics", "queries.jsonl", *["--qrels", "no.tsv"] * 2], 2, "--qrels is given 2 times"),
    ],
)
def test_qrels_that_select_nothing(capsys, arguments, status, message):
    Path("no.tsv").write_text("x 0 d1 1\n")
    place = [] if "--suite" in arguments else ["--index", "index"]
    assert run(["search", *place, *arguments, "--output", "run", "--quiet"]) == status
    assert message in capsys.readouterr().err
