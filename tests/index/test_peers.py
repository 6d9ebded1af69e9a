"""Indexes and searches of Pyserini and Anserini find what denserk finds."""

import json
import random

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.io import vector_formats
from denserk.io.runs import read_run_scores
from tests.support.peers import run_anserini, run_pyserini
from tests.support.toy import WORDS

PASSAGES = 2000
QUERIES = 20
HITS = 20


def denserk(*words):
    assert run([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def encoded(tiny, tmp_path_factory):
    """A folder with unit vectors as `denserk encode` writes them.

    parquet (two files), json: the passages, for Anserini. queries.jsonl, queries: the queries,
    for Anserini and for Pyserini. queries.tsv: their texts.
    """
    folder = tmp_path_factory.mktemp("encoded")
    generator = random.Random(5)

    def random_text():
        return " ".join(generator.sample(WORDS, 8))

    with (folder / "queries.tsv").open("w") as file:
        for number in range(QUERIES):
            file.write(f"q{number}\t{random_text()}\n")
    with (folder / "corpus.jsonl").open("w") as file:
        for number in range(PASSAGES):
            file.write(json.dumps({"_id": f"d{number}", "text": random_text()}) + "\n")
    (folder / "json").mkdir()

    def encode(option, source, output_format, output):
        model = ["--model", tiny("bert"), "--representation", "mean", "--l2-norm"]
        files = [option, folder / source, "--output", folder / output]
        how = ["--device", "cpu", "--threads", "1", "--block-size", PASSAGES // 2]
        denserk("encode", *model, *files, "--output-format", output_format, *how)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(vector_formats, "ROWS_A_FILE", PASSAGES // 2 + 1)
        encode("--corpus", "corpus.jsonl", "parquet", "parquet")
        encode("--corpus", "corpus.jsonl", "anserini-jsonl", "json/vectors.jsonl")
        encode("--topics", "queries.tsv", "anserini-jsonl", "queries.jsonl")
        encode("--topics", "queries.tsv", "pyserini-queries", "queries")
    return folder


@pytest.fixture
def run_of_denserk(encoded, tmp_path):
    """Build tmp_path/index by denserk, and return its run with some hits."""

    def index_and_search(hits, index_options=(), search_options=()):
        index = tmp_path / "index"
        passages = ["--input", encoded / "parquet"]
        denserk("index", *passages, "--output", index, "--threads", "1", *index_options)
        queries = ["--encoded-queries", encoded / "queries.jsonl", "--hits", hits]
        files = ["--index", index, "--output", tmp_path / "denserk.trec"]
        denserk("search", *files, *queries, *search_options)
        return read_run_scores(tmp_path / "denserk.trec")

    return index_and_search


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "pyserini_options"),
    [
        ("", ""),
        ("--prf average --prf-depth 4", "--prf-depth 4"),
        (
            "--prf rocchio --set prf-negatives=1",
            "--prf-depth 3 --prf-method rocchio --rocchio-topk 2 --rocchio-bottomk 1",
        ),
    ],
)
def test_pyserini_finds_the_same_in_a_quantized_index(
    encoded, run_of_denserk, tmp_path, options, pyserini_options
):
    hits_of_queries = run_of_denserk(HITS, ["--type", "sq8"], options.split())
    run_pyserini(
        'import runpy; runpy.run_module("pyserini.search.faiss", run_name="__main__")',
        *("--index", tmp_path / "index", "--topics", encoded / "queries.tsv"),
        *("--encoded-queries", encoded / "queries", "--hits", str(HITS)),
        *("--output", tmp_path / "pyserini.trec", *pyserini_options.split()),
        folder=tmp_path,
    )
    pyserini_run = read_run_scores(tmp_path / "pyserini.trec")
    assert pyserini_run.keys() == hits_of_queries.keys()
    for qid, hits in hits_of_queries.items():
        pyserini_hits = pyserini_run[qid]
        assert list(hits) == list(pyserini_hits)
        np.testing.assert_allclose(list(hits.values()), list(pyserini_hits.values()), atol=2e-6)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("vectors_format", "collection"),
    [("parquet", "ParquetDenseVectorCollection"), ("json", "JsonDenseVectorCollection")],
)
def test_lucenes_flat_index_ranks_as_exact_search(
    encoded, run_of_denserk, tmp_path, vectors_format, collection
):
    run_anserini(
        "index.IndexFlatDenseVectors",
        *("-collection", collection, "-input", encoded / vectors_format),
        *("-index", tmp_path / "lucene"),
        *("-generator", "DenseVectorDocumentGenerator", "-threads", "1"),
        folder=tmp_path,
    )
    run_anserini(
        "search.SearchFlatDenseVectors",
        *("-index", tmp_path / "lucene", "-topics", encoded / "queries.jsonl"),
        *("-topicReader", "JsonStringVector", "-topicField", "vector", "-threads", "1"),
        *("-hits", str(HITS), "-output", tmp_path / "lucene.trec"),
        folder=tmp_path,
    )
    exact_run = run_of_denserk(PASSAGES)
    lucene_run = read_run_scores(tmp_path / "lucene.trec")
    assert lucene_run.keys() == exact_run.keys()
    for qid, lucene_hits in lucene_run.items():
        lucene_scores = list(lucene_hits.values())
        # what is equal up to six decimals may change places
        exact_scores = [exact_run[qid][docid] for docid in lucene_hits]
        best_scores = list(exact_run[qid].values())[:HITS]
        # Lucene has no negative scores: it writes (1 + score) / 2
        np.testing.assert_allclose(lucene_scores, (1 + np.array(exact_scores)) / 2, atol=2e-6)
        np.testing.assert_allclose(lucene_scores, (1 + np.array(best_scores)) / 2, atol=2e-6)
