from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import UsageError
from denserk.index.faiss_build import build, empty_index
from denserk.index.faiss_index import FaissIndex
from denserk.tasks.build_index import measure_recall

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
SMALL: dict[str, Any] = {"M": 8, "pq_m": 4, "pq_nbits": 4, "nlist": 8, "threads": 1}
RECALLS = {"hnsw": 0.95, "ivf": 0.2, "pq": 0.2, "hnswpq": 0.1, "sq8": 0.9, "sqfp16": 0.99}


def built(path, vectors=VECTORS, **settings):
    chosen = IndexSettings(**settings)
    count, dimension = vectors.shape
    build(vectors, path, chosen, *empty_index(count, dimension, chosen))
    return path


def recall(index, vectors=VECTORS, metric=Metric.INNER):
    blocks = np.array_split(vectors, 3)
    return measure_recall("index", index, lambda: blocks, IndexSettings(seed=1, metric=metric))


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("kind", RECALLS)
def test_every_type_is_built_and_searched(tmp_path, kind, metric):
    path = built(tmp_path / "index", type=IndexType(kind), metric=metric, **SMALL)
    index = FaissIndex(path, SearchSettings())
    assert (len(index), index.dimension) == VECTORS.shape
    assert recall(index, metric=metric) >= RECALLS[kind]
    assert str(path) in Path("/proc/self/maps").read_text()


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


def test_without_a_gpu_for_faiss_the_option_of_the_index_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    path = built(tmp_path / "index", type=IndexType.IVF, **SMALL)
    with pytest.raises(UsageError, match="faiss sees no GPU 0") as searching:
        FaissIndex(path, SearchSettings(), "cuda")
    assert "--set index-device=cpu" in (searching.value.hint or "")
    with pytest.raises(UsageError, match="faiss sees no GPU 1") as building:
        built(tmp_path / "other", type=IndexType.IVF, device="cuda:1", **SMALL)
    assert "--device cpu" in (building.value.hint or "")


@pytest.mark.gpu
@pytest.mark.skipif(not faiss.get_num_gpus(), reason="faiss sees no GPU")
@pytest.mark.parametrize("metric", Metric)
def test_lists_on_a_gpu_are_searched_as_on_the_cpu(tmp_path, metric):
    path = built(tmp_path / "index", type=IndexType.IVF, metric=metric, **SMALL)
    (scores, rows), (expected, right) = (
        FaissIndex(path, SearchSettings(nprobe=3), device).search(VECTORS[:50], 10)
        for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert (rows == right).mean() > 0.99  # close scores may change places


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


@pytest.mark.parametrize("factory", ["PQ4x8", "IVF300,Flat", "PCA8,PQ4"])
def test_too_few_vectors_to_train(tmp_path, factory):
    with pytest.raises(UsageError, match=r"training points \(200\) should be at least .*(256|300)"):
        built(tmp_path / "i", VECTORS[:200], factory=factory)
    assert not list(tmp_path.iterdir())
