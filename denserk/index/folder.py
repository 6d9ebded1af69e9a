"""Index folders: their layout, which is Pyserini's.

    index            the index, as the engine wrote it (bm25s and Lucene have their own files)
    docid            one passage id per line; line i belongs to vector i (Lucene stores ids itself)
    manifest.json    settings and inputs; `complete: false` until the last file is written

With several vectors per passage, consecutive lines belong to one passage: its id, "#" and the
number of the vector.
"""

from pathlib import Path

from denserk.config.retrieval import Engine
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    read_any_manifest,
    read_manifest,
    require_fields,
)
from denserk.io.vector_formats import DOCID as DOCID

INDEX = "index"
PART = "#"


def passage_of(line: str, size: int) -> str:
    """Return the passage id of a line, given the vectors per passage.

    >>> passage_of("d1", 1), passage_of("d1#0", 2)
    ('d1', 'd1')
    """
    return line if size == 1 else line.rpartition(PART)[0]


def part_names(docid: str, count: int) -> list[str]:
    """Return the lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    if count == 1:
        return [docid]
    return [f"{docid}{PART}{number}" for number in range(count)]


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


def is_vector_folder(name: str) -> bool:
    """Return whether a folder holds vectors that denserk wrote, and no index."""
    manifest = Path(name) / NAME
    if not manifest.is_file() or (Path(name) / INDEX).exists():
        return False
    return read_any_manifest(manifest).kind is Kind.VECTORS


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
