"""How much of the exact answer an approximate index finds."""

import numpy as np

from denserk.index.torch_exact import TorchExact
from denserk.index.vector_index import VectorIndex, Vectors
from denserk.settings.retrieval import Metric

QUERIES = 100
DEPTH = 10


def recall_of_own_vectors(
    index: VectorIndex, vectors: Vectors, metric: Metric, seed: int
) -> tuple[float, int, int]:
    """The share of the exact hits that the index finds, with some of its own vectors as queries.

    Args:
        index: an open index of `vectors`.
        vectors: (N, D).
        metric: how both compare.
        seed: which vectors ask.

    Returns:
        the mean recall, its depth, and how many vectors asked.
    """
    count = len(vectors)
    depth = min(DEPTH, count)
    rows = np.random.default_rng(seed).choice(count, min(QUERIES, count), replace=False)
    queries = np.array(vectors[np.sort(rows)])
    _, right = TorchExact(vectors, metric).search(queries, depth)
    _, found = index.search(queries, depth)
    shared = [len(set(r) & set(f)) for r, f in zip(right.tolist(), found.tolist(), strict=True)]
    return sum(shared) / (depth * len(queries)), depth, len(queries)
