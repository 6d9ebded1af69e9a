import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denserk.errors import InputError, UsageError
from denserk.formats.flat_file import map_flat
from denserk.index.faiss_building import _train, build, factory_string
from denserk.index.faiss_index import FaissIndex
from denserk.index.recall import recall_of_own_vectors
from denserk.settings.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from tests.reporters import Heard

VECTORS = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
SMALL: dict[str, Any] = {"M": 8, "pq_m": 4, "pq_nbits": 4, "nlist": 8, "threads": 1}


class Remembering(Heard):
    def __init__(self):
        self.told: list[str] = []

    def note(self, text):
        self.told.append(text)

    warn = note


RECALLS = {"flat": 1, "hnsw": 0.95, "ivf": 0.2, "pq": 0.2, "hnswpq": 0.1, "sq8": 0.9} | {
    "sqfp16": 0.99
}


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("kind", RECALLS)
def test_every_type_is_built_and_searched(tmp_path, kind, metric):
    settings = IndexSettings(type=IndexType(kind), metric=metric, **SMALL)
    build(VECTORS, tmp_path / "index", settings)
    index = FaissIndex(tmp_path / "index", SearchSettings())
    assert (len(index), index.dimension) == VECTORS.shape
    assert recall_of_own_vectors(index, VECTORS, metric, 1)[0] >= RECALLS[kind]


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "pq"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, kind):
    settings = IndexSettings(type=IndexType(kind), train_size=650, **SMALL)
    for name in ("a", "b"):
        build(VECTORS, tmp_path / name, settings)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_training_sample_is_drawn_by_its_seed(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        settings = IndexSettings(type=IndexType.PQ, train_size=650, seed=seed, **SMALL)
        build(VECTORS, tmp_path / name, settings)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_training_holds_the_sample_alone():
    held = []

    class Index:
        def train(self, sample):
            held.append(tracemalloc.get_traced_memory()[0] - sample.nbytes)

    vectors = np.zeros((400_000, 2), np.float32)
    tracemalloc.start()
    try:
        Remembering()
        _train(Index(), vectors, IndexSettings(train_size=100_000))
    finally:
        tracemalloc.stop()
    assert held[0] < 2 * 8 * 100_000  # the numbers of the rows, not those of all


def test_flat_files_are_those_of_faiss(tmp_path):
    build(VECTORS, tmp_path / "index", IndexSettings())
    rows, metric = map_flat(tmp_path / "index")
    assert metric is Metric.INNER
    assert (rows == VECTORS).all()


def test_breadth(tmp_path):
    build(VECTORS, tmp_path / "ivf", IndexSettings(type=IndexType.IVF, **SMALL))
    recalls = [
        recall_of_own_vectors(
            FaissIndex(tmp_path / "ivf", SearchSettings(nprobe=n)), VECTORS, Metric.INNER, 1
        )[0]
        for n in (1, 3, 8)
    ]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1] == 1
    with pytest.raises(UsageError, match="--ef-search 9"):
        FaissIndex(tmp_path / "ivf", SearchSettings(ef_search=9))
    build(VECTORS, tmp_path / "inside", IndexSettings(factory="PCA8,IVF8_HNSW4,Flat", threads=1))
    FaissIndex(tmp_path / "inside", SearchSettings(ef_search=9, nprobe=100))


@pytest.mark.parametrize(
    ("count", "settings", "expected"),
    [
        (1_000_000, {"type": IndexType.IVF}, "IVF4000,Flat"),
        (10, {"type": IndexType.IVF}, "IVF1,Flat"),
        (10, {"type": IndexType.IVF, "nlist": 7}, "IVF7,Flat"),
        (10, {"type": IndexType.HNSW}, "HNSW256,Flat"),
        (10, {"type": IndexType.HNSWPQ}, "HNSW256_PQ192x8"),
        (10, {"factory": "OPQ8,PQ8"}, "OPQ8,PQ8"),
    ],
)
def test_factory_strings(count, settings, expected):
    assert factory_string(IndexSettings(**settings), count, 768) == expected


def test_a_quantiser_that_does_not_fit_is_refused_with_one_that_does():
    with pytest.raises(UsageError, match="192 does not divide the dimension 100") as refused:
        factory_string(IndexSettings(type=IndexType.PQ), 10, 100)
    assert refused.value.hint == "for example --pq-m 100"


@pytest.mark.parametrize("factory", ["HNSW8_PQ4x8", "PQ4x8", "IVF300,Flat", "PCA8,PQ4"])
def test_too_few_vectors_to_train(tmp_path, factory):
    with pytest.raises(InputError, match=r"200 vectors.*at least (256|300), one a centroid"):
        build(VECTORS[:200], tmp_path / "i", IndexSettings(factory=factory))
    assert not list(tmp_path.iterdir())


def test_few_vectors_to_train_are_told_in_one_line(tmp_path, capfd):
    reporter = Remembering()
    build(VECTORS, tmp_path / "i", IndexSettings(factory="PQ1x8", threads=1))
    assert capfd.readouterr().err == ""
    (told,) = [text for text in reporter.told if "centroids" in text]
    assert told.startswith("700 vectors train 256 centroids; 9,984 or more would")


@pytest.mark.parametrize("factory", ["Bogus9", "PQ5", "IDMap,Flat"])
def test_what_faiss_refuses_is_told_without_its_source_code(tmp_path, factory):
    with pytest.raises(UsageError, match=f"faiss refuses {factory}: ") as refused:
        build(VECTORS, tmp_path / "i", IndexSettings(factory=factory))
    assert ".cpp" not in refused.value.message
    assert "faiss::" not in refused.value.message
    assert not list(tmp_path.iterdir())


def test_the_flat_index_stays_in_its_file(tmp_path):
    build(VECTORS, tmp_path / "index", IndexSettings())
    index = FaissIndex(tmp_path / "index", SearchSettings())
    assert index.is_exhaustive
    assert str(tmp_path / "index") in Path("/proc/self/maps").read_text()
