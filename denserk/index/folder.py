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
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

INDEX = "index"
PART = "#"
# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32
LINES_AT_ONCE = 4096  # ids copied out of a file at once: bounds the memory of positions


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


def expanded(inputs: Sequence[str], option: str = "--input") -> list[str]:
    """Return the inputs of `option`, patterns replaced by the sorted names that they match."""
    names: list[str] = []
    for name in inputs:
        if name == STREAM or Path(name).exists() or not glob.has_magic(name):
            names.append(name)
            continue
        matches = glob.glob(name)  # noqa: PTH207 - patterns with folders
        if not matches:
            raise UsageError(f"{option} {name}: the pattern matches nothing")
        names += sorted(matches, key=_numeric_order)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice")
    return names


def _numeric_order(name: str) -> list[int | str]:
    """Return a key that sorts shard-2 before shard-10."""
    texts_and_numbers = re.split(r"(\d+)", name)
    return [int(text) if text.isdecimal() else text for text in texts_and_numbers]


def open_sources(inputs: Sequence[str], allow_pickle: bool = False) -> list[VectorSource]:
    """Open every input before anything is written."""
    sources = [read_vector_blocks(name, allow_pickle=allow_pickle) for name in expanded(inputs)]
    counts = [(source.name, source.vectors_per_passage) for source in sources]
    require_same("vectors per passage", counts)
    check_shards([(source.name, source.manifest) for source in sources])
    return sources


def require_same(unit: str, values: Sequence[tuple[str, Any]]) -> None:
    """Raise a MismatchError if values, given with the names that they belong to, differ."""
    if not values:
        return
    first_name, first_value = values[0]
    for name, value in values[1:]:
        if value != first_value:
            message = f"{first_name} has {first_value} {unit}, {name} has {value}"
            raise MismatchError(message)


class _Shard(NamedTuple):
    """One of several shards of a corpus, as the manifest of its folder says."""

    folder: str
    shard_num: int  # shards of the corpus
    shard_id: Any
    block_size: Any


def check_shards(manifests: Sequence[tuple[str, Manifest | None]]) -> None:
    """Reject shards of one corpus, given with their names, whose block sizes differ.

    Shards are whole blocks, so such shards overlap or leave passages out.
    """
    shards: dict[tuple[int, Any], _Shard] = {}
    for name, manifest in manifests:
        settings = {} if manifest is None else manifest.settings
        shard_num = settings.get("shard_num")
        if not isinstance(shard_num, int) or shard_num < 2:
            continue  # a whole corpus
        shard = _Shard(name, shard_num, settings.get("shard_id"), settings.get("block_size"))
        # where a shard comes twice, the second one is of another corpus
        shards.setdefault((shard.shard_num, shard.shard_id), shard)
    _require_one_block_size(list(shards.values()))
    are_of_one_corpus = len({shard_num for shard_num, _ in shards}) == 1
    if are_of_one_corpus and len(shards) == len(manifests):
        _warn_of_missing(list(shards.values()))


def _require_one_block_size(shards: Sequence[_Shard]) -> None:
    """Raise a MismatchError if shards of one number differ in their block size."""
    first_shards: dict[int, _Shard] = {}  # by the number of shards
    for shard in shards:
        first = first_shards.setdefault(shard.shard_num, shard)
        if shard.block_size != first.block_size:
            message = (
                f"{first.folder} was encoded in blocks of {first.block_size} passages, "
                f"{shard.folder} in blocks of {shard.block_size}"
            )
            hint = f"encode all shards with one --block-size, for example {first.block_size}"
            raise MismatchError(message, hint)


def _warn_of_missing(shards: Sequence[_Shard]) -> None:
    """Warn if shards of one corpus are not all; one shard alone may be meant."""
    if len(shards) == 1:
        return
    missing = sorted(set(range(shards[0].shard_num)) - {shard.shard_id for shard in shards})
    if missing:
        logger.warning(f"shards are missing among the inputs: {missing} (counted from 0)")


def known_count(sources: Sequence[VectorSource]) -> int | None:
    """Return the number of passages if the manifest of every source has it."""
    total = 0
    for source in sources:
        count = None if source.manifest is None else source.manifest.contents.get("count")
        if count is None:
            return None
        total += int(count)
    return total


def checked_blocks(sources: Sequence[VectorSource]) -> Iterator[VectorBlock]:
    """Yield the blocks of several sources; at the end, reject an id that occurred twice."""
    dimension = 0
    ledger = IdLedger()
    for source in sources:
        ledger.start(source.name)
        for block in source.blocks():
            dimension = check_dimension(block, dimension, source.name)
            ledger.extend(block.ids)
            yield block

    def all_ids() -> Iterator[str]:
        for source in sources:
            for block in source.read():
                yield from block.ids

    has_stream = any(source.name == STREAM for source in sources)  # which is read once
    ledger.refuse_repeat(None if has_stream else all_ids)


def gather(sources: Sequence[VectorSource], vectors: Path, metric: Metric) -> dict[str, int]:
    """Stream vectors into a flat file, and ids into `docid` beside it; return their counts."""
    size = sources[0].vectors_per_passage
    with track("reading vectors", known_count(sources), "passages") as progress:
        blocks = _named_blocks(sources, size, progress)
        rows, dimension = write_flat(vectors, metric, blocks)
    return {"count": rows // size, "vectors_per_passage": size, "dimension": dimension}


def _named_blocks(
    sources: Sequence[VectorSource], size: int, progress: Progress
) -> Iterator[tuple[list[str], Vectors]]:
    """Yield the vectors of sources in blocks, each with the names of its vectors."""
    for block in checked_blocks(sources):
        names: list[str] = []
        for docid in block.ids:
            names += part_names(docid, size)
        yield names, block.vectors
        progress.advance(len(block.ids))
