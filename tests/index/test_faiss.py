"""Indexes of faiss: types, training, memory, breadth, recall, and the BLAS kernels it loads."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import InputError, UsageError
from denserk.index import faiss_building, faiss_index
from denserk.index.build import measure_recall
from denserk.index.exact import ExactIndex
from denserk.index.faiss_building import (
    available_bytes,
    build,
    check_memory,
    empty_index,
    factory_string,
)
from denserk.index.faiss_index import CORE, FaissIndex, load_faiss
from denserk.io.flat_file import map_flat
from tests.reporters import Heard

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
SMALL: dict[str, Any] = {"M": 8, "pq_m": 4, "pq_nbits": 4, "nlist": 8, "threads": 1}
RECALLS = {"flat": 1, "hnsw": 0.95, "ivf": 0.2, "pq": 0.2, "hnswpq": 0.1, "sq8": 0.9} | {
    "sqfp16": 0.99
}


def built(path, vectors=VECTORS, **settings):
    """Build an index; return the file."""
    chosen = IndexSettings(**settings)
    count, dimension = vectors.shape
    build(vectors, path, chosen, *empty_index(count, dimension, chosen))
    return path


def recall(index, vectors=VECTORS, metric=Metric.INNER):
    blocks = np.array_split(vectors, 3)
    return measure_recall("index", index, lambda: blocks, 1, metric)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("kind", RECALLS)
def test_every_type_is_built_and_searched(tmp_path, kind, metric):
    path = built(tmp_path / "index", type=IndexType(kind), metric=metric, **SMALL)
    index = FaissIndex(path, SearchSettings())
    assert (len(index), index.dimension) == VECTORS.shape
    assert recall(index, metric=metric) >= RECALLS[kind]
    if kind == "flat":
        rows, found = map_flat(path)
        assert (found, (rows == VECTORS).all()) == (metric, True)
        assert str(path) in Path("/proc/self/maps").read_text()


class Forgetful(ExactIndex):
    """An index that finds every other row alone."""

    def search(self, queries, depth):
        """What exact search finds among the even rows, padded."""
        scores, rows = ExactIndex(np.ascontiguousarray(VECTORS[::2])).search(queries, depth)
        return scores, rows * 2


def test_recall_is_a_share_of_the_exact_hits():
    heard = Heard()
    for metric in Metric:
        assert recall(ExactIndex(VECTORS, metric), metric=metric) == 1
    assert 0.3 < recall(Forgetful(VECTORS)) < 0.7
    assert heard.notes[0] == "index: recall@10 1.000, for 100 of its own vectors as queries"


def test_the_seed_decides_the_bytes(tmp_path):
    for kind in (IndexType.HNSW, IndexType.IVF, IndexType.PQ):
        one, same, other = (
            built(tmp_path / name, type=kind, train_size=650, seed=seed, **SMALL).read_bytes()
            for name, seed in (("a", 1), ("b", 1), ("c", 2))
        )
        assert one == same
        assert (one == other) == (kind is IndexType.HNSW)


def test_breadth(tmp_path):
    ivf = built(tmp_path / "ivf", type=IndexType.IVF, **SMALL)
    recalls = [recall(FaissIndex(ivf, SearchSettings(nprobe=n))) for n in (1, 3, 8)]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1] == 1
    with pytest.raises(UsageError, match="--ef-search 9"):
        FaissIndex(ivf, SearchSettings(ef_search=9))
    inside = built(tmp_path / "inside", factory="PCA8,IVF8_HNSW4,Flat", threads=1)
    FaissIndex(inside, SearchSettings(ef_search=9, nprobe=100))


@pytest.mark.parametrize("factory", ["PQ4x4,RFlat", "IVF8,PQ4x4,RFlat", "PQ4x4,Refine(SQfp16)"])
def test_a_refined_index_finds_more(tmp_path, factory):
    plain = built(tmp_path / "plain", factory=factory.rpartition(",")[0], threads=1)
    refined = built(tmp_path / "refined", factory=factory, threads=1)
    found = [recall(FaissIndex(plain, SearchSettings(nprobe=8 if "IVF" in factory else None)))]
    found += [recall(FaissIndex(refined, SearchSettings(k_factor=k))) for k in (1, None, 16)]
    assert found[1] < found[2] <= found[3]
    assert recall(FaissIndex(refined, SearchSettings())) == found[2]
    with pytest.raises(UsageError, match="--set k-factor 2"):
        FaissIndex(plain, SearchSettings(k_factor=2))


@pytest.mark.parametrize(
    ("count", "settings", "expected"),
    [
        (1_000_000, {"type": IndexType.IVF}, "IVF4000,Flat"),
        (10, {"type": IndexType.IVF}, "IVF1,Flat"),
        (10, {"type": IndexType.IVF, "nlist": 7}, "IVF7,Flat"),
        (10, {"type": IndexType.HNSWPQ}, "HNSW256_PQ192x8"),
        (10, {"factory": "OPQ8,PQ8"}, "OPQ8,PQ8"),
    ],
)
def test_factory_strings(count, settings, expected):
    assert factory_string(IndexSettings(**settings), count) == expected


@pytest.mark.parametrize("factory", ["PQ4x8", "IVF300,Flat", "PCA8,PQ4"])
def test_too_few_vectors_to_train(tmp_path, factory):
    with pytest.raises(InputError, match=r"200 training vectors.*at least (256|300), one per cen"):
        built(tmp_path / "i", VECTORS[:200], factory=factory)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factory", ["PQ1x8", "IVF99_HNSW4,PQ1x8"])
def test_few_vectors_to_train_are_warned_of_once(tmp_path, capfd, factory):
    heard = Heard()
    built(tmp_path / "i", factory=factory, threads=1)
    assert capfd.readouterr().err == ""
    (warning,) = heard.warnings
    assert warning.startswith("700 vectors train 256 centroids; 9,984 or more would")


@pytest.mark.parametrize("factory", ["Bogus9", "PQ5"])
def test_what_faiss_rejects_is_reported_without_its_source_code(tmp_path, factory):
    with pytest.raises(UsageError, match=f"faiss rejects {factory}: ") as error:
        built(tmp_path / "i", factory=factory)
    assert ".cpp" not in error.value.message
    assert "faiss::" not in error.value.message
    assert not list(tmp_path.iterdir())


MILLION = 1_000_000
SAMPLE = "the training sample and its residuals"


def needs_of(factory, count=MILLION, **settings):
    """What is logged of the memory that an index needs."""
    heard, chosen = Heard(), IndexSettings(factory=factory, **settings)
    check_memory(*empty_index(count, 64, chosen), count, chosen)
    return heard.notes[-1]


@pytest.mark.parametrize(
    ("factory", "total", "expected"),
    [
        ("HNSW8,Flat", "664.0 MB", "the index 664.0 MB"),
        ("PCA32,PQ8", "150.2 MB", f"{SAMPLE} 134.2 MB, the index 16.0 MB"),
        ("IVF16,PQ8,RFlat", "678.2 MB", "the centroids 0.0 MB, the index 544.0 MB"),
        ("IVF65536_HNSW32,PQ8", "200.6 MB", "the centroids 34.3 MB, inverted lists 32.0 MB"),
    ],
)
def test_the_memory_of_each_part(factory, total, expected, monkeypatch):
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 1 << 40)
    found = needs_of(factory)
    assert found.startswith(f"building {factory} needs {total} of memory (")
    assert found.endswith(f"{expected})")


def test_lists_do_not_grow_with_the_vectors(monkeypatch):
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 1 << 30)
    few, many = (needs_of("IVF16,PQ8", count=count) for count in (100 * MILLION, 1000 * MILLION))
    assert few == many
    assert "inverted lists 268.4 MB" in few


def test_what_cannot_fit_is_rejected(monkeypatch):
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 1000)
    message = rf"building PQ4x4 needs 138.2 MB of memory \({SAMPLE} .*\), and 0\.0 MB are available"
    with pytest.raises(UsageError, match=message) as error:
        needs_of("PQ4x4")
    assert "IVF...,PQ..." in str(error.value.hint)
    with pytest.raises(UsageError) as error:
        needs_of("IVF4000,PQ4x4")
    assert error.value.hint == "give a smaller --set train-size, or fewer lists"


@pytest.mark.parametrize(
    ("machine", "limit", "expected"),
    [
        ("MemFree: 9 kB\nMemAvailable:  500 kB\n", None, 512_000),
        ("MemAvailable: 500 kB\n", "400000\n", 301_000),
        ("MemAvailable: 500 kB\n", "max\n", 512_000),
        (None, None, None),
    ],
)
def test_available_memory(monkeypatch, tmp_path, machine, limit, expected):
    files = {"meminfo": machine, "memory.max": limit, "memory.current": "100000\n"}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 900\nactive_file 100\n")
    monkeypatch.setattr(faiss_building, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(faiss_building, "GROUP", tmp_path)
    assert available_bytes() == expected


@pytest.mark.parametrize(
    ("avx512", "given", "seen"),
    [(True, None, "SkylakeX"), (True, "Zen", "Zen"), (False, None, None)],
)
def test_the_widest_kernels_unless_the_user_says_otherwise(monkeypatch, avx512, given, seen):
    met = []
    monkeypatch.setattr(faiss_index, "has_avx512", lambda: avx512)
    monkeypatch.setattr(faiss_index, "require", lambda *_: met.append(os.environ.get(CORE)))
    monkeypatch.setenv(CORE, given or "")
    if not given:
        monkeypatch.delenv(CORE)
    load_faiss.cache_clear()
    load_faiss()
    load_faiss.cache_clear()
    assert met == [seen]
