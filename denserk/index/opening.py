"""Open an index folder, or several folders as one index: engine, passage ids, manifest."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import (
    BM25_ENGINES,
    Bm25Settings,
    Engine,
    IndexSettings,
    IndexType,
    Metric,
    SearchSettings,
)
from denserk.errors import MismatchError, UsageError
from denserk.extras import installed, require
from denserk.index.bm25 import Bm25Index
from denserk.index.faiss_index import FaissIndex, sees_gpu
from denserk.index.index_folder import (
    DOCID,
    INDEX,
    PassageIds,
    folder_bytes,
    foreign_engine,
    read_index_manifest,
)
from denserk.index.lucene import LuceneIndex
from denserk.index.memory import exact_search_needs, require_memory
from denserk.index.searcher import SPARE
from denserk.index.shards import (
    ChainedVectors,
    LastOpened,
    Shard,
    ShardedIndex,
    common_metric,
    inspect_shard,
    is_vector_folder,
)
from denserk.index.vector_index import SearchableIndex, StoredVectors, VectorIndex
from denserk.index.vector_inputs import expanded, refuse_other_blocks
from denserk.io.flat_file import is_flat, map_flat
from denserk.io.manifest import Description, Manifest, model_of, refuse_other_model

logger = logging.getLogger(__name__)

# bytes of a flat index for whose search alone torch is imported
LARGE = 1 << 30
# device files on Linux, one of which exists if torch can use a GPU
GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
# parts of the memory of a search, and what to search if they do not fit
IDS, INDEX_HELD = "offsets of ids", "the largest approximate index"
INSTEAD = {
    IDS: "search folders of vectors in place of the indexes: their ids stay on disk",
    INDEX_HELD: "search the vectors themselves, or a flat index of them: they stay on disk",
}


def chosen_engine(settings: IndexSettings) -> Engine:
    """Return the engine that an index is built with: the named one, or the default.

    Raises:
        MissingExtraError: the type of index needs faiss, which is not installed.

    >>> chosen_engine(IndexSettings(type=IndexType.BM25))
    <Engine.BM25S: 'bm25s'>
    """
    if settings.engine:
        return settings.engine
    if settings.type is IndexType.BM25:
        return Engine.BM25S
    if installed("faiss"):
        return Engine.FAISS
    if settings.type is not IndexType.FLAT or settings.factory:
        require("faiss", f"an index of --type {settings.factory or settings.type}")
    return Engine.TORCH


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched.

    Attributes:
        names: its folders, as they were given.
        index: the engine.
        ids: the id of each row.
        manifests: the manifest of each folder; None if another tool wrote it.
        is_bm25: queries are texts.
        kind: what messages call the folders.
    """

    names: Sequence[str]
    index: SearchableIndex
    ids: Sequence[str]
    manifests: Sequence[Manifest | None]
    is_bm25: bool = False
    kind: str = "index"

    @property
    def name(self) -> str:
        """The name of the index in messages."""
        more = len(self.names) - 1
        return self.names[0] if not more else f"{self.names[0]} (and {more:,} more)"

    @property
    def vectors_per_passage(self) -> int:
        """How many consecutive rows are one passage."""
        contents = {} if self.manifests[0] is None else self.manifests[0].contents
        return int(contents.get("vectors_per_passage", 1))

    @property
    def model(self) -> Description | None:
        """The model that encoded the vectors, if one of the manifests names it."""
        return next((made for m in self.manifests if (made := model_of(m)) is not None), None)

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

    Raises:
        UsageError: a folder does not exist or is not an index, or the memory does not suffice.
        MismatchError: shards differ in model, metric or dimension.
        InputError: a folder is broken.
    """
    names = expanded(indexes, "--index")
    if len(names) > 1 or is_vector_folder(names[0]):
        return _shards(names, settings, compute)
    name = names[0]
    manifest = read_index_manifest(name)
    contents = {} if manifest is None else manifest.contents
    chosen = {} if manifest is None else manifest.settings
    engine = Engine(chosen["engine"]) if chosen else foreign_engine(name)
    assert engine is not None  # read_index_manifest saw to it
    bm25 = from_json(Bm25Settings, chosen.get("bm25", {}))
    if engine in BM25_ENGINES:
        for option, given in settings.index_options.items():
            raise UsageError(f"{option} {given}: {name} is a BM25 index", f"leave out {option}")
    if engine is Engine.LUCENE:
        lucene = LuceneIndex(Path(name), bm25, contents.get("count"), compute.threads)
        return OpenedIndex(names, lucene, lucene.ids, [manifest], is_bm25=True)
    index: SearchableIndex
    size = int(contents.get("vectors_per_passage", 1))
    if engine is Engine.BM25S:
        index = Bm25Index(Path(name), bm25, compute.threads)
    else:
        path = Path(name) / INDEX
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

    A flat index is searched by torch if faiss is not installed, if faiss cannot use the GPU that is
    asked for, and if the CPU is fast in bfloat16: the file is the same.

    Args:
        folder: an index folder.
        engine: what built it.
        settings: how it is searched.
        device: "cpu", "cuda" or "cuda:N".
        threads: CPU threads.
        vectors_per_passage: how many consecutive rows are one passage.
        bfloat16: the CPU multiplies bfloat16 much faster than float32.

    Raises:
        MissingExtraError: it needs faiss, which is not installed.
        UsageError: the folder has no index, or an option does not apply to it.
        MismatchError: it is a BM25 index.
    """
    if engine in BM25_ENGINES:
        raise MismatchError(f"{folder} is a BM25 index, not an index of vectors")
    path = Path(folder) / INDEX
    if not path.is_file():
        raise UsageError(f"{folder} is not an index of vectors: it has no file {INDEX}")
    by_torch = engine is Engine.TORCH
    if not by_torch and is_flat(path):
        by_torch = device == "cpu" and bfloat16
        if not installed("faiss"):
            logger.info("faiss is not installed: torch searches this flat index")
            by_torch = True
        elif device != "cpu" and not sees_gpu():
            logger.info(f"faiss has no GPU support: torch searches this flat index on {device}")
            by_torch = True
    if not by_torch:
        require("faiss", f"the index {folder}")
        return FaissIndex(path, settings, device, threads)
    for name, given in settings.index_options.items():
        raise UsageError(f"{name} {given}: {folder} is searched exactly")
    vectors, metric = map_flat(path)
    return _exact(vectors, metric, device, vectors_per_passage, threads, bfloat16)


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
    if name == "cpu" or (name == "auto" and sys.platform == "linux" and not _has_gpu_driver()):
        return "cpu"
    from denserk.models.devices import choose_device

    return str(choose_device(name))


