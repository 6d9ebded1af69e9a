"""Open index folders and folders of vectors, one or several, as one index.

The rows of flat indexes and of vector folders are one chain of memory-mapped files for exact
search. Approximate indexes beside them are searched by their own engines, and the hits are merged.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from denserk.index.folder import (
    DOCID,
    INDEX,
    ChainedVectors,
    Part,
    PassageIds,
    folder_bytes,
    read_index_manifest,
)
from denserk.index.inputs import check_shards, expanded, require_same
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
from denserk.io.files import read_file
from denserk.io.flat_file import is_flat, map_flat
from denserk.io.manifest import (
    NAME,
    Description,
    Kind,
    Manifest,
    common_model,
    decoded,
    model_of,
    vectors_per_passage,
)
from denserk.io.vectors import check_index, open_vectors

logger = logging.getLogger(__name__)

LARGE = 1 << 30  # bytes of a flat index for whose search alone torch is imported
# device files on Linux, one of which exists if torch can use a GPU
GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


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


@dataclass(frozen=True)
class Shard:
    """One folder, inspected but not read."""

    name: str
    manifest: Manifest | None  # None if another tool wrote it
    rows: int
    dimension: int
    size: int  # vectors per passage
    metric: Metric | None  # None for a vector folder
    parts: Sequence[Part]  # with vectors for exact search in torch; without for an index of faiss
    in_torch: bool
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
        parts = [
            Part(
                name,
                folder.ids_of(block),
                block.count,
                rows=block.count * size,
                vectors=partial(folder.map_block, block),
            )
            for block in folder.finished
        ]
        return Shard(name, folder.manifest, folder.count, folder.dimension, size, None, parts, True)
    manifest, engine = read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    path, size = _index_file(name), vectors_per_passage(manifest)
    check_index(path.parent, manifest)
    in_torch, held = flat_in_torch and (is_flat(path) or engine is Engine.TORCH), 0
    if in_torch:
        vectors, metric = map_flat(path)
        rows, dimension = vectors.shape
    else:
        index = in_faiss(name)
        rows, dimension, metric = len(index), index.dimension, index.metric
        held = 0 if index.has_lists else path.stat().st_size
    mapped = (lambda: map_flat(path)[0]) if in_torch else None
    part = Part(name, path.with_name(DOCID), rows // size, size, rows, mapped)
    return Shard(name, manifest, rows, dimension, size, metric, [part], in_torch, held)


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
    fast in bfloat16: the file is the same. Where a model `encodes` the queries, torch is imported
    in any case.
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

    exact = [shard for shard in shards if shard.in_torch and shard.parts]
    others = [shard for shard in shards if not shard.in_torch and shard.rows]
    if not others:
        _reject_options(settings, f"{names[0]} is searched exactly")
    parts: list[tuple[int, Callable[[], VectorIndex]]] = []
    if exact:
        import torch

        from denserk.index.exact import ExactIndex

        if compute.threads:
            torch.set_num_threads(compute.threads)
        vectors = ChainedVectors([part for shard in exact for part in shard.parts])
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
    ids = PassageIds([part for shard in [*exact, *others] for part in shard.parts])
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
    ids = PassageIds([Part(name, folder / DOCID, len(index))])
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
