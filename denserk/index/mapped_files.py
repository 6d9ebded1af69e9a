"""Ids and vectors of several files as one, memory-mapped; a few files are open at a time."""

import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import MismatchError, UsageError
from denserk.index.engines import Rows
from denserk.io.vector_formats import passage_of
from denserk.io.versions import Version

# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32
LINES_AT_ONCE = 4096  # ids copied out of a file at once: bounds the memory of positions


class Part(NamedTuple):
    """Consecutive passages of a shard whose ids and vectors have their own files."""

    shard: str
    ids: Path
    passages: int
    lines: int = 1  # of the file of ids, per passage
    rows: int = 0
    vectors: Callable[[], NDArray[np.floating[Any]]] | None = None  # maps (rows, D) of the version
    version: Version | None = None  # of the shard's folder, in which the ids are opened

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which its files are opened; an error if they are of a later one."""
        return nullcontext() if self.version is None else self.version.reading()


class PassageIds:
    """Passage ids in memory-mapped files; call it with distinct (K,) passage numbers."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._first_passages = np.cumsum([0, *(part.passages for part in parts)])  # of each part
        self._open = lru_cache(OPEN)(lambda number: MappedLines(parts[number]))
        # mapped files stay as they are, also where their folder is replaced
        for number in range(min(len(parts), OPEN)):
            self._open(number)

    def __call__(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages, each in one part alone."""
        ids = np.empty(len(passages), object)
        for part in by_file(self._first_passages, passages):
            ids[part.positions] = self._ids_of_part(part.number, part.rows)
        docids: list[str] = ids.tolist()
        if len(set(docids)) < len(docids):
            raise self._repeat(docids, passages)
        return docids

    def _ids_of_part(self, number: int, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages, by their numbers in a part."""
        mapped = self._open(number)
        ends = mapped.ends
        size = self._parts[number].lines
        lines = passages * size  # the first of each passage
        line_starts = np.where(lines > 0, ends[lines - 1] + 1, 0)
        line_ends = ends[lines]
        ids: list[str] = []
        for first in range(0, len(lines), LINES_AT_ONCE):
            batch = slice(first, first + LINES_AT_ONCE)
            batch_lines = lines_between(mapped.text, line_starts[batch], line_ends[batch])
            ids += map(str.rstrip, batch_lines)
        if size > 1:
            ids = [passage_of(line, size) for line in ids]
        return ids

    def _repeat(self, docids: Sequence[str], passages: Rows) -> MismatchError:
        """Return the error of an id that occurs in two parts."""
        repeated = next(docid for docid, times in Counter(docids).items() if times > 1)
        positions = [position for position, docid in enumerate(docids) if docid == repeated]
        first, second = sorted(passages[positions].tolist())[:2]
        message = (
            f"the id {repeated} occurs in {self.folder_of(first)} and in {self.folder_of(second)}"
        )
        return MismatchError(message, "search shards that share no passage")

    def folder_of(self, passage: int) -> str:
        """Return the folder of a passage, by its number."""
        number = int(np.searchsorted(self._first_passages, passage, side="right")) - 1
        return self._parts[number].shard


def lines_between(text: mmap.mmap | bytes, starts: Rows, ends: Rows) -> list[str]:
    r"""Return the lines that begin and end at (K,) positions of a text, without line ends.

    >>> lines_between(b"d1\nd2\nlast", np.array([6, 0]), np.array([10, 2]))
    ['last', 'd1']
    """
    if not len(starts):
        return []
    # all lines are copied at once, one behind the other, each with a line end
    sizes = ends - starts + 1
    ends_of_copies = np.cumsum(sizes)
    starts_of_copies = ends_of_copies - sizes
    line_ends = ends_of_copies - 1
    # of each byte of the copies, its position in the text
    positions = np.arange(ends_of_copies[-1])
    positions += np.repeat(starts - starts_of_copies, sizes)
    positions[line_ends] = 0  # any byte of the text: the last line may lack its line end
    copies = np.frombuffer(text, np.uint8)[positions]
    copies[line_ends] = ord("\n")
    return copies.tobytes().decode().split("\n")[:-1]


class MappedLines:
    """The bytes of a memory-mapped file of ids, and where its lines end."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.text: mmap.mmap | bytes = b""
        with part.reading():
            if not part.ids.is_file():
                raise UsageError(f"{part.shard} is not an index: it has no file {part.ids.name}")
            with part.ids.open("rb") as handle:
                if os.fstat(handle.fileno()).st_size:
                    self.text = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def ends(self) -> Rows:
        """Positions of the ends of lines, found when the first id is asked for."""
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("\n"))
        if self.text[-1:] not in (b"", b"\n"):
            ends = np.append(ends, len(self.text))
        expected = self._part.passages * self._part.lines
        if len(ends) != expected:
            message = f"{self._part.shard} holds {expected:,} vectors but {len(ends):,} ids"
            raise MismatchError(message, "build the index again with --overwrite")
        return ends


class ChainedVectors:
    """(N, D) float32 or float16 vectors of many files, of which a few are mapped at a time."""

    def __init__(self, parts: Sequence[Part]) -> None:
        stored = [part for part in parts if part.vectors is not None]
        self._first_rows = np.cumsum([0, *(part.rows for part in stored)])  # of each file
        self._map = lru_cache(OPEN)(lambda number: _map_vectors(stored[number]))
        # mapped files stay as they are, also where their folder is replaced
        for number in range(min(len(stored), OPEN)):
            self._map(number)
        self.shape = int(self._first_rows[-1]), self._map(0).shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> NDArray[Any]:
        """Return consecutive rows, without a copy if one file has them, or rows by number."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self._consecutive(start, stop)
        vectors = np.empty((len(rows), self.shape[1]), np.float32)
        for file in by_file(self._first_rows, rows):
            vectors[file.positions] = self._map(file.number)[file.rows]
        return vectors

    def _consecutive(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from `start` to before `stop`."""
        first_file = int(np.searchsorted(self._first_rows, start, side="right")) - 1
        end_file = int(np.searchsorted(self._first_rows[:-1], stop))
        vectors = []
        for number in range(first_file, end_file):
            offset = int(self._first_rows[number])
            vectors.append(self._map(number)[max(start - offset, 0) : stop - offset])
        if len(vectors) == 1:
            return vectors[0]
        no_rows = self._map(0)[:0]
        return np.concatenate([no_rows, *vectors])


def _map_vectors(part: Part) -> NDArray[np.floating[Any]]:
    """Map the vectors of a part that has some."""
    assert part.vectors is not None
    return part.vectors()


class RowsOfFile(NamedTuple):
    """Which of some rows are in a file."""

    number: int  # of the file
    positions: Rows  # among the rows
    rows: Rows  # their numbers within the file


def by_file(first_rows: Rows, rows: Rows) -> Iterator[RowsOfFile]:
    """Yield which rows are in each file, given the number of each file's first row.

    >>> for file in by_file(np.array([0, 10, 20]), np.array([12, 3, 19])):
    ...     print(file.number, file.positions, file.rows)
    0 [1] [3]
    1 [0 2] [2 9]
    """
    files = np.searchsorted(first_rows, rows, side="right") - 1
    for number in np.unique(files).tolist():
        positions = np.flatnonzero(files == number)
        yield RowsOfFile(number, positions, rows[positions] - first_rows[number])
