"""Exact search against its reference: every product in float32, and a stable sort."""

import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.index import exact
from denserk.index.exact import ExactIndex
from tests.support.index_folders import whole_numbers

MANY = 4500  # rows: more than a block, and no whole number of them


def reference(vectors, queries, depth, metric=Metric.INNER, size=1):
    """Scores and rows of the best vector of each passage, by score descending, then row."""
    vectors = vectors.astype(np.float32)
    scores = queries @ vectors.T
    if metric is Metric.L2:
        scores = -np.square(queries[:, None] - vectors).sum(2)
    passages = scores.reshape(len(queries), -1, size)
    rows = np.arange(0, len(vectors), size) + passages.argmax(2)
    best = passages.max(2)
    order = np.argsort(-best, axis=1, kind="stable")[:, :depth]
    return np.take_along_axis(best, order, 1), np.take_along_axis(rows, order, 1)


def collection(kind, rows=MANY, dimension=24):
    draw = np.random.default_rng(5)
    vectors = draw.normal(size=(rows, dimension))
    queries = draw.normal(size=(40, dimension))
    if kind == "far":
        vectors, queries = vectors + 30, queries + 30
    elif kind == "clustered":
        centres = 2 * draw.normal(size=(7, dimension))
        vectors = centres[np.sort(draw.integers(0, 7, rows))] + 0.1 * vectors
        queries = centres[draw.integers(0, 7, 40)] + 0.3 * queries
    elif kind == "equal":
        vectors = np.ones_like(vectors)
    elif kind == "negative":
        vectors, queries = np.abs(vectors) + 1, -np.abs(queries) - 1
    elif kind == "cancelling":  # large parts that the queries do not see
        large = 100 * draw.normal(size=rows)
        vectors[:, 0] += large
        vectors[:, 1] -= large
        queries[:, 1] = queries[:, 0]
    elif kind == "wide":
        vectors = vectors * 10.0 ** draw.integers(-15, 16, (rows, 1))
    return vectors.astype(np.float32), queries.astype(np.float32)


@pytest.fixture(params=["roomy", "tight"])
def _room(request, monkeypatch):
    """Room for all hits, and for hardly any, so that floors rise again and again."""
    if request.param == "tight":
        monkeypatch.setattr(exact, "CAPACITY", 1)
        monkeypatch.setattr(exact, "SPARE", 0)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize(
    "kind", ["random", "far", "clustered", "equal", "negative", "cancelling", "wide"]
)
def test_real_numbers(kind, bfloat16):
    vectors, queries = collection(kind)
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    sorted_products = -np.sort(-products, axis=1)
    index = ExactIndex(vectors, bfloat16=bfloat16)
    for count, depth in ((1, 5), (3, 100), (40, 1), (40, 20), (40, 300)):
        scores, rows = index.search(queries[:count], depth)
        found = np.take_along_axis(products[:count], rows, 1)
        sizes = np.linalg.norm(queries[:count, None], axis=2) * np.linalg.norm(
            vectors[rows], axis=2
        )
        assert (np.abs(found - sorted_products[:count, :depth]) <= 1e-6 * sizes).all()
        assert (np.abs(scores - found) <= 1e-6 * sizes).all()
        assert (scores[:, 1:] <= scores[:, :-1]).all()
        assert all(len(set(line)) == depth for line in rows.tolist())


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("size", [1, 4])
def test_ties_passages_and_distances(monkeypatch, bfloat16, metric, size):
    monkeypatch.setattr(exact, "BLOCK", 130)
    vectors, queries = whole_numbers(1, 2000), whole_numbers(2, 40)
    index = ExactIndex(vectors, metric, size, bfloat16=bfloat16)
    right = reference(vectors, queries, 30, metric, size)
    for count in (1, 3, 40, 40):  # the last time, the sample is there already
        scores, rows = index.search(queries[:count], 30)
        assert (scores == right[0][:count]).all()
        assert (rows == right[1][:count]).all()


def test_equal_vectors_score_alike_wherever_they_are():
    """Their scores tie, so that they are ordered by row, whatever the block that they end."""
    vectors, queries = collection("random", 5000, 768)
    same = np.array([3, 700, 4095, 4096, 4990, 4999])
    vectors[same] = vectors[3]
    for count in (1, 2, 7, 40):
        for bfloat16 in (True, False):
            _, rows = ExactIndex(vectors, bfloat16=bfloat16).search(queries[:count], 5000)
            for line in rows:
                first = int(np.flatnonzero(line == 3)[0])
                assert (line[first : first + 6] == same).all()


@pytest.mark.parametrize("available", [None, 1 << 40, 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_copies_are_kept_where_memory_allows_it_and_change_no_hit(monkeypatch, available, dtype):
    monkeypatch.setattr(exact, "available_bytes", lambda: available)
    vectors, queries = collection("far")
    index = ExactIndex(vectors.astype(dtype), bfloat16=True)
    right = reference(vectors.astype(dtype), queries, 20)[1]
    for depth in (4000, 20, 20):  # the first one without floors
        _, rows = index.search(queries, depth)
    assert (rows == right).all()
    assert bool(index._low_blocks) == (available == 1 << 40)


def test_keys_order_hits_by_score_and_row():
    scores = np.array([np.finfo(np.float32).max, 1, 0, -0.0, -1e-30, -5, -np.inf], np.float32)
    rows = np.array([9, 8, 6, 7, 5, 4, 3])
    draw = np.random.default_rng(0).permutation(len(scores))
    keys = np.sort(exact.sort_keys(scores[draw], rows[draw]))
    sorted_scores, sorted_rows = exact.hits_of_keys(np.append(keys, exact.NO_HIT))
    assert sorted_scores.tolist() == [*scores.tolist(), -np.inf]
    assert sorted_rows.tolist() == [*rows.tolist(), -1]
