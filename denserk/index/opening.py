"""Open an index folder, or several folders as one index: engine, passage ids, manifest."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import BM25_ENGINES, Bm25Settings, Engine, Metric, SearchSettings
from denserk.errors import UsageError
from denserk.extras import installed
from denserk.index.bm25 import Bm25Index
from denserk.index.faiss_index import FaissIndex
from denserk.index.hits import SearchableIndex, StoredVectors, VectorIndex
from denserk.index.index_folder import (
    DOCID,
    INDEX,
    PassageIds,
    folder_bytes,
    read_index_manifest,
    vectors_per_passage,
)
from denserk.index.lucene import LuceneIndex
from denserk.index.memory import require_memory
from denserk.index.searcher import SPARE, Ids, Searcher
from denserk.index.shards import (
    ChainedVectors,
    Shard,
    ShardedIndex,
    common_metric,
    inspect_shard,
    is_vector_folder,
)
from denserk.index.vector_inputs import check_shards, expanded
from denserk.io.flat_file import is_flat, map_flat
from denserk.io.manifest import Description, Manifest, common_model, model_of

logger = logging.getLogger(__name__)

LARGE = 1 << 30  # bytes of a flat index for whose search alone torch is imported
# device files on Linux, one of which exists if torch can use a GPU
GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched."""

    names: Sequence[str]  # of its folders, as they were given
    index: SearchableIndex
    ids: Ids
    manifests: Sequence[Manifest | None]  # of each folder; None if another tool wrote it
    is_bm25: bool = False
    kind: str = "index"  # what messages call the folders

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
        if isinstance(self.index, LuceneIndex):
            settings = self.index.many_at_once(settings)
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


def open_index(
    indexes: Sequence[str],
    settings: SearchSettings,
    compute: ComputeSettings,
    *,
    encodes: bool = True,
) -> OpenedIndex:
    """Open an index folder with the engine in its manifest, or several folders as one index.

    Args:
        indexes: folders of indexes or of vectors, or patterns of such.
        settings: how they are searched.
        compute: device and number of threads.
        encodes: a model encodes the queries, so torch is imported in any case.
    """
    names = expanded(indexes, "--index")
    if len(names) > 1 or is_vector_folder(names[0]):
        return _open_shards(names, settings, compute)
    name = names[0]
    manifest, engine = read_index_manifest(name)
    path, size = Path(name) / INDEX, vectors_per_passage(manifest)
    index: SearchableIndex
    if engine in BM25_ENGINES:
        for option, given in settings.index_options.items():
            raise UsageError(f"{option} {given}: {name} is a BM25 index", f"leave out {option}")
        chosen = {} if manifest is None else manifest.settings.get("bm25", {})
        bm25 = from_json(Bm25Settings, chosen)
        if engine is Engine.LUCENE:
            count = None if manifest is None else manifest.contents["count"]
            lucene = LuceneIndex(Path(name), bm25, count, compute.threads)
            return OpenedIndex(names, lucene, lucene.ids, [manifest], is_bm25=True)
        index = Bm25Index(Path(name), bm25, compute.threads)
    else:
        worth = encodes or (path.is_file() and path.stat().st_size >= LARGE)
        index = open_vector_index(
            name,
            engine,
            settings,
            device=_device(settings, compute),
            threads=compute.threads,
            vectors_per_passage=size,
            bfloat16=worth and _has_bfloat16(),
        )
    ids = PassageIds(Path(name) / DOCID, len(index), size)
    return OpenedIndex(names, index, ids, [manifest], engine in BM25_ENGINES)


