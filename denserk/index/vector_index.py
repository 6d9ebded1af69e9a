"""The seam between denserk and whatever holds the vectors."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""(N, D) float32, one row a vector."""
Scores = NDArray[np.float32]
"""(B, K) float32, higher is closer, descending along a row; -inf where there is no hit."""
Rows = NDArray[np.int64]
"""(B, K) int64, the row of each hit in the order of the index; -1 where there is no hit."""


class StoredVectors(Protocol):
    """(N, D) vectors in an array or in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N and D."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, wanted: slice | Rows, /) -> NDArray[Any]:
        """Neighbouring vectors, or some by their sorted numbers."""


class SearchableIndex(Protocol):
    """An open index. Rows count from 0; their ids are the index folder's business.

    Queries are (B, D) vectors, or an array of B texts for a BM25 index.
    """

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row is compared, so that a deeper search only adds hits."""

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows for each query; fewer are padded.

        Equal scores fall by row; which of those equal at the cut come back is left to the engine.
        """

    def __len__(self) -> int:
        """How many rows it holds."""


class VectorIndex(SearchableIndex, Protocol):
    """An open index of vectors."""

    @property
    def dimension(self) -> int:
        """D, of its vectors and of any query."""
