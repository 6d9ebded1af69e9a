"""Open indexes and folders of vectors, one or several as one, search them, and write the run.

The rows of flat indexes and of vector folders are one chain of memory-mapped files for exact
search in torch. Approximate indexes beside them are searched by faiss, and the hits are merged.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import Backend, ComputeSettings, Dtype
from denserk.config.options import NOTHING, from_json
from denserk.config.retrieval import (
    BM25_ENGINES,
    Bm25Settings,
    CollectionSettings,
    Engine,
    Metric,
    SearchPaths,
    SearchSettings,
)
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index import folder
from denserk.index.bm25 import PROCESS_HITS, Bm25Index, LuceneIndex, language_hint
from denserk.index.faiss_index import FaissIndex, require_memory
from denserk.index.milvus import MilvusIndex
from denserk.index.searcher import (
    TAIL,
    Hits,
    PassageNames,
    Rows,
    Scores,
    SearchableIndex,
    Searcher,
    ShardedIndex,
)
from denserk.io import vectors
from denserk.io.blocks import texts_sha256
from denserk.io.files import some
from denserk.io.manifest import (
    Description,
    Manifest,
    common_model,
    describe_run,
    forget_file,
    metric_of,
    metric_of_model,
    model_of,
    refuse_other_model,
    vectors_per_passage,
)
from denserk.io.model_files import can_be_on_hub
from denserk.io.runs import write_run
from denserk.io.topics import read_queries
from denserk.io.vector_formats import is_flat, map_flat
from denserk.io.versions import Version, read_whole
from denserk.records import Query
from denserk.reporting import Progress, track

if TYPE_CHECKING:
    from denserk.models.text_encoder import TextEncoder

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 4096  # queries encoded together, sorted by length
MAKER = "search with the model and settings that made the index"


@dataclass(frozen=True)
class OpenedIndex:
    """An index that is ready to be searched."""

    names: Sequence[str]  # of its folders, as they were given
    index: SearchableIndex
    ids: PassageNames
    manifests: Sequence[Manifest | None]  # of each folder; None if another tool wrote it
    versions: Sequence[Version] = ()  # of each folder, unless it is a collection of a server
    sizes: Sequence[int | None] = (None,)  # bytes of each folder
    vectors_per_passage: int = 1  # consecutive rows that are one passage
    bm25: Engine | None = None  # the engine of a BM25 index
    metric: Metric = Metric.INNER
    folder_of: Callable[[int], str] | None = None  # the folder of a passage, by its number

    @property
    def name(self) -> str:
        """The name of the index in messages."""
        more = len(self.names) - 1
        return self.names[0] if not more else f"{self.names[0]} (and {more:,} more)"

    @property
    def model(self) -> Description | None:
        """The model that encoded the vectors, if one of the manifests names it."""
        return next((made for m in self.manifests if (made := model_of(m)) is not None), None)

    def hint_without_hits(self, queries: Iterable[str]) -> str:
        """Say why a BM25 index may have no hits for these texts; of vectors, nothing is known."""
        if self.bm25 is None:
            return ""
        manifest = self.manifests[0]
        recorded = {} if manifest is None else manifest.settings.get("bm25", {})
        return language_hint(queries, from_json(Bm25Settings, recorded))

    def warn_without_hits(self, queries: Mapping[str, str], *, missing: str = "") -> None:
        """Warn of queries without hits, given by id, and `missing`: what that means for a run."""
        if not queries:
            return
        message = f"{len(queries):,} queries have no hits{missing} ({some(list(queries))})"
        hint = self.hint_without_hits(queries.values())
        logger.warning(f"{message}: {hint}" if hint else message)

    def searcher(self, settings: SearchSettings) -> Searcher:
        """Return a searcher of the index, by the options of approximate indexes in `settings`."""
        index = _configured(self.index, settings)
        takes_options = index is not self.index or isinstance(index, MilvusIndex)
        if not takes_options and self.bm25:
            _reject_options(settings, f"{self.names[0]} is a BM25 index")
        elif not takes_options:
            _reject_options(settings, f"{self.names[0]} is searched exactly")
        in_lucene = self.bm25 is Engine.LUCENE
        if in_lucene:  # so many queries in one process that starting Java hardly counts
            batch = max(settings.query_batch, PROCESS_HITS // settings.hits)
            settings = replace(settings, query_batch=batch)
        return Searcher(
            index,
            self.ids,
            settings,
            self.vectors_per_passage,
            engine_order=in_lucene,
            folder_of=self.folder_of or (lambda passage: self.name),
        )

    def described(self) -> list[Mapping[str, Any]]:
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


def _configured(index: SearchableIndex, settings: SearchSettings) -> SearchableIndex:
    """Return an index as it is searched with `settings`; one without a search option is itself."""
    if isinstance(index, FaissIndex):
        return index.with_options(settings)
    if isinstance(index, ShardedIndex) and not index.is_exhaustive:
        parts = [_configured(part, settings) for part in index.parts]
        return replace(index, parts=parts)
    return index


@dataclass(frozen=True)
class Shard:
    """One opened folder: an approximate index, or else the parts are searched exactly."""

    name: str
    version: Version
    manifest: Manifest | None  # None if another tool wrote it
    size: int  # vectors per passage
    dimension: int
    parts: Sequence[folder.Part]
    metric: Metric | None = None  # None for a vector folder
    approximate: FaissIndex | None = None


def _open_shard(name: str, settings: SearchSettings, compute: ComputeSettings) -> Shard:
    version = Version.of(name)
    if folder.is_vector_folder(name):
        return _open_vector_folder(name, version)
    manifest, engine = folder.read_index_manifest(name)
    if engine in BM25_ENGINES:
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    path = Path(name) / folder.INDEX
    size = vectors_per_passage(manifest)
    vectors.check_index(path.parent, manifest)
    index = None
    if is_flat(path):
        flat, metric = map_flat(path)
        rows, dimension = flat.shape
    else:
        tuned_options = manifest.contents.get("search", {}) if manifest else {}
        device = settings.index_device or compute.device
        index = FaissIndex(path, settings, device, compute.threads, tuned_options)
        rows, dimension, metric = len(index), index.dimension, index.metric
    ids = path.with_name(folder.DOCID)
    read_rows = partial(_map_rows, path, version)
    part = folder.Part(name, ids, rows // size, size, rows, read_rows, version)
    return Shard(name, version, manifest, size, dimension, [part], metric, index)


def _open_vector_folder(name: str, version: Version) -> Shard:
    opened = vectors.open_vectors(name)
    size = opened.vectors_per_passage
    parts = []
    for block in opened.finished:
        ids = opened.ids_of(block)
        read_rows = partial(opened.map_block, block)
        rows = block.count * size
        parts.append(folder.Part(name, ids, block.count, 1, rows, read_rows, version))
    return Shard(name, version, opened.manifest, size, opened.dimension, parts)


def _map_rows(path: Path, version: Version) -> NDArray[np.float32]:
    with version.reading():
        rows, _ = map_flat(path)
    return rows


def open_index(
    indexes: Sequence[str], settings: SearchSettings, compute: ComputeSettings
) -> OpenedIndex:
    """Open an index folder with the engine in its manifest, or several folders as one index.

    Flat indexes are searched by torch, whichever engine built them: the file is the same.

    What is opened is one version of each folder. If a folder is replaced later, the open index goes
    on to answer from the old one, or raises a BeingWrittenError where it has to open more files.
    """
    names = folder.expanded(indexes, "--index")
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
    alone = len(names) == 1 and not folder.is_vector_folder(names[0])
    if alone:
        manifest, engine = folder.read_index_manifest(names[0])
        if engine in BM25_ENGINES:
            _reject_options(settings, f"{names[0]} is a BM25 index")
            return _open_bm25(names[0], manifest, engine, compute.threads)
    shards = [_open_shard(name, settings, compute) for name in names]
    folder.require_same("dimensions", [(shard.name, shard.dimension) for shard in shards])
    folder.require_same("vectors per passage", [(shard.name, shard.size) for shard in shards])
    metrics = [(shard.name, shard.metric) for shard in shards if shard.metric is not None]
    folder.require_same("as its metric", metrics)
    metric = metrics[0][1] if metrics else metric_of(shards[0].manifest)
    manifests = [(shard.name, shard.manifest) for shard in shards]
    common_model([pair for pair in manifests if model_of(pair[1])] or manifests)
    folder.check_shards(manifests)

    engines: list[SearchableIndex] = []
    exact_parts: list[folder.Part] = []
    approximate_parts: list[folder.Part] = []
    for shard in shards:
        if shard.approximate is None:
            exact_parts += shard.parts
        else:
            approximate_parts += shard.parts
            engines.append(shard.approximate)
    if not engines:
        _reject_options(settings, f"{names[0]} is searched exactly")
    size = shards[0].size
    if sum(part.passages for part in exact_parts):
        device = settings.index_device or compute.device
        engines.insert(0, _exact(exact_parts, metric, size, device, compute.threads))
    if not engines:
        raise InputError(names[0], None, "no vectors", "at least one")
    index = ShardedIndex(engines, shards[0].dimension, is_exhaustive=not approximate_parts)
    if not alone:
        shards_named = f"{len(shards):,} shards" if len(shards) > 1 else names[0]
        compared = "inner product" if metric is Metric.INNER else "distance"
        searched = "approximate ones by their own engines" if approximate_parts else "all exactly"
        passages = len(index) // size
        logger.info(f"{shards_named}: {passages:,} passages, compared by {compared}, {searched}")
        _require_memory_of_hits(settings, len(index))
    ids = folder.PassageIds([*exact_parts, *approximate_parts])
    return OpenedIndex(
        names,
        engines[0] if len(engines) == 1 else index,
        ids,
        [shard.manifest for shard in shards],
        versions=[shard.version for shard in shards],
        sizes=[folder.folder_bytes(Path(name)) for name in names],
        vectors_per_passage=size,
        metric=metric,
        folder_of=ids.folder_of,
    )


def _require_memory_of_hits(settings: SearchSettings, rows: int) -> None:
    """Raise an error if the hits of a batch of queries do not fit into memory."""
    hits_of_query = min(settings.hits + TAIL, rows)
    # for each hit that is returned: query, row and score; sorting them; row, score, id
    needed = settings.query_batch * hits_of_query * (4 * 3 * 10 + 60)
    smaller_batch = max(settings.query_batch // 8, 1)
    hint = f"search with --query-batch {smaller_batch}, or less deep"
    require_memory("searching", {"the top-k": needed}, hint)


def _exact(
    parts: Sequence[folder.Part], metric: Metric, size: int, device: str, threads: int | None
) -> SearchableIndex:
    import torch

    from denserk.index.exact import ExactIndex
    from denserk.models.devices import choose_device, has_bfloat16

    if threads:
        torch.set_num_threads(threads)
    device = str(choose_device(device)) if device != "auto" or torch.cuda.is_available() else "cpu"
    chained = folder.ChainedVectors(parts)
    return ExactIndex(chained, metric, device, size, bfloat16=has_bfloat16())


def _open_bm25(
    name: str, manifest: Manifest | None, engine: Engine, threads: int | None
) -> OpenedIndex:
    path = Path(name)
    version = Version.of(name)
    vectors.check_index(path, manifest)
    bm25 = from_json(Bm25Settings, {} if manifest is None else manifest.settings.get("bm25", {}))
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
        part = folder.Part(name, path / folder.DOCID, len(index), version=version)
        ids = passage_ids = folder.PassageIds([part])
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
    """Raise a UsageError if an option of approximate indexes is given."""
    for option, value in settings.index_options.items():
        raise UsageError(f"{option} {value}: {reason}", f"leave out {option}")


# answers queries that are printed, from the index that is open
Use = Callable[[OpenedIndex, Callable[[Sequence[Query]], list[tuple[str, Hits]]]], None]


@dataclass(frozen=True)
class PreparedQueries:
    """Queries, what makes vectors of them, or texts (BM25), and the model that encodes them."""

    queries: Sequence[Query]
    encode: Callable[[Sequence[Query]], NDArray[Any]]
    model: Description | None = None


@dataclass
class SearchResult:
    """Counts of queries and hits, queries without hits, seconds of encoding and of search."""

    queries: int = 0
    hits: int = 0
    without_hits: list[str] = field(default_factory=list)
    encoding_seconds: float = 0.0
    searching_seconds: float = 0.0


def search(
    paths: SearchPaths,
    settings: SearchSettings = SearchSettings(),  # noqa: B008  (frozen)
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    milvus: CollectionSettings = CollectionSettings(),  # noqa: B008
    *,
    own_precision: bool = False,
    use: Use | None = None,
) -> SearchResult:
    """Search an index, or else the `milvus` collection, and write the run in the queries' order.

    `use` is called instead, if given, with the open index and a function that answers queries.
    `representation` and `text` hold fields that replace those of the model's settings. `compute` is
    also for the search, unless `settings` has a device. With `own_precision`, queries are encoded
    in its precision even if that is the default; otherwise the default is replaced by the precision
    that the index was encoded in.
    """
    own_precision |= (compute.dtype, compute.head_dtype) != (Dtype.FLOAT32, None)
    if paths.verify:
        encoded = filter(None, [paths.encoded_queries])
        vectors.verify_folders([*folder.expanded(paths.index, "--index"), *encoded])
    topics: list[Query] = []
    with ExitStack() as stack:
        if paths.engine is Engine.MILVUS:
            index = stack.enter_context(closing(MilvusIndex(milvus, settings)))
            opened = OpenedIndex(
                (index.place,),
                index,
                index.names,
                (index.manifest,),
                vectors_per_passage=index.size,
            )
        else:
            opened = open_index(paths.index, settings, compute)
        searcher = opened.searcher(settings)
        if paths.topics is not None:
            topics = list(read_queries(paths.topics, paths.topics_format, paths.qrels))
        topics += [Query(f"q{number}", text) for number, text in enumerate(paths.query, 1)]
        if opened.bm25:
            prepared = _texts(paths, opened, topics)
        elif paths.encoded_queries is not None:
            prepared = _loaded(paths, opened, paths.encoded_queries, topics)
        else:
            encoder = load_query_encoder(
                opened,
                paths.model,
                (representation, text),
                compute,
                own_precision=own_precision,
                force=paths.force,
            )
            prepared = PreparedQueries(topics, encoder.encode_queries, encoder.description())
        if use is not None:

            def answer(queries: Sequence[Query]) -> list[tuple[str, Hits]]:
                qids = [query.qid for query in queries]
                return list(searcher.search(qids, prepared.encode(queries)))

            use(opened, answer)
            searcher.warn_of_short_lists()
            return SearchResult()
        result = _write_run(paths, opened, searcher, prepared)
        indexes = opened.described()
    topics_sha256 = texts_sha256(query[:2] for query in topics)
    made_from = {
        "index": indexes[0] if len(indexes) == 1 else indexes,
        "model": prepared.model,
        "encoded_queries": paths.encoded_queries,
        "topics": {"name": paths.topics, "sha256": topics_sha256} if topics else None,
        **({"qrels": paths.qrels} if paths.qrels else {}),
    }
    contents = {
        "queries": result.queries,
        "hits": result.hits,
        "ties": searcher.ranking.tied_hits,
        "without_hits": len(result.without_hits),
        "seconds": {"encoding": result.encoding_seconds, "searching": result.searching_seconds},
    }
    ties = searcher.ranking.ties.value
    describe_run(paths.output, settings, made_from, contents, ties=ties)
    return result


def _write_run(
    paths: SearchPaths, opened: OpenedIndex, searcher: Searcher, prepared: PreparedQueries
) -> SearchResult:
    """Search for batches of queries, which are encoded when they are needed."""
    result = SearchResult()
    settings = searcher.settings
    queries = prepared.queries
    step = settings.query_batch * max(1, ENCODED_AT_ONCE // settings.query_batch)

    def answers(progress: Progress) -> Iterator[tuple[str, Hits]]:
        for first in range(0, len(queries), step):
            batch = queries[first : first + step]
            start = time.perf_counter()
            encoded = prepared.encode(batch)
            result.encoding_seconds += time.perf_counter() - start
            for qid, hits in searcher.search([query.qid for query in batch], encoded):
                yield qid, hits
                result.queries += 1
                if not hits:
                    result.without_hits.append(qid)
                progress.advance()

    forget_file(paths.output)
    start = time.perf_counter()
    with track("searching", len(queries), "queries") as progress:
        result.hits = write_run(
            paths.output,
            answers(progress),
            settings.output_format,
            settings.tag,
            searcher.score_format,
        )
    result.searching_seconds = time.perf_counter() - start - result.encoding_seconds
    searcher.report()
    texts = {query.qid: query.text for query in queries}
    without_hits = {qid: texts[qid] for qid in result.without_hits}
    opened.warn_without_hits(without_hits, missing=" and are missing from the run")
    return result


def _texts(paths: SearchPaths, opened: OpenedIndex, topics: Sequence[Query]) -> PreparedQueries:
    """Return the texts of the queries, for a BM25 index."""
    for option, value in (("--model", paths.model), ("--encoded-queries", paths.encoded_queries)):
        if value is not None:
            raise UsageError(f"{option} {value}: {opened.name} is a BM25 index")
    return PreparedQueries(
        topics, lambda batch: np.array([query.text for query in batch], dtype=object)
    )


def _loaded(
    paths: SearchPaths, opened: OpenedIndex, name: str, topics: Sequence[Query]
) -> PreparedQueries:
    """Read the vectors of --encoded-queries: all, or those of --topics in its order."""
    source = vectors.read_vector_blocks(name, allow_pickle=paths.allow_pickle)
    blocks = list(source.blocks())
    encoded = np.concatenate([block.vectors.astype(np.float32) for block in blocks])
    rows: dict[str, int] = {}
    for position, qid in enumerate(qid for block in blocks for qid in block.ids):
        if rows.setdefault(qid, position) != position:
            raise InputError(name, None, f"the query id {qid} twice", "each id once")
    queries = [Query(qid, "") for qid in rows] if paths.topics is None else topics
    missing = [query.qid for query in queries if query.qid not in rows]
    if missing:
        found = (
            f"no vector for {len(missing):,} of {len(queries):,} queries, the first {missing[0]}"
        )
        raise InputError(name, None, found, f"one for each query of {paths.topics}")
    model = model_of(source.manifest)
    refuse_other_queries(opened, encoded.shape[1], model, name, force=paths.force)
    if source.manifest is not None and source.manifest.settings.get("side") == "passage":
        logger.warning(f"{name} was encoded as passages, not as queries")
    return PreparedQueries(
        queries, lambda batch: encoded[[rows[query.qid] for query in batch]], model
    )


def _in_precision_of(opened: OpenedIndex, compute: ComputeSettings) -> ComputeSettings:
    """Return `compute` in the precision that the index was encoded in."""
    made = opened.model or {}
    if made.get("dtype") not in list(Dtype):
        return compute
    dtype, head = Dtype(made["dtype"]), Dtype(made.get("head_dtype") or made["dtype"])
    from denserk.models.devices import choose_device

    on_cpu = choose_device(compute.device).type == "cpu"
    if on_cpu and dtype is Dtype.FLOAT16:
        logger.info(f"queries are encoded in {compute.precision}, as a CPU computes no float16")
        return compute
    own_head = head if on_cpu and head is not dtype else None
    wanted = replace(compute, dtype=dtype, head_dtype=own_head, fp16=False, bf16=False)
    if wanted.precision != compute.precision:
        why = f"as {opened.name} was; --dtype chooses another precision"
        logger.info(f"queries are encoded in {wanted.precision}, {why}")
    return wanted


def load_query_encoder(
    opened: OpenedIndex,
    name: str | None = None,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    *,
    own_precision: bool = False,
    force: bool = False,
) -> "TextEncoder":
    """Load a query encoder: by default the index's own model, with the index's settings."""
    index_model = opened.model
    model = name or (index_model or {}).get("name")
    if model is None:
        hint = "give --model, or --encoded-queries"
        raise UsageError(f"the manifest of {opened.name} names no model", hint)
    if name is None:
        _require_model(opened, model)
    if compute.backend is Backend.AUTO and (index_model or {}).get("backend") == Backend.TORCH:
        compute = replace(compute, backend=Backend.TORCH)
    if not own_precision:
        compute = _in_precision_of(opened, compute)
    if name is None:
        logger.info(f"queries are encoded by {model}, which encoded {opened.name}")
    from denserk.models.text_encoder import TextEncoder

    like = None if force else index_model
    encoder = TextEncoder(model, *overrides, compute, like=like)
    int8 = like.get("int8") if like and like["fingerprint"] == encoder.fingerprint else None
    if int8 and encoder.backend is Backend.OPENVINO:
        _use_int8(opened, encoder, int8)
    described = encoder.description()
    refuse_other_queries(opened, encoder.dimension, described, encoder.name, force=force)
    return encoder


def _use_int8(opened: OpenedIndex, encoder: "TextEncoder", recorded: Mapping[str, Any]) -> None:
    """Encode queries in int8 as the passages were, if the index has the weights of that model."""
    weights = Path(opened.names[0]) / vectors.INT8_WEIGHTS
    # a collection of a server has no folder and no version
    with opened.versions[0].reading() if opened.versions else nullcontext():
        if weights.exists():
            encoder.use_int8("passage", weights.parent, recorded)
            return
    logger.info(f"queries are encoded in float32: {weights.parent} has no {weights.name}")


def _require_model(opened: OpenedIndex, model: str) -> None:
    """Raise a UsageError if the model that manifests name is a folder that is not there."""
    for manifest in opened.manifests:
        absent = None if manifest is None else manifest.absent.get(model)
        if absent is not None and not can_be_on_hub(model):
            raise UsageError(f"{opened.name}: {absent}", "give --model and the folder of the model")


def refuse_other_queries(
    opened: OpenedIndex,
    dimension: int,
    model: Description | None,
    name: str,
    *,
    force: bool = False,
) -> None:
    """Reject queries of another dimension, or, unless `force`, of another model or settings."""
    index_dimension = opened.index.dimension
    if index_dimension != dimension:
        hint = MAKER
        if index_dimension < dimension:
            hint = f"{MAKER} (--truncate-dim {index_dimension}, if its vectors were cut)"
        raise MismatchError(
            f"{opened.name} holds vectors of {index_dimension} dimensions, {name} makes "
            f"{dimension}",
            hint,
        )
    if metric_of_model(model) is Metric.L2 and opened.metric is not Metric.L2:
        logger.warning(
            f"{name} compares by Euclidean distance, and {opened.name} by inner product: the "
            "ranking is another one; build the index again with --metric l2"
        )
    if not force:
        teacher = (model or {}).get("queries_of")
        if teacher:  # whose index it is for, with any texts
            model = {**(opened.model or {}), **teacher}
        what = f"{opened.name} and the queries of {name}"
        refuse_other_model(opened.model, model, what, f"{MAKER}, or add --force")
