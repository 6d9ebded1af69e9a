import itertools
import json
import os
import random
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    Metric,
)
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index import memory
from denserk.io.manifest import Kind, read_manifest
from denserk.io.vectors import VectorFolder
from denserk.tasks.build_index import build_index
from tests.support.faults import Stopped, contents, denserk, limit_file_size, stopped_at
from tests.support.index_folders import MODEL, index, vector_folder
from tests.support.milvus import write_vectors

IDS = [f"d{n}" for n in range(60)]
VECTORS = np.random.default_rng(5).normal(size=(60, 8)).astype(np.float32)
BM25 = IndexSettings(type=IndexType.BM25)
KINDS = {
    "flat": IndexSettings(),
    "torch": IndexSettings(engine=Engine.TORCH, metric=Metric.L2),
    "hnsw": IndexSettings(type=IndexType.HNSW, M=4, threads=1),
    "factory": IndexSettings(factory="IVF2,SQ8", threads=1),
}


@pytest.fixture
def vectors(tmp_path):
    return vector_folder(tmp_path / "vectors", IDS, VECTORS)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_to_an_index(vectors, tmp_path, kind, caplog):
    result = index(tmp_path / "i", vectors, settings=KINDS[kind])
    folder = tmp_path / "i"
    assert contents(folder).keys() == {"docid", "index", "manifest.json"}
    assert (folder / "docid").read_text().split() == IDS
    manifest = read_manifest(folder, Kind.INDEX)
    assert manifest.made_from["model"] == MODEL
    assert manifest.settings["engine"] == ("torch" if kind == "torch" else "faiss")
    assert manifest.contents["count"] == 60
    assert manifest.contents["dimension"] == 8
    assert manifest.contents["vectors_per_passage"] == 1
    assert result.count == 60
    assert result.bytes == sum(map(len, contents(folder).values()))
    is_exact = kind in ("flat", "torch")
    assert (result.recall is None) == is_exact
    assert "vectors: 60 x 8 x 4 bytes = 1.9 kB on the disk" in caplog.messages
    has_recall = any("HNSW4,Flat: recall@10 0.9" in message for message in caplog.messages)
    assert has_recall == (kind == "hnsw")


CALLS = ((Path, "replace"), (os, "fsync"), (VectorFolder, "map_block"))


def count_calls(task):
    """Return how many of the watched calls a task makes: the first that does not stop it."""
    for step in itertools.count():
        with suppress(Stopped), stopped_at(step, CALLS):
            task(step)
            return step
    raise AssertionError


@pytest.mark.parametrize("kind", ["flat", "hnsw", "bm25"])
def test_stopped_at_six_points_and_resumed_gives_the_same_bytes(toy, vectors, tmp_path, kind):
    build = partial(index, settings=KINDS.get(kind) or BM25)
    source = toy / "corpus.jsonl" if kind == "bm25" else vectors
    build(tmp_path / "whole", source)
    total = count_calls(lambda step: build(tmp_path / f"count{step}", source))
    for step in random.Random(42).sample(range(total), 6):
        folder = tmp_path / f"stopped{step}"
        with stopped_at(step, CALLS), pytest.raises(Stopped):
            build(folder, source)
        if (folder / "manifest.json").exists():
            # it is complete where the flush of its name was stopped
            if not read_manifest(folder, Kind.INDEX, unfinished=True).complete:
                with pytest.raises(MismatchError, match="unfinished"):
                    read_manifest(folder, Kind.INDEX)
            with pytest.raises(UsageError, match="not empty"):
                build(folder, source)
        build(folder, source, resume=True)
        assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("factory", "message"),
    [("SQ8", r"building SQ8 needs .* and 100 bytes are available"), ("Bogus9", "rejects Bogus9")],
)
def test_what_cannot_be_built_is_rejected_first(vectors, tmp_path, monkeypatch, factory, message):
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    with pytest.raises(UsageError, match=message):
        index(tmp_path / "i", vectors, factory=factory)
    assert not (tmp_path / "i").exists()
    lines = write_vectors(tmp_path / "lines.jsonl", IDS, VECTORS)
    with pytest.raises(UsageError, match=message):
        index(tmp_path / "i", lines, factory=factory)
    assert not (tmp_path / "i" / "index").exists()


