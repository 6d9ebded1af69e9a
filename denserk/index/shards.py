"""Several index folders and folders of vectors, searched as one: no shard is held whole.

What can be searched exactly, flat indexes and folders of vectors, is one long array to the exact
engine, whose running top-k goes through all of it. An approximate index is searched by its own
engine, and its hits are merged in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import MismatchError, UsageError
from denserk.formats.files import read_file
from denserk.formats.flat_file import is_flat, map_flat
from denserk.formats.manifest import NAME, Kind, Manifest, decoded
from denserk.formats.vector_folder import VectorFolder, open_vectors
from denserk.index.chained_vectors import ChainedVectors, Piece
from denserk.index.hits import MOST_ROWS
from denserk.index.index_folder import DOCID, INDEX, foreign_engine, read_index_manifest
from denserk.index.shard_ids import IdFile, ShardIds
from denserk.index.vector_index import Rows, Scores, VectorIndex
from denserk.settings.retrieval import BM25_ENGINES, Engine, Metric


@dataclass(frozen=True)
class Shard:
    """One folder, looked at but not read.

    Attributes:
        name: the folder, as it was named.
        manifest: what made it; None where another tool did.
        rows: how many vectors it has.
        dimension: of each of them.
        size: how many neighbouring ones are a passage.
        metric: how they are compared; None where vectors do not say.
        pieces: its vectors, where they are searched exactly; none of an approximate index.
        ids: its files of ids.
    """

    name: str
    manifest: Manifest | None
    rows: int
    dimension: int
    size: int
    metric: Metric | None
    pieces: Sequence[Piece]
    ids: Sequence[IdFile]

    @property
    def is_exact(self) -> bool:
        """Whether its vectors are compared one by one."""
        return bool(self.pieces)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that searching it takes at most: what is no list is read whole."""
        made = {} if self.manifest is None else self.manifest.settings
        has_lists = "IVF" in (made.get("factory") or made.get("type", "")).upper()
        on_disk = self.is_exact or has_lists
        return 0 if on_disk else (Path(self.name) / INDEX).stat().st_size


OpenIndex = Callable[[str], VectorIndex]
"""Opens an approximate index by its folder."""


class LastOpened:
    """Opens indexes, and holds the last one: it is let go before another is read.

    Args:
        open_index: reads an index.
    """

    def __init__(self, open_index: OpenIndex) -> None:
        self._open, self._held = open_index, dict[str, VectorIndex]()

    def __call__(self, name: str) -> VectorIndex:
        """The index of a folder."""
        if name not in self._held:
            self._held.clear()
            self._held[name] = self._open(name)
        return self._held[name]


def is_vector_folder(name: str) -> bool:
    """Whether a folder holds vectors that denserk wrote, and no index of them."""
    where = Path(name) / NAME
    if not where.is_file() or (Path(name) / INDEX).exists():
        return False
    return decoded(read_file(where), where).kind is Kind.VECTORS


