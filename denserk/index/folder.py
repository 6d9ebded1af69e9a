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
    Kind,
    Manifest,
    read_any_manifest,
    read_manifest,
    require_fields,
)
from denserk.io.outputs import DOCID as DOCID
from denserk.io.outputs import INDEX as INDEX
from denserk.io.outputs import MANIFEST


def read_index_manifest(folder: str | Path) -> tuple[Manifest | None, Engine]:
    """Return manifest and engine of an index folder; no manifest if another tool wrote it."""
    path = Path(folder)
    if not (path / MANIFEST).exists():
        if (path / INDEX).is_file() and (path / DOCID).is_file():
            return None, Engine.FAISS
        if any(path.glob("segments_*")):
            return None, Engine.LUCENE
    manifest = read_manifest(path, Kind.INDEX)
    require_fields(path, manifest, "settings", "engine")
    return manifest, Engine(manifest.settings["engine"])


def is_vector_folder(name: str) -> bool:
    """Return whether a folder holds vectors that denserk wrote, and no index."""
    manifest = Path(name) / MANIFEST
    if not manifest.is_file() or (Path(name) / INDEX).exists():
        return False
    return read_any_manifest(manifest).kind is Kind.VECTORS


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())
