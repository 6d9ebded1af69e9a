"""Exact search on a simulated GPU: the hits of a CPU."""

import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.index import exact
from denserk.index.exact import ExactIndex
from tests.support.index_folders import whole_numbers

ROWS, QUERIES, DEPTH = 2000, 40, 30
BLOCK = 300
# the longest vector or the check for NaN, the number of hits, and the hits
WAITS_OF_A_BLOCK = 3
# the queries, two lengths, two bounds, two tiles' floors
WAITS_OF_A_SEARCH = 7
WAITS_OF_THE_SAMPLE = 2  # its copy, and whether its mean is finite


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(exact, "BLOCK", 130)
    monkeypatch.setattr(exact, "WIDE_BLOCK", BLOCK)
    monkeypatch.setattr(exact, "PAIRS", 100)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("metric", Metric)
def test_hits_are_those_of_a_cpu(simulated_gpu, monkeypatch, metric, size, dtype, stays):
    monkeypatch.setattr(exact, "GPU_SHARE", 0.5 if stays else 0)
    vectors, queries = whole_numbers(1, ROWS).astype(dtype), whole_numbers(2, QUERIES)
    cpu = ExactIndex(vectors, metric, "cpu", size)
    gpu = ExactIndex(vectors, metric, "cuda", size)
    blocks = -(-ROWS // BLOCK)
    for count in (1, 3, QUERIES, QUERIES):  # from the second time on, blocks that stay are there
        expected_scores, expected_rows = cpu.search(queries[:count], DEPTH)
        simulated_gpu.waits.clear()
        scores, rows = gpu.search(queries[:count], DEPTH)
        assert (scores == expected_scores).all()
        assert (rows == expected_rows).all()
        copies_of_blocks = 0 if stays and count > 1 else blocks
        most_waits = WAITS_OF_A_BLOCK * blocks + copies_of_blocks + WAITS_OF_A_SEARCH
        if count == 1:
            most_waits += WAITS_OF_THE_SAMPLE
        assert simulated_gpu.waits.total() <= most_waits, simulated_gpu.waits
