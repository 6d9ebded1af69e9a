"""Interface of the engines that search vectors or terms."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # (N, D)
Scores = NDArray[np.float32]  # (B, K), higher is closer, descending; -inf where there is no hit
Rows = NDArray[np.int64]  # (B, K), numbers of the rows of an index; -1 where there is no hit


class StoredVectors(Protocol):
    """(N, D) vectors in an array or in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N and D."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, wanted: slice | Rows, /) -> NDArray[Any]:
        """Consecutive vectors, or some by their sorted numbers."""


class SearchableIndex(Protocol):
    """An open index. Rows count from 0; `PassageIds` maps them to passage ids.

    Queries are (B, D) vectors, or an array of B texts for a BM25 index.
    """

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row is compared: a deeper search then only adds hits."""

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded.

        Equal scores are ordered by row; which of those tied at the cut are returned depends on the
        engine.
        """

    def __len__(self) -> int:
        """Number of rows."""


class VectorIndex(SearchableIndex, Protocol):
    """An open index of vectors."""

    @property
    def dimension(self) -> int:
        """D, of vectors and queries."""
