from functools import partial

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Metric, SearchSettings, Ties
from denserk.errors import MismatchError, UsageError
from denserk.index.opening import open_index
from tests.support import index_folders as folders
from tests.support.index_folders import best, flat_folder, index, vector_folder, whole_numbers

DIMENSION = 6
CPU = ComputeSettings(device="cpu", threads=1)


def found(names, queries, settings, compute=CPU):
    searcher = open_index(names, settings, compute).searcher(settings)
    return list(folders.found(searcher, [f"q{n}" for n in range(len(queries))], queries).values())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("hits", [1, 40, 500])
def test_shards_together_are_one_index(tmp_path, size, hits, metric):
    """Whole numbers: many ties, within shards and across them, at every depth."""
    passages = 60
    vectors, queries = whole_numbers(1, passages * size), whole_numbers(2, 5)
    ids = [f"d{n}" for n in np.random.default_rng(3).permutation(passages)]
    one, two, three = (
        (ids[first:last], vectors[first * size : last * size])
        for first, last in ((0, 20), (20, 25), (25, 60))
    )
    vector_folder(tmp_path / "s-1", *one, dtype="float16", size=size)
    vector_folder(tmp_path / "s-2", *two, dtype="float32", size=size)
    flat_folder(tmp_path / "s-10", *three, size=size, metric=metric)
    settings = SearchSettings(hits=hits, query_batch=2, ties=Ties.KEEP)
    expected = [best(ids, vectors, query, hits, size=size, metric=metric) for query in queries]
    assert found([str(tmp_path / "s-*")], queries, settings) == expected


def test_approximate_indexes_are_searched_by_their_engines(tmp_path, caplog):
    pytest.importorskip("faiss")
    vectors, queries = whole_numbers(5, 90), whole_numbers(6, 4)
    ids = [f"d{n}" for n in range(90)]
    a, b, c = (
        vector_folder(tmp_path / name, ids[first : first + 30], vectors[first : first + 30])
        for name, first in (("a", 0), ("b", 30), ("c", 60))
    )
    for name, factory in ((b, "IVF1,Flat"), (c, "HNSW16")):
        index(f"{name}-i", name, factory=factory)
    caplog.clear()
    together = found([f"{b}-i", a, f"{c}-i"], queries, SearchSettings(hits=90, ties=Ties.KEEP))
    assert together == [best(ids, vectors, query, 90) for query in queries]
    assert "3 shards: 90 passages, compared by inner product, approximate ones by their own" in str(
        caplog.messages
    )
    with pytest.raises(UsageError, match=r"--nprobe 2: .*a is searched exactly"):
        found([a, b], queries, SearchSettings(nprobe=2))


ONE = np.ones((1, DIMENSION), np.float32)


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
        found(names, ONE, SearchSettings(hits=3))


def test_memory_is_logged_before_and_compared(tmp_path, monkeypatch, caplog):
    name = vector_folder(tmp_path / "a", ["d1"], ONE)
    found([name], ONE, SearchSettings())
    assert "searching needs" in caplog.text
    monkeypatch.setattr("denserk.index.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(UsageError, match=r"searching needs .*, and 1.0 MB are available") as error:
        found([name], ONE, SearchSettings(query_batch=2**20))
    assert "--query-batch 131072, or less deep" in str(error.value.hint)