def look_at(name: str, open_index: OpenIndex) -> Shard:
    """Looks at one shard.

    Raises:
        UsageError: it is not there, or is neither an index nor a folder of vectors.
        MismatchError: it is unfinished, or a BM25 index.
        InputError: it is broken.
    """
    if is_vector_folder(name):
        return _vectors(name, open_vectors(name))
    manifest = read_index_manifest(name)
    chosen = {} if manifest is None else manifest.settings
    engine = Engine(chosen["engine"]) if chosen else foreign_engine(name)
    if engine in BM25_ENGINES:
        raise MismatchError(
            f"{name} is a BM25 index, not an index of vectors", "search it by itself"
        )
    path = Path(name) / INDEX
    if not path.is_file():
        raise UsageError(f"{name} is not an index of vectors: it has no file {INDEX}")
    size = 1 if manifest is None else int(manifest.contents.get("vectors_per_passage", 1))
    pieces: list[Piece] = []
    if is_flat(path):
        vectors, metric = map_flat(path)
        (rows, dimension), asked = vectors.shape, metric
        pieces = [Piece(rows, np.dtype(np.float32), partial(_flat_rows, path))]
    else:
        index = open_index(name)
        rows, dimension = len(index), index.dimension
        asked = Metric(chosen["metric"]) if chosen else Metric.INNER
    ids = IdFile(name, Path(name) / DOCID, rows // size, size, stays_open=True)
    return Shard(name, manifest, rows, dimension, size, asked, pieces, [ids])


def _vectors(name: str, folder: VectorFolder) -> Shard:
    size, dtype = folder.vectors_per_passage, np.dtype(folder.manifest.contents["dtype"])
    blocks = folder.finished
    pieces = [
        Piece(b.count * size, dtype, partial(folder.map_block, b, private=True)) for b in blocks
    ]
    ids = [IdFile(name, folder.ids_of(block), block.count) for block in blocks]
    return Shard(name, folder.manifest, folder.count, folder.dimension, size, None, pieces, ids)


def _flat_rows(path: Path) -> NDArray[np.float32]:
    return map_flat(path)[0]


def common_metric(shards: Sequence[Shard]) -> Metric:
    """How vectors are compared: as the indexes say; inner product where there are vectors alone.

    Raises:
        MismatchError: two shards differ in their metric, dimension or vectors a passage.
    """
    first = shards[0]
    for other in shards[1:]:
        for what, one, two in (
            ("dimensions", first.dimension, other.dimension),
            ("vectors a passage", first.size, other.size),
        ):
            if one != two:
                raise MismatchError(
                    f"{first.name} has {one} {what}, {other.name} has {two}",
                    "search shards that one model made",
                )
    told = [shard for shard in shards if shard.metric is not None]
    for other in told:
        if other.metric is not told[0].metric:
            raise MismatchError(
                f"{told[0].name} compares by {told[0].metric}, {other.name} by {other.metric}",
                "search indexes of one metric",
            )
    return (told[0].metric if told else None) or Metric.INNER


@dataclass(frozen=True)
class _Part:
    """What one engine searches: its first row among all, how many it has, how it is opened."""

    first: int
    rows: int
    open: Callable[[], VectorIndex]
    is_exact: bool


class ShardedIndex:
    """Shards as one index: rows are counted through, exact shards before approximate ones.

    Exact shards stay open, as they are in their files; of the approximate ones the last that was
    asked is held, and each is read again for every batch of queries where there are several.

    Args:
        shards: of one dimension and size.
        open_exact: makes the exact engine over vectors.
        open_index: opens an approximate index.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        open_exact: Callable[[ChainedVectors], VectorIndex],
        open_index: OpenIndex,
    ) -> None:
        exact = [shard for shard in shards if shard.is_exact]
        others = [shard for shard in shards if not shard.is_exact and shard.rows]
        self.dimension = shards[0].dimension
        files = [file for shard in [*exact, *others] for file in shard.ids]
        self.ids = ShardIds(files, shards[0].size)
        self._parts: list[_Part] = []
        for chained in _chains([p for s in exact for p in s.pieces], self.dimension):
            self._add(len(chained), partial(_itself, open_exact(chained)), is_exact=True)
        for shard in others:
            self._add(shard.rows, partial(open_index, shard.name), is_exact=False)

    def _add(self, rows: int, opened: Callable[[], VectorIndex], *, is_exact: bool) -> None:
        self._parts.append(_Part(len(self), rows, opened, is_exact))

    def __len__(self) -> int:
        return sum(part.rows for part in self._parts)

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row of every shard is compared."""
        return all(part.is_exact for part in self._parts)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows of all shards for each of (B, D) queries; fewer are padded."""
        scores: Scores = np.full((len(queries), depth), -np.inf, np.float32)
        rows: Rows = np.full((len(queries), depth), -1, np.int64)
        for part in self._parts:
            found, places = part.open().search(queries, min(depth, part.rows))
            places = np.where(places < 0, -1, places + part.first)
            if len(self._parts) == 1:
                scores[:, : found.shape[1]], rows[:, : found.shape[1]] = found, places
            else:
                scores, rows = _merged((scores, rows), (found, places), depth)
        self.ids.know(rows)
        return scores, rows


def _itself(index: VectorIndex) -> VectorIndex:
    return index


def _merged(
    held: tuple[Scores, Rows], found: tuple[Scores, Rows], depth: int
) -> tuple[Scores, Rows]:
    """The best of two tables of hits: score descending, row ascending, no hits last."""
    scores = np.concatenate([held[0], found[0]], axis=1)
    rows = np.concatenate([held[1], found[1]], axis=1)
    order = np.lexsort((rows, -scores, rows < 0))[:, :depth]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _chains(pieces: Sequence[Piece], dimension: int) -> list[ChainedVectors]:
    """SubwordTokens put together, as many as the rows of one engine can be counted."""
    groups: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if piece.rows > room:
            groups.append([])
            room = MOST_ROWS
        groups[-1].append(piece)
        room -= piece.rows
    return [ChainedVectors(group, dimension) for group in groups]
