import numpy as np
import pytest
import torch

from denserk.index import pair_products as module
from denserk.index.pair_products import has_sampled_products, pair_products

draw = np.random.default_rng(1)
BLOCK, QUERIES = (torch.from_numpy(draw.normal(size=(n, 33)).astype(np.float32)) for n in (40, 9))


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("pairs", [0, 1, 200])
def test_products_of_pairs(monkeypatch, sampled, pairs):
    monkeypatch.setattr(module, "has_sampled_products", lambda: sampled)
    monkeypatch.setattr(module, "AT_ONCE", 64)
    rows, columns = np.divmod(np.sort(draw.choice(360, pairs, replace=False)), 9)
    found = pair_products(BLOCK, QUERIES, rows, columns)
    right = (BLOCK.double() @ QUERIES.double().T)[rows, columns]
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("broken", [RuntimeError("gone"), None])
def test_an_operator_that_is_gone_or_wrong_is_not_used(monkeypatch, broken):
    def sampled_addmm(pairs, *_, **__):
        if broken:
            raise broken
        return pairs

    has_sampled_products.cache_clear()
    monkeypatch.setattr(torch.sparse, "sampled_addmm", sampled_addmm)
    assert not has_sampled_products()
    has_sampled_products.cache_clear()
