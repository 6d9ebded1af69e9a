"""Inverted lists larger than memory: put on the disk while an index is filled, then joined.

faiss writes its inverted lists last, each list's codes and then its ids. So lists that were put
aside in several runs, or that stand in several indexes, are joined list by list, and the file has
the very bytes that `faiss.write_index` gives an index held whole in memory. It holds no path: the
folder can be moved, faiss reads it as any index, and maps its lists from that file when told
`IO_FLAG_MMAP`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, OutputError
from denserk.index.faiss_library import load_faiss, reason
from denserk.reporting import Progress

HELD_BYTES = 1 << 25
LIST_BYTES = 1 << 12
"""Codes and ids that stay in memory before they are put on the disk: in all, or of a list."""
JOINED_BYTES = 1 << 25
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


def list_sizes(ivf: Any) -> NDArray[np.int64]:
    """(lists,) how many entries each list of an index has."""
    lists = ivf.invlists
    size = lists.list_size
    return np.fromiter((size(number) for number in range(lists.nlist)), np.int64, lists.nlist)


@dataclass(frozen=True)
class ListsInFile:
    """Inverted lists at the end of a file, behind their header.

    Attributes:
        path: the file.
        sizes: (lists,) how many entries each has.
        code_size: bytes of an entry's code.
        begin: where the first list stands.
        first: what is added to every id.
    """

    path: Path
    sizes: NDArray[np.integer[Any]]
    code_size: int
    begin: int
    first: int = 0

    @property
    def entry(self) -> int:
        """Bytes of a code and its id."""
        return self.code_size + ID_BYTES

    @property
    def count(self) -> int:
        """Entries of all lists."""
        return int(self.sizes.sum(dtype=np.int64))

    @property
    def end(self) -> int:
        """Where the file must end."""
        return self.begin + self.entry * self.count

    def read(self, begin: int, size: int) -> memoryview:
        """So many bytes from a place on.

        Raises:
            InputError: there are fewer.
        """
        with self.path.open("rb") as handle:
            handle.seek(begin)
            found = handle.read(size)
        if len(found) < size:
            raise InputError(self.path, None, "inverted lists cut short", "all of their bytes")
        return memoryview(found)

    def numbered(self, ids: memoryview) -> memoryview:
        """Ids as they are in the file, as they are among all."""
        return ids if not self.first else (np.frombuffer(ids, "<i8") + self.first).data.cast("B")


def write_with_lists(
    index: Any,
    files: Sequence[ListsInFile],
    handle: BinaryIO,
    progress: Progress = Progress(),  # noqa: B008  (silent)
) -> None:
    """Writes a trained and empty index with the lists of several files; JOINED_BYTES are held.

    Args:
        index: of a kind that `ListsOnDisk.spillable` knows; its count is that of the lists then.
        files: entries of a list follow each other in this order.
        handle: an empty file.
        progress: counts the bytes of lists.

    Raises:
        OutputError: there is no room on the disk.
        InputError: a file is cut short.
    """
    faiss = load_faiss()
    ivf = faiss.extract_index_ivf(index)
    code_size = int(ivf.code_size)
    total: NDArray[np.int64] = np.sum([file.sizes for file in files], axis=0, dtype=np.int64)
    empty = len(lists_header(np.zeros_like(total), code_size))
    index.ntotal = ivf.ntotal = int(total.sum())
    try:
        faiss.write_index(index, handle.name)
    except RuntimeError as error:
        raise OutputError(f"{handle.name} cannot be written: {reason(error)}") from None
    handle.seek(-empty, 2)
    handle.truncate()
    handle.write(lists_header(total, code_size))
    for piece in _joined(files, total):
        handle.write(piece)
        progress.advance(len(piece))


def _joined(files: Sequence[ListsInFile], total: NDArray[np.int64]) -> Iterator[bytes | memoryview]:
    """The lists in their order: a list's codes of every file, then its ids."""
    ends = np.cumsum(total * files[0].entry)
    begins = [file.begin for file in files]
    first = 0
    while first < len(total):
        limit = int(ends[first - 1]) * (first > 0) + JOINED_BYTES
        last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
        if ends[first] > limit:
            yield from _long_list(files, begins, first)
        else:
            yield _short_lists(files, begins, first, last)
        for number, file in enumerate(files):
            begins[number] += file.entry * int(file.sizes[first:last].sum(dtype=np.int64))
        first = last


def _short_lists(
    files: Sequence[ListsInFile], begins: Sequence[int], first: int, last: int
) -> bytes:
    """Lists first..last-1, read from each file at once; they begin there at `begins`."""
    parts: list[list[memoryview]] = [[] for _ in range(2 * (last - first))]
    for file, begin in zip(files, begins, strict=True):
        lengths = file.sizes[first:last].astype(np.int64)
        ends = np.cumsum(lengths * file.entry).tolist()
        read = file.read(begin, ends[-1])
        middles = (np.array(ends) - lengths * ID_BYTES).tolist()
        start = 0
        for at in np.flatnonzero(lengths).tolist():
            parts[2 * at].append(read[start : middles[at]])
            parts[2 * at + 1].append(file.numbered(read[middles[at] : ends[at]]))
            start = ends[at]
    return b"".join(piece for both in parts for piece in both)


def _long_list(
    files: Sequence[ListsInFile], begins: Sequence[int], number: int
) -> Iterator[memoryview]:
    """One list that is too long to be held, in pieces."""
    for ids in (False, True):
        for file, begin in zip(files, begins, strict=True):
            middle = begin + file.code_size * int(file.sizes[number])
            end = middle + ID_BYTES * int(file.sizes[number])
            start, stop = (middle, end) if ids else (begin, middle)
            for at in range(start, stop, JOINED_BYTES):
                piece = file.read(at, min(JOINED_BYTES, stop - at))
                yield file.numbered(piece) if ids else piece


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
        self._code_size = int(self._ivf.code_size)
        self._runs: list[ListsInFile] = []
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
        if self._ivf.ntotal * (self._code_size + ID_BYTES) >= held_bytes(self._ivf.nlist):
            self._put_aside()

    def _held(self) -> NDArray[np.int64]:
        """(lists,) how many entries of each are in memory."""
        return list_sizes(self._ivf)

    def _put_aside(self) -> None:
        """Writes the lists in memory as a run, and empties them."""
        path = self._path.with_name(f".{self._path.name}.lists-{len(self._runs)}.part")
        sizes = self._held()
        begin = len(lists_header(sizes, self._code_size))
        run = ListsInFile(path, sizes.astype(np.uint32), self._code_size, begin)
        self._runs.append(run)
        try:
            writer = self._faiss.FileIOWriter(str(path))
            self._faiss.write_InvertedLists(self._ivf.invlists, writer)
            del writer  # closes the file
        except RuntimeError as error:
            raise OutputError(f"{path} cannot be written: {reason(error)}") from None
        if path.stat().st_size != run.end:
            raise OutputError(f"{path} cannot be written: the disk took only a part")
        self._index.reset()

    def write(self, handle: BinaryIO) -> bool:
        """Writes the index with all its lists; False, and nothing, if none was put aside."""
        if not self._runs:
            return False
        if self._ivf.ntotal:
            self._put_aside()
        write_with_lists(self._index, self._runs, handle)
        return True

    def close(self) -> None:
        """Removes what was put aside."""
        for run in self._runs:
            run.path.unlink(missing_ok=True)
