"""Pyserini opens the folder, Anserini indexes the vectors: both rank as denserk does."""

import gzip
import json

import numpy as np
import pytest

from denserk.formats.trec_run import read_run_scores
from denserk.formats.vectors import open_writer
from denserk.settings.encode import EncodeSettings
from denserk.settings.encoding import (
    ComputeSettings,
    Representation,
    RepresentationSettings,
    VectorFormat,
)
from denserk.settings.formats import CorpusSettings
from denserk.settings.retrieval import (
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchPaths,
    SearchSettings,
)
from denserk.tasks.build_index import build_index
from denserk.tasks.encode import encode
from denserk.tasks.search import search
from tests.conftest import QUERIES as QUERY_TEXTS
from tests.peers import run_anserini, run_pyserini
from tests.tiny_models import write_tiny_aggretriever

PASSAGES, QUERIES, DIMENSION, HITS = 300, 12, 24, 20

SEARCH = """
import json, sys
import numpy as np
from pyserini.search.faiss import FaissSearcher
folder, queries, hits, output = sys.argv[1:]
searcher = FaissSearcher(folder, object())
queries = np.load(queries)
found = searcher.batch_search(queries, [f"q{n}" for n in range(len(queries))], k=int(hits))
ranked = {q: [(hit.docid, float(hit.score)) for hit in hits] for q, hits in found.items()}
json.dump(ranked, open(output, "w"))
"""


def unit(seed, rows):
    vectors = np.random.default_rng(seed).normal(size=(rows, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def collection(tmp_path):
    """Unit vectors of passages in Anserini's lines, and of queries."""
    (tmp_path / "passages").mkdir()
    passages = str(tmp_path / "passages" / "vectors.jsonl")
    with open_writer(passages, VectorFormat.ANSERINI_JSONL) as writer:
        ids = [f"d{n}" for n in range(PASSAGES)]
        writer.write(ids, unit(1, PASSAGES), ["text"] * PASSAGES)
    with open_writer(
        str(tmp_path / "queries.jsonl"), VectorFormat.ANSERINI_JSONL, queries=True
    ) as writer:
        qids = [f"q{n}" for n in range(QUERIES)]
        writer.write(qids, unit(2, QUERIES), ["text"] * QUERIES)
    np.save(tmp_path / "queries.npy", unit(2, QUERIES))
    return tmp_path


def own_run(folder, **settings):
    paths = IndexPaths(input=(str(folder / "passages"),), output=str(folder / "index"))
    build_index(paths, IndexSettings(threads=1, **settings))
    search(
        SearchPaths(
            index=(str(folder / "index"),),
            encoded_queries=str(folder / "queries.jsonl"),
            output=str(folder / "own.trec"),
        ),
        SearchSettings(hits=HITS),
    )
    return read_run_scores(folder / "own.trec")


def assert_same(own, theirs, scale=lambda score: score):
    assert {qid: list(hits) for qid, hits in own.items()} == {
        qid: list(hits) for qid, hits in theirs.items()
    }
    for qid, hits in own.items():
        scores = [scale(score) for score in hits.values()]
        np.testing.assert_allclose(scores, list(theirs[qid].values()), atol=2e-6)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("kind", [{}, {"type": IndexType.SQ8}], ids=["flat", "sq8"])
def test_pyserini_opens_the_folder(collection, kind):
    own = own_run(collection, **kind)
    output = collection / "theirs.json"
    run_pyserini(
        SEARCH,
        *(collection / "index", collection / "queries.npy", str(HITS), output),
        folder=collection,
    )
    theirs = {qid: dict(hits) for qid, hits in json.loads(output.read_text()).items()}
    assert_same(own, theirs)


@pytest.mark.peer
@pytest.mark.slow
def test_anserini_indexes_the_vectors(collection):
    own = own_run(collection)
    lucene = collection / "lucene"
    run_anserini(
        "index.IndexFlatDenseVectors",
        *("-collection", "JsonDenseVectorCollection", "-input", collection / "passages"),
        *("-generator", "DenseVectorDocumentGenerator", "-index", lucene, "-threads", "1"),
        folder=collection,
    )
    topics = collection / "topics.jsonl.gz"
    with gzip.open(topics, "wb") as packed:
        packed.write((collection / "queries.jsonl").read_bytes())
    run_anserini(
        "search.SearchFlatDenseVectors",
        *("-index", lucene, "-topics", topics, "-topicReader", "JsonStringVector"),
        *("-topicField", "vector", "-hits", str(HITS), "-threads", "1"),
        *("-output", collection / "theirs.trec"),
        folder=collection,
    )
    theirs = read_run_scores(collection / "theirs.trec")
    assert_same(own, theirs, scale=lambda score: (1 + score) / 2)


SEARCH_AGGRETRIEVER = """
import json, sys
from pyserini.encode import _aggretriever as port
from pyserini.search.faiss import FaissSearcher
port.BertAggretrieverEncoder.all_tied_weights_keys = {}
folder, model, queries, hits, output = sys.argv[1:]
encoder = port.AggretrieverQueryEncoder(model, device="cpu")
searcher = FaissSearcher(folder, encoder)
ranked = {
    qid: [(hit.docid, float(hit.score)) for hit in searcher.search(text, k=int(hits))]
    for qid, text in json.loads(queries).items()
}
json.dump(ranked, open(output, "w"))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_pyserini_searches_an_aggretriever_index_with_its_own_encoder(
    bert_vocabulary, toy, tmp_path
):
    model = write_tiny_aggretriever(
        tmp_path / "aggretriever",
        bert_vocabulary("bert"),
        RepresentationSettings(Representation.AGG),
    )
    encode(
        EncodeSettings(
            model=str(model), corpus=str(toy / "corpus.jsonl"), output=str(toy / "vectors")
        ),
        CorpusSettings(),
        {},
        {},
        ComputeSettings(device="cpu"),
    )
    build_index(IndexPaths(input=(str(toy / "vectors"),), output=str(toy / "index")))
    search(
        SearchPaths(
            index=(str(toy / "index"),),
            topics=str(toy / "queries.tsv"),
            output=str(toy / "own.trec"),
        ),
        SearchSettings(hits=5),
        compute=ComputeSettings(device="cpu"),
    )
    output = toy / "theirs.json"
    run_pyserini(
        SEARCH_AGGRETRIEVER,
        *(toy / "index", model, json.dumps(QUERY_TEXTS), "5", output),
        folder=toy,
    )
    theirs = {qid: dict(hits) for qid, hits in json.loads(output.read_text()).items()}
    own = read_run_scores(toy / "own.trec")
    assert {q: list(hits) for q, hits in own.items()} == {q: list(h) for q, h in theirs.items()}
    for qid, hits in own.items():
        np.testing.assert_allclose(list(hits.values()), list(theirs[qid].values()), rtol=1e-5)
