"""ir_metadata of runs."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from denserk.commands.retrieve import encode, fuse, index, search
from denserk.errors import UsageError
from denserk.io.runs import read_run_scores
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY

# the values of ir-metadata.org's checklists (version 0.1) that denserk writes, by their path
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


def read_metadata(run):
    """Read the file beside a run."""
    lines = run.with_name(f"{run.name}.ir_metadata.yaml").read_text().splitlines()
    assert lines[0] == "ir_metadata.start"
    assert lines[-1] == "ir_metadata.end"
    return yaml.safe_load("\n".join(lines[1:-1]))


def flattened(value, path=""):
    """Yield the path and the value of everything that is not a mapping."""
    if not isinstance(value, dict):
        yield path.removeprefix("/"), value
        return
    for name, member in value.items():
        yield from flattened(member, f"{path}/{name}")


@pytest.fixture
def runs(toy, tmp_path, monkeypatch):
    """Two runs in the working directory."""
    monkeypatch.chdir(tmp_path)
    index(corpus=toy / "corpus.jsonl", type="bm25", output="bm25")
    for name, hits in {"a": 2, "b": 5}.items():
        search(index="bm25", topics=toy / "queries.tsv", hits=hits, output=name)
    return tmp_path


def test_a_run_has_a_file_that_follows_the_schema(runs):
    metadata = dict(flattened(read_metadata(runs / "a")))
    assert {name: type(value) for name, value in metadata.items()} == CHECKLIST
    (stage,) = metadata["method/retrieval"]
    assert stage == {"name": "a", "method": "BM25", "k1": 0.9, "b": 0.4}


def test_comments_stand_before_the_hits(runs):
    options = {"runs": ["a", "b"], "method": "linear", "weights": (0.25, 0.75)}
    fuse(**options, output="c")
    fuse(**options, output="d", ir_metadata="comments")
    assert not (runs / "d.ir_metadata.yaml").exists()
    lines = (runs / "d").read_text().splitlines()
    lines_without_comments = (runs / "c").read_text().splitlines()
    comments = lines[: -len(lines_without_comments)]
    assert [*comments, *lines_without_comments] == lines
    assert read_run_scores("d") == read_run_scores("c")
    metadata = yaml.safe_load("\n".join(comment.removeprefix("# ") for comment in comments[1:-1]))
    *searches, fusion = metadata["method"]["retrieval"]
    assert [search["name"] for search in searches] == ["a", "b"]
    assert fusion["interpolates"] == ["a", "b"]
    assert np.allclose(fusion["weight"], [0.25, 0.75])


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
    runs_by_difference = metadata.MetadataAnalyzer("all/first").analyze_directory("all")
    assert list(runs_by_difference) == ["priMad"]  # the methods alone differ
    assert sorted(runs_by_difference["priMad"]) == ["all/again", "all/fused"]


def test_only_a_trec_run_has_comments(runs):
    with pytest.raises(UsageError, match="comments"):
        fuse(runs=["a", "b"], output="c", output_format="jsonl", ir_metadata="comments")
    with pytest.raises(UsageError, match="comments"):
        fuse(runs=["a", "b"], output="c.json", ir_metadata="comments")
    assert not Path("c.json").exists()


def test_metadata_of_a_dense_run_name_the_corpus_behind_its_index(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "model", "bert", VOCABULARY)
    encode(model="model", corpus=toy / "corpus.jsonl", output="vectors")
    index(input="vectors", type="flat", output="index")
    for name in ("vectors", "index"):
        search(index=name, model="model", topics=toy / "queries.tsv", output=f"{name}.trec")
        metadata = read_metadata(tmp_path / f"{name}.trec")
        assert metadata["data"]["test collection"]["source"] == "toy/corpus.jsonl"
        assert metadata["method"]["retrieval"][0]["index"] == "flat"


@pytest.mark.parametrize(
    ("options", "tokenizer", "stemmer", "stop_words"),
    [
        ({"language": "de"}, "bm25s, stems", "german", "bm25s.stopwords, GERMAN"),
        ({"language": "de", "stopwords": "none"}, "bm25s, stems", "german", "none"),
        ({"language": "th"}, "bm25s, bigrams", "none", "bm25s.stopwords, EN"),
        ({"language": "en"}, "bm25s", "porter", "lucene"),
        ({"language": "auto"}, "bm25s", "porter", "lucene"),
    ],
)
def test_metadata_name_the_analysis_of_a_language(
    runs, toy, options, tokenizer, stemmer, stop_words
):
    index(corpus=toy / "corpus.jsonl", type="bm25", output="index", **options)
    search(index="index", topics=toy / "queries.tsv", output="c")
    analysis = read_metadata(runs / "c")["method"]["indexing"]
    assert analysis["tokenizer"] == tokenizer
    assert analysis["stemmer"] == stemmer
    assert analysis["stopwords"] == stop_words
