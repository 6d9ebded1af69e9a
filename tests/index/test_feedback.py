import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import Metric, SearchSettings
from denserk.errors import UsageError
from denserk.index.opening import open_index
from tests.support.index_folders import best, flat_folder, found, index, vector_folder

IDS = [f"d{n}" for n in range(40)]
VECTORS, QUERIES = np.split(np.random.default_rng(1).standard_normal((44, 6), np.float32), [40])
ROCCHIO = {"prf": "rocchio", "prf_depth": 7, "prf_alpha": 0.4, "prf_beta": 0.6, "prf_negatives": 2}


def searched(name, **options):
    settings = from_json(SearchSettings, {"hits": 9, **options})
    opened = open_index([str(name)], settings, ComputeSettings(device="cpu", threads=1))
    return list(found(opened.searcher(settings), ["q1", "q2", "q3", "q4"], QUERIES).values())


def moved(query, passages, options):
    """Li et al., section 3, and Rocchio's negatives."""
    if options["prf"] == "average":
        return sum(passages, start=query) / (1 + len(passages))
    return 0.4 * query + 0.6 * np.mean(passages[:5], 0) - 0.1 * np.mean(passages[5:], 0)


@pytest.mark.parametrize("made", ["v*", "l2", "HNSW8", "IVF2,Flat"])
@pytest.mark.parametrize("options", [{"prf": "average", "prf_depth": 90}, ROCCHIO])
def test_the_second_search_asks_with_the_moved_query(tmp_path, options, made):
    metric = Metric.L2 if made == "l2" else Metric.INNER
    flat_folder(tmp_path / "l2", IDS, VECTORS, metric=metric)
    for n in (0, 20):
        vector_folder(tmp_path / f"v{n}", IDS[n : n + 20], VECTORS[n : n + 20])
    if made not in ("v*", "l2"):
        pytest.importorskip("faiss")
        index(tmp_path / made, tmp_path / "v0", tmp_path / "v20", factory=made)
    answers = searched(tmp_path / made, nprobe=2 if "IVF" in made else None, **options)
    for query, hits in zip(QUERIES, answers, strict=True):
        first = best(IDS, VECTORS, query, options["prf_depth"], metric=metric)
        query = moved(query, [VECTORS[IDS.index(docid)] for docid, _ in first], options)
        expected = best(IDS, VECTORS, query, 9, metric=metric)
        assert [docid for docid, _ in hits] == [docid for docid, _ in expected]
        np.testing.assert_allclose([s for _, s in hits], [s for _, s in expected], rtol=1e-4)


def test_an_index_of_several_vectors_per_passage(tmp_path):
    vector_folder(tmp_path / "v", IDS[:20], VECTORS, size=2)
    with pytest.raises(UsageError, match="--prf average: the index does not return one vector"):
        searched(tmp_path / "v", prf="average")
