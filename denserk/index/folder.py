"""Index folders: their layout, which is Pyserini's, inputs, and the ids and vectors of several.

    index            the index, as the engine wrote it (bm25s and Lucene have their own files)
    docid            one passage id per line; line i belongs to vector i (Lucene stores ids itself)
    manifest.json    settings and inputs; `complete: false` until the last file is written

With several vectors per passage, consecutive lines belong to one passage: its id, "#" and the
number of the vector.
"""

import glob
import logging
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Engine, Metric
from denserk.errors import MismatchError, UsageError
from denserk.index.searcher import Rows
from denserk.io.corpus import IdLedger
from denserk.io.files import STREAM
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    read_any_manifest,
    read_manifest,
    require_fields,
)
from denserk.io.vector_formats import DOCID as DOCID
from denserk.io.vector_formats import VectorBlock, Vectors, check_dimension, write_flat
from denserk.io.vectors import VectorSource, read_vector_blocks
from denserk.io.versions import Version
from denserk.reporting import track

logger = logging.getLogger(__name__)

INDEX = "index"
PART = "#"
# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32


def passage_of(line: str, size: int) -> str:
    """Return the passage id of a line, given the vectors per passage."""
    return line if size == 1 else line.rpartition(PART)[0]


def part_names(docid: str, count: int) -> list[str]:
    """Return the lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    return [docid] if count == 1 else [f"{docid}{PART}{part}" for part in range(count)]


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
    where = Path(name) / NAME
    if not where.is_file() or (Path(name) / INDEX).exists():
        return False
    return read_any_manifest(where).kind is Kind.VECTORS


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(item.stat().st_size for item in folder.iterdir() if item.is_file())


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
        self._firsts = np.cumsum([0, *(part.passages for part in parts)])
        self._open = lru_cache(OPEN)(lambda number: MappedLines(parts[number]))
        # mapped files stay as they are, also where their folder is replaced
        for number in range(min(len(parts), OPEN)):
            self._open(number)

    def __call__(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages, each in one part alone."""
        names = np.empty(len(passages), object)
        for number, places, inside in by_file(self._firsts, passages):
            mapped = self._open(number)
            text, ends = mapped.text, mapped.ends
            size = self._parts[number].lines
            lines = inside * size
            starts = np.where(lines > 0, ends[lines - 1] + 1, 0).tolist()
            bounds = zip(starts, ends[lines].tolist(), strict=True)
            named = (text[start:end].decode().rstrip() for start, end in bounds)
            names[places] = [passage_of(line, size) for line in named]
        found: list[str] = names.tolist()
        if len(set(found)) < len(found):
            name = next(name for name, times in Counter(found).items() if times > 1)
            files = by_file(self._firsts, passages[names == name])
            one, other = [self._parts[n].shard for n, places, _ in files for _ in places][:2]
            hint = "search shards that share no passage"
            raise MismatchError(f"the id {name} occurs in {one} and in {other}", hint)
        return found

    def folder_of(self, passage: int) -> str:
        """Return the folder of a passage, by its number."""
        number = int(np.searchsorted(self._firsts, passage, side="right")) - 1
        return self._parts[number].shard


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
        self._firsts = np.cumsum([0, *(part.rows for part in stored)])
        self._map = lru_cache(OPEN)(lambda number: _map_vectors(stored[number]))
        # mapped files stay as they are, also where their folder is replaced
        for number in range(min(len(stored), OPEN)):
            self._map(number)
        self.shape = int(self._firsts[-1]), self._map(0).shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> NDArray[Any]:
        """Return consecutive rows, without a copy if one file has them, or rows by number."""
        if isinstance(rows, slice):
            first, last, _ = rows.indices(len(self))
            begin = int(np.searchsorted(self._firsts, first, side="right")) - 1
            end = int(np.searchsorted(self._firsts[:-1], last))
            starts = self._firsts[begin:end].tolist()
            parts = [
                self._map(number)[max(first - start, 0) : last - start]
                for number, start in enumerate(starts, begin)
            ]
            return parts[0] if len(parts) == 1 else np.concatenate([self._map(0)[:0], *parts])
        found = np.empty((len(rows), self.shape[1]), np.float32)
        for number, places, inside in by_file(self._firsts, rows):
            found[places] = self._map(number)[inside]
        return found


def _map_vectors(part: Part) -> NDArray[np.floating[Any]]:
    """Map the vectors of a part that has some."""
    assert part.vectors is not None
    return part.vectors()


