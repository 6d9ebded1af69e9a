"""Models, indexes and runs as objects: what they say they are, pickles, and their end."""

import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import denserk
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.index import query_encoder
from tests.support.toy import PASSAGES, QUERIES

CORPUS = [{"id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()]
VECTORS = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)


@pytest.fixture
def model(tiny):
    return denserk.Encoder.load(tiny(), representation="mean", device="cpu")


def test_objects_say_what_they_are(model, tmp_path):
    assert repr(model) == f"<Encoder {model.name}: {model.dimension} dimensions, inner, mean, cpu>"
    index = denserk.Index.build(VECTORS)
    assert repr(index) == "<Index flat, 8 dimensions, inner: 20 passages, temporary>"
    graph = denserk.Index.build(VECTORS, type="hnsw", metric="l2", output=tmp_path / "graph")
    assert repr(graph) == f"<Index hnsw, 8 dimensions, l2: 20 passages, {tmp_path / 'graph'}>"
    run = index.search(VECTORS[:3], hits=2)
    assert repr(run) == "<Run: 3 queries, 6 hits>"
    assert "weights (1.0, 1.0)" in repr(denserk.fuse([run, run]))
    index.close()
    assert repr(index) == "<Index: closed>"


def test_a_bm25_index_says_its_engine():
    pytest.importorskip("bm25s")
    assert repr(denserk.BM25.build(CORPUS)) == "<BM25 bm25s: 6 passages, temporary>"


def test_a_pickled_encoder_loads_its_model_again(model):
    pickled = pickle.dumps(model)
    assert len(pickled) < 2000
    loaded_model = pickle.loads(pickled)
    assert (loaded_model.name, loaded_model.dimension) == (model.name, model.dimension)
    assert "mean" in repr(loaded_model)
    expected = model.encode_queries(["moon", "river"])
    np.testing.assert_array_equal(loaded_model.encode_queries(["moon", "river"]), expected)


def test_a_pickled_encoder_keeps_the_precision_that_was_certified(
    tiny, cpu_with_bfloat16, monkeypatch
):
    encoder = denserk.Encoder.load(tiny(), representation="mean", device="cpu")
    pickled = pickle.dumps(encoder)
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    assert pickle.loads(pickled).text_encoder.dtype == "bfloat16"


def test_a_pickled_encoder_whose_model_changed_is_rejected(tiny, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny(), folder)
    pickled = pickle.dumps(denserk.Encoder.load(folder, representation="mean", device="cpu"))
    shutil.rmtree(folder)
    shutil.copytree(tiny(seed=5), folder)
    with pytest.raises(MismatchError, match="another model than when the encoder was pickled"):
        pickle.loads(pickled)


@pytest.mark.parametrize("has_output", [True, False])
def test_a_pickled_index_is_opened_again(tmp_path, has_output):
    output = tmp_path / "index" if has_output else None
    index = denserk.Index.build(VECTORS, output=output)
    expected = index.search(VECTORS[:3], hits=5)
    pickled = pickle.dumps(index)
    is_path_alone = len(pickled) < 1000
    assert is_path_alone == has_output
    index.close()
    opened_index = pickle.loads(pickled)
    assert type(opened_index) is denserk.Index
    assert opened_index.search(VECTORS[:3], hits=5) == expected


def test_a_pickled_index_of_terms_is_opened_again():
    pytest.importorskip("bm25s")
    index = denserk.BM25.build(CORPUS)
    opened_index = pickle.loads(pickle.dumps(index))
    assert type(opened_index) is denserk.BM25
    assert opened_index.search(QUERIES) == index.search(QUERIES)


def test_an_index_of_terms_is_not_built_where_no_path_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_path: Any = 7
    with pytest.raises(UsageError, match="output: found 7, expected text"):
        denserk.BM25.build(CORPUS, output=no_path)
    assert list(tmp_path.iterdir()) == []


SPAWNED = """
import multiprocessing
import numpy as np
import denserk

def best(index, vectors):
    return list(index.search(vectors, hits=1)["0"])

if __name__ == "__main__":
    vectors = np.eye(4, dtype="float32")
    index = denserk.Index.build(vectors)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.starmap(best, [(index, vectors[2:3]), (index, vectors[1:2])]))
"""


@pytest.mark.slow
def test_a_spawned_process_searches_an_index(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    output = subprocess.check_output([sys.executable, script], text=True)
    assert output == "[['2'], ['1']]\n"


def test_a_pickled_run_keeps_its_weights():
    run = denserk.fuse([{"q": {"d": 1.0}}] * 2, weights=[0.5, 1])
    loaded_run = pickle.loads(pickle.dumps(run))
    assert loaded_run == run
    assert loaded_run.weights == (0.5, 1)


def test_threads_that_search_at_once_load_one_model(tiny, tmp_path, monkeypatch):
    denserk.encode(str(tiny()), tmp_path / "vectors", corpus=CORPUS, device="cpu")
    expected_run = denserk.Index.open(tmp_path / "vectors", device="cpu").search(QUERIES)
    load = query_encoder.load_query_encoder
    loaded_encoders = []

    def load_and_record(*arguments, **options):
        encoder = load(*arguments, **options)
        loaded_encoders.append(encoder)
        return encoder

    monkeypatch.setattr(query_encoder, "load_query_encoder", load_and_record)
    index = denserk.Index.open(tmp_path / "vectors", device="cpu")
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda qid: index.search({qid: QUERIES[qid]}), [*QUERIES] * 4))
    assert len(loaded_encoders) == 1
    for run in runs:
        for qid, hits in run.items():
            assert hits == pytest.approx(expected_run[qid], abs=1e-5)


