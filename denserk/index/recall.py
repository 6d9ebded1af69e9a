"""How much of the exact answer an approximate index finds."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from denserk.index.torch_exact import TorchExact
from denserk.index.vector_index import Rows, StoredVectors, VectorIndex, Vectors
from denserk.settings.retrieval import Metric

QUERIES = 100
DEPTH = 10
BLOCK = 65_536
"""Vectors compared at once."""


def recall_of_own_vectors(
    index: VectorIndex, vectors: StoredVectors, metric: Metric, seed: int
) -> tuple[float, int, int]:
    """The share of the exact hits that the index finds, with some of its own vectors as queries.

    Args:
        index: an open index of `vectors`.
        vectors: (N, D), read BLOCK rows at a time.
        metric: how both compare.
        seed: which vectors ask.

    Returns:
        the mean recall, its depth, and how many vectors asked.
    """
    queries = np.array(vectors[_asking(len(vectors), seed)], np.float32)
    blocks = (vectors[first : first + BLOCK] for first in range(0, len(vectors), BLOCK))
    depth = min(DEPTH, len(index))
    right = _exact(queries, blocks, metric, depth)
    # one by one: a search holds the pages that it visits, and lets go of them
    found = [index.search(query[None], depth)[1] for query in queries]
    return _shared(right, np.concatenate(found)), depth, len(queries)


def recall_over_blocks(
    index: VectorIndex,
    blocks: Callable[[], Iterator[Vectors]],
    seed: int,
    metric: Metric = Metric.INNER,
) -> tuple[float, int, int]:
    """The same for vectors that are read twice, block by block.

    Args:
        index: an open index of them.
        blocks: reads them: (n, D) each.
        seed: which vectors ask.
        metric: how both compare.
    """
    asking = _asking(len(index), seed)
    drawn, first = [], 0
    for block in blocks():
        inside = asking[(asking >= first) & (asking < first + len(block))] - first
        drawn.append(np.array(block[inside], np.float32))
        first += len(block)
    queries, depth = np.concatenate(drawn), min(DEPTH, len(index))
    _, found = index.search(queries, depth)
    return _shared(_exact(queries, blocks(), metric, depth), found), depth, len(queries)


def _asking(count: int, seed: int) -> Rows:
    """The rows that ask, in their order."""
    drawn = np.random.default_rng(seed).choice(count, min(QUERIES, count), replace=False)
    return np.sort(drawn)


def _exact(queries: Vectors, blocks: Iterable[Vectors], metric: Metric, depth: int) -> Rows:
    """(B, D) -> (B, K) the exact hits among all blocks."""
    scores = np.empty((len(queries), 0), np.float32)
    right = np.empty((len(queries), 0), np.int64)
    first = 0
    for block in blocks:
        exact = TorchExact(np.require(block, np.float32, ["C", "W"]), metric)
        new, rows = exact.search(queries, min(depth, len(block)))
        scores, right = np.hstack([scores, new]), np.hstack([right, rows + first])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        scores, right = np.take_along_axis(scores, best, 1), np.take_along_axis(right, best, 1)
        first += len(block)
    return right


def _shared(right: Rows, found: Rows) -> float:
    """The share of (B, K) exact hits that are among those found."""
    pairs = zip(right.tolist(), found.tolist(), strict=True)
    return sum(len(set(line) & set(other)) for line, other in pairs) / right.size
