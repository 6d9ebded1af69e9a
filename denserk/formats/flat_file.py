"""faiss's file of a flat index: a header of 45 bytes, then float32 rows.

    IxFI (inner product) or IxF2 (squared distance)    4 bytes
    D int32, N int64, two fillers int64                28
    trained, 1 byte; metric int32 (0 inner, 1 l2)      5
    N * D, the number of floats, uint64                8

faiss writes an index only from memory. Written here, a flat index of any size needs the memory of
one block, and it is built and searched without faiss too.
"""

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.formats.files import read_errors
from denserk.settings.retrieval import Metric

HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.12 on."""
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
    """Whether a file begins as a flat index does.

    Raises:
        InputError: it cannot be read.
    """
    with read_errors(path), path.open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """The (N, D) rows of a flat index, mapped into memory, and their metric.

    Raises:
        InputError: the file is not a flat index, or is cut short.
    """
    with read_errors(path), path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        header = handle.read(HEADER.size)
    if header[:4] not in MAGIC.values() or len(header) < HEADER.size:
        raise InputError(path, None, f"a file that begins {header[:4]!r}", "a flat index of faiss")
    magic, dimension, count, *_ = HEADER.unpack(header)
    expected = HEADER.size + 4 * dimension * count
    if dimension < 1 or count < 0 or size != expected:
        raise InputError(
            path,
            None,
            f"{size:,} bytes",
            f"{expected:,}, for {count:,} vectors of {dimension} dimensions",
            "build the index again",
        )
    rows = np.ndarray((count, dimension), "<f4", _mapped(path), HEADER.size)
    return rows, next(metric for metric, value in MAGIC.items() if value == magic)


class FlatRows:
    """The rows of a flat index, read from its file when asked for and never mapped.

    Mapped pages count as the process's memory until the system wants them back; these do not.

    Args:
        path: the file.

    Raises:
        InputError: see `map_flat`.
    """

    def __init__(self, path: Path) -> None:
        mapped, self.metric = map_flat(path)
        self._path = path
        self.shape: tuple[int, int] = mapped.shape[0], mapped.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, D): neighbouring rows by a slice without a step, or some by their sorted numbers."""
        dimension = self.shape[1]
        with read_errors(self._path), self._path.open("rb") as handle:
            if isinstance(wanted, slice):
                first, last, _ = wanted.indices(len(self))
                handle.seek(HEADER.size + 4 * first * dimension)
                count = max(0, last - first) * dimension
                return np.fromfile(handle, "<f4", count).reshape(-1, dimension)
            found = np.empty((len(wanted), dimension), "<f4")
            for row, number in zip(found, wanted.tolist(), strict=True):
                handle.seek(HEADER.size + 4 * number * dimension)
                row[:] = np.fromfile(handle, "<f4", dimension)
            return found


def _mapped(path: Path) -> mmap.mmap:
    """A file mapped so that changes would stay private: torch wants arrays that can be written.

    Linux would set memory aside for the changes, and refuse a file larger than the memory; it is
    told that there will be none.
    """
    with path.open("rb") as handle:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        flags = mmap.MAP_PRIVATE | (NO_RESERVE if sys.platform == "linux" else 0)
        return mmap.mmap(handle.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