def test_a_closed_index_is_of_no_more_use():
    with denserk.Index.build(VECTORS) as index:
        folder = index._scratch.path  # type: ignore[union-attr]
        assert folder.is_dir()
    assert not folder.exists()
    for call in (
        lambda: index.search(VECTORS[:1]),
        lambda: len(index),
        lambda: pickle.dumps(index),
        index.__enter__,
    ):
        with pytest.raises(UsageError, match="the index is closed"):
            call()
    index.close()  # a second time


def test_a_closed_encoder_is_of_no_more_use(model):
    index = denserk.Index.build(np.ones((1, model.dimension), np.float32))
    with model:
        model.encode_queries("moon")
    for call in (
        lambda: model.encode_queries("moon"),
        lambda: model.encode_passages("moon"),
        lambda: model.encode_to("vectors", corpus=CORPUS),
        lambda: index.search("moon", model=model),
        lambda: pickle.dumps(model),
        model.__enter__,
    ):
        with pytest.raises(UsageError, match=r"the encoder .* is closed"):
            call()
    assert repr(model).endswith("closed>")


def test_an_index_that_is_kept_stays_when_it_is_closed(tmp_path):
    index = denserk.Index.build(VECTORS, output=tmp_path / "index")
    index.close()
    assert len(denserk.Index.open(tmp_path / "index")) == 20
    with pytest.raises(DenserkError, match="is not empty"):
        denserk.Index.build(VECTORS, output=tmp_path / "index")
    denserk.Index.build(VECTORS, output=tmp_path / "index", overwrite=True)


def test_options_may_be_numbers_of_numpy():
    corpus = {"d1": "moon moon", "d2": "moon sun"}
    expected = denserk.BM25.build(corpus, k1=1.5, b=1).search("moon", hits=1)
    hits: Any = np.int32(1)
    options: list[Any] = [
        {"k1": np.float64(1.5), "b": np.int64(1)},
        {"k1": np.float32(1.5), "b": np.float16(1)},
    ]
    for numbers in options:
        assert denserk.BM25.build(corpus, **numbers).search("moon", hits=hits) == expected


def test_passages_by_their_ids():
    index = denserk.BM25.build({"d1": "moon", "d2": {"title": "Sun", "text": "it sets"}})
    expected = {"d2": {"title": "Sun", "text": "it sets"}, "d1": {"title": "", "text": "moon"}}
    passages = index.passages(["d2", "absent", "d1"])
    assert passages == expected
    assert list(passages) == ["d2", "d1"]
    assert index.passages("d1") == {"d1": expected["d1"]}
    numbers: Any = [1]
    assert denserk.BM25.build(["moon", "sun"]).passages(numbers) == {
        "1": {"title": "", "text": "sun"}
    }
    assert pickle.loads(pickle.dumps(index)).passages(["d2", "d1"]) == expected
    index.close()
    with pytest.raises(UsageError, match="closed"):
        index.passages(["d1"])


def test_passages_of_a_corpus_in_memory_whose_index_is_kept(tmp_path):
    with denserk.BM25.build({"d1": "moon"}, output=tmp_path / "index") as index:
        assert index.passages(["d1"]) == {"d1": {"title": "", "text": "moon"}}
    with pytest.raises(UsageError) as caught:
        denserk.BM25.open(tmp_path / "index").passages(["d1"])
    assert "corpus" in str(caught.value.hint)


def test_passages_of_an_index_of_files(tmp_path):
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("d1\tmoon\nd2\tsun\n")
    denserk.BM25.build(corpus, output=tmp_path / "index")
    moved = corpus.rename(tmp_path / "moved.tsv")
    index = denserk.Index.open(tmp_path / "index")
    with pytest.raises(UsageError, match=r"corpus\.tsv"):
        index.passages(["d1"])
    assert index.passages(["d1"], corpus=moved) == {"d1": {"title": "", "text": "moon"}}


def test_an_index_of_vectors_alone_has_no_passages():
    index = denserk.Index.build(np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="names no corpus"):
        index.passages(["0"])
