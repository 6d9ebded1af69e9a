"""faiss's file of a flat index: a header of 45 bytes, then float32 rows.

    IxFI (inner product) or IxF2 (squared distance)    4 bytes
    D int32, N int64, two fillers int64                28
    trained, 1 byte; metric int32 (0 inner, 1 l2)      5
    N * D, the number of floats, uint64                8

faiss writes an index only from memory. Written here, a flat index of any size needs the memory of
one block, and can be built and searched without faiss. Ids are lines of the file `docid` beside it.
"""

import mmap
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Metric
from denserk.errors import InputError
from denserk.io.files import read_errors, whole_binary, whole_text

DOCID = "docid"
HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.12 on
MAGIC = {Metric.INNER: b"IxFI", Metric.L2: b"IxF2"}


def flat_header(metric: Metric, dimension: int, count: int) -> bytes:
    """Return the header of an index of `count` vectors."""
    number = list(MAGIC).index(metric)
    sizes = dimension, count, FILLER, FILLER, True, number, count * dimension
    return HEADER.pack(MAGIC[metric], *sizes)


def write_flat(
    path: Path, metric: Metric, blocks: Iterable[tuple[Iterable[str], NDArray[np.floating]]]
) -> int:
    """Write blocks of ids and (n, D) vectors to `path` and to `docid` beside it; return D."""
    count = dimension = 0
    with whole_binary(path) as rows, whole_text(path.with_name(DOCID)) as lines:
        rows.write(bytes(HEADER.size))
        for ids, vectors in blocks:
            count, dimension = count + len(vectors), vectors.shape[1]
            rows.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            lines.writelines(f"{docid}\n" for docid in ids)
        rows.seek(0)
        rows.write(flat_header(metric, dimension, count))
    return dimension


def is_flat(path: Path) -> bool:
    """Return whether a file starts with the header of a flat index."""
    with read_errors(path), path.open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """Return the memory-mapped (N, D) rows of a flat index, and their metric."""
    with read_errors(path), path.open("rb") as handle:
        header, size = handle.read(HEADER.size), path.stat().st_size
        if header[:4] not in MAGIC.values() or len(header) < HEADER.size:
            found = f"a file that begins {header[:4]!r}"
            raise InputError(path, None, found, "a flat index of faiss")
        magic, dimension, count, *_ = HEADER.unpack(header)
        expected = HEADER.size + 4 * dimension * count
        if dimension < 1 or count < 0 or size != expected:
            wanted = f"{expected:,}, for {count:,} vectors of {dimension} dimensions"
            raise InputError(path, None, f"{size:,} bytes", wanted, "build the index again")
        # private, because torch wants writable arrays; by default Linux reserves memory
        # for changes, and rejects a file larger than the memory
        flags = mmap.MAP_PRIVATE | (NO_RESERVE if sys.platform == "linux" else 0)
        mapped = mmap.mmap(handle.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    rows = np.ndarray((count, dimension), "<f4", mapped, HEADER.size)
    return rows, next(metric for metric, value in MAGIC.items() if value == magic)


class FlatRows:
    """The rows of a flat index, copied from its file, which is mapped for each access alone.

    Pages that stay mapped count as memory of the process until the system reclaims them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shape: tuple[int, int] = map_flat(path)[0].shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return (n, D) rows: a slice, or row numbers."""
        return np.array(map_flat(self._path)[0][wanted])
