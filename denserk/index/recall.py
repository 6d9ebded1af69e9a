"""How much of the exact answer an approximate index finds."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from denserk.index.hits import hit_keys, hits_of
from denserk.index.vector_index import Rows, StoredVectors, VectorIndex, Vectors
from denserk.settings.retrieval import Metric

QUERIES = 100
DEPTH = 10
BLOCK = 16_384
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
    best = np.empty((len(queries), 0), np.uint64)
    first = 0
    for block in blocks:
        vectors = np.asarray(block, np.float32)
        scores = queries @ vectors.T
        if metric is Metric.L2:  # the query's own length changes no order
            scores = 2 * scores - np.square(vectors).sum(1)
        keys = hit_keys(scores, np.arange(first, first + len(vectors)))
        best = np.hstack([best, keys])
        if best.shape[1] > depth:
            best = np.partition(best, depth - 1, axis=1)[:, :depth]
        first += len(vectors)
    return hits_of(np.sort(best, axis=1))[1]


def _shared(right: Rows, found: Rows) -> float:
    """The share of (B, K) exact hits that are among those found."""
    pairs = zip(right.tolist(), found.tolist(), strict=True)
    return sum(len(set(line) & set(other)) for line, other in pairs) / right.size
