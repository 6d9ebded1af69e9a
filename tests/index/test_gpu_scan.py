"""The GPU's way of scanning, on the CPU too, against sorting everything."""

import numpy as np
import pytest
import torch

from denserk.index import gpu_scan
from denserk.index.gpu_scan import GpuScan
from denserk.index.hit_keys import hits_of
from denserk.index.torch_exact import TorchExact
from tests.index.test_engines import by_hand, hits, whole_numbers
from tests.index.test_threshold_scan import collection

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, GPU])]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gpu_scan, "ROWS", 300)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("count", [1, 40])
def test_ties_and_passages(device, kept, size, count):
    vectors, queries = whole_numbers(1, 2000), whole_numbers(2, count)
    scan = GpuScan(vectors, torch.device(device), size)
    scan._kept = [] if kept else None
    for _ in range(2):  # the second time, blocks may be there already
        keys, misled = scan.search(queries, 30)
        assert misled == []
        assert hits(hits_of(keys)) == by_hand(vectors, queries, 30, size=size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["random", "far", "clustered", "negative"])
def test_real_numbers(device, dtype, kind):
    vectors, queries = collection(kind)
    vectors = vectors.astype(dtype)
    keys, misled = GpuScan(vectors, torch.device(device)).search(queries, 50)
    scores, rows = hits_of(keys)
    right = TorchExact(vectors, plain=True).search(queries, 50)
    sure = [query for query in range(40) if query not in misled]
    assert len(sure) > 30
    np.testing.assert_allclose(scores[sure], right[0][sure], rtol=1e-5)
    assert (rows == right[1])[sure].mean() > 0.99


@pytest.mark.gpu
@GPU
def test_the_torch_engine_scans_so_on_a_gpu():
    vectors, queries = collection("random")
    index = TorchExact(vectors, device="cuda")
    assert isinstance(index._scan, GpuScan)
    right = TorchExact(vectors, plain=True).search(queries, 50)
    np.testing.assert_allclose(index.search(queries, 50)[0], right[0], rtol=1e-5)
