"""Vectors of many files as one array: rows are read where they stand, a few files at a time."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPEN = 32
"""Files that are mapped at a time: enough for every thread of a scan to stay in its own."""


@dataclass(frozen=True)
class Piece:
    """One file: how many rows it has, of which type, and how to map it."""

    rows: int
    dtype: "np.dtype[Any]"
    map: Callable[[], NDArray[np.floating[Any]]]


class ChainedVectors:
    """(N, D) vectors, one piece behind the other; what an array gives that exact search asks for.

    Rows come in one type: that of the pieces where they agree, else float32, which holds both.

    Args:
        pieces: in the order of the rows.
        dimension: D, of all of them.

    >>> one, other = np.eye(2, dtype=np.float32), np.zeros((1, 2), np.float32)
    >>> pieces = [Piece(len(a), a.dtype, lambda a=a: a) for a in (one, other)]
    >>> chained = ChainedVectors(pieces, 2)
    >>> chained.shape, chained[1:3].tolist(), chained[np.array([2, 0])].tolist()
    ((3, 2), [[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]])
    """

    def __init__(self, pieces: Sequence[Piece], dimension: int) -> None:
        self._pieces = pieces
        self._firsts = np.cumsum([0, *(piece.rows for piece in pieces)])
        self.shape = int(self._firsts[-1]), dimension
        kinds = {piece.dtype for piece in pieces}
        self.dtype = kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)
        self._mapped: OrderedDict[int, NDArray[np.floating[Any]]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> NDArray[Any]:
        if isinstance(rows, slice):
            return self._neighbours(*rows.indices(len(self))[:2])
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        pieces = np.searchsorted(self._firsts, rows, side="right") - 1
        for number in np.unique(pieces).tolist():
            places = np.flatnonzero(pieces == number)
            found[places] = self._piece(number)[rows[places] - self._firsts[number]]
        return found

    def _neighbours(self, first: int, last: int) -> NDArray[Any]:
        """Rows first..last-1: without a copy where they stand in one piece, in its type."""
        number = int(np.searchsorted(self._firsts, first, side="right")) - 1
        parts = []
        while first < last:
            start = int(self._firsts[number])
            part = self._piece(number)[first - start : last - start]
            parts.append(part.astype(self.dtype, copy=False))
            first += len(part)
            number += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), self.dtype)

    def _piece(self, number: int) -> NDArray[np.floating[Any]]:
        """A mapped file; the one that was used longest ago is let go for it."""
        with self._lock:
            if number not in self._mapped:
                self._mapped[number] = self._pieces[number].map()
                if len(self._mapped) > OPEN:
                    self._mapped.popitem(last=False)
            self._mapped.move_to_end(number)
            return self._mapped[number]
