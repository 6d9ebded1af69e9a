"""Search several index folders and vector folders as one index.

Flat indexes and vector folders are one chain of memory-mapped files for exact search. Approximate
indexes are searched by their own engines, and the hits are merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import BM25_ENGINES, Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.hits import Rows, Scores, VectorIndex, in_order, padding
from denserk.index.index_folder import (
    DOCID,
    INDEX,
    PassageIds,
    read_index_manifest,
    vectors_per_passage,
)
from denserk.index.vector_inputs import require_same
from denserk.io.files import read_file
from denserk.io.flat_file import is_flat, map_flat
from denserk.io.manifest import NAME, Kind, Manifest, decoded
from denserk.io.vectors import open_vectors

# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32

OpenIndex = Callable[[str], VectorIndex]  # opens the approximate index in a folder


class VectorFile(NamedTuple):
    """One file: number and type of its rows, and a function that maps it."""

    rows: int
    dtype: "np.dtype[Any]"
    map: Callable[[], NDArray[np.floating[Any]]]


class ChainedVectors:
    """(N, D) vectors of many files, of which a few are mapped at a time.

    Rows have the type of the files if all have the same, else float32.
    """

    def __init__(self, files: Sequence[VectorFile], dimension: int) -> None:
        self._firsts = np.cumsum([0, *(file.rows for file in files)])
        self.shape = int(self._firsts[-1]), dimension
        types = {file.dtype for file in files}
        self.dtype = types.pop() if len(types) == 1 else np.dtype(np.float32)
        self._map = lru_cache(OPEN)(lambda number: files[number].map())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> NDArray[Any]:
        """Return consecutive rows, without a copy if one file has them, or rows by number."""
        if isinstance(rows, slice):
            first, last, _ = rows.indices(len(self))
            begin = int(np.searchsorted(self._firsts, first, side="right")) - 1
            end = int(np.searchsorted(self._firsts[:-1], last))
            parts = [np.empty((0, self.shape[1]), self.dtype)]
            for number in range(begin, end):
                start = int(self._firsts[number])
                part = self._map(number)[max(first - start, 0) : max(last - start, 0)]
                parts += [part.astype(self.dtype, copy=False)] if len(part) else []
            return parts[1] if len(parts) == 2 else np.concatenate(parts)
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        files = np.searchsorted(self._firsts, rows, side="right") - 1
        for number in np.unique(files).tolist():
            places = np.flatnonzero(files == number)
            found[places] = self._map(number)[rows[places] - self._firsts[number]]
        return found


class IdFile(NamedTuple):
    """A file of ids: its folder, number of passages, lines per passage."""

    shard: str
    path: Path
    passages: int
    lines: int = 1


class ShardIds(Sequence[str]):
    """Passage ids of the rows of all shards; `size` consecutive rows are one passage."""

    def __init__(self, files: Sequence[IdFile], size: int = 1) -> None:
        self._files, self._size = files, size
        self._firsts = np.cumsum([0, *(file.passages for file in files)])
        self._open = lru_cache(OPEN)(self._opened)

    def __len__(self) -> int:
        return int(self._firsts[-1]) * self._size

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return self.passages(np.array([row]))[0]

    def passages(self, rows: Rows) -> list[str]:
        """Return the passage ids of (K,) rows."""
        passages, places = np.unique(rows // self._size, return_inverse=True)
        files = np.searchsorted(self._firsts, passages, side="right") - 1
        names: list[str] = []
        for number in np.unique(files).tolist():
            inside = passages[files == number] - self._firsts[number]
            names += self._open(number).passages(inside * self._files[number].lines)
        if len(set(names)) < len(names):
            seen: dict[str, str] = {}
            for name, number in zip(names, files.tolist(), strict=True):
                shard = self._files[number].shard
                if name in seen:
                    raise MismatchError(
                        f"the id {name} occurs in {seen[name]} and in {shard}",
                        "search shards that share no passage",
                    )
                seen[name] = shard
        return [names[place] for place in places.tolist()]

    def _opened(self, number: int) -> PassageIds:
        file = self._files[number]
        if not file.path.is_file():
            raise InputError(file.path, None, "nothing", "ids, one a line", "make the shard again")
        return PassageIds(file.path, file.passages * file.lines, file.lines)


@dataclass(frozen=True)
class Shard:
    """One folder, inspected but not read."""

    name: str
    manifest: Manifest | None  # None if another tool wrote it
    rows: int
    dimension: int
    size: int  # vectors per passage
    metric: Metric | None  # None for a vector folder
    files: Sequence[VectorFile]  # vectors to search exactly; empty for an approximate index
    ids: Sequence[IdFile]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that its index takes: all but inverted lists is read into memory."""
        made = {} if self.manifest is None else self.manifest.settings
        has_lists = "IVF" in (made.get("factory") or made.get("type", "")).upper()
        return 0 if self.files or has_lists else (Path(self.name) / INDEX).stat().st_size