def test_a_finished_index_is_left_alone(vectors, tmp_path, caplog):
    index(tmp_path / "i", vectors)
    modified = (tmp_path / "i" / "index").stat().st_mtime_ns
    caplog.clear()
    assert index(tmp_path / "i", vectors, resume=True).count == 60
    assert (tmp_path / "i" / "index").stat().st_mtime_ns == modified
    assert caplog.messages[-1].endswith("is finished: nothing to do")
    l2 = IndexSettings(metric=Metric.L2)
    with pytest.raises(MismatchError, match="metric was 'inner', now 'l2'"):
        index(tmp_path / "i", vectors, settings=l2, resume=True)
    index(tmp_path / "i", vectors, settings=l2, overwrite=True)
    assert read_manifest(tmp_path / "i", Kind.INDEX).settings["metric"] == "l2"


def test_inputs_and_outputs_that_are_rejected(vectors, tmp_path):
    output = str(tmp_path / "i")
    with pytest.raises(UsageError, match="both input and output"):
        index(vectors, vectors, overwrite=True)
    with pytest.raises(UsageError, match="--type bm25 takes no --input"):
        build_index(IndexPaths(input=(vectors,), output=output), BM25)
    with pytest.raises(UsageError, match="--type flat takes no --corpus"):
        build_index(IndexPaths(corpus="c", output=output))
    with pytest.raises(UsageError, match="an index goes into a folder"):
        build_index(IndexPaths(input=(vectors,)))
    assert not (tmp_path / "i").exists()
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.txt").write_text("words")
    with pytest.raises(UsageError, match="holds thesis"):
        index(output, vectors, resume=True)


def test_corpora_and_fields_of_bm25(toy, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n')
    with pytest.raises(InputError, match=r"the id \S+ twice: passages 1 and 2"):
        index(tmp_path / "i", corpus, settings=BM25)
    assert [path.name for path in tmp_path.iterdir() if path.name != "toy"] == ["corpus.jsonl"]
    corpus.write_text('{"_id": "a", "text": "the of"}\n')
    with pytest.raises(InputError, match="no term in any passage"):
        index(tmp_path / "j", corpus, settings=BM25)
    paths = IndexPaths(corpus=str(toy / "corpus.jsonl"), output=str(tmp_path / "k"))
    build_index(paths, BM25, Bm25Settings(fields=("title",), stemmer="none"))
    terms = json.loads((tmp_path / "k" / "vocab.index.json").read_text())
    assert set(terms) == {"river", "bank", "moon", "boat", "dog"}


@pytest.mark.parametrize(("kind", "limit"), [("flat", 1900), ("hnsw", 2500), ("bm25", 2500)])
def test_a_full_disk_leaves_no_index(vectors, tmp_path, kind, limit):
    """The manifest fits; the vectors do not, or the graph, or the terms."""
    source = ["--input", vectors]
    if kind == "bm25":
        corpus = tmp_path / "corpus.tsv"
        corpus.write_text("".join(f"{n}\tword{n} is word{n // 2}\n" for n in range(900)))
        source = ["--corpus", corpus]
    output = tmp_path / "i"
    command = ["index", *source, "--type", kind, "--output", output]
    process = denserk(*command, preexec_fn=partial(limit_file_size, limit))
    assert process.returncode == 1, process.stderr
    assert re.search(f"error: {output}.* cannot be written: ", process.stderr)
    assert not re.search("manifest.json cannot|Traceback", process.stderr)
    assert not list(tmp_path.glob("*i*.part"))
    assert not output.exists()
