"""Pseudo-relevance feedback with dense vectors (Li et al., 2021, arXiv 2108.11044)."""

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Prf, SearchSettings
from denserk.errors import UsageError
from denserk.index.searcher import Rows, Scores, SearchableIndex, Vectors


def moved_queries(
    queries: Vectors, passages: Vectors, found: NDArray[np.bool_], settings: SearchSettings
) -> Vectors:
    """Return the queries of the second search: (B, D), (B, K, D), (B, K) -> (B, D).

    Of the K best passages p of a query q, the last N (`prf_negatives`) are negatives:

        average:  mean(q, p_1, ..., p_K)
        rocchio:  alpha q + beta mean(p_1, ..., p_K-N) - gamma mean(p_K-N+1, ..., p_K)

    The vectors of passages that were not `found` are zero, and do not count.
    """

    def mean(part: slice, others: int = 0) -> Vectors:
        count = np.float32(others + found[:, part].sum(1, keepdims=True))
        middle: Vectors = (passages[:, part].sum(1) + others * queries) / np.maximum(count, 1)
        return middle

    if settings.prf is Prf.AVERAGE:
        return mean(slice(None), 1)
    best = passages.shape[1] - settings.prf_negatives
    moved: Vectors = settings.prf_alpha * queries + settings.prf_beta * mean(slice(best))
    moved -= settings.prf_gamma * mean(slice(best, None))
    return moved


class FeedbackIndex:
    """An index that is searched twice, the second time with moved queries."""

    def __init__(self, index: SearchableIndex, size: int, settings: SearchSettings) -> None:
        if size > 1 or not hasattr(index, "reconstruct"):
            raise UsageError(
                f"--prf {settings.prf}: the index does not return one vector per passage",
                "use folders of vectors, flat indexes, or one index of faiss",
            )
        self._index, self._vectors_of, self._settings = index, index.reconstruct, settings
        self.is_exhaustive, self.dimension = index.is_exhaustive, index.dimension

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for the moved (B, D) queries, padded."""
        _, rows = self._index.search(queries, self._settings.prf_depth)
        found = rows >= 0
        numbers, places = np.unique(rows[found], return_inverse=True)
        passages = np.zeros((*rows.shape, self.dimension), np.float32)
        passages[found] = self._vectors_of(numbers)[places]
        return self._index.search(moved_queries(queries, passages, found, self._settings), depth)
