from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import UsageError
from denserk.index.faiss_build import build, create_index
from denserk.index.faiss_index import FaissIndex
from denserk.tasks.build_index import measure_recall

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
SMALL: dict[str, Any] = {"M": 8, "pq_m": 4, "pq_nbits": 4, "nlist": 8, "threads": 1}
LEAST_RECALLS = {"hnsw": 0.95, "ivf": 0.2, "pq": 0.2, "hnswpq": 0.1, "sq8": 0.9, "sqfp16": 0.99}


def build_file(path, vectors=VECTORS, **settings):
    """Build an index of vectors in one file."""
    index_settings = IndexSettings(**settings)
    count, dimension = vectors.shape
    build(vectors, path, create_index(count, dimension, index_settings), index_settings)
    return path


def recall(path, metric=Metric.INNER, **options):
    """The recall@10 of a search with some options, for the index's own vectors."""
    index = FaissIndex(path, SearchSettings(**options))
    blocks = np.array_split(VECTORS, 3)
    return measure_recall("index", index, lambda: blocks, IndexSettings(seed=1, metric=metric))


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("index_type", LEAST_RECALLS)
def test_every_type_is_built_and_searched(tmp_path, index_type, metric):
    path = build_file(tmp_path / "index", type=IndexType(index_type), metric=metric, **SMALL)
    index = FaissIndex(path, SearchSettings())
    assert (len(index), index.dimension) == VECTORS.shape
    assert str(path) in Path("/proc/self/maps").read_text()
    assert recall(path, metric) >= LEAST_RECALLS[index_type]


@pytest.mark.parametrize("factory", ["HNSW16_PQ8x4", "HNSW16,PQ8x4", "HNSW16,SQ8", "PQ8x4", "SQ6"])
@pytest.mark.parametrize("metric", Metric)
def test_a_factory_compares_by_the_metric_that_is_given(tmp_path, factory, metric):
    lengths = np.random.default_rng(1).uniform(0.3, 3, (len(VECTORS), 1))
    vectors = (VECTORS * lengths).astype(np.float32)
    path = build_file(tmp_path / "index", vectors, factory=factory, metric=metric, threads=1)
    index = FaissIndex(path, SearchSettings())
    assert index.metric is metric
    scores, rows = index.search(VECTORS[:5], 3)
    if metric is Metric.INNER:
        expected = np.einsum(
            "bkd,bd->bk", index.reconstruct(rows.ravel()).reshape(5, 3, 16), VECTORS[:5]
        )
    else:
        differences = index.reconstruct(rows.ravel()).reshape(5, 3, 16) - VECTORS[:5, None]
        expected = -np.square(differences).sum(axis=2)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)


def test_a_factory_of_another_metric_alone_is_rejected(tmp_path):
    for factory in ("PCA8,HNSW8_PQ4x4", "NSG8_PQ4x4"):
        with pytest.raises(UsageError, match="Euclidean distance alone"):
            build_file(tmp_path / "index", factory=factory)
        assert build_file(tmp_path / "index", factory=factory, metric=Metric.L2, threads=1).exists()


@pytest.mark.parametrize("factory", ["PQ4x8", "OPQ4,PQ4x8", "IVF40,PQ4x4", "IVF40,Flat"])
def test_training_on_few_vectors_is_one_warning(tmp_path, capfd, caplog, factory):
    build_file(tmp_path / "index", VECTORS[:300], factory=factory, threads=1)
    assert "clustering" not in "".join(capfd.readouterr())  # faiss's own lines
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "on 300 vectors" in record.message


@pytest.mark.parametrize(
    ("index_type", "is_trained"),
    [(IndexType.HNSW, False), (IndexType.IVF, True), (IndexType.PQ, True)],
)
def test_the_seed_decides_the_bytes_of_what_is_trained(tmp_path, index_type, is_trained):
    options = {"type": index_type, "train_size": 650, **SMALL}
    index = build_file(tmp_path / "a", seed=1, **options).read_bytes()
    with_same_seed = build_file(tmp_path / "b", seed=1, **options).read_bytes()
    with_other_seed = build_file(tmp_path / "c", seed=2, **options).read_bytes()
    assert index == with_same_seed
    assert (index != with_other_seed) == is_trained


