"""Chained pieces read as one array reads, whatever the cuts, types and files that are open."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.index import shards
from denserk.index.exact import ExactIndex
from denserk.index.shards import ChainedVectors, VectorFile


def chain(whole, cuts, dtypes):
    edges = [0, *cuts, len(whole)]
    parts = [whole[a:b].astype(d) for a, b, d in zip(edges, edges[1:], dtypes, strict=False)]
    pieces = [VectorFile(len(part), part.dtype, partial(np.asarray, part)) for part in parts]
    return ChainedVectors(pieces, whole.shape[1])


@given(st.data())
def test_as_one_array(data):
    rows = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    dtypes = data.draw(st.lists(st.sampled_from(["f2", "f4"]), min_size=4, max_size=4))
    whole = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    chained = chain(whole, cuts, dtypes)
    first, last = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows + 9))))
    some = np.array(data.draw(st.lists(st.integers(0, rows - 1))), np.int64)
    assert (chained.shape, len(chained)) == (whole.shape, rows)
    assert chained.dtype == (dtypes[0] if len(set(dtypes)) == 1 else "f4")
    for found, expected in ((chained[first:last], whole[first:last]), (chained[some], whole[some])):
        assert found.dtype == chained.dtype
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("order", [range(6), reversed(range(6))])
def test_few_files_are_open(monkeypatch, order):
    monkeypatch.setattr(shards, "OPEN", 2)
    opened: list[int] = []

    def rows_of(number):
        opened.append(number)
        return np.full((1, 1), number, np.float32)

    pieces = [VectorFile(1, np.dtype("f4"), partial(rows_of, n)) for n in range(6)]
    chained = ChainedVectors(pieces, 1)
    for number in order:
        assert chained[number : number + 1].item() == number
    last = opened[-1]
    assert chained[last : last + 1].item() == last
    assert len(opened) == 6


@pytest.mark.parametrize("count", [3, 40])
def test_exact_search_takes_them(count):
    """Blocks, and rows of a sample, of two types."""
    whole = np.random.default_rng(1).normal(size=(5000, 8)).astype("f2").astype("f4")
    queries = np.random.default_rng(2).normal(size=(count, 8)).astype("f4")
    chained = chain(whole, [700, 2500], ["f2", "f4", "f2"])
    found = ExactIndex(chained, bfloat16=True).search(queries, 50)
    expected = ExactIndex(whole, bfloat16=True).search(queries, 50)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
