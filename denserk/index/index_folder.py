"""An index on disk, in the layout that Pyserini opens.

    index            the index, as the engine wrote it (bm25s and Lucene have files of their names)
    docid            one passage id a line; line i belongs to vector i (Lucene keeps ids itself)
    manifest.json    what made it; `complete: false` until the last file is there

With several vectors a passage, the lines of one passage stand together, each the passage's id, "#"
and the number of the vector.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from denserk.errors import MismatchError, UsageError
from denserk.formats.manifest import NAME, Kind, Manifest, read_manifest
from denserk.settings.retrieval import Engine

INDEX = "index"
DOCID = "docid"
PART = "#"


class PassageIds(Sequence[str]):
    """The lines of a `docid` file, mapped into memory: eight bytes an id beside the file.

    Raises:
        UsageError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise UsageError(f"{path.parent} is not an index: it has no file {DOCID}") from None
        self._bytes: mmap.mmap | bytes = b""
        if size:
            with path.open("rb") as handle:
                self._bytes = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.flatnonzero(np.frombuffer(self._bytes, dtype=np.uint8) == ord("\n"))
        if size and self._bytes[size - 1] != ord("\n"):
            ends = np.append(ends, size)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        start = int(self._ends[row - 1]) + 1 if row else 0
        return self._bytes[start : int(self._ends[row])].rstrip().decode("utf-8")


def read_index_manifest(folder: str | Path) -> Manifest | None:
    """The manifest of an index folder; None where another tool wrote the index.

    Raises:
        UsageError: there is no such folder, or it is not an index.
        MismatchError: it is unfinished, or holds something else.
    """
    path = Path(folder)
    if foreign_engine(path) and not (path / NAME).exists():
        return None
    return read_manifest(path, Kind.INDEX)


def foreign_engine(folder: str | Path) -> Engine | None:
    """The engine that reads a folder which has no manifest, by its files; None where none does."""
    path = Path(folder)
    if (path / INDEX).is_file() and (path / DOCID).is_file():
        return Engine.FAISS
    return Engine.LUCENE if any(path.glob("segments_*")) else None


def check_count(folder: str | Path, rows: int, ids: int) -> None:
    """Refuses an index whose rows and ids do not belong together.

    Raises:
        MismatchError: their numbers differ.
    """
    if rows != ids:
        raise MismatchError(
            f"{folder} holds {rows:,} vectors but {ids:,} ids",
            "build the index again with --overwrite",
        )


def part_names(docid: str, count: int) -> list[str]:
    """The lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    return [docid] if count == 1 else [f"{docid}{PART}{part}" for part in range(count)]


def refuse_input_as_output(output: str, inputs: Sequence[str]) -> None:
    """Refuses an output folder that is also an input, which --overwrite would clear.

    Raises:
        UsageError: they are one.
    """
    target = Path(output).resolve()
    for source in inputs:
        if source != "-" and Path(source).resolve() in (target, *target.parents):
            raise UsageError(f"--output {output} lies in the input {source}", "choose another one")


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
