import json
import random

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.io import vector_formats
from denserk.io.runs import read_run_scores
from tests.support.peers import run_anserini, run_pyserini
from tests.support.toy import WORDS

PASSAGES, QUERIES, HITS = 2000, 20, 20
FORMATS = {"parquet": "ParquetDenseVectorCollection", "json": "JsonDenseVectorCollection"}


def denserk(*words):
    assert run([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def encoded(tiny, tmp_path_factory):
    """A folder with unit vectors as `denserk encode` writes them.

    parquet (two files), json: the passages, for Anserini. queries.jsonl, queries: the queries,
    for Anserini and for Pyserini. queries.tsv: their texts.
    """
    folder = tmp_path_factory.mktemp("encoded")
    drawn = random.Random(5)
    texts = [" ".join(drawn.sample(WORDS, 8)) for _ in range(PASSAGES + QUERIES)]
    passages = [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts[QUERIES:])]
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in passages))
    asked = "".join(f"q{n}\t{text}\n" for n, text in enumerate(texts[:QUERIES]))
    (folder / "queries.tsv").write_text(asked)
    (folder / "json").mkdir()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(vector_formats, "ROWS_A_FILE", PASSAGES // 2 + 1)
        for option, source, form, output in (
            ("--corpus", "corpus.jsonl", "parquet", "parquet"),
            ("--corpus", "corpus.jsonl", "anserini-jsonl", "json/vectors.jsonl"),
            ("--topics", "queries.tsv", "anserini-jsonl", "queries.jsonl"),
            ("--topics", "queries.tsv", "pyserini-queries", "queries"),
        ):
            denserk(
                *("encode", "--model", tiny("bert"), "--representation", "mean", "--l2-norm"),
                *(option, folder / source, "--output-format", form, "--output", folder / output),
                *("--device", "cpu", "--threads", "1", "--block-size", PASSAGES // 2),
            )
    return folder


@pytest.fixture
def own_run(encoded, tmp_path):
    """`own_run(hits, *options of index, search=())`: the index in tmp_path, and its run."""

    def searched(hits, *options, search=()):
        made = ("--output", tmp_path / "index", "--threads", "1", *options)
        denserk("index", "--input", encoded / "parquet", *made)
        queries = ("--encoded-queries", encoded / "queries.jsonl", "--hits", hits)
        words = ("--index", tmp_path / "index", "--output", tmp_path / "own", *search)
        denserk("search", *words, *queries)
        return read_run_scores(tmp_path / "own")

    return searched


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("feedback", "theirs"),
    [
        ("", ""),
        ("--prf average --prf-depth 4", "--prf-depth 4"),
        (
            "--prf rocchio --set prf-negatives=1",
            "--prf-depth 3 --prf-method rocchio --rocchio-topk 2 --rocchio-bottomk 1",
        ),
    ],
)
def test_pyserini_finds_the_same_in_a_quantized_index(encoded, own_run, tmp_path, feedback, theirs):
    own = own_run(HITS, "--type", "sq8", search=feedback.split())
    run_pyserini(
        'import runpy; runpy.run_module("pyserini.search.faiss", run_name="__main__")',
        *("--index", tmp_path / "index", "--topics", encoded / "queries.tsv"),
        *("--encoded-queries", encoded / "queries", "--hits", str(HITS)),
        *("--output", tmp_path / "theirs", *theirs.split()),
        folder=tmp_path,
    )
    theirs = read_run_scores(tmp_path / "theirs")
    assert {qid: [*hits] for qid, hits in own.items()} == {q: [*hits] for q, hits in theirs.items()}
    for qid, hits in own.items():
        np.testing.assert_allclose([*hits.values()], [*theirs[qid].values()], atol=2e-6)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_lucenes_flat_index_ranks_as_exact_search(encoded, own_run, tmp_path, form):
    run_anserini(
        "index.IndexFlatDenseVectors",
        *("-collection", FORMATS[form], "-input", encoded / form, "-index", tmp_path / "lucene"),
        *("-generator", "DenseVectorDocumentGenerator", "-threads", "1"),
        folder=tmp_path,
    )
    run_anserini(
        "search.SearchFlatDenseVectors",
        *("-index", tmp_path / "lucene", "-topics", encoded / "queries.jsonl"),
        *("-topicReader", "JsonStringVector", "-topicField", "vector", "-threads", "1"),
        *("-hits", str(HITS), "-output", tmp_path / "theirs"),
        folder=tmp_path,
    )
    exact, theirs = own_run(PASSAGES), read_run_scores(tmp_path / "theirs")
    assert theirs.keys() == exact.keys()
    for qid, hits in theirs.items():
        # Lucene has no negative scores; what is equal up to six decimals may change places
        own = [(1 + exact[qid][docid]) / 2 for docid in hits]
        best = [(1 + score) / 2 for score in [*exact[qid].values()][:HITS]]
        np.testing.assert_allclose([*hits.values()], own, atol=2e-6)
        np.testing.assert_allclose([*hits.values()], best, atol=2e-6)
