"""Exact search on a CPU: a few queries by NumPy, many by torch, which is imported for them alone.

A single query is a matter of reading all vectors once, which NumPy does no slower than torch, and
importing torch takes longer than the search of a million vectors.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Metric
from denserk.errors import NotFiniteError
from denserk.index.engines import Rows, Scores, StoredVectors, Vectors, padding
from denserk.models import processor

if TYPE_CHECKING:
    from denserk.index.exact import ExactIndex

BLOCK_BYTES = 1 << 20  # of vectors that all queries are compared with while the cache has them
# Products of numbers up to which several queries are searched for by NumPy: some hundredths of a
# second. torch, once it is imported, takes a fraction of that for many queries.
FEW_PRODUCTS = 1 << 27
SAMPLED = 16  # one score of so many is looked at to find a floor


class CpuExactIndex:
    """Exact search over (N, D) vectors as `ExactIndex`, without torch for a few queries.

    Which of the two computes depends on the numbers of queries and vectors alone: the same search
    has the same scores, whatever else the process does.
    """

    is_exhaustive = True
    breadth: tuple[str, ...] = ()

    def __init__(
        self,
        vectors: StoredVectors,
        metric: Metric = Metric.INNER,
        vectors_per_passage: int = 1,
        threads: int | None = None,
    ) -> None:
        self._vectors = vectors
        self._metric = metric
        self._per_passage = vectors_per_passage
        self._threads = threads
        self.dimension = int(vectors.shape[1])

    def __len__(self) -> int:
        return len(self._vectors)

    @cached_property
    def _in_torch(self) -> "ExactIndex":
        """The search of many queries."""
        import torch

        from denserk.index.exact import ExactIndex

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return ExactIndex(
            self._vectors, self._metric, self._per_passage, bfloat16=processor.has_bfloat16()
        )

    def search(self, queries: NDArray[np.floating], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best passages for each of (B, D) queries, each as its best row."""
        products = len(queries) * len(self) * self.dimension
        if len(queries) != 1 and products > FEW_PRODUCTS:
            return self._in_torch.search(queries, depth)
        passages = len(self) // self._per_passage
        hit_count = min(depth, passages)
        scores, rows = padding(len(queries), depth)
        if hit_count and len(queries):
            all_scores = self._scores(np.array(queries, np.float32))
            for number, scores_of_query in enumerate(all_scores):
                hits = _best_passages(scores_of_query, self._per_passage, hit_count)
                scores[number, :hit_count], rows[number, :hit_count] = hits
        return scores, rows

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows in ascending order."""
        return self._vectors[rows].astype(np.float32)

    def _scores(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, N) scores of all rows; equal vectors have equal scores wherever they are."""
        scores = np.empty((len(queries), len(self)), np.float32)
        row_bytes = 4 * self.dimension
        step = max(1, BLOCK_BYTES // row_bytes)
        with np.errstate(all="ignore"):  # what is not finite is reported below
            for first in range(0, len(self), step):
                block = self._vectors[first : first + step].astype(np.float32, copy=False)
                for query, scores_of_query in zip(queries, scores, strict=True):
                    # row by row: BLAS computes the last rows of a matrix in another order
                    products = np.vecdot(block, query)
                    if self._metric is Metric.L2:
                        products = _negative_distances(products, block, query)
                    scores_of_query[first : first + step] = products
            # NaN and infinity survive a sum, which is faster than a look at every score
            sum_is_finite = bool(np.isfinite(scores.sum()))
        if not sum_is_finite:
            _reject_non_finite(scores)
        return scores


def _negative_distances(
    products: NDArray[Any], block: NDArray[np.float32], query: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return negative squared distances (n,) of a query (D,) from its products with (n, D) rows."""
    lengths = np.einsum("nd,nd->n", block, block) + np.einsum("d,d->", query, query)
    distances: NDArray[np.float32] = np.minimum(2 * products - lengths, np.float32(0))
    return distances


def _reject_non_finite(scores: NDArray[np.float32]) -> None:
    """Raise a NotFiniteError for the first row of (B, N) scores in which one is not finite."""
    rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
    if len(rows):
        raise NotFiniteError(int(rows[0]))


def _best_passages(
    scores: NDArray[np.float32], size: int, depth: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return (depth,) scores and rows of the best passages, which have `size` rows each.

    Of equal scores, the first row comes first.

    >>> best_scores, rows = _best_passages(np.float32([1, 3, 2, 3]), 1, 2)
    >>> best_scores.tolist(), rows.tolist()
    ([3.0, 3.0], [1, 3])
    """
    scores_by_passage = scores.reshape(-1, size)
    best_vectors = scores_by_passage.argmax(axis=1)
    passage_scores = scores
    if size > 1:
        passage_scores = np.take_along_axis(scores_by_passage, best_vectors[:, None], axis=1)[:, 0]
    # `depth` scores of the sample reach the floor, and so at least as many of all
    sample = passage_scores[::SAMPLED]
    floor = np.float32(-np.inf)
    if len(sample) >= depth:
        rank = len(sample) - depth  # from the lowest
        floor = np.partition(sample, rank)[rank]
    candidates = np.flatnonzero(passage_scores >= floor)
    order = np.argsort(-passage_scores[candidates], kind="stable")[:depth]
    passages = candidates[order]
    return passage_scores[passages], passages * size + best_vectors[passages]
