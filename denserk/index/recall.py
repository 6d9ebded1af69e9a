"""Recall of an approximate index: the share of the exact nearest neighbours that it finds."""

import logging
from collections.abc import Callable, Iterable

import numpy as np

from denserk.config.retrieval import Metric
from denserk.index.hits import Rows, VectorIndex, Vectors, in_order, padding

logger = logging.getLogger(__name__)

QUERIES = 100
DEPTH = 10


def measure_recall(
    what: str,
    index: VectorIndex,
    blocks: Callable[[], Iterable[Vectors]],
    seed: int,
    metric: Metric = Metric.INNER,
) -> float:
    """Log and return the recall@10 of an index, with some of its own vectors as queries."""
    count = len(index)
    drawn = np.random.default_rng(seed).choice(count, min(QUERIES, count), replace=False)
    rows, first, found = np.sort(drawn), 0, []
    for block in blocks():
        inside = rows[(rows >= first) & (rows < first + len(block))] - first
        found.append(np.array(block[inside], np.float32))
        first += len(block)
    queries = np.concatenate(found)
    depth = min(DEPTH, count)
    exact = _exact(queries, blocks(), metric, depth)
    hits = index.search(queries, depth)[1]
    pairs = zip(exact.tolist(), hits.tolist(), strict=True)
    recall = sum(len(set(one) & set(other)) for one, other in pairs) / exact.size
    logger.info(
        f"{what}: recall@{depth} {recall:.3f}, for {len(queries)} of its own vectors as queries"
    )
    return round(recall, 4)


def _exact(queries: Vectors, blocks: Iterable[Vectors], metric: Metric, depth: int) -> Rows:
    """Return the (B, K) rows of the exact hits of (B, D) queries among all blocks."""
    best, rows = padding(len(queries), 0)
    first = 0
    for block in blocks:
        vectors = np.asarray(block, np.float32)
        scores = queries @ vectors.T
        if metric is Metric.L2:  # the norm of the query does not change the order
            scores = 2 * scores - np.square(vectors).sum(1)
        last = min(depth, len(vectors)) - 1
        places = np.argpartition(-scores, last, axis=1)[:, :depth]
        scores = np.take_along_axis(scores, places, 1)
        best, rows = in_order(np.hstack([best, scores]), np.hstack([rows, places + first]), depth)
        first += len(vectors)
    return rows
