"""The interface of engines: rows, vectors and scores; and several indexes as one.

Rows of an index are numbered from 0; `vectors_per_passage` consecutive rows are one passage. Hits
are ordered by score descending, then by row ascending.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.errors import NotFiniteError

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

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[Any]:
        """Consecutive vectors, or some by their sorted numbers."""


class SearchableIndex(Protocol):
    """An open index. Queries are (B, D) vectors, or an array of B texts for a BM25 index."""

    is_exhaustive: bool  # every row is compared: a deeper search then only adds hits
    dimension: int  # D; 0 for a BM25 index

    @property
    def breadth(self) -> tuple[str, ...]:
        """Options that make an approximate search find more, with their values."""

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded; ties at the cut are unspecified."""

    def __len__(self) -> int:
        """Number of rows."""


def recalls(hits: Rows, exact: Rows) -> NDArray[np.float64]:
    """Return the share of a query's exact rows among its hits: (B, K), (B, K) -> (B,).

    >>> recalls(np.array([[7, 3, 5, 9]]), np.array([[3, 7, 4, 5]])).tolist()
    [0.75]
    """
    is_match = hits[:, :, None] == exact[:, None]  # (B, K hits, K exact rows)
    shares: NDArray[np.float64] = is_match.any(axis=2).mean(axis=1)
    return shares


def padding(queries: int, depth: int) -> tuple[Scores, Rows]:
    """Return (B, K) scores and rows without a hit."""
    scores = np.full((queries, depth), -np.inf, np.float32)
    rows = np.full((queries, depth), -1, np.int64)
    return scores, rows


def in_order(scores: Scores, rows: Rows, depth: int | None = None) -> tuple[Scores, Rows]:
    """Order (B, K) hits and keep the best `depth`; a row -1 is no hit and stands last.

    >>> scores, rows = in_order(np.float32([[1, 2, 1]]), np.array([[4, 0, 3]]), 2)
    >>> scores.tolist(), rows.tolist()
    ([[2.0, 1.0]], [[0, 3]])
    """
    negative_scores = -np.where(rows < 0, np.float32(-np.inf), scores)
    unsigned_rows = rows.view(np.uint64)  # -1 is the largest one
    order = np.lexsort((unsigned_rows, negative_scores))[:, :depth]
    ordered_scores = -np.take_along_axis(negative_scores, order, axis=1)
    return ordered_scores, np.take_along_axis(rows, order, axis=1)


@dataclass
class ShardedIndex:
    """Several indexes as one, whose rows are numbered through all of them."""

    parts: Iterable[SearchableIndex]
    dimension: int
    is_exhaustive: bool = True

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options of its parts."""
        options: dict[str, None] = {}  # a set in order
        for part in self.parts:
            options.update(dict.fromkeys(part.breadth))
        return tuple(options)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows of all parts for (B, D) queries, padded."""
        best_scores, best_rows = padding(len(queries), depth)
        first_row = 0
        for part in self.parts:
            try:
                scores, rows = part.search(queries, min(depth, len(part)))
            except NotFiniteError as error:
                raise NotFiniteError(first_row + error.row) from None
            rows = np.where(rows < 0, -1, rows + first_row)
            all_scores = np.hstack([best_scores, scores])
            all_rows = np.hstack([best_rows, rows])
            best_scores, best_rows = in_order(all_scores, all_rows, depth)
            first_row += len(part)
        return best_scores, best_rows
