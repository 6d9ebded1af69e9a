import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import InputError, UsageError
from denserk.index import faiss_building, memory
from denserk.index.faiss_building import _train, build, building_needs, check_memory, factory_string
from denserk.index.faiss_index import FaissIndex
from denserk.index.recall import recall_of_own_vectors
from denserk.io.flat_file import map_flat
from tests.reporters import Heard

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
SMALL: dict[str, Any] = {"M": 8, "pq_m": 4, "pq_nbits": 4, "nlist": 8, "threads": 1}


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

    class Index(faiss.IndexPQ):  # type: ignore[name-defined, misc]
        def train(self, sample):
            held.append(tracemalloc.get_traced_memory()[0] - sample.nbytes)

    vectors, index = np.zeros((400_000, 2), np.float32), Index(2, 1, 4)
    tracemalloc.start()
    try:
        _train(index, index, vectors, IndexSettings(train_size=100_000), "PQ1x4")
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
    assert refused.value.hint == "for example --set pq-m=100"


@pytest.mark.parametrize("factory", ["HNSW8_PQ4x8", "PQ4x8", "IVF300,Flat", "PCA8,PQ4"])
def test_too_few_vectors_to_train(tmp_path, factory):
    with pytest.raises(InputError, match=r"200 training vectors.*at least (256|300), one per cen"):
        build(VECTORS[:200], tmp_path / "i", IndexSettings(factory=factory))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factory", ["PQ1x8", "IVF99_HNSW4,PQ1x8", "HNSW4_PQ1x8"])
def test_few_vectors_to_train_are_warned_of_once(tmp_path, capfd, factory):
    heard = Heard()
    build(VECTORS, tmp_path / "i", IndexSettings(factory=factory, threads=1))
    assert capfd.readouterr().err == ""
    (told,) = heard.warnings
    assert told.startswith("700 vectors train 256 centroids; 9,984 or more would")


@pytest.mark.parametrize("factory", ["Bogus9", "PQ5", "IDMap,Flat"])
def test_what_faiss_refuses_is_told_without_its_source_code(tmp_path, factory):
    with pytest.raises(UsageError, match=f"faiss rejects {factory}: ") as refused:
        build(VECTORS, tmp_path / "i", IndexSettings(factory=factory))
    assert ".cpp" not in refused.value.message
    assert "faiss::" not in refused.value.message
    assert not list(tmp_path.iterdir())


def test_the_flat_index_stays_in_its_file(tmp_path):
    build(VECTORS, tmp_path / "index", IndexSettings())
    index = FaissIndex(tmp_path / "index", SearchSettings())
    assert index.is_exhaustive
    assert str(tmp_path / "index") in Path("/proc/self/maps").read_text()


MILLION = 1_000_000
SAMPLE = 2 * 4 * 64 * 262_144


def needs_of(factory, metric=Metric.INNER, **settings):
    number = faiss.METRIC_L2 if metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(64, factory, number)
    found = building_needs(index, MILLION, IndexSettings(factory=factory, **settings))
    return {what.split()[-1]: size for what, size in found.items() if size}


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("SQ8", {"residuals": SAMPLE, "index": 2 * 64 * MILLION}),
        ("HNSW8,Flat", {"index": 2 * MILLION * (256 + 4 * 17 + 8)}),
        ("PCA32,PQ8", {"residuals": SAMPLE, "index": 2 * 8 * MILLION}),
        (
            "IVF16,PQ8,RFlat",
            {"residuals": SAMPLE, "centroids": 16 * 256, "index": 2 * MILLION * (8 + 8 + 256)},
        ),
        (
            "IVF65536_HNSW32,PQ8",
            {
                "residuals": SAMPLE,
                "centroids": 65_536 * (256 + 4 * 65 + 8),
                "lists": 2 * 16 * MILLION,
            },
        ),
    ],
)
def test_the_memory_of_each_part(factory, expected, monkeypatch):
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 1 << 40)
    assert needs_of(factory) == expected


def test_lists_do_not_grow_with_the_vectors(monkeypatch):
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 1 << 30)
    index = faiss.index_factory(64, "IVF16,PQ8")
    few, many = (
        building_needs(index, count, IndexSettings(factory="IVF16,PQ8"))
        for count in (100 * MILLION, 1000 * MILLION)
    )
    assert few == many
    assert few["inverted lists"] == 2 * (1 << 30) // 8
    assert needs_of("IVF16,PQ8", train_size=1000)["residuals"] == 2 * 4 * 64 * 1000


def test_tables_of_distances_up_to_what_faiss_keeps():
    assert needs_of("IVF16,PQ8", Metric.L2)["distances"] == 4 * 16 * 8 * 256
    assert "distances" not in needs_of("IVF65536,PQ64", Metric.L2)


def test_what_cannot_fit_is_refused(monkeypatch):
    settings = IndexSettings(factory="PQ4x4", train_size=10_000)
    reporter = Heard()
    check_memory(MILLION, 16, settings)
    parts = "(the training sample and its residuals 1.3 MB, the index 4.0 MB)"
    assert reporter.notes == [f"building PQ4x4 needs 5.3 MB of memory {parts}"]
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(UsageError, match=r"and 0\.0 MB are available") as refused:
        check_memory(MILLION, 16, settings)
    assert "IVF4000,PQ2" in str(refused.value.hint)
    with pytest.raises(UsageError) as refused:
        check_memory(MILLION, 16, IndexSettings(factory="IVF4000,PQ4x4"))
    assert refused.value.hint == "give a smaller --set train-size, or fewer lists"
