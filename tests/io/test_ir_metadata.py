"""ir_metadata of runs."""

import shutil
import sys
from types import ModuleType

import numpy as np
import pytest
import yaml

from denserk.commands.retrieve import encode, fuse, index, search
from denserk.errors import UsageError
from denserk.io.runs import read_run_scores
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY

# the scalars of ir-metadata.org's checklists (version 0.1) that denserk writes, by their place
CHECKLIST = {
    "schema-version": float,
    "run-version": float,
    "tag": str,
    "platform/hardware/cpu/architecture": str,
    "platform/hardware/cpu/number of cores": int,
    "platform/hardware/ram": str,
    "platform/operating system/kernel": str,
    "platform/software/libraries/python": list,
    "platform/software/retrieval toolkit": list,
    "implementation/executable/cmd": str,
    "implementation/source/lang": list,
    "method/automatic": bool,
    "method/score ties": str,
    "method/indexing/tokenizer": str,
    "method/indexing/stemmer": str,
    "method/indexing/stopwords": str,
    "method/retrieval": list,
    "data/test collection/source": str,
    "data/test collection/topics": str,
}


def places(value, path=""):
    """Yield the path and the value of everything that is not a mapping."""
    if not isinstance(value, dict):
        yield path.removeprefix("/"), value
        return
    for name, inner in value.items():
        yield from places(inner, f"{path}/{name}")


@pytest.fixture
def runs(toy, tmp_path, monkeypatch):
    """Two runs in the working directory."""
    monkeypatch.chdir(tmp_path)
    index(corpus=toy / "corpus.jsonl", type="bm25", output="bm25")
    for name, hits in {"a": 2, "b": 5}.items():
        search(index="bm25", topics=toy / "queries.tsv", hits=hits, output=name)
    return tmp_path


def test_a_run_has_a_file_that_follows_the_schema(runs):
    lines = (runs / "a.ir_metadata.yaml").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("ir_metadata.start", "ir_metadata.end")
    found = dict(places(yaml.safe_load("\n".join(lines[1:-1]))))
    assert {name: type(value) for name, value in found.items()} == CHECKLIST
    (stage,) = found["method/retrieval"]
    assert stage == {"name": "a", "method": "BM25", "k1": 0.9, "b": 0.4}


def test_comments_stand_before_the_hits(runs):
    fuse(runs=["a", "b"], method="linear", weights=(0.25, 0.75), output="c")
    fuse(runs=["a", "b"], method="linear", weights=(0.25, 0.75), output="d", ir_metadata="comments")
    assert not (runs / "d.ir_metadata.yaml").exists()
    text = (runs / "d").read_text()
    comments = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    assert (
        text.removeprefix("".join(f"# {line}\n" for line in comments)) == (runs / "c").read_text()
    )
    assert read_run_scores("d") == read_run_scores("c")
    (*stages, last) = yaml.safe_load("\n".join(comments[1:-1]))["method"]["retrieval"]
    assert [stage["name"] for stage in stages] == last["interpolates"] == ["a", "b"]
    assert np.allclose(last["weight"], [0.25, 0.75])


def test_metadata_of_a_run_that_is_replaced_goes(runs):
    fuse(runs=["a", "b"], output="c")
    fuse(runs=["a", "b"], output="c", overwrite=True, ir_metadata="none")
    assert not (runs / "c.ir_metadata.yaml").exists()


@pytest.mark.peer
def test_repro_eval_reads_the_comments(runs, toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "pkg_resources", ModuleType("pkg_resources"))
    metadata = pytest.importorskip("repro_eval.metadata")
    options = {"ir_metadata": "comments", "hits": 5, "topics": toy / "queries.tsv"}
    (runs / "all").mkdir()
    for name in ("first", "again"):
        search(index="bm25", output=name, **options)
        shutil.copy(name, "all")  # alone: manifests are no runs
    fuse(runs=["a", "b"], output="fused", ir_metadata="comments")
    shutil.copy("fused", "all")
    handler = metadata.MetadataHandler("all/first")
    assert handler.get_metadata()["method"]["retrieval"][0]["method"] == "BM25"
    assert handler.strip_metadata("all/first") == read_run_scores("all/first")
    found = metadata.MetadataAnalyzer("all/first").analyze_directory("all")
    assert {kind: sorted(files) for kind, files in found.items()} == {  # other methods alone
        "priMad": ["all/again", "all/fused"]
    }


def test_only_a_trec_run_has_comments(runs):
    with pytest.raises(UsageError, match="comments"):
        fuse(runs=["a", "b"], output="c", output_format="jsonl", ir_metadata="comments")


def test_metadata_of_a_dense_run_name_the_corpus_behind_its_index(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "model", "bert", VOCABULARY)
    encode(model="model", corpus=toy / "corpus.jsonl", output="vectors")
    index(input="vectors", type="flat", output="index")
    for name in ("vectors", "index"):
        search(index=name, model="model", topics=toy / "queries.tsv", output=f"{name}.trec")
        lines = (tmp_path / f"{name}.trec.ir_metadata.yaml").read_text().splitlines()
        found = yaml.safe_load("\n".join(lines[1:-1]))
        assert found["data"]["test collection"]["source"] == "toy/corpus.jsonl"
        assert found["method"]["retrieval"][0]["index"] == "flat"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"language": "de"}, ("bm25s, stems", "german", "bm25s.stopwords, GERMAN")),
        ({"language": "de", "stopwords": "none"}, ("bm25s, stems", "german", "none")),
        ({"language": "th"}, ("bm25s, bigrams", "none", "bm25s.stopwords, EN")),
        ({"language": "en"}, ("bm25s", "porter", "lucene")),
        ({"language": "auto"}, ("bm25s", "porter", "lucene")),
    ],
)
def test_the_analysis_of_a_language_is_said(runs, toy, options, expected):
    index(corpus=toy / "corpus.jsonl", type="bm25", output="other", **options)
    search(index="other", topics=toy / "queries.tsv", output="c")
    lines = (runs / "c.ir_metadata.yaml").read_text().splitlines()
    found = dict(places(yaml.safe_load("\n".join(lines[1:-1]))))
    names = ("tokenizer", "stemmer", "stopwords")
    assert tuple(found[f"method/indexing/{name}"] for name in names) == expected
