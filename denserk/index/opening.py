"""Open index folders and folders of vectors, one or several, as one index.

The rows of flat indexes and of vector folders are one chain of memory-mapped files for exact
search. Approximate indexes beside them are searched by their own engines, and the hits are merged.
"""

import logging
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import BM25_ENGINES, Bm25Settings, Engine, Metric, SearchSettings
from denserk.errors import MismatchError, UsageError
from denserk.extras import installed
from denserk.index.bm25 import PROCESS_HITS, Bm25Index, LuceneIndex
from denserk.index.faiss_building import require_memory
from denserk.index.faiss_index import FaissIndex
from denserk.index.searcher import (
    SPARE,
    PassageNames,
    Rows,
    Scores,
    SearchableIndex,
    Searcher,
    VectorIndex,
    in_order,
    padding,
)
from denserk.index.vector_inputs import (
    DOCID,
    INDEX,
    check_shards,
    expanded,
    folder_bytes,
    passage_of,
    read_index_manifest,
    require_same,
    vectors_per_passage,
)
from denserk.io.files import read_file
from denserk.io.flat_file import is_flat, map_flat
from denserk.io.manifest import NAME, Description, Kind, Manifest, common_model, decoded, model_of
from denserk.io.vectors import check_index, open_vectors

logger = logging.getLogger(__name__)

LARGE = 1 << 30  # bytes of a flat index for whose search alone torch is imported
# device files on Linux, one of which exists if torch can use a GPU
GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
# files that stay open: enough for vectors that are scanned in order, and for the ids of as many
# indexes; a folder of vectors has many small files, which are opened again for every batch
OPEN = 32


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched."""

    names: Sequence[str]  # of its folders, as they were given
    index: SearchableIndex
    ids: PassageNames
    manifests: Sequence[Manifest | None]  # of each folder; None if another tool wrote it
    is_bm25: bool = False

    @property
    def name(self) -> str:
        """The name of the index in messages."""
        more = len(self.names) - 1
        return self.names[0] if not more else f"{self.names[0]} (and {more:,} more)"

    @property
    def vectors_per_passage(self) -> int:
        """How many consecutive rows are one passage."""
        return vectors_per_passage(self.manifests[0])

    @property
    def model(self) -> Description | None:
        """The model that encoded the vectors, if one of the manifests names it."""
        return next((made for m in self.manifests if (made := model_of(m)) is not None), None)

    def searcher(self, settings: SearchSettings) -> Searcher:
        """Return a searcher of the index."""
        in_lucene = isinstance(self.index, LuceneIndex)
        if in_lucene:  # so many queries in one process that starting Java hardly counts
            batch = max(settings.query_batch, PROCESS_HITS // settings.hits)
            settings = replace(settings, query_batch=batch)
        size = self.vectors_per_passage
        return Searcher(self.index, self.ids, settings, size, engine_order=in_lucene)

    def described(self) -> list[Mapping[str, Any]]:
        """Return what a run's manifest records of each folder."""
        return [
            {
                "name": name,
                "sha256": {} if manifest is None else manifest.contents.get("sha256", {}),
                "bytes": folder_bytes(Path(name)) if Path(name).is_dir() else None,
            }
            for name, manifest in zip(self.names, self.manifests, strict=True)
        ]


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


class VectorFile(NamedTuple):
    """One file: number of its rows, and a function that maps its (rows, D) vectors."""

    rows: int
    map: Callable[[], NDArray[np.floating[Any]]]


class ChainedVectors:
    """(N, D) float32 or float16 vectors of many files, of which a few are mapped at a time."""

    def __init__(self, files: Sequence[VectorFile]) -> None:
        self._firsts = np.cumsum([0, *(file.rows for file in files)])
        self._map = lru_cache(OPEN)(lambda number: files[number].map())
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


@dataclass(frozen=True)
class Shard:
    """One folder, inspected but not read."""

    name: str
    manifest: Manifest | None  # None if another tool wrote it
    rows: int
    dimension: int
    size: int  # vectors per passage
    metric: Metric | None  # None for a vector folder
    files: Sequence[VectorFile]  # vectors for exact search in torch; empty for an index of faiss
    ids: Sequence[IdFile]
    held: int = 0  # bytes of an approximate index in memory; inverted lists stay on the disk


