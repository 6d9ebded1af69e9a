"""Recall of an approximate index: the share of the exact nearest neighbours that it finds."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from denserk.config.retrieval import Metric
from denserk.index.hits import hit_keys, hits_of
from denserk.index.vector_index import Rows, StoredVectors, VectorIndex, Vectors

QUERIES = 100
DEPTH = 10
BLOCK = 16_384  # vectors compared at once

Recall = tuple[float, int, int]  # mean recall, its depth, number of queries


def recall_of_own_vectors(
    index: VectorIndex, vectors: StoredVectors, metric: Metric, seed: int
) -> Recall:
    """Measure the recall of an index of (N, D) `vectors`, with some of them as queries."""
    queries = np.array(vectors[_drawn(len(vectors), seed)], np.float32)
    blocks = (vectors[first : first + BLOCK] for first in range(0, len(vectors), BLOCK))
    return _recall(index, queries, blocks, metric)


def recall_over_blocks(
    index: VectorIndex,
    blocks: Callable[[], Iterator[Vectors]],
    seed: int,
    metric: Metric = Metric.INNER,
) -> Recall:
    """Measure the same for vectors that `blocks` reads, twice, as (n, D) blocks."""
    rows = _drawn(len(index), seed)
    queries, first = [], 0
    for block in blocks():
        inside = rows[(rows >= first) & (rows < first + len(block))] - first
        queries.append(np.array(block[inside], np.float32))
        first += len(block)
    return _recall(index, np.concatenate(queries), blocks(), metric)


def _drawn(count: int, seed: int) -> Rows:
    """Draw the sorted rows that are used as queries."""
    drawn = np.random.default_rng(seed).choice(count, min(QUERIES, count), replace=False)
    return np.sort(drawn)


def _recall(
    index: VectorIndex, queries: Vectors, blocks: Iterable[Vectors], metric: Metric
) -> Recall:
    depth = min(DEPTH, len(index))
    exact = _exact(queries, blocks, metric, depth)
    # one by one: faiss frees the pages of an index on disk after every search
    found = [index.search(query[None], depth)[1][0] for query in queries]
    shared = [len(set(one) & set(other)) for one, other in zip(exact.tolist(), found, strict=True)]
    return sum(shared) / exact.size, depth, len(queries)


def _exact(queries: Vectors, blocks: Iterable[Vectors], metric: Metric, depth: int) -> Rows:
    """Return the (B, K) rows of the exact hits of (B, D) queries among all blocks."""
    best = np.empty((len(queries), 0), np.uint64)
    first = 0
    for block in blocks:
        vectors = np.asarray(block, np.float32)
        scores = queries @ vectors.T
        if metric is Metric.L2:  # the norm of the query does not change the order
            scores = 2 * scores - np.square(vectors).sum(1)
        keys = hit_keys(scores, np.arange(first, first + len(vectors)))
        best = np.hstack([best, keys])
        if best.shape[1] > depth:
            best = np.partition(best, depth - 1, axis=1)[:, :depth]
        first += len(vectors)
    return hits_of(np.sort(best, axis=1))[1]
