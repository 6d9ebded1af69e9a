"""Inverted lists larger than memory: put on the disk while an index is filled, then joined.

faiss writes its inverted lists last, each list's codes and then its ids. So lists that were put
aside in several runs are joined list by list, and the file has the very bytes that
`faiss.write_index` gives an index held whole in memory. It holds no path: the folder can be moved,
faiss reads it as any index, and maps its lists from that file when told `IO_FLAG_MMAP`.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.errors import OutputError
from denserk.index.faiss_library import load_faiss, reason

HELD_BYTES = 1 << 25
LIST_BYTES = 1 << 12
"""Codes and ids that stay in memory before they are put on the disk: in all, or of a list."""
JOINED_BYTES = 1 << 26
"""Codes and ids that are joined at once."""
ID_BYTES = 8
HEADER = struct.Struct("<4sQQ4sQ")
"""ilar, lists, bytes of a code, which way the sizes are told, how many numbers these are."""


def held_bytes(lists: int) -> int:
    """Bytes of so many lists that are held together: with many lists more, lest runs be crumbs."""
    return max(HELD_BYTES, LIST_BYTES * lists)


def lists_header(sizes: NDArray[np.int64], code_size: int) -> bytes:
    """What stands before the lists: their sizes, or the pairs (list, size) of those not empty."""
    there = np.flatnonzero(sizes)
    full = len(there) > len(sizes) // 2
    numbers = sizes if full else np.stack([there, sizes[there]], axis=1).ravel()
    way = b"full" if full else b"sprs"
    head = HEADER.pack(b"ilar", len(sizes), code_size, way, len(numbers))
    return head + numbers.astype("<u8").tobytes()


class ListsOnDisk:
    """The lists of an index that is being filled, in memory or put aside on the disk.

    Args:
        index: trained and empty; `spillable` says of which kind.
        path: where the index will be written; runs stand beside it until `close`.
    """

    def __init__(self, index: Any, path: Path) -> None:
        self._faiss = load_faiss()
        self._index, self._path = index, path
        self._ivf = self._faiss.extract_index_ivf(index)
        self._entry = int(self._ivf.code_size) + ID_BYTES
        self._runs: list[Path] = []
        self._sizes: list[NDArray[np.uint32]] = []
        self._count = 0

    @staticmethod
    def spillable(index: Any) -> bool:
        """Whether the lists are all that grows in an empty index, and what its file ends with."""
        faiss = load_faiss()
        try:
            ivf = faiss.extract_index_ivf(index)
        except RuntimeError:
            return False
        empty = lists_header(np.zeros(ivf.nlist, np.int64), ivf.code_size)
        end = bytearray()

        def keep_the_end(data: bytes) -> int:
            end[:] = (end + data[-len(empty) :])[-len(empty) :]
            return len(data)

        faiss.write_index(index, faiss.PyCallbackIOWriter(keep_the_end))
        return end == empty

    def add(self, block: NDArray[np.float32]) -> None:
        """Adds (n, D) vectors, numbered on; puts the lists aside when they have grown large.

        Raises:
            OutputError: there is no room on the disk.
        """
        numbers = np.arange(self._count, self._count + len(block), dtype=np.int64)
        self._index.add_with_ids(block, numbers)
        self._count += len(block)
        if self._ivf.ntotal * self._entry >= held_bytes(self._ivf.nlist):
            self._put_aside()

    def _held(self) -> NDArray[np.int64]:
        """(lists,) how many entries of each are in memory."""
        lists = self._ivf.invlists
        size = lists.list_size
        return np.fromiter((size(number) for number in range(lists.nlist)), np.int64, lists.nlist)

    def _put_aside(self) -> None:
        """Writes the lists in memory as a run, and empties them."""
        run = self._path.with_name(f".{self._path.name}.lists-{len(self._runs)}.part")
        self._runs.append(run)
        sizes = self._held()
        expected = len(self._header(sizes)) + self._entry * int(sizes.sum())
        try:
            writer = self._faiss.FileIOWriter(str(run))
            self._faiss.write_InvertedLists(self._ivf.invlists, writer)
            del writer  # closes the file
        except RuntimeError as error:
            raise OutputError(f"{run} cannot be written: {reason(error)}") from None
        if run.stat().st_size != expected:
            raise OutputError(f"{run} cannot be written: the disk took only a part")
        self._sizes.append(sizes.astype(np.uint32))
        self._index.reset()

    def _header(self, sizes: NDArray[np.int64]) -> bytes:
        return lists_header(sizes, int(self._ivf.code_size))

    def write(self, handle: BinaryIO) -> bool:
        """Writes the index with all its lists; False, and nothing, if none was put aside."""
        if not self._runs:
            return False
        if self._ivf.ntotal:
            self._put_aside()
        total: NDArray[np.int64] = np.stack(self._sizes).sum(axis=0, dtype=np.int64)
        empty = len(self._header(np.zeros_like(total)))
        self._index.ntotal = self._ivf.ntotal = self._count
        self._faiss.write_index(self._index, handle.name)
        handle.seek(-empty, 2)
        handle.truncate()
        handle.write(self._header(total))
        for piece in self._joined(total):
            handle.write(piece)
        return True

    def _joined(self, total: NDArray[np.int64]) -> Iterator[bytes]:
        """The lists in their order, some at a time: a list's codes of every run, then its ids."""
        group = np.cumsum(total * self._entry) // JOINED_BYTES
        edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(total)]
        begins = [len(self._header(sizes.astype(np.int64))) for sizes in self._sizes]
        for first, last in pairwise(edges):
            parts: list[list[memoryview]] = [[] for _ in range(2 * (last - first))]
            for number, (run, sizes) in enumerate(zip(self._runs, self._sizes, strict=True)):
                lengths = sizes[first:last].astype(np.int64)
                ends = np.cumsum(lengths * self._entry).tolist()
                with run.open("rb") as handle:
                    handle.seek(begins[number])
                    read = memoryview(handle.read(ends[-1]))
                begins[number] += ends[-1]
                middles = (np.array(ends) - lengths * ID_BYTES).tolist()
                start = 0
                for at in np.flatnonzero(lengths).tolist():
                    parts[2 * at].append(read[start : middles[at]])
                    parts[2 * at + 1].append(read[middles[at] : ends[at]])
                    start = ends[at]
            yield b"".join(piece for both in parts for piece in both)

    def close(self) -> None:
        """Removes what was put aside."""
        for run in self._runs:
            run.unlink(missing_ok=True)