def is_vector_folder(name: str) -> bool:
    """Return whether a folder holds vectors that denserk wrote, and no index."""
    where = Path(name) / NAME
    if not where.is_file() or (Path(name) / INDEX).exists():
        return False
    return decoded(read_file(where), where).kind is Kind.VECTORS


def inspect_shard(name: str, open_index: OpenIndex) -> Shard:
    """Inspect one folder; an approximate index is opened for its size."""
    manifest: Manifest | None
    if is_vector_folder(name):
        folder = open_vectors(name)
        size, manifest = folder.vectors_per_passage, folder.manifest
        dtype = np.dtype(manifest.contents["dtype"])
        files = [
            VectorFile(block.count * size, dtype, partial(folder.map_block, block, private=True))
            for block in folder.finished
        ]
        ids = [IdFile(name, folder.ids_of(block), block.count) for block in folder.finished]
        return Shard(name, manifest, folder.count, folder.dimension, size, None, files, ids)
    manifest, engine = read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    path, size = Path(name) / INDEX, vectors_per_passage(manifest)
    if not path.is_file():
        raise UsageError(f"{name} is not an index of vectors: it has no file {INDEX}")
    files = []
    if is_flat(path):
        vectors, metric = map_flat(path)
        rows, dimension = vectors.shape
        files = [VectorFile(rows, np.dtype(np.float32), lambda: map_flat(path)[0])]
    else:
        index = open_index(name)
        rows, dimension = len(index), index.dimension
        metric = Metric.INNER if manifest is None else Metric(manifest.settings["metric"])
    ids = [IdFile(name, Path(name) / DOCID, rows // size, size)]
    return Shard(name, manifest, rows, dimension, size, metric, files, ids)


def common_metric(shards: Sequence[Shard]) -> Metric:
    """Return the metric of the indexes; inner product if there are only vector folders."""
    require_same("dimensions", [(shard.name, shard.dimension) for shard in shards])
    require_same("vectors per passage", [(shard.name, shard.size) for shard in shards])
    known = [(shard.name, shard.metric) for shard in shards if shard.metric is not None]
    require_same("as its metric", known)
    return known[0][1] if known else Metric.INNER


class ShardedIndex:
    """Shards as one index; rows are numbered through all of them, exact shards first."""

    def __init__(
        self,
        shards: Sequence[Shard],
        open_exact: Callable[[ChainedVectors], VectorIndex],
        open_index: OpenIndex,
    ) -> None:
        self.dimension = shards[0].dimension
        exact = [shard for shard in shards if shard.files]
        others = [shard for shard in shards if not shard.files and shard.rows]
        files = [file for shard in [*exact, *others] for file in shard.ids]
        self.ids = ShardIds(files, shards[0].size)
        self._parts: list[tuple[int, Callable[[], VectorIndex]]] = []  # rows, open
        if exact:
            vectors = [file for shard in exact for file in shard.files]
            chained = open_exact(ChainedVectors(vectors, self.dimension))
            self._parts.append((len(chained), lambda: chained))
        self._parts += [(shard.rows, partial(open_index, shard.name)) for shard in others]
        self.is_exhaustive = not others

    def __len__(self) -> int:
        return sum(rows for rows, _ in self._parts)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows of all shards for (B, D) queries, padded."""
        scores, rows = padding(len(queries), depth)
        first = 0
        for count, opened in self._parts:
            found, places = opened().search(queries, min(depth, count))
            places = np.where(places < 0, -1, places + first)
            scores, rows = in_order(np.hstack([scores, found]), np.hstack([rows, places]), depth)
            first += count
        return scores, rows