def _has_gpu_driver() -> bool:
    return any(Path(node).exists() for node in GPU_NODES)


def _has_bfloat16() -> bool:
    from denserk.models.devices import has_bfloat16

    return has_bfloat16()


def _shards(
    names: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open several folders, or a folder of vectors, as one index."""
    device = _device(settings, compute)

    def read(name: str) -> VectorIndex:
        return open_vector_index(
            name, Engine.FAISS, settings, device=device, threads=compute.threads
        )

    approximate = LastOpened(read)
    shards = [inspect_shard(name, approximate) for name in names]
    metric = common_metric(shards)
    models = [(s.name, made) for s in shards if (made := model_of(s.manifest)) is not None]
    for name, made in models[1:]:
        pair = f"{models[0][0]} and {name}"
        refuse_other_model(models[0][1], made, pair, "search shards that one model made")
    refuse_other_blocks([(shard.name, shard.manifest) for shard in shards])
    for name, given in settings.index_options.items():
        if all(shard.is_exact for shard in shards):
            raise UsageError(f"{name} {given}: every shard is searched exactly")
    _require_memory(shards, settings)

    def exact(vectors: ChainedVectors) -> VectorIndex:
        return _exact(vectors, metric, device, shards[0].size, compute.threads, _has_bfloat16())

    index = ShardedIndex(shards, exact, approximate)
    passages = len(index) // shards[0].size
    compared = "inner product" if metric is Metric.INNER else "distance"
    how = "all exactly" if index.is_exhaustive else "approximate ones by their own engines"
    logger.info(
        f"{len(shards):,} shards, {passages:,} passages, compared by {compared}, {how}"
        if len(shards) > 1
        else f"{names[0]}: {passages:,} passages, compared by {compared}, {how}"
    )
    kind = "vectors" if len(shards) == 1 else "shards"
    return OpenedIndex(names, index, index.ids, [shard.manifest for shard in shards], kind=kind)


def _require_memory(shards: Sequence[Shard], settings: SearchSettings) -> None:
    """Raise a UsageError if the memory does not suffice to search the shards."""
    needs: dict[str, int] = {}
    if any(shard.is_exact for shard in shards):
        depth = min(settings.hits + SPARE, sum(shard.rows for shard in shards))
        needs = exact_search_needs(shards[0].dimension, settings.query_batch, depth)
    lines = sum(f.passages * f.lines for shard in shards for f in shard.ids if f.path.name == DOCID)
    needs |= {IDS: 8 * lines, INDEX_HELD: max(shard.held_bytes for shard in shards)}
    fewer = f"--query-batch {max(settings.query_batch // 8, 1)}"
    hint = f"search fewer queries at once, for example {fewer}, or less deep"
    require_memory("searching", needs, INSTEAD.get(max(needs, key=lambda n: needs[n]), hint))
