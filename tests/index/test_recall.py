import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.index import recall
from denserk.index.exact import ExactIndex
from denserk.index.recall import recall_of_own_vectors, recall_over_blocks

VECTORS = np.random.default_rng(1).normal(size=(250, 6)).astype(np.float32)


class Forgetful(ExactIndex):
    """An index that finds every other row alone."""

    def search(self, queries, depth):
        """What exact search finds among the even rows, padded."""
        scores, rows = ExactIndex(np.ascontiguousarray(VECTORS[::2])).search(queries, depth)
        return scores, rows * 2


@pytest.mark.parametrize("size", [1, 7, 100, 250])
def test_blocks_or_not_the_recall_is_the_same(size):
    def blocks():
        return (VECTORS[first : first + size] for first in range(0, len(VECTORS), size))

    for index in (ExactIndex(VECTORS), Forgetful(VECTORS)):
        whole = recall_of_own_vectors(index, VECTORS, Metric.INNER, seed=3)
        assert recall_over_blocks(index, blocks, seed=3) == whole
    assert whole[1:] == (10, 100)
    assert 0.3 < whole[0] < 0.7


@pytest.mark.parametrize("block", [7, 250])
def test_distances_are_compared_over_blocks_too(monkeypatch, block):
    monkeypatch.setattr(recall, "BLOCK", block)
    index = ExactIndex(VECTORS, Metric.L2)
    assert recall_of_own_vectors(index, VECTORS, Metric.L2, seed=3) == (1, 10, 100)
