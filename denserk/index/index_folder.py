"""An index on disk, in the layout that Pyserini opens.

    index            the index, as the engine wrote it (bm25s and Lucene have their own files)
    docid            one passage id per line; line i belongs to vector i (Lucene stores ids itself)
    manifest.json    settings and inputs; `complete: false` until the last file is written

With several vectors per passage, consecutive lines belong to one passage: its id, "#" and the
number of the vector.
"""

import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.config.retrieval import Engine
from denserk.errors import MismatchError, UsageError
from denserk.index.searcher import Rows
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest, require_fields
from denserk.io.vectors import DOCID as DOCID

INDEX = "index"
PART = "#"
# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32


class PassageIds:
    """Passage ids in a memory-mapped `docid` file; call it with (K,) passage numbers.

    Args:
        path: the file.
        lines: expected number of lines.
        size: lines per passage; above 1, they end in "#" and the number of the vector.
    """

    def __init__(self, path: Path, lines: int | None = None, size: int = 1) -> None:
        self._size = size
        self._text: mmap.mmap | bytes = b""
        if not path.is_file():
            raise UsageError(f"{path.parent} is not an index: it has no file {path.name}")
        if length := path.stat().st_size:
            with path.open("rb") as handle:
                self._text = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))
        if self._text[-1:] not in (b"", b"\n"):
            self._ends = np.append(self._ends, length)
        if lines not in (None, len(self._ends)):
            raise MismatchError(
                f"{path.parent} holds {lines:,} vectors but {len(self._ends):,} ids",
                "build the index again with --overwrite",
            )

    def __call__(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages."""
        lines = passages * self._size
        starts = np.where(lines > 0, self._ends[lines - 1] + 1, 0).tolist()
        places = zip(starts, self._ends[lines].tolist(), strict=True)
        names = [self._text[start:end].decode().rstrip() for start, end in places]
        return names if self._size == 1 else [passage_of(name, self._size) for name in names]


class IdFile(NamedTuple):
    """A file of ids: its folder, number of passages, lines per passage."""

    shard: str
    path: Path
    passages: int
    lines: int = 1


class ShardIds:
    """Passage ids in several files; call it with distinct (K,) passage numbers."""

    def __init__(self, files: Sequence[IdFile]) -> None:
        self._files = files
        self._firsts = np.cumsum([0, *(file.passages for file in files)])

        def opened(number: int) -> PassageIds:
            file = files[number]
            return PassageIds(file.path, file.passages * file.lines, file.lines)

        self._open = lru_cache(OPEN)(opened)

    def __call__(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages, each in one shard alone."""
        names = np.empty(len(passages), object)
        for number, places, inside in by_file(self._firsts, passages):
            names[places] = self._open(number)(inside)
        found: list[str] = names.tolist()
        if len(set(found)) < len(found):
            name = next(name for name, times in Counter(found).items() if times > 1)
            files = by_file(self._firsts, passages[names == name])
            one, other = [self._files[n].shard for n, places, _ in files for _ in places][:2]
            raise MismatchError(
                f"the id {name} occurs in {one} and in {other}",
                "search shards that share no passage",
            )
        return found


def by_file(firsts: Rows, wanted: Rows) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield which of `wanted` are in each file: its number, their places, their numbers in it."""
    files = np.searchsorted(firsts, wanted, side="right") - 1
    for number in np.unique(files).tolist():
        places = np.flatnonzero(files == number)
        yield number, places, wanted[places] - firsts[number]


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
    """Return manifest and engine of an index folder; no manifest if another tool wrote it."""
    path = Path(folder)
    if not (path / NAME).exists():
        if (path / INDEX).is_file() and (path / DOCID).is_file():
            return None, Engine.FAISS
        if any(path.glob("segments_*")):
            return None, Engine.LUCENE
    manifest = read_manifest(path, Kind.INDEX)
    require_fields(path, manifest, "settings", "engine")
    return manifest, Engine(manifest.settings["engine"])


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
