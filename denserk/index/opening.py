"""Open indexes and folders of vectors, one or several as one.

The rows of flat indexes and of vector folders are one chain of memory-mapped files for exact
search in torch. Approximate indexes beside them are searched by faiss, and the hits are merged.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import BM25_ENGINES, Engine, Metric, SearchSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index import folder, inputs, mapped_files
from denserk.index.bm25 import Bm25Index, recorded_bm25
from denserk.index.engines import Rows, Scores, SearchableIndex, ShardedIndex
from denserk.index.exact_few import CpuExactIndex
from denserk.index.faiss_index import FaissIndex
from denserk.index.language_hints import CommandOfLanguage, language_hint
from denserk.index.lucene import PROCESS_HITS, LuceneIndex
from denserk.index.memory import require_memory
from denserk.index.milvus import MilvusIndex
from denserk.index.searcher import TAIL, PassageNames, Searcher
from denserk.index.terms import TermSpan, bigram_spans, has_bigrams, word_spans
from denserk.io import vectors
from denserk.io.manifest import (
    Description,
    Manifest,
    common_model,
    metric_of,
    mixed_precision,
    model_of,
    vectors_per_passage,
)
from denserk.io.short_texts import first_names
from denserk.io.vector_formats import is_flat, map_flat
from denserk.io.versions import Version, read_whole
from denserk.models.processor import is_surely_cpu

logger = logging.getLogger(__name__)

SAME_MODEL = "search with the model and settings that made the index"  # a hint
# memory of a hit: ten copies of query, row and score (4 bytes each) while they are sorted, and then
# 60 bytes of row, score and id as Python objects
HIT_BYTES = 10 * 3 * 4 + 60


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched."""

    names: Sequence[str]  # of its folders, as they were given
    index: SearchableIndex
    ids: PassageNames
    manifests: Sequence[Manifest | None]  # of each folder; None if another tool wrote it
    versions: Sequence[Version] = ()  # of each folder, unless it is a collection of a server
    sizes: Sequence[int | None] = (None,)  # bytes of each folder; None for a collection of a server
    vectors_per_passage: int = 1  # consecutive rows that are one passage
    bm25: Engine | None = None  # the engine of a BM25 index
    metric: Metric = Metric.INNER
    folder_of: Callable[[int], str] | None = None  # the folder of a passage, by its number

    @property
    def name(self) -> str:
        """The name of the index in messages."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} (and {len(self.names) - 1:,} more)"

    @property
    def model(self) -> Description | None:
        """The model that encoded the vectors, if one of the manifests names it."""
        for manifest in self.manifests:
            model = model_of(manifest)
            if model is not None:
                return model
        return None

    def spans(self, text: str) -> list[TermSpan]:
        """Return where the terms of a text are, for its display.

        They are the terms that the index has. One without terms, or for a language written without
        spaces, is taken to hold any script: words, and bigrams where no spaces part words.
        """
        if self.bm25 is not None and not has_bigrams(recorded_bm25(self.manifests[0])):
            return word_spans(text)
        return bigram_spans(text)

    def hint_without_hits(
        self,
        queries: Iterable[str],
        *,
        in_python: bool = False,
        command_of: CommandOfLanguage | None = None,
    ) -> str:
        """Say why a BM25 index may have no hits for these texts, such as another language.

        The way out is a command, or with `in_python` a call; `command_of` returns another one. For
        an index of vectors, it is empty.
        """
        if self.bm25 is None:
            return ""
        name_in_command = None if in_python else self.name
        return language_hint(name_in_command, self.manifests[0], queries, command_of)

    def warn_without_hits(
        self,
        queries: Mapping[str, str],
        *,
        missing: str = "",
        in_python: bool = False,
        command_of: CommandOfLanguage | None = None,
    ) -> None:
        """Warn of queries without hits: their texts by id.

        `missing` is the end of the sentence: " and are missing from the run".
        """
        if not queries:
            return
        message = f"{len(queries):,} queries have no hits{missing} ({first_names(list(queries))})"
        hint = self.hint_without_hits(queries.values(), in_python=in_python, command_of=command_of)
        if hint:
            message = f"{message}: {hint}"
        logger.warning(message)

    def searcher(self, settings: SearchSettings) -> Searcher:
        """Return a searcher of the index; options that the index does not take are a UsageError."""
        if self.bm25 is not None:
            _reject_options(settings, f"{self.names[0]} is a BM25 index")
        elif not _takes_options(self.index):
            _reject_options(settings, f"{self.names[0]} is searched exactly")
        in_lucene = self.bm25 is Engine.LUCENE
        if in_lucene:
            # each batch starts a process: it takes so many queries that starting Java hardly counts
            query_batch = max(settings.query_batch, PROCESS_HITS // settings.hits)
            settings = replace(settings, query_batch=query_batch)
        return Searcher(
            _configured(self.index, settings),
            self.ids,
            settings,
            self.vectors_per_passage,
            engine_order=in_lucene,
            folder_of=self.folder_of or (lambda passage: self.name),
        )

    def descriptions(self) -> list[Mapping[str, Any]]:
        """Return what a run's manifest records of each folder."""
        records: list[Mapping[str, Any]] = []
        for name, manifest, size in zip(self.names, self.manifests, self.sizes, strict=True):
            contents = {} if manifest is None else manifest.contents
            records.append(
                {
                    "name": name,
                    "sha256": contents.get("sha256", {}),
                    "bytes": size,
                    "search": contents.get("search", {}),
                }
            )
        return records


