"""The scan with floors against the plain one: the same rows, scores alike to float32's rounding."""

import numpy as np
import pytest
import torch

from denserk.index import threshold_scan
from denserk.index.hit_keys import hits_of
from denserk.index.threshold_scan import ThresholdScan, can_scan, places
from denserk.index.torch_exact import TorchExact
from denserk.settings.retrieval import Metric
from tests.index.test_engines import by_hand, hits, whole_numbers

MANY = 2600
"""Rows: more than a block, and no whole number of them."""


def collection(kind, rows=MANY, dimension=24):
    """Vectors and queries of a kind; the clusters stand one after another."""
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


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize(
    "kind", ["random", "far", "clustered", "equal", "negative", "cancelling", "wide"]
)
@pytest.mark.parametrize(("queries", "depth"), [(1, 5), (3, 100), (40, 1), (40, 20), (40, 300)])
def test_it_finds_what_sorting_everything_finds(kind, bfloat16, queries, depth):
    vectors, asked = collection(kind)
    scores, rows = TorchExact(vectors, bfloat16=bfloat16).search(asked[:queries], depth)
    exact = asked[:queries].astype(np.float64) @ vectors.T.astype(np.float64)
    right = np.take_along_axis(exact, np.argsort(-exact, axis=1, kind="stable")[:, :depth], 1)
    found = np.take_along_axis(exact, rows, 1)
    sizes = np.linalg.norm(asked[:queries], axis=1)[:, None] * np.linalg.norm(vectors[rows], axis=2)
    assert (np.abs(found - right) <= 1e-6 * sizes).all()
    assert (np.abs(scores - found) <= 1e-6 * sizes).all()
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert all(len(set(line)) == depth for line in rows.tolist())


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [2, 40])
def test_ties_passages_and_distances(monkeypatch, bfloat16, metric, size, threads, count):
    monkeypatch.setattr(threshold_scan, "BLOCK", 128)
    monkeypatch.setattr(threshold_scan, "WIDE", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    vectors, queries = whole_numbers(1, 2000), whole_numbers(2, count)
    index = TorchExact(vectors, metric, vectors_per_passage=size, bfloat16=bfloat16)
    found = index.search(queries, 30)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert hits(found) == by_hand(vectors, queries, 30, metric, size)
    plain = TorchExact(vectors, metric, vectors_per_passage=size, plain=True).search(queries, 30)
    assert hits(found) == hits(plain)


@pytest.mark.parametrize("bfloat16", [True, False])
def test_vectors_of_float16(bfloat16):
    vectors, queries = collection("random")
    stored = vectors.astype(np.float16)
    found = TorchExact(stored, bfloat16=bfloat16).search(queries, 50)
    right = TorchExact(stored.astype(np.float32), plain=True).search(queries, 50)
    assert (found[1] == right[1]).all()
    np.testing.assert_allclose(found[0], right[0], atol=1e-5)


def test_a_query_that_the_sample_misleads_is_asked_again(monkeypatch):
    vectors, queries = collection("random")
    monkeypatch.setattr(threshold_scan, "_floors", lambda scores, *_: np.full(40, 1e9, np.float32))
    keys, misled = ThresholdScan(vectors, Metric.INNER, bfloat16=True).search(queries, 20)
    assert misled == list(range(40))
    assert (hits_of(keys)[1] == -1).all()
    found = TorchExact(vectors, bfloat16=True).search(queries, 20)
    right = TorchExact(vectors, plain=True).search(queries, 20)
    assert (found[1] == right[1]).all()


@pytest.mark.parametrize(
    ("count", "depth", "queries", "size", "can"),
    [
        (100_000, 1000, 9, 1, True),
        (100, 1, 9, 1, False),
        (100_000, 50_000, 9, 1, False),
        (100_000, 4000, 9, 8, False),
        (100_000, 1000, 0, 1, False),
    ],
)
def test_when_floors_help(count, depth, queries, size, can):
    assert can_scan(count, depth, queries, size) is can


@pytest.mark.parametrize("width", [5, 8, 24])
def test_places_of_what_is_true(width):
    mask = np.random.default_rng(2).random((31, width)) < 0.2
    for found, right in zip(places(mask), np.nonzero(mask), strict=True):
        assert (found == right).all()


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        *((kind, True) for kind in ("random", "far", "negative")),
        *(("cancelling", b) for b in (0, 1)),
    ],
)
def test_the_bound_lets_nothing_through_and_is_needed(monkeypatch, kind, bound):
    """With floors that the right rows just reach, a row lost is a query misled."""
    vectors, queries = collection(kind)
    right = TorchExact(vectors, plain=True).search(queries, 300)
    rounding = 1e-6 * np.linalg.norm(queries, axis=1) * np.linalg.norm(vectors, axis=1).max()
    lowest = right[0][:, -1] - rounding.astype(np.float32)
    prepared, limits = ThresholdScan._prepared, ThresholdScan._limits

    def exact(self, asked, depth):
        return prepared(self, asked, depth)[0], lowest.copy()

    def unbounded(self, asked, tile, floors, longest):
        return floors - asked.centre[tile]

    monkeypatch.setattr(ThresholdScan, "_prepared", exact)
    monkeypatch.setattr(ThresholdScan, "_limits", limits if bound else unbounded)
    keys, misled = ThresholdScan(vectors, Metric.INNER, bfloat16=True).search(queries, 300)
    if bound:
        assert misled == []
        assert (np.sort(hits_of(keys)[1]) == np.sort(right[1])).all()
    else:
        assert len(misled) > 5