def test_more_lists_find_more(tmp_path):
    path = build_file(tmp_path / "ivf", type=IndexType.IVF, **SMALL)
    recalls = [recall(path, nprobe=nprobe) for nprobe in (1, 3, 8)]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[-1] == 1


def test_options_are_taken_where_an_index_has_what_they_apply_to(tmp_path):
    ivf = build_file(tmp_path / "ivf", type=IndexType.IVF, **SMALL)
    with pytest.raises(UsageError, match="--ef-search 9"):
        FaissIndex(ivf, SearchSettings(ef_search=9))
    with_graph_inside = build_file(tmp_path / "inside", factory="PCA8,IVF8_HNSW4,Flat", threads=1)
    FaissIndex(with_graph_inside, SearchSettings(ef_search=9, nprobe=100))


def test_without_a_gpu_for_faiss_the_option_of_the_index_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    path = build_file(tmp_path / "index", type=IndexType.IVF, **SMALL)
    with pytest.raises(UsageError, match="faiss sees no GPU 0") as searching:
        FaissIndex(path, SearchSettings(), "cuda")
    assert "--set index-device=cpu" in str(searching.value.hint)
    with pytest.raises(UsageError, match="faiss sees no GPU 1") as building:
        build_file(tmp_path / "gpu", type=IndexType.IVF, device="cuda:1", **SMALL)
    assert "--device cpu" in str(building.value.hint)


@pytest.mark.gpu
@pytest.mark.skipif(not faiss.get_num_gpus(), reason="faiss sees no GPU")
@pytest.mark.parametrize("metric", Metric)
def test_lists_on_a_gpu_are_searched_as_on_the_cpu(tmp_path, metric):
    path = build_file(tmp_path / "index", type=IndexType.IVF, metric=metric, **SMALL)
    settings = SearchSettings(nprobe=3)
    scores, rows = FaissIndex(path, settings, "cuda").search(VECTORS[:50], 10)
    cpu_scores, cpu_rows = FaissIndex(path, settings, "cpu").search(VECTORS[:50], 10)
    np.testing.assert_allclose(scores, cpu_scores, rtol=1e-4, atol=1e-4)
    assert (rows == cpu_rows).mean() > 0.99  # close scores may change places


@pytest.mark.parametrize("refinement", ["RFlat", "Refine(SQfp16)"])
def test_a_refined_index_finds_more(tmp_path, refinement):
    codes = build_file(tmp_path / "codes", factory="PQ4x4", threads=1)
    refined = build_file(tmp_path / "refined", factory=f"PQ4x4,{refinement}", threads=1)
    default = recall(refined)
    assert recall(codes) < default <= recall(refined, k_factor=16)
    assert recall(refined, k_factor=1) < default
    with pytest.raises(UsageError, match="--set k-factor 2"):
        FaissIndex(codes, SearchSettings(k_factor=2))


def test_refined_lists_find_more(tmp_path):
    codes = build_file(tmp_path / "codes", factory="IVF8,PQ4x4", threads=1)
    refined = build_file(tmp_path / "refined", factory="IVF8,PQ4x4,RFlat", threads=1)
    default = recall(refined, nprobe=8)
    assert recall(codes, nprobe=8) < default <= recall(refined, nprobe=8, k_factor=16)
    assert recall(refined, nprobe=8, k_factor=1) < default


@pytest.mark.parametrize("factory", ["PQ4x8", "IVF300,Flat", "PCA8,PQ4"])
def test_too_few_vectors_to_train(tmp_path, factory):
    with pytest.raises(UsageError, match=r"training points \(200\) should be at least .*(256|300)"):
        build_file(tmp_path / "index", VECTORS[:200], factory=factory)
    assert not list(tmp_path.iterdir())
