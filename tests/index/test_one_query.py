"""The product with one query, by faiss and without it."""

import warnings

import numpy as np
import pytest
import torch

from denserk.index import one_query, threshold_scan
from denserk.index.one_query import product_with_one
from denserk.index.torch_exact import TorchExact
from tests.index.test_engines import hits, whole_numbers


@pytest.fixture(params=["faiss", "torch"])
def library(request, monkeypatch):
    one_query._faiss.cache_clear()
    if request.param == "faiss":
        pytest.importorskip("faiss", reason="faiss is not installed")
    else:
        monkeypatch.setattr(one_query, "installed", lambda name: False)
    yield request.param
    one_query._faiss.cache_clear()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (33, 768)])
def test_the_product_is_that_of_float64(library, shape):
    assert (one_query._faiss() is not None) == (library == "faiss")
    drawn = torch.Generator().manual_seed(1)
    block, query = torch.randn(shape, generator=drawn), torch.randn(shape[1], generator=drawn)
    found = product_with_one(block, query)
    assert found.dtype is torch.float32
    expected = block.double() @ query.double()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


def test_rows_of_a_file_are_multiplied_where_they_lie(library, tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    (tmp_path / "rows").write_bytes(b"head" + rows.tobytes())
    mapped = np.memmap(tmp_path / "rows", np.float32, "r", 4, (4, 3))
    query = torch.tensor([1.0, 0.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch does not like rows that cannot be written
        found = product_with_one(torch.from_numpy(mapped[1:3]), query)
    assert found.tolist() == [3.0 + 10.0, 6.0 + 16.0]


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_a_large_collection_is_searched_by_it(monkeypatch, library, queries):
    monkeypatch.setattr(threshold_scan, "LARGE", 0)
    asked = []

    def watched(block, query):
        asked.append(query)
        return product_with_one(block, query)

    monkeypatch.setattr(threshold_scan, "product_with_one", watched)
    vectors, some = whole_numbers(1, 5000), whole_numbers(2, queries)
    found = TorchExact(vectors).search(some, 30)
    assert bool(asked) == (queries < 3)
    assert hits(found) == hits(TorchExact(vectors, plain=True).search(some, 30))
