"""Folders that earlier versions wrote are opened by every later one, with the same answers."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from denserk import BM25, Encoder, Index, Run, evaluate
from denserk.api.options import EncoderOptions
from denserk.commands.inspect import reproduce
from denserk.commands.retrieve import encode, index, search
from denserk.commands.train import finetune
from tests.old_folders.make import INDEXES
from tests.support.peers import java_home

OLD = Path(__file__).parent / "old_folders"
VERSIONS = ("0.1.0", "0.2.0")
CPU: EncoderOptions = {"device": "cpu", "backend": "torch"}


@pytest.fixture(autouse=True, params=VERSIONS)
def old_folders(request, tmp_path, monkeypatch):
    """A copy of the folders of a version, which is the working directory."""
    folder = tmp_path / "old"
    shutil.copytree(OLD / request.param, folder)
    monkeypatch.chdir(folder)
    return folder


def assert_same_run(run, expected):
    """Hits and order are equal; scores agree to what processors differ in."""
    assert run.keys() == expected.keys()
    for qid, hits in run.items():
        assert list(hits) == list(expected[qid])
        assert list(hits.values()) == pytest.approx(list(expected[qid].values()), rel=1e-4)


@pytest.mark.parametrize("name", INDEXES)
def test_an_old_index_is_searched_with_old_query_vectors(name):
    search(index=f"index-{name}", encoded_queries="encoded", hits=10, output="now.trec")
    assert_same_run(Run.load("now.trec"), Run.load(f"{name}.trec"))


@pytest.mark.parametrize("name", ["hnswpq", "pq"])
def test_an_old_graph_over_codes_is_said_to_compare_by_distance(name, caplog):
    Index.open(f"index-{name}")
    assert ("compares by Euclidean distance" in caplog.text) == (name == "hnswpq")


def test_an_old_folder_of_vectors_is_searched_as_an_index():
    search(index="vectors", encoded_queries="encoded", hits=10, output="now.trec")
    assert_same_run(Run.load("now.trec"), Run.load("vectors.trec"))


def test_an_old_bm25_index_is_searched():
    run = BM25.open("index-bm25").search("queries.tsv", hits=10)
    assert_same_run(run, Run.load("bm25.trec"))


@pytest.mark.peer
@pytest.mark.slow
def test_an_old_lucene_index_is_searched(monkeypatch):
    if not Path("index-lucene").exists():
        pytest.skip("made of 0.1.0 alone: the files are Lucene's")
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    search(index="index-lucene", topics="queries.tsv", hits=10, output="now.trec")
    assert hits_of("now.trec") == hits_of("lucene.trec")


def hits_of(run):
    """Return the passages of each query, in no order."""
    return {qid: set(hits) for qid, hits in Run.load(run).items()}


@pytest.mark.parametrize("name", ["flat-torch", "mlr"])
def test_the_model_of_an_old_index_encodes_the_queries(name):
    run = Index.open(f"index-{name}").search("queries.tsv", hits=10)
    assert_same_run(run, Run.load(f"{name}.trec"))


def test_an_old_model_encodes_what_it_encoded():
    queries = [line.split("\t")[1] for line in Path("queries.tsv").read_text().splitlines()]
    (old_vectors,) = Path("encoded").glob("*.npy")
    vectors = Encoder.load("model", **CPU).encode_queries(queries)
    np.testing.assert_allclose(vectors, np.load(old_vectors), rtol=1e-4)


def test_old_vectors_are_indexed_again_with_equal_bytes():
    index(input="vectors", output="new", engine="torch", threads=1)
    for file in ("index", "docid"):
        assert Path("new", file).read_bytes() == Path("index-flat-torch", file).read_bytes()


def test_an_update_copies_old_vectors():
    encode(model="model", corpus="corpus.jsonl", update="vectors", output="updated", **CPU)
    for name in ("vectors", "updated"):
        search(index=name, encoded_queries="encoded", hits=10, output=f"{name}-now.trec")
    assert Path("updated-now.trec").read_bytes() == Path("vectors-now.trec").read_bytes()


def test_an_interrupted_old_training_is_resumed():
    finetune(
        model="backbone",
        train_data="train.jsonl",
        output="interrupted",
        batch_size=2,
        group_size=2,
        max_steps=40,
        save_steps=2,
        lr=1e-3,
        device="cpu",
        resume=True,
    )
    assert Encoder.load("interrupted", **CPU).encode_queries("the river").shape == (16,)


@pytest.mark.parametrize("run", ["flat-torch", "bm25", "fused", "reranked"])
def test_an_old_run_is_made_again_from_its_manifests(run):
    reproduce(run=f"{run}.trec", output="made-again")


def test_old_runs_are_evaluated():
    values = evaluate("bm25.trec", "qrels.txt", "nDCG@10")
    assert 0 < values["nDCG@10"] < 1