def is_vector_folder(name: str) -> bool:
    """Return whether a folder holds vectors that denserk wrote, and no index."""
    where = Path(name) / NAME
    if not where.is_file() or (Path(name) / INDEX).exists():
        return False
    return decoded(read_file(where), where).kind is Kind.VECTORS


def _inspect(name: str, in_faiss: Callable[[str], FaissIndex], *, flat_in_torch: bool) -> Shard:
    """Inspect one folder; an index for faiss is opened for its size."""
    if is_vector_folder(name):
        folder = open_vectors(name)
        size = folder.vectors_per_passage
        files = [
            VectorFile(block.count * size, partial(folder.map_block, block, private=True))
            for block in folder.finished
        ]
        ids = [IdFile(name, folder.ids_of(block), block.count) for block in folder.finished]
        return Shard(name, folder.manifest, folder.count, folder.dimension, size, None, files, ids)
    manifest, engine = read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    path, size = _index_file(name), vectors_per_passage(manifest)
    check_index(path.parent, manifest)
    files, held = [], 0
    if flat_in_torch and (is_flat(path) or engine is Engine.TORCH):
        vectors, metric = map_flat(path)
        rows, dimension = vectors.shape
        files = [VectorFile(rows, lambda: map_flat(path)[0])]
    else:
        index = in_faiss(name)
        rows, dimension, metric = len(index), index.dimension, index.metric
        held = 0 if index.has_lists else path.stat().st_size
    ids = [IdFile(name, path.with_name(DOCID), rows // size, size)]
    return Shard(name, manifest, rows, dimension, size, metric, files, ids, held)


@dataclass
class ShardedIndex:
    """Several indexes as one, whose rows are numbered through all of them."""

    parts: Sequence[tuple[int, Callable[[], VectorIndex]]]  # number of rows; opens the part
    dimension: int
    is_exhaustive: bool

    def __len__(self) -> int:
        return sum(rows for rows, _ in self.parts)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows of all parts for (B, D) queries, padded."""
        scores, rows = padding(len(queries), depth)
        first = 0
        for count, opened in self.parts:
            found, places = opened().search(queries, min(depth, count))
            places = np.where(places < 0, -1, places + first)
            scores, rows = in_order(np.hstack([scores, found]), np.hstack([rows, places]), depth)
            first += count
        return scores, rows


def open_index(
    indexes: Sequence[str],
    settings: SearchSettings,
    compute: ComputeSettings,
    *,
    encodes: bool = True,
) -> OpenedIndex:
    """Open an index folder with the engine in its manifest, or several folders as one index.

    A flat index alone is searched by torch if faiss is not installed, on a GPU, and if the CPU is
    fast in bfloat16: the file is the same.

    Args:
        indexes: folders of indexes or of vectors, or patterns of such.
        settings: how they are searched.
        compute: device and number of threads.
        encodes: a model encodes the queries, so torch is imported in any case.
    """
    names = expanded(indexes, "--index")
    alone = len(names) == 1 and not is_vector_folder(names[0])
    in_torch = worth = True
    if alone:
        manifest, engine = read_index_manifest(names[0])
        if engine in BM25_ENGINES:
            return _open_bm25(names[0], manifest, engine, settings, compute.threads)
        in_torch = engine is Engine.TORCH or not installed("faiss")
        worth = encodes or _index_file(names[0]).stat().st_size >= LARGE
    device, bfloat16 = _device(settings, compute), False
    if worth:
        from denserk.models.devices import has_bfloat16

        bfloat16 = has_bfloat16()
    held: dict[str, FaissIndex] = {}

    def in_faiss(name: str) -> FaissIndex:
        if name not in held:  # only the last one is kept: all of them may not fit in memory
            held.clear()
            held[name] = FaissIndex(_index_file(name), settings, device, compute.threads)
        return held[name]

    flat_in_torch = in_torch or bfloat16 or device != "cpu"
    shards = [_inspect(name, in_faiss, flat_in_torch=flat_in_torch) for name in names]
    require_same("dimensions", [(shard.name, shard.dimension) for shard in shards])
    require_same("vectors per passage", [(shard.name, shard.size) for shard in shards])
    metrics = [(shard.name, shard.metric) for shard in shards if shard.metric is not None]
    require_same("as its metric", metrics)
    metric = metrics[0][1] if metrics else Metric.INNER
    manifests = [(shard.name, shard.manifest) for shard in shards]
    common_model([pair for pair in manifests if model_of(pair[1])] or manifests)
    check_shards(manifests)

    exact = [shard for shard in shards if shard.files]
    others = [shard for shard in shards if not shard.files and shard.rows]
    if not others:
        _reject_options(settings, f"{names[0]} is searched exactly")
    parts: list[tuple[int, Callable[[], VectorIndex]]] = []
    if exact:
        import torch

        from denserk.index.exact import ExactIndex

        if compute.threads:
            torch.set_num_threads(compute.threads)
        vectors = ChainedVectors([file for shard in exact for file in shard.files])
        scanned = ExactIndex(vectors, metric, device, shards[0].size, bfloat16=bfloat16)
        parts.append((len(scanned), lambda: scanned))
    parts += [(shard.rows, partial(in_faiss, shard.name)) for shard in others]
    index = ShardedIndex(parts, shards[0].dimension, is_exhaustive=not others)
    if not alone:
        what = f"{len(shards):,} shards" if len(shards) > 1 else names[0]
        compared = "inner product" if metric is Metric.INNER else "distance"
        how = "approximate ones by their own engines" if others else "all exactly"
        passages = len(index) // shards[0].size
        logger.info(f"{what}: {passages:,} passages, compared by {compared}, {how}")
        _require_memory(exact, others, settings)
    ids = ShardIds([file for shard in [*exact, *others] for file in shard.ids])
    opened = parts[0][1]() if len(parts) == 1 else index
    return OpenedIndex(names, opened, ids, [shard.manifest for shard in shards])


def _require_memory(
    exact: Sequence[Shard], others: Sequence[Shard], settings: SearchSettings
) -> None:
    """Raise a UsageError if the memory does not suffice to search several folders."""
    rows = sum(shard.rows for shard in exact)
    needs = {
        # held for each hit that is returned; key and query; sorting them; row, score, id
        "the top-k": settings.query_batch * min(settings.hits + SPARE, rows) * (4 * 3 * 10 + 60),
        "the largest approximate index": max((shard.held for shard in others), default=0),
    }
    fewer = f"--query-batch {max(settings.query_batch // 8, 1)}"
    hint = f"search fewer queries at once, for example {fewer}, or less deep, or a flat index"
    require_memory("searching", needs, hint)


def _open_bm25(
    name: str,
    manifest: Manifest | None,
    engine: Engine,
    settings: SearchSettings,
    threads: int | None,
) -> OpenedIndex:
    folder = Path(name)
    check_index(folder, manifest)
    _reject_options(settings, f"{name} is a BM25 index")
    bm25 = from_json(Bm25Settings, {} if manifest is None else manifest.settings.get("bm25", {}))
    if engine is Engine.LUCENE:
        count = None if manifest is None else manifest.contents["count"]
        lucene = LuceneIndex(folder, bm25, count, threads)
        return OpenedIndex([name], lucene, lucene.names, [manifest], is_bm25=True)
    index = Bm25Index(folder, bm25, threads)
    ids = PassageIds(folder / DOCID, len(index))
    return OpenedIndex([name], index, ids, [manifest], is_bm25=True)


def _index_file(folder: str) -> Path:
    path = Path(folder) / INDEX
    if not path.is_file():
        raise UsageError(f"{folder} is not an index of vectors: it has no file {INDEX}")
    return path


def _reject_options(settings: SearchSettings, reason: str) -> None:
    """Raise a UsageError if an option of approximate indexes is given."""
    for option, given in settings.index_options.items():
        raise UsageError(f"{option} {given}: {reason}", f"leave out {option}")


def _device(settings: SearchSettings, compute: ComputeSettings) -> str:
    """Return the device of the search; torch is imported only if there may be a GPU."""
    name = settings.index_device or compute.device
    may_have_gpu = sys.platform != "linux" or any(Path(node).exists() for node in GPU_NODES)
    if name == "cpu" or (name == "auto" and not may_have_gpu):
        return "cpu"
    from denserk.models.devices import choose_device

    return str(choose_device(name))
