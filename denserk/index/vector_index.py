"""The seam between denserk and whatever holds the vectors."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""(N, D) float32, one row a vector."""
Scores = NDArray[np.float32]
"""(B, K) float32, higher is closer, descending along a row; -inf where there is no hit."""
Rows = NDArray[np.int64]
"""(B, K) int64, the row of each hit in the order of adding; -1 where there is no hit."""


class VectorIndex(Protocol):
    """What an engine can do. Rows count from 0 in the order of `add`; ids are the index folder's business."""

    def add(self, block: Vectors) -> None:
        """Takes the next (N, D) rows."""

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows for each of (B, D) queries; fewer are padded with -inf and -1."""

    def save(self, folder: Path) -> None:
        """Writes the index into an existing folder, whole files only."""

    def __len__(self) -> int:
        """How many rows it holds."""
