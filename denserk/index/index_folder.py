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
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest, require_fields
from denserk.io.vectors import DOCID as DOCID
from denserk.io.vectors import check_index

INDEX = "index"
PART = "#"
NEWLINE = ord("\n")
SPACES = "".join(map(chr, range(33)))  # white space of ASCII, and control characters
AT_ONCE = 1 << 20  # bytes that are searched for line ends at once


class PassageIds(Sequence[str]):
    """The passage ids of rows: lines of a memory-mapped `docid` file.

    Args:
        path: the file.
        rows: expected number of lines. A small file is checked now, a large one with the first
            access: the time to open an index does not grow with its ids.
        size: lines per passage; above 1, they end in "#" and the number of the vector.
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
        if self._rows not in (None, len(found)):
            raise MismatchError(
                f"{self._folder} holds {self._rows:,} vectors but {len(found):,} ids",
                "build the index again with --overwrite",
            )
        return found

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.passages(np.array([row]))[0]

    def passages(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the passage ids of (K,) rows."""
        text, ends = self._text, self._ends[rows].tolist()
        starts = np.where(rows > 0, self._ends[rows - 1] + 1, 0).tolist()
        places = zip(starts, ends, strict=True)
        lines = [text[start:end].decode().rstrip(SPACES) for start, end in places]
        return lines if self._size == 1 else [passage_of(line, self._size) for line in lines]


def passage_of(line: str, size: int) -> str:
    """Return the passage id of a line, given the vectors per passage."""
    return line if size == 1 else line.rpartition(PART)[0]


def part_names(docid: str, count: int) -> list[str]:
    """Return the lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    return [docid] if count == 1 else [f"{docid}{PART}{part}" for part in range(count)]


def vectors_per_passage(manifest: Manifest | None) -> int:
    """Return how many consecutive rows of an index are one passage."""
    return 1 if manifest is None else int(manifest.contents.get("vectors_per_passage", 1))


def read_index_manifest(folder: str | Path) -> tuple[Manifest | None, Engine]:
    """Read and check the manifest of an index folder; None if another tool wrote the index."""
    path = Path(folder)
    foreign = None
    if not (path / NAME).exists():
        if (path / INDEX).is_file() and (path / DOCID).is_file():
            foreign = Engine.FAISS
        elif any(path.glob("segments_*")):
            foreign = Engine.LUCENE
    if foreign:
        check_index(path, None)
        return None, foreign
    manifest = read_manifest(path, Kind.INDEX)
    require_fields(path, manifest, "settings", "engine")
    check_index(path, manifest)
    return manifest, Engine(manifest.settings["engine"])


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