def _takes_options(index: SearchableIndex) -> bool:
    """Return whether the options of approximate indexes may apply to an index.

    A collection of Milvus rejects those that do not apply to its kind of index itself.
    """
    if isinstance(index, ShardedIndex):
        return not index.is_exhaustive
    return isinstance(index, FaissIndex | MilvusIndex)


def _configured(index: SearchableIndex, settings: SearchSettings) -> SearchableIndex:
    """Return an index to be searched with the options in `settings`; only faiss takes them here."""
    if isinstance(index, FaissIndex):
        return index.with_options(settings)
    if isinstance(index, ShardedIndex) and not index.is_exhaustive:
        parts = [_configured(part, settings) for part in index.parts]
        return replace(index, parts=parts)
    return index


@dataclass(frozen=True)
class Shard:
    """One opened folder: an approximate index, a flat index, or a folder of vectors."""

    name: str
    version: Version
    manifest: Manifest | None  # None if another tool wrote it
    vectors_per_passage: int
    dimension: int
    parts: Sequence[mapped_files.Part]  # one of an index; of a vector folder, one of each block
    metric: Metric | None = None  # None for a vector folder
    approximate: FaissIndex | None = None  # None if the parts are searched exactly


def open_index(
    indexes: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open an index folder with the engine in its manifest, or several folders as one index.

    Flat indexes are searched by torch, whichever engine built them: the file is the same.

    What is opened is one version of each folder. If a folder is replaced later, the open index goes
    on to answer from the old one, or raises a BeingWrittenError where it has to open more files.
    """
    names = inputs.expanded(indexes, "--index")
    for name in names:
        if Path(name).is_file():
            hint = (
                "index it first: denserk index --type bm25 --corpus FILE --output index, or encode "
                "it and denserk index --input vectors --output index"
            )
            raise UsageError(f"--index {name} is a file; expected the folder of an index", hint)
    return read_whole(names, partial(_open_index, names, settings, compute))


def _open_index(
    names: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open a BM25 index, or one or several of vectors."""
    is_one_index = len(names) == 1 and not folder.is_vector_folder(names[0])
    if is_one_index:
        manifest, engine = folder.read_index_manifest(names[0])
        if engine in BM25_ENGINES:
            _reject_options(settings, f"{names[0]} is a BM25 index")
            return _open_bm25(names[0], manifest, engine, compute.threads)
    return _open_vectors(names, settings, compute, is_one_index=is_one_index)


def _open_vectors(
    names: Sequence[str], settings: SearchSettings, compute: ComputeSettings, *, is_one_index: bool
) -> OpenedIndex:
    """Open folders of vectors and indexes of vectors as one index."""
    shards = [_open_shard(name, settings, compute) for name in names]
    _require_one_index(shards)
    metric = _common_metric(shards)
    per_passage = shards[0].vectors_per_passage
    exact_parts: list[mapped_files.Part] = []
    approximate_parts: list[mapped_files.Part] = []
    approximate_indexes: list[SearchableIndex] = []
    for shard in shards:
        if shard.approximate is None:
            exact_parts += shard.parts
        else:
            approximate_parts += shard.parts
            approximate_indexes.append(shard.approximate)
    if not approximate_indexes:
        _reject_options(settings, f"{names[0]} is searched exactly")
    exact_index = None
    if any(part.passages for part in exact_parts):  # a folder of vectors may be empty
        device = settings.index_device or compute.device
        exact_index = _open_exact(exact_parts, metric, per_passage, device, compute.threads)
    index = _as_one_index(exact_index, approximate_indexes, shards)
    if not is_one_index:
        _log_shards(shards, len(index) // per_passage, metric)
        _require_memory_of_hits(settings, len(index))
    # in the order of the index's rows, those of the exact search first
    ids = mapped_files.PassageIds([*exact_parts, *approximate_parts])
    return OpenedIndex(
        names,
        index,
        ids,
        [shard.manifest for shard in shards],
        versions=[shard.version for shard in shards],
        sizes=[folder.folder_bytes(Path(name)) for name in names],
        vectors_per_passage=per_passage,
        metric=metric,
        folder_of=ids.folder_of,
    )


def _as_one_index(
    exact_index: SearchableIndex | None,
    approximate_indexes: Sequence[SearchableIndex],
    shards: Sequence[Shard],
) -> SearchableIndex:
    """Return the indexes of shards as one index, in which the rows of the exact one come first."""
    if exact_index is None:
        indexes = list(approximate_indexes)
    else:
        indexes = [exact_index, *approximate_indexes]
    if not indexes:
        raise InputError(shards[0].name, None, "no vectors", "at least one")
    if len(indexes) == 1:
        return indexes[0]
    return ShardedIndex(indexes, shards[0].dimension, is_exhaustive=not approximate_indexes)


def _open_shard(name: str, settings: SearchSettings, compute: ComputeSettings) -> Shard:
    """Open an index folder or a folder of vectors."""
    version = Version.of(name)
    if folder.is_vector_folder(name):
        return _open_vector_folder(name, version)
    manifest, engine = folder.read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    vectors.check_index(Path(name), manifest)
    if is_flat(Path(name) / folder.INDEX):
        return _open_flat_index(name, version, manifest)
    return _open_approximate_index(name, version, manifest, settings, compute)


def _open_flat_index(name: str, version: Version, manifest: Manifest | None) -> Shard:
    """Open an index folder whose vectors are searched exactly."""
    path = Path(name) / folder.INDEX
    per_passage = vectors_per_passage(manifest)
    flat_vectors, metric = map_flat(path)
    rows, dimension = flat_vectors.shape
    part = mapped_files.Part(
        name,
        path.with_name(folder.DOCID),
        passages=rows // per_passage,
        lines=per_passage,  # the file of ids has a line for each vector
        rows=rows,
        vectors=partial(_map_flat_vectors, path, version),
        version=version,
    )
    return Shard(name, version, manifest, per_passage, dimension, [part], metric)


def _open_approximate_index(
    name: str,
    version: Version,
    manifest: Manifest | None,
    settings: SearchSettings,
    compute: ComputeSettings,
) -> Shard:
    """Open an index folder that faiss searches."""
    path = Path(name) / folder.INDEX
    per_passage = vectors_per_passage(manifest)
    tuned_options = manifest.contents.get("search", {}) if manifest else {}
    device = settings.index_device or compute.device
    index = FaissIndex(path, settings, device, compute.threads, tuned_options)
    recorded_metric = manifest.settings.get("metric") if manifest else None
    if recorded_metric == Metric.INNER and index.metric is not Metric.INNER:
        # denserk 0.2.0 built graphs over product-quantised codes so
        logger.warning(
            f"{name} was to compare by inner product, and compares by Euclidean distance: the "
            "ranking is that of inner products for unit vectors alone; build it again"
        )
    part = mapped_files.Part(
        name,
        path.with_name(folder.DOCID),
        passages=len(index) // per_passage,
        lines=per_passage,  # the file of ids has a line for each vector
        version=version,
    )
    return Shard(name, version, manifest, per_passage, index.dimension, [part], index.metric, index)


def _open_vector_folder(name: str, version: Version) -> Shard:
    """Open a folder of vectors, each of whose blocks is a part."""
    opened = vectors.open_vectors(name)
    per_passage = opened.vectors_per_passage
    parts = []
    for block in opened.finished:
        part = mapped_files.Part(
            name,
            opened.ids_of(block),
            passages=block.count,
            rows=block.count * per_passage,
            vectors=partial(opened.map_block, block),
            version=version,
        )
        parts.append(part)
    return Shard(name, version, opened.manifest, per_passage, opened.dimension, parts)


def _map_flat_vectors(path: Path, version: Version) -> NDArray[np.float32]:
    """Map the (N, D) vectors of a flat index into memory, if it is still that version."""
    with version.reading():
        flat_vectors, _ = map_flat(path)
    return flat_vectors


def _require_one_index(shards: Sequence[Shard]) -> None:
    """Raise a MismatchError for shards that cannot be searched as one index."""
    inputs.require_same("dimensions", [(shard.name, shard.dimension) for shard in shards])
    inputs.require_same(
        "vectors per passage", [(shard.name, shard.vectors_per_passage) for shard in shards]
    )
    metrics = [(shard.name, shard.metric) for shard in shards if shard.metric is not None]
    inputs.require_same("as its metric", metrics)
    manifests = [(shard.name, shard.manifest) for shard in shards]
    manifests_with_model = [(name, manifest) for name, manifest in manifests if model_of(manifest)]
    if manifests_with_model:
        common_model(manifests_with_model)  # an error if they are of different models
    inputs.check_shards(manifests)
    message = mixed_precision(manifests)
    if message is not None:
        logger.warning(f"{message}, and so differ by rounding")


def _common_metric(shards: Sequence[Shard]) -> Metric:
    """Return the metric of the indexes among the shards; of vector folders alone, their model's."""
    for shard in shards:
        if shard.metric is not None:
            return shard.metric
    return metric_of(shards[0].manifest)


def _log_shards(shards: Sequence[Shard], passages: int, metric: Metric) -> None:
    """Log what is searched as one index, and how."""
    name = f"{len(shards):,} shards" if len(shards) > 1 else shards[0].name
    metric_name = "inner product" if metric is Metric.INNER else "distance"
    if any(shard.approximate is not None for shard in shards):
        method = "approximate ones by their own engines"
    else:
        method = "all exactly"
    logger.info(f"{name}: {passages:,} passages, compared by {metric_name}, {method}")


def _require_memory_of_hits(settings: SearchSettings, rows: int) -> None:
    """Raise an error if the hits of a batch of queries do not fit into memory."""
    hits_of_query = min(settings.hits + TAIL, rows)  # the tail shows ties at the cut
    needed = settings.query_batch * hits_of_query * HIT_BYTES
    smaller_batch = max(settings.query_batch // 8, 1)
    hint = f"search with --query-batch {smaller_batch}, or less deep"
    require_memory("searching", {"the top-k": needed}, hint)


def _open_exact(
    parts: Sequence[mapped_files.Part],
    metric: Metric,
    vectors_per_passage: int,
    device: str,
    threads: int | None,
) -> SearchableIndex:
    """Open the exact search: on the device given, or on a GPU if there is one."""
    stored = mapped_files.ChainedVectors(parts)
    if is_surely_cpu(device):  # a few queries on a CPU are searched without importing torch
        return CpuExactIndex(stored, metric, vectors_per_passage, threads)
    import torch

    from denserk.index.exact_gpu import GpuExactIndex
    from denserk.models.devices import choose_device

    if threads:
        torch.set_num_threads(threads)
    if device == "auto" and not torch.cuda.is_available():
        device = "cpu"
    chosen_device = choose_device(device)
    if chosen_device.type == "cuda":
        return GpuExactIndex(stored, metric, str(chosen_device), vectors_per_passage)
    return CpuExactIndex(stored, metric, vectors_per_passage, threads)


def _open_bm25(
    name: str, manifest: Manifest | None, engine: Engine, threads: int | None
) -> OpenedIndex:
    """Open a BM25 index, of bm25s or of Lucene."""
    path = Path(name)
    version = Version.of(name)
    vectors.check_index(path, manifest)
    bm25 = recorded_bm25(manifest)
    index: SearchableIndex
    ids: PassageNames
    folder_of = None
    if engine is Engine.LUCENE:
        count = None if manifest is None else manifest.contents["count"]
        lucene = LuceneIndex(path, bm25, count, threads)
        index = GuardedIndex(lucene, version)
        ids = lucene.names
    else:
        index = Bm25Index(path, bm25, threads)
        part = mapped_files.Part(name, path / folder.DOCID, len(index), version=version)
        passage_ids = mapped_files.PassageIds([part])
        ids = passage_ids
        folder_of = passage_ids.folder_of
    return OpenedIndex(
        [name],
        index,
        ids,
        [manifest],
        versions=[version],
        sizes=[folder.folder_bytes(path)],
        bm25=engine,
        folder_of=folder_of,
    )


class GuardedIndex:
    """An index that opens its folder at each search: only for as long as the folder is the same."""

    def __init__(self, index: SearchableIndex, version: Version) -> None:
        self._index = index
        self._version = version
        self.is_exhaustive = index.is_exhaustive
        self.dimension = index.dimension

    @property
    def breadth(self) -> tuple[str, ...]:
        """See `SearchableIndex`."""
        return self._index.breadth

    def __len__(self) -> int:
        return len(self._index)

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each query, padded."""
        with self._version.reading():
            return self._index.search(queries, depth)


def _reject_options(settings: SearchSettings, reason: str) -> None:
    """Raise a UsageError if an option of approximate indexes is given; it names the first one."""
    if settings.index_options:
        option, value = next(iter(settings.index_options.items()))
        raise UsageError(f"{option} {value}: {reason}", f"leave out {option}")
