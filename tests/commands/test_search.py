"""Queries of one split of BEIR."""

import json
from pathlib import Path

import pytest

from denserk.commands.app import run
from tests.suite_copies import write_beir


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
