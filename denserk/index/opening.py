"""Open index folders and folders of vectors, one or several, as one index.

The rows of flat indexes and of vector folders are one chain of memory-mapped files for exact
search in torch. Approximate indexes beside them are searched by faiss, and the hits are merged.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings
from denserk.config.options import from_json
from denserk.config.retrieval import BM25_ENGINES, Bm25Settings, Engine, Metric, SearchSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.bm25 import PROCESS_HITS, Bm25Index, LuceneIndex
from denserk.index.faiss_index import FaissIndex, require_memory
from denserk.index.folder import (
    DOCID,
    INDEX,
    ChainedVectors,
    Part,
    PassageIds,
    check_shards,
    expanded,
    folder_bytes,
    read_index_manifest,
    require_same,
)
from denserk.index.searcher import (
    SPARE,
    FeedbackIndex,
    PassageNames,
    SearchableIndex,
    Searcher,
    ShardedIndex,
)
from denserk.io.files import read_file
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
from denserk.io.vector_formats import is_flat, map_flat
from denserk.io.vectors import check_index, open_vectors

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched."""

    names: Sequence[str]  # of its folders, as they were given
    index: SearchableIndex
    ids: PassageNames
    manifests: Sequence[Manifest | None]  # of each folder; None if another tool wrote it
    bm25: Engine | None = None  # the engine of a BM25 index

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
        in_lucene = self.bm25 is Engine.LUCENE
        if in_lucene:  # so many queries in one process that starting Java hardly counts
            batch = max(settings.query_batch, PROCESS_HITS // settings.hits)
            settings = replace(settings, query_batch=batch)
        size = self.vectors_per_passage
        index = FeedbackIndex(self.index, size, settings) if settings.prf else self.index
        return Searcher(index, self.ids, settings, size, engine_order=in_lucene)

    def described(self) -> list[Mapping[str, Any]]:
        """Return what a run's manifest records of each folder."""
        return [
            {
                "name": name,
                "sha256": {} if manifest is None else manifest.contents.get("sha256", {}),
                "bytes": folder_bytes(Path(name)) if Path(name).is_dir() else None,
                "search": {} if manifest is None else manifest.contents.get("search", {}),
            }
            for name, manifest in zip(self.names, self.manifests, strict=True)
        ]


@dataclass(frozen=True)
class Shard:
    """One opened folder: an approximate index, or else the parts are searched exactly."""

    name: str
    manifest: Manifest | None  # None if another tool wrote it
    size: int  # vectors per passage
    dimension: int
    parts: Sequence[Part]
    metric: Metric | None = None  # None for a vector folder
    approximate: FaissIndex | None = None


def is_vector_folder(name: str) -> bool:
    """Return whether a folder holds vectors that denserk wrote, and no index."""
    where = Path(name) / NAME
    if not where.is_file() or (Path(name) / INDEX).exists():
        return False
    return decoded(read_file(where), where).kind is Kind.VECTORS


def _open_shard(name: str, settings: SearchSettings, compute: ComputeSettings) -> Shard:
    if is_vector_folder(name):
        folder = open_vectors(name)
        size = folder.vectors_per_passage
        parts = []
        for block in folder.finished:
            ids, mapped = folder.ids_of(block), partial(folder.map_block, block)
            parts.append(Part(name, ids, block.count, 1, block.count * size, mapped))
        return Shard(name, folder.manifest, size, folder.dimension, parts)
    manifest, engine = read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    path, size = Path(name) / INDEX, vectors_per_passage(manifest)
    check_index(path.parent, manifest)
    index = None
    if is_flat(path):
        vectors, metric = map_flat(path)
        rows, dimension = vectors.shape
    else:
        tuned = manifest.contents.get("search", {}) if manifest else {}
        settings = replace(settings, **{n: getattr(settings, n) or v for n, v in tuned.items()})
        device = settings.index_device or compute.device
        index = FaissIndex(path, settings, device, compute.threads)
        rows, dimension, metric = len(index), index.dimension, index.metric
    ids = path.with_name(DOCID)
    part = Part(name, ids, rows // size, size, rows, lambda: map_flat(path)[0])
    return Shard(name, manifest, size, dimension, [part], metric, index)


def open_index(
    indexes: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open an index folder with the engine in its manifest, or several folders as one index.

    Flat indexes are searched by torch, whichever engine built them: the file is the same.
    """
    names = expanded(indexes, "--index")
    alone = len(names) == 1 and not is_vector_folder(names[0])
    if alone:
        manifest, engine = read_index_manifest(names[0])
        if engine in BM25_ENGINES:
            return _open_bm25(names[0], manifest, engine, settings, compute.threads)
    shards = [_open_shard(name, settings, compute) for name in names]
    require_same("dimensions", [(shard.name, shard.dimension) for shard in shards])
    require_same("vectors per passage", [(shard.name, shard.size) for shard in shards])
    metrics = [(shard.name, shard.metric) for shard in shards if shard.metric is not None]
    require_same("as its metric", metrics)
    metric = metrics[0][1] if metrics else Metric.INNER
    manifests = [(shard.name, shard.manifest) for shard in shards]
    common_model([pair for pair in manifests if model_of(pair[1])] or manifests)
    check_shards(manifests)

    engines: list[SearchableIndex] = [s.approximate for s in shards if s.approximate is not None]
    exact = [part for s in shards if s.approximate is None for part in s.parts]
    others = [part for s in shards if s.approximate is not None for part in s.parts]
    if not engines:
        _reject_options(settings, f"{names[0]} is searched exactly")
    if sum(part.passages for part in exact):
        engines.insert(0, _exact(exact, metric, shards[0].size, settings, compute))
    if not engines:
        raise InputError(names[0], None, "no vectors", "at least one")
    index = ShardedIndex(engines, shards[0].dimension, is_exhaustive=not others)
    if not alone:
        what = f"{len(shards):,} shards" if len(shards) > 1 else names[0]
        compared = "inner product" if metric is Metric.INNER else "distance"
        how = "approximate ones by their own engines" if others else "all exactly"
        passages = len(index) // shards[0].size
        logger.info(f"{what}: {passages:,} passages, compared by {compared}, {how}")
        # for each hit that is returned: query, row and score; sorting them; row, score, id
        hits = settings.query_batch * min(settings.hits + SPARE, len(index)) * (4 * 3 * 10 + 60)
        fewer = f"--query-batch {max(settings.query_batch // 8, 1)}"
        require_memory("searching", {"the top-k": hits}, f"search with {fewer}, or less deep")
    opened = engines[0] if len(engines) == 1 else index
    ids = PassageIds([*exact, *others])
    return OpenedIndex(names, opened, ids, [shard.manifest for shard in shards])


def _exact(
    parts: Sequence[Part],
    metric: Metric,
    size: int,
    settings: SearchSettings,
    compute: ComputeSettings,
) -> SearchableIndex:
    import torch

    from denserk.index.exact import ExactIndex
    from denserk.models.devices import choose_device, has_bfloat16

    if compute.threads:
        torch.set_num_threads(compute.threads)
    device = settings.index_device or compute.device
    device = str(choose_device(device)) if device != "auto" or torch.cuda.is_available() else "cpu"
    return ExactIndex(ChainedVectors(parts), metric, device, size, bfloat16=has_bfloat16())


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
        return OpenedIndex([name], lucene, lucene.names, [manifest], engine)
    index = Bm25Index(folder, bm25, threads)
    ids = PassageIds([Part(name, folder / DOCID, len(index))])
    return OpenedIndex([name], index, ids, [manifest], engine)


def _reject_options(settings: SearchSettings, reason: str) -> None:
    """Raise a UsageError if an option of approximate indexes is given."""
    for option, given in settings.index_options.items():
        raise UsageError(f"{option} {given}: {reason}", f"leave out {option}")
