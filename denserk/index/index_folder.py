"""An index on disk, in the layout that Pyserini opens.

    index            the index, as the engine wrote it (bm25s and Lucene have their own files)
    docid            one passage id per line; line i belongs to vector i (Lucene stores ids itself)
    manifest.json    settings and inputs; `complete: false` until the last file is written

With several vectors per passage, consecutive lines belong to one passage: its id, "#" and the
number of the vector.
"""

import mmap
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Engine
from denserk.errors import MismatchError, UsageError
from denserk.io.checks import DOCID as DOCID
from denserk.io.checks import check_index
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest, require_fields

INDEX = "index"
PART = "#"
NEWLINE = ord("\n")
SPACES = "".join(map(chr, range(33)))  # white space of ASCII, and control characters
AT_ONCE = 1 << 20  # bytes that are searched for line ends at once


class PassageIds(Sequence[str]):
    """The lines of a memory-mapped `docid` file; line ends are searched for when needed.

    Args:
        path: the file.
        rows: expected number of lines. A small file is checked now, a large one with the first
            access: the time to open an index does not grow with its ids.
        size: lines per passage; above 1, they end in "#" and the number of the vector.

    Raises:
        UsageError: the file does not exist.
        MismatchError: it has another number of lines.
    """

    def __init__(self, path: Path, rows: int | None = None, size: int = 1) -> None:
        self._folder, self._rows, self._size = path.parent, rows, size
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            raise UsageError(f"{path.parent} is not an index: it has no file {DOCID}") from None
        self._text: mmap.mmap | bytes = b""
        if length:
            with path.open("rb") as handle:
                self._text = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        if length <= AT_ONCE:
            _ = self._ends

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The end of each line."""
        text = np.frombuffer(self._text, np.uint8)
        ends = [
            np.flatnonzero(text[first : first + AT_ONCE] == NEWLINE) + first
            for first in range(0, len(text), AT_ONCE)
        ]
        if len(text) and text[-1] != NEWLINE:
            ends.append(np.array([len(text)]))
        found = np.concatenate([np.empty(0, np.int64), *ends])
        if self._rows is not None:
            check_count(self._folder, self._rows, len(found))
        return found

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._lines(np.array([row]))[0]

    def _lines(self, rows: NDArray[np.int64]) -> list[str]:
        text, ends = self._text, self._ends[rows].tolist()
        starts = np.where(rows > 0, self._ends[rows - 1] + 1, 0).tolist()
        places = zip(starts, ends, strict=True)
        return [text[start:end].decode().rstrip(SPACES) for start, end in places]

    def passages(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the passage ids of (K,) rows."""
        lines = self._lines(rows)
        return lines if self._size == 1 else [line.rpartition(PART)[0] for line in lines]


def read_index_manifest(folder: str | Path) -> Manifest | None:
    """Read and check the manifest of an index folder; None if another tool wrote the index.

    Raises:
        UsageError: the folder does not exist, or is not an index.
        MismatchError: it is unfinished, or not an index.
        InputError: its ids are broken, or a file was changed.
    """
    path = Path(folder)
    is_foreign = foreign_engine(path) and not (path / NAME).exists()
    manifest = None if is_foreign else read_manifest(path, Kind.INDEX)
    if manifest is not None:
        require_fields(path, manifest, "settings", "engine")
    check_index(path, manifest)
    return manifest


def foreign_engine(folder: str | Path) -> Engine | None:
    """Return the engine that reads a folder without a manifest, by its files, or None."""
    path = Path(folder)
    if (path / INDEX).is_file() and (path / DOCID).is_file():
        return Engine.FAISS
    return Engine.LUCENE if any(path.glob("segments_*")) else None


def check_count(folder: str | Path, rows: int, ids: int) -> None:
    """Check that an index has as many ids as rows.

    Raises:
        MismatchError: the numbers differ.
    """
    if rows != ids:
        raise MismatchError(
            f"{folder} holds {rows:,} vectors but {ids:,} ids",
            "build the index again with --overwrite",
        )


def part_names(docid: str, count: int) -> list[str]:
    """Return the lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    return [docid] if count == 1 else [f"{docid}{PART}{part}" for part in range(count)]


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