def open_vector_index(
    folder: str | Path,
    engine: Engine,
    settings: SearchSettings,
    *,
    device: str = "cpu",
    threads: int | None = None,
    vectors_per_passage: int = 1,
    bfloat16: bool = False,
) -> VectorIndex:
    """Open an index of vectors.

    A flat index is searched by torch if faiss is not installed, on a GPU, and if the CPU is fast in
    bfloat16: the file is the same.
    """
    path = Path(folder) / INDEX
    if not path.is_file():
        raise UsageError(f"{folder} is not an index of vectors: it has no file {INDEX}")
    faster = bfloat16 or device != "cpu" or not installed("faiss")
    if engine is not Engine.TORCH and not (faster and is_flat(path)):
        return FaissIndex(path, settings, device, threads)
    for name, given in settings.index_options.items():
        raise UsageError(f"{name} {given}: {folder} is searched exactly")
    return _exact(*map_flat(path), device, vectors_per_passage, threads, bfloat16)


def _exact(
    vectors: StoredVectors,
    metric: Metric,
    device: str,
    size: int,
    threads: int | None,
    bfloat16: bool,
) -> VectorIndex:
    import torch

    from denserk.index.exact import ExactIndex

    if threads:
        torch.set_num_threads(threads)
    return ExactIndex(vectors, metric, device, size, bfloat16=bfloat16)


def _device(settings: SearchSettings, compute: ComputeSettings) -> str:
    """Return the device of the search; torch is imported only if there may be a GPU."""
    name = settings.index_device or compute.device
    may_have_gpu = sys.platform != "linux" or any(Path(node).exists() for node in GPU_NODES)
    if name == "cpu" or (name == "auto" and not may_have_gpu):
        return "cpu"
    from denserk.models.devices import choose_device

    return str(choose_device(name))


def _has_bfloat16() -> bool:
    from denserk.models.devices import has_bfloat16

    return has_bfloat16()


def _open_shards(
    names: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open several folders, or a folder of vectors, as one index."""
    device, threads = _device(settings, compute), compute.threads
    held: dict[str, VectorIndex] = {}

    def approximate(name: str) -> VectorIndex:
        if name not in held:  # only the last one is kept: all of them may not fit in memory
            held.clear()
            held[name] = open_vector_index(
                name, Engine.FAISS, settings, device=device, threads=threads
            )
        return held[name]

    shards = [inspect_shard(name, approximate) for name in names]
    metric, size = common_metric(shards), shards[0].size
    manifests = [(shard.name, shard.manifest) for shard in shards]
    common_model([pair for pair in manifests if model_of(pair[1])] or manifests)
    check_shards(manifests)
    for name, given in settings.index_options.items():
        if all(shard.files for shard in shards):
            raise UsageError(f"{name} {given}: every shard is searched exactly")
    _require_memory(shards, settings)

    def exact(vectors: ChainedVectors) -> VectorIndex:
        return _exact(vectors, metric, device, size, threads, _has_bfloat16())

    index = ShardedIndex(shards, exact, approximate)
    what = f"{len(shards):,} shards" if len(shards) > 1 else names[0]
    compared = "inner product" if metric is Metric.INNER else "distance"
    how = "all exactly" if index.is_exhaustive else "approximate ones by their own engines"
    logger.info(f"{what}: {len(index) // size:,} passages, compared by {compared}, {how}")
    kind = "vectors" if len(shards) == 1 else "shards"
    return OpenedIndex(names, index, index.ids, [shard.manifest for shard in shards], kind=kind)


def _require_memory(shards: Sequence[Shard], settings: SearchSettings) -> None:
    """Raise a UsageError if the memory does not suffice to search the shards."""
    depth = min(settings.hits + SPARE, sum(shard.rows for shard in shards))
    hits = settings.query_batch * depth if any(shard.files for shard in shards) else 0
    lines = sum(f.passages * f.lines for shard in shards for f in shard.ids if f.path.name == DOCID)
    needs = {
        "a block of vectors": 32_768 * 3 * 4 * shards[0].dimension,  # float32, two copies
        # held for each hit that is returned; key and query; sorting them; row, score, id
        "the top-k": hits * (4 * 3 * 10 + 60),
        "offsets of ids": 8 * lines,
        "the largest approximate index": max(shard.held_bytes for shard in shards),
    }
    fewer = f"--query-batch {max(settings.query_batch // 8, 1)}"
    hint = f"search fewer queries at once, for example {fewer}, or less deep, or a flat index"
    require_memory("searching", needs, hint)
