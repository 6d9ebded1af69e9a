"""faiss's file of a flat index: a header of 45 bytes, then float32 rows.

    IxFI (inner product) or IxF2 (squared distance)    4 bytes
    D int32, N int64, two fillers int64                28
    trained, 1 byte; metric int32 (0 inner, 1 l2)      5
    N * D, the number of floats, uint64                8

faiss writes an index only from memory. Written here, a flat index of any size needs the memory of
one block, and can be built and searched without faiss. In a folder, `docid` beside `index` holds
one id per line: the layout of Pyserini.
"""

import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Metric
from denserk.errors import InputError
from denserk.io.files import read_errors, read_text_lines
from denserk.io.outputs import whole_folder
from denserk.io.vector_block import ROWS, VectorBlock, checked_block

INDEX, IDS = "index", "docid"
HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.12 on
MAGIC = {Metric.INNER: b"IxFI", Metric.L2: b"IxF2"}
NUMBER = {Metric.INNER: 0, Metric.L2: 1}


class FlatWriter:
    """Appends blocks to an open file; only the current block is in memory.

    Args:
        handle: an empty, seekable file.
        metric: the metric that the header names.
    """

    def __init__(self, handle: BinaryIO, metric: Metric) -> None:
        self._handle, self._metric = handle, metric
        self.count = 0
        self.dimension = 0
        handle.write(bytes(HEADER.size))

    def add(self, block: NDArray[np.floating]) -> None:
        """Append (n, D) rows; the first block sets D."""
        self.dimension = self.dimension or block.shape[1]
        assert block.shape[1] == self.dimension, (block.shape, self.dimension)
        self._handle.write(np.ascontiguousarray(block, dtype="<f4").data)
        self.count += len(block)

    def finish(self) -> None:
        """Write the header, now that the count is known."""
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
    """Return whether a file starts with the header of a flat index."""
    with read_errors(path), path.open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """Return the memory-mapped (N, D) rows of a flat index, and their metric.

    Raises:
        InputError: the file is not a flat index, or is truncated.
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
    """The rows of a flat index, read from its file and not memory-mapped.

    Mapped pages count as memory of the process until the system reclaims them; these do not.

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
        """Return (n, D) rows: a slice without a step, or sorted row numbers."""
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
    """Map a file so that changes would stay private: torch wants writable arrays.

    Linux would reserve memory for the changes and reject a file larger than the memory, unless it
    is told not to.
    """
    with path.open("rb") as handle:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        flags = mmap.MAP_PRIVATE | (NO_RESERVE if sys.platform == "linux" else 0)
        return mmap.mmap(handle.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)


def read_folder(folder: str | Path, size: int = 1) -> Iterator[VectorBlock]:
    """Read blocks of vectors of a folder with `index` and `docid`; the index is memory-mapped.

    Args:
        folder: the folder.
        size: vectors per passage; above 1, lines end in "#" and a number.

    Raises:
        InputError: the index is not flat (others do not hold the original vectors), or vectors
            and ids differ in number.
    """
    rows, _ = map_flat(Path(folder) / INDEX)
    lines = read_text_lines(Path(folder) / IDS)
    for start in range(0, len(rows), ROWS * size):
        some = rows[start : start + ROWS * size]
        ids = [line.rstrip() for _, line in islice(lines, len(some))]
        block = checked_block(ids, some, None, folder)
        if size > 1:
            block = block._replace(ids=[line.rpartition("#")[0] for line in block.ids[::size]])
        yield block
    if next(lines, None) is not None:
        found = f"more than {len(rows):,} ids"
        raise InputError(Path(folder) / IDS, None, found, "one for each vector")


@contextmanager
def open_sink(folder: str | Path, *, overwrite: bool) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends a block; the folder is renamed into place when complete."""
    with (
        whole_folder(folder, overwrite=overwrite, export=True) as temporary,
        (temporary / INDEX).open("wb") as rows,
        (temporary / IDS).open("w", encoding="utf-8", newline="\n") as ids,
    ):
        writer = FlatWriter(rows, Metric.INNER)

        def write(block: VectorBlock) -> None:
            writer.add(block.vectors)
            ids.writelines(f"{docid}\n" for docid in block.ids)

        yield write
        writer.finish()