def by_file(firsts: Rows, wanted: Rows) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield which of `wanted` are in each file: its number, their places, their numbers in it."""
    files = np.searchsorted(firsts, wanted, side="right") - 1
    for number in np.unique(files).tolist():
        places = np.flatnonzero(files == number)
        yield number, places, wanted[places] - firsts[number]


def expanded(inputs: Sequence[str], option: str = "--input") -> list[str]:
    """Return the inputs of `option`, patterns replaced by the sorted names that they match."""
    found: list[str] = []
    for name in inputs:
        if name == STREAM or Path(name).exists() or not glob.has_magic(name):
            found.append(name)
            continue
        matches = glob.glob(name)  # noqa: PTH207 - patterns with folders
        # shard-2 before shard-10
        matches.sort(key=lambda m: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", m)])
        if not matches:
            raise UsageError(f"{option} {name}: the pattern matches nothing")
        found += matches
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice")
    return found


def open_sources(inputs: Sequence[str], allow_pickle: bool = False) -> list[VectorSource]:
    """Open every input before anything is written."""
    opened = [read_vector_blocks(name, allow_pickle=allow_pickle) for name in expanded(inputs)]
    require_same("vectors per passage", [(s.name, s.vectors_per_passage) for s in opened])
    check_shards([(source.name, source.manifest) for source in opened])
    return opened


def require_same(what: str, named: Sequence[tuple[str, Any]]) -> None:
    """Raise a MismatchError if values, given with the names that they belong to, differ."""
    for name, value in named[1:]:
        if value != named[0][1]:
            raise MismatchError(f"{named[0][0]} has {named[0][1]} {what}, {name} has {value}")


def check_shards(named: Sequence[tuple[str, Manifest | None]]) -> None:
    """Reject shards of one corpus, given with their names, whose block sizes differ.

    Shards are whole blocks, so such shards overlap or leave passages out.
    """
    first: dict[int, tuple[str, Any]] = {}
    ids: set[tuple[int, Any]] = set()
    for name, manifest in named:
        chosen = {} if manifest is None else manifest.settings
        number, shard, size = (chosen.get(k) for k in ("shard_num", "shard_id", "block_size"))
        if not isinstance(number, int) or number < 2 or (number, shard) in ids:
            continue  # a whole corpus, or a shard of another one
        ids.add((number, shard))
        other, expected = first.setdefault(number, (name, size))
        if size != expected:
            blocks = f"in blocks of {expected} passages, {name} in blocks of {size}"
            hint = f"encode all shards with one --block-size, for example {expected}"
            raise MismatchError(f"{other} was encoded {blocks}", hint)
    if len(first) == 1 and 1 < len(ids) == len(named):  # one shard alone may be meant
        (number,) = first
        if missing := sorted(set(range(number)) - {shard for _, shard in ids}):
            logger.warning(f"shards are missing among the inputs: {missing} (counted from 0)")


def known_count(sources: Sequence[VectorSource]) -> int | None:
    """Return the number of passages if the manifest of every source has it."""
    counts = [s.manifest.contents.get("count") if s.manifest else None for s in sources]
    return None if None in counts else sum(int(count or 0) for count in counts)


def checked_blocks(sources: Sequence[VectorSource]) -> Iterator[VectorBlock]:
    """Yield the blocks of several sources; at the end, reject an id that occurred twice."""
    dimension, ids = 0, IdLedger()
    for source in sources:
        ids.start(source.name)
        for block in source.blocks():
            dimension = check_dimension(block, dimension, source.name)
            ids.extend(block.ids)
            yield block

    def again() -> Iterator[str]:
        return (docid for source in sources for block in source.read() for docid in block.ids)

    ids.refuse_repeat(None if STREAM in [source.name for source in sources] else again)


def gather(sources: Sequence[VectorSource], vectors: Path, metric: Metric) -> dict[str, int]:
    """Stream vectors into a flat file, and ids into `docid` beside it; return what is there."""
    size = sources[0].vectors_per_passage
    with track("reading vectors", known_count(sources), "passages") as progress:

        def blocks() -> Iterator[tuple[list[str], Vectors]]:
            for block in checked_blocks(sources):
                names = [name for docid in block.ids for name in part_names(docid, size)]
                yield names, block.vectors
                progress.advance(len(block.ids))

        rows, dimension = write_flat(vectors, metric, blocks())
    return {"count": rows // size, "vectors_per_passage": size, "dimension": dimension}
