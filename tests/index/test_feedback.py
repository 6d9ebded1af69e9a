import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import Metric, SearchSettings
from denserk.errors import UsageError
from denserk.index.opening import open_index
from tests.support.index_folders import best, flat_folder, found, index, vector_folder

IDS = [f"d{n}" for n in range(40)]
QIDS = ["q1", "q2", "q3", "q4"]
RANDOM_VECTORS = np.random.default_rng(1).standard_normal((44, 6), np.float32)
VECTORS = RANDOM_VECTORS[:40]
QUERIES = RANDOM_VECTORS[40:]
AVERAGE = {"prf": "average", "prf_depth": 90}
ROCCHIO = {"prf": "rocchio", "prf_depth": 7, "prf_alpha": 0.4, "prf_beta": 0.6, "prf_negatives": 2}


def search(name, **options):
    """The nine best hits of each query."""
    settings = from_json(SearchSettings, {"hits": 9, **options})
    opened = open_index([str(name)], settings, ComputeSettings(device="cpu", threads=1))
    return list(found(opened.searcher(settings), QIDS, QUERIES).values())


def moved(query, passages, method):
    """Li et al., section 3, and Rocchio's negatives."""
    if method == "average":
        return np.mean([query, *passages], axis=0)
    return 0.4 * query + 0.6 * np.mean(passages[:5], axis=0) - 0.1 * np.mean(passages[5:], axis=0)


def assert_second_search(hits_of_queries, options, metric=Metric.INNER):
    """Hits are those of each query, moved by its best passages."""
    for query, hits in zip(QUERIES, hits_of_queries, strict=True):
        best_hits = best(IDS, VECTORS, query, options["prf_depth"], metric=metric)
        passages = [VECTORS[IDS.index(docid)] for docid, _ in best_hits]
        moved_query = moved(query, passages, options["prf"])
        expected = best(IDS, VECTORS, moved_query, 9, metric=metric)
        assert [docid for docid, _ in hits] == [docid for docid, _ in expected]
        scores = [score for _, score in hits]
        np.testing.assert_allclose(scores, [score for _, score in expected], rtol=1e-4)


@pytest.fixture
def shards(tmp_path):
    vector_folder(tmp_path / "v0", IDS[:20], VECTORS[:20])
    vector_folder(tmp_path / "v1", IDS[20:], VECTORS[20:])
    return tmp_path / "v*"


@pytest.mark.parametrize("options", [AVERAGE, ROCCHIO])
def test_the_second_search_of_shards(shards, options):
    assert_second_search(search(shards, **options), options)


@pytest.mark.parametrize("options", [AVERAGE, ROCCHIO])
def test_the_second_search_by_distance(tmp_path, options):
    flat_folder(tmp_path / "i", IDS, VECTORS, metric=Metric.L2)
    assert_second_search(search(tmp_path / "i", **options), options, Metric.L2)


@pytest.mark.parametrize("options", [AVERAGE, ROCCHIO])
@pytest.mark.parametrize(("factory", "nprobe"), [("HNSW8", None), ("IVF2,Flat", 2)])
def test_the_second_search_of_an_approximate_index(tmp_path, shards, factory, nprobe, options):
    pytest.importorskip("faiss")
    index(tmp_path / "i", shards, factory=factory)
    assert_second_search(search(tmp_path / "i", nprobe=nprobe, **options), options)


def test_an_index_of_several_vectors_per_passage(tmp_path):
    vector_folder(tmp_path / "v", IDS[:20], VECTORS, size=2)
    with pytest.raises(UsageError, match="--prf average: the index does not return one vector"):
        search(tmp_path / "v", prf="average")
