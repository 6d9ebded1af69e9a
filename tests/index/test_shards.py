from functools import partial

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Metric, SearchSettings, Ties
from denserk.errors import MismatchError, UsageError
from denserk.index.opening import open_index
from tests.support.index_folders import (
    best,
    flat_folder,
    found,
    index,
    vector_folder,
    whole_numbers,
)

CPU = ComputeSettings(device="cpu", threads=1)
ONE = np.ones((1, 6), np.float32)  # a vector


def search(names, queries, settings):
    """The hits of each query in folders that are searched as one index."""
    searcher = open_index(names, settings, CPU).searcher(settings)
    qids = [f"q{n}" for n in range(len(queries))]
    return list(found(searcher, qids, queries).values())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("hits", [1, 40, 500])
def test_shards_together_are_one_index(tmp_path, size, hits, metric):
    """Whole numbers: many ties, within shards and across them, at every depth."""
    vectors = whole_numbers(1, 60 * size)
    queries = whole_numbers(2, 5)
    ids = [f"d{n}" for n in np.random.default_rng(3).permutation(60)]
    vector_folder(tmp_path / "s-1", ids[:20], vectors[: 20 * size], dtype="float16", size=size)
    vector_folder(tmp_path / "s-2", ids[20:25], vectors[20 * size : 25 * size], size=size)
    flat_folder(tmp_path / "s-10", ids[25:], vectors[25 * size :], size=size, metric=metric)
    settings = SearchSettings(hits=hits, query_batch=2, ties=Ties.KEEP)
    expected = [best(ids, vectors, query, hits, size=size, metric=metric) for query in queries]
    assert search([str(tmp_path / "s-*")], queries, settings) == expected


def test_approximate_indexes_are_searched_by_their_engines(tmp_path, caplog):
    pytest.importorskip("faiss")
    vectors = whole_numbers(5, 90)
    queries = whole_numbers(6, 4)
    ids = [f"d{n}" for n in range(90)]
    exact = vector_folder(tmp_path / "exact", ids[:30], vectors[:30])
    for name, factory, rows in (
        ("ivf", "IVF1,Flat", slice(30, 60)),
        ("hnsw", "HNSW16", slice(60, 90)),
    ):
        shard = vector_folder(tmp_path / f"{name}-vectors", ids[rows], vectors[rows])
        index(tmp_path / name, shard, factory=factory)
    caplog.clear()
    names = [str(tmp_path / "ivf"), exact, str(tmp_path / "hnsw")]
    hits = search(names, queries, SearchSettings(hits=90, ties=Ties.KEEP))
    assert hits == [best(ids, vectors, query, 90) for query in queries]
    assert "3 shards: 90 passages, compared by inner product" in caplog.text
    assert "approximate ones by their own" in caplog.text


def test_options_of_approximate_indexes_have_no_effect_on_exact_search(tmp_path):
    names = [vector_folder(tmp_path / "a", ["d1"], ONE), vector_folder(tmp_path / "b", ["d2"], ONE)]
    with pytest.raises(UsageError, match=r"--nprobe 2: .*a is searched exactly"):
        search(names, ONE, SearchSettings(nprobe=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(vector_folder, ids=["d2"], vectors=ONE[:, :4]), r"a has 6 dimensions, .*b has 4"),
        (
            partial(vector_folder, ids=["d2"], vectors=ONE, model={"name": "n"}),
            r"a and .*b were encoded differently: other weights: m and n",
        ),
        (
            partial(vector_folder, ids=["d2"], vectors=np.repeat(ONE, 2, 0), size=2),
            r"a has 1 vectors per passage, .*b has 2",
        ),
        (
            partial(flat_folder, ids=["d2"], vectors=ONE, metric=Metric.L2),
            r"c has inner as its metric, .*b has l2",
        ),
        (partial(flat_folder, ids=["d1"], vectors=ONE), r"the id d1 occurs in .*(a|c) and in .*b"),
    ],
)
def test_what_does_not_belong_together(tmp_path, make, message):
    names = [
        vector_folder(tmp_path / "a", ["d1"], ONE),
        flat_folder(tmp_path / "c", ["d3"], ONE),
        make(tmp_path / "b"),
    ]
    with pytest.raises(MismatchError, match=message):
        search(names, ONE, SearchSettings(hits=3))


def test_memory_is_logged_before_and_compared(tmp_path, monkeypatch, caplog):
    name = vector_folder(tmp_path / "a", ["d1"], ONE)
    search([name], ONE, SearchSettings())
    assert "searching needs" in caplog.text
    monkeypatch.setattr("denserk.index.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(UsageError, match=r"searching needs .*, and 1.0 MB are available") as error:
        search([name], ONE, SearchSettings(query_batch=2**20))
    assert "--query-batch 131072, or less deep" in str(error.value.hint)
