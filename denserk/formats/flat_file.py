"""faiss's file of a flat index, without faiss: a header of 45 bytes, then float32 rows.

    IxFI (inner product) or IxF2 (squared distance)    4 bytes
    D int32, N int64, two fillers int64                28
    trained, 1 byte; metric int32 (0 inner, 1 l2)      5
    N * D, the number of floats, uint64                8

It is the exact index itself, the input of every other index, and what the torch engine maps into
memory.
"""

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.settings.retrieval import Metric

HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
MAGIC = {Metric.INNER: b"IxFI", Metric.L2: b"IxF2"}
NUMBER = {Metric.INNER: 0, Metric.L2: 1}


class FlatWriter:
    """Appends blocks to an open file; nothing but the block at hand is in memory.

    Args:
        handle: an empty file that can seek; header and rows are written into it.
        metric: how the rows will be compared.
    """

    def __init__(self, handle: BinaryIO, metric: Metric) -> None:
        self._handle, self._metric = handle, metric
        self.count = 0
        self.dimension = 0
        handle.write(bytes(HEADER.size))

    def add(self, block: NDArray[np.floating]) -> None:
        """Appends (n, D) rows; the first block says what D is."""
        self.dimension = self.dimension or block.shape[1]
        assert block.shape[1] == self.dimension, (block.shape, self.dimension)
        self._handle.write(np.ascontiguousarray(block, dtype="<f4").data)
        self.count += len(block)

    def finish(self) -> None:
        """Writes the header, now that the count is known."""
        self._handle.seek(0)
        self._handle.write(
            HEADER.pack(
                MAGIC[self._metric],
                self.dimension,
                self.count,
                FILLER,
                FILLER,
                True,
                NUMBER[self._metric],
                self.count * self.dimension,
            )
        )
        self._handle.seek(0, 2)


def is_flat(path: Path) -> bool:
    """Whether a file begins as a flat index does."""
    with path.open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """The (N, D) rows of a flat index, mapped into memory, and their metric.

    Raises:
        InputError: the file is not a flat index, or is cut short.
    """
    size = path.stat().st_size
    with path.open("rb") as handle:
        header = handle.read(HEADER.size)
    if header[:4] not in MAGIC.values() or len(header) < HEADER.size:
        raise InputError(path, None, f"a file that begins {header[:4]!r}", "a flat index of faiss")
    magic, dimension, count, *_ = HEADER.unpack(header)
    expected = HEADER.size + 4 * dimension * count
    if size != expected:
        raise InputError(
            path,
            None,
            f"{size:,} bytes",
            f"{expected:,}, for {count:,} vectors of {dimension} dimensions",
            "build the index again",
        )
    # "c": changes would stay private; torch wants an array that says it can be written
    rows = np.memmap(path, dtype="<f4", mode="c", offset=HEADER.size, shape=(count, dimension))
    return rows, next(metric for metric, value in MAGIC.items() if value == magic)
