"""Pseudo-relevance feedback: a second search with queries that the first one's hits moved."""

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Prf, SearchSettings
from denserk.errors import UsageError
from denserk.index.engines import Rows, Scores, SearchableIndex, Vectors


class FeedbackIndex:
    """Pseudo-relevance feedback with dense vectors (Li et al., 2021, arXiv 2108.11044).

    The second of two searches is with moved queries. Of the K best passages p of a query q, the
    last N (`prf_negatives`) are negatives:

        average:  mean(q, p_1, ..., p_K)
        rocchio:  alpha q + beta mean(p_1, ..., p_K-N) - gamma mean(p_K-N+1, ..., p_K)
    """

    def __init__(self, index: SearchableIndex, size: int, settings: SearchSettings) -> None:
        if size > 1 or not hasattr(index, "reconstruct"):
            message = f"--prf {settings.prf}: the index does not return one vector per passage"
            raise UsageError(message, "use folders of vectors, flat indexes, or one index of faiss")
        self._index = index
        self._reconstruct = index.reconstruct
        self._settings = settings
        self.is_exhaustive = index.is_exhaustive
        self.dimension = index.dimension
        self.breadth = index.breadth

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for the moved (B, D) queries, padded."""
        _, rows = self._index.search(queries, self._settings.prf_depth)
        is_hit = rows >= 0
        passages = self._passage_vectors(rows, is_hit)
        if self._settings.prf is Prf.AVERAGE:
            counts = np.float32(1 + is_hit.sum(axis=1, keepdims=True))
            moved_queries = (queries + passages.sum(axis=1)) / counts
        else:
            moved_queries = self._rocchio(queries, passages, is_hit)
        return self._index.search(moved_queries, depth)

    def _passage_vectors(self, rows: Rows, is_hit: NDArray[np.bool_]) -> Vectors:
        """Return the (B, K, D) vectors of (B, K) rows; zero where there is no hit."""
        vectors = np.zeros((*rows.shape, self.dimension), np.float32)
        distinct_rows, positions = np.unique(rows[is_hit], return_inverse=True)
        vectors[is_hit] = self._reconstruct(distinct_rows)[positions]
        return vectors

    def _rocchio(self, queries: Vectors, passages: Vectors, is_hit: NDArray[np.bool_]) -> Vectors:
        """Move (B, D) queries towards the best of (B, K, D) passages, and away from the last."""
        settings = self._settings
        first_negative = passages.shape[1] - settings.prf_negatives
        positives = _mean_of_hits(passages[:, :first_negative], is_hit[:, :first_negative])
        negatives = _mean_of_hits(passages[:, first_negative:], is_hit[:, first_negative:])
        moved_queries: Vectors = settings.prf_alpha * queries + settings.prf_beta * positives
        moved_queries -= settings.prf_gamma * negatives
        return moved_queries


def _mean_of_hits(passages: Vectors, is_hit: NDArray[np.bool_]) -> Vectors:
    """Return the (B, D) means of the hits among (B, K, D) passages; the others are zero."""
    counts = np.float32(is_hit.sum(axis=1, keepdims=True))
    means: Vectors = passages.sum(axis=1) / np.maximum(counts, 1)
    return means
