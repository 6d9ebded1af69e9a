"""Exact search against its reference: every product in float32, and a stable sort."""

import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.index import exact
from denserk.index.exact import ExactIndex
from tests.support.index_folders import whole_numbers

MANY = 4500  # rows: more than a block, and no whole number of them
KINDS = ["random", "far", "clustered", "equal", "negative", "cancelling", "wide"]


def reference(vectors, queries, depth, metric=Metric.INNER, size=1):
    """Scores and rows of the best vector of each passage, by score descending, then row."""
    vectors = vectors.astype(np.float32)
    scores = queries @ vectors.T
    if metric is Metric.L2:
        scores = -np.square(queries[:, None] - vectors).sum(2)
    scores_by_passage = scores.reshape(len(queries), -1, size)
    best_rows = np.arange(0, len(vectors), size) + scores_by_passage.argmax(axis=2)
    best_scores = scores_by_passage.max(axis=2)
    order = np.argsort(-best_scores, axis=1, kind="stable")[:, :depth]
    return np.take_along_axis(best_scores, order, 1), np.take_along_axis(best_rows, order, 1)


def collection(kind, rows=MANY, dimension=24):
    """Vectors and 40 queries of one of KINDS."""
    random = np.random.default_rng(5)
    vectors = random.normal(size=(rows, dimension))
    queries = random.normal(size=(40, dimension))
    if kind == "far":
        vectors = vectors + 30
        queries = queries + 30
    elif kind == "clustered":
        centres = 2 * random.normal(size=(7, dimension))
        vectors = centres[np.sort(random.integers(0, 7, rows))] + 0.1 * vectors
        queries = centres[random.integers(0, 7, 40)] + 0.3 * queries
    elif kind == "equal":
        vectors = np.ones_like(vectors)
    elif kind == "negative":
        vectors = np.abs(vectors) + 1
        queries = -np.abs(queries) - 1
    elif kind == "cancelling":  # large components whose products cancel out
        large = 100 * random.normal(size=rows)
        vectors[:, 0] += large
        vectors[:, 1] -= large
        queries[:, 1] = queries[:, 0]
    elif kind == "wide":
        vectors = vectors * 10.0 ** random.integers(-15, 16, (rows, 1))
    return vectors.astype(np.float32), queries.astype(np.float32)


def assert_best_products(index, vectors, queries, depth):
    """A search returns the best products, as float64 computes them, up to rounding in float32."""
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    best_products = -np.sort(-products, axis=1)[:, :depth]
    scores, rows = index.search(queries, depth)
    products_of_hits = np.take_along_axis(products, rows, 1)
    query_lengths = np.linalg.norm(queries, axis=1)[:, None]
    tolerance = 1e-6 * query_lengths * np.linalg.norm(vectors[rows], axis=2)
    assert (np.abs(products_of_hits - best_products) <= tolerance).all()
    assert (np.abs(scores - products_of_hits) <= tolerance).all()
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert all(len(set(rows_of_query)) == depth for rows_of_query in rows.tolist())


def assert_neighbours(rows, equal_rows):
    """The rows of equal vectors stand one behind the other, in the hits of every query."""
    for rows_of_query in rows:
        start = int(np.flatnonzero(rows_of_query == equal_rows[0])[0])
        assert (rows_of_query[start : start + len(equal_rows)] == equal_rows).all()


@pytest.fixture(params=["roomy", "tight"])
def _room(request, monkeypatch):
    """Room for all hits, and for hardly any, so that floors rise again and again."""
    if request.param == "tight":
        monkeypatch.setattr(exact, "CAPACITY", 1)
        monkeypatch.setattr(exact, "SPARE", 0)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_real_numbers(kind, bfloat16):
    vectors, queries = collection(kind)
    index = ExactIndex(vectors, bfloat16=bfloat16)
    for count, depth in ((1, 5), (3, 100), (40, 1), (40, 20), (40, 300)):
        assert_best_products(index, vectors, queries[:count], depth)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("size", [1, 4])
def test_ties_passages_and_distances(monkeypatch, bfloat16, metric, size):
    monkeypatch.setattr(exact, "BLOCK", 130)
    vectors = whole_numbers(1, 2000)
    queries = whole_numbers(2, 40)
    index = ExactIndex(vectors, metric, size, bfloat16=bfloat16)
    expected_scores, expected_rows = reference(vectors, queries, 30, metric, size)
    for count in (1, 3, 40, 40):  # the last time, the sample is there already
        scores, rows = index.search(queries[:count], 30)
        assert (scores == expected_scores[:count]).all()
        assert (rows == expected_rows[:count]).all()


def test_equal_vectors_score_alike_wherever_they_are():
    """Their scores tie, so that they are ordered by row, whatever the block that they end."""
    vectors, queries = collection("random", 5000, 768)
    equal_rows = np.array([3, 700, 4095, 4096, 4990, 4999])
    vectors[equal_rows] = vectors[3]
    for count in (1, 2, 7, 40):
        for bfloat16 in (True, False):
            _, rows = ExactIndex(vectors, bfloat16=bfloat16).search(queries[:count], 5000)
            assert_neighbours(rows, equal_rows)


@pytest.mark.parametrize(("available", "are_kept"), [(None, False), (1 << 40, True), (1, False)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_copies_are_kept_where_memory_allows_it_and_change_no_hit(
    monkeypatch, available, are_kept, dtype
):
    monkeypatch.setattr(exact, "available_bytes", lambda: available)
    vectors, queries = collection("far")
    vectors = vectors.astype(dtype)
    index = ExactIndex(vectors, bfloat16=True)
    _, expected_rows = reference(vectors, queries, 20)
    index.search(queries, 4000)  # without floors
    for _ in range(2):
        _, rows = index.search(queries, 20)
        assert (rows == expected_rows).all()
    assert bool(index._low_blocks) == are_kept


def test_keys_order_hits_by_score_and_row():
    scores = np.array([np.finfo(np.float32).max, 1, 0, -0.0, -1e-30, -5, -np.inf], np.float32)
    rows = np.array([9, 8, 6, 7, 5, 4, 3])
    mixed = np.random.default_rng(0).permutation(len(scores))
    keys = np.sort(exact.sort_keys(scores[mixed], rows[mixed]))
    sorted_scores, sorted_rows = exact.hits_of_keys(np.append(keys, exact.NO_HIT))
    assert sorted_scores.tolist() == [*scores.tolist(), -np.inf]
    assert sorted_rows.tolist() == [*rows.tolist(), -1]
