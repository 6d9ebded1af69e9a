"""Search an index with queries and write the run."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import Backend, ComputeSettings, Dtype
from denserk.config.options import NOTHING
from denserk.config.retrieval import CollectionSettings, Engine, SearchPaths, SearchSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.folder import expanded
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.searcher import Hits, Searcher
from denserk.io.blocks import texts_sha256
from denserk.io.files import some
from denserk.io.manifest import Description, describe_run, forget_run, model_of, refuse_other_model
from denserk.io.runs import write_run
from denserk.io.topics import read_queries
from denserk.io.vectors import INT8_WEIGHTS, read_vector_blocks, verify_folders
from denserk.records import Query
from denserk.reporting import Progress, track

if TYPE_CHECKING:
    from denserk.models.text_encoder import TextEncoder

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 4096  # queries encoded together, sorted by length

# answers queries that are printed, from the index that is open
Use = Callable[[OpenedIndex, Callable[[Sequence[Query]], list[tuple[str, Hits]]]], None]
# queries; what makes vectors of them, or texts (BM25); the model that encodes them
Queries = tuple[Sequence[Query], Callable[[Sequence[Query]], NDArray[Any]], Description | None]


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
        verify_folders([*expanded(paths.index, "--index"), *filter(None, [paths.encoded_queries])])
    topics: list[Query] = []
    with ExitStack() as stack:
        if paths.engine is Engine.MILVUS:
            index = stack.enter_context(closing(MilvusIndex(milvus, settings)))
            opened = OpenedIndex((index.place,), index, index.names, (index.manifest,))
        else:
            opened = open_index(paths.index, settings, compute)
        searcher = opened.searcher(settings)
        if paths.topics is not None:
            topics = list(read_queries(paths.topics, paths.topics_format, paths.qrels))
        topics += [Query(f"q{number}", text) for number, text in enumerate(paths.query, 1)]
        if opened.bm25:
            queries = _texts(paths, opened, topics)
        elif paths.encoded_queries is not None:
            queries = _encoded(paths, opened, paths.encoded_queries, topics)
        else:
            named = {"own_precision": own_precision, "force": paths.force}
            overrides = (representation, text)
            encoder = load_query_encoder(opened, paths.model, overrides, compute, **named)
            queries = topics, encoder.encode_queries, encoder.description()
        if use is not None:

            def answer(asked: Sequence[Query]) -> list[tuple[str, Hits]]:
                return [*searcher.search([query.qid for query in asked], queries[1](asked))]

            use(opened, answer)
            return SearchResult()
        result = _write_run(paths, settings, searcher, queries)
        indexes = opened.described()
    asked = texts_sha256(query[:2] for query in topics)
    made_from = {
        "index": indexes[0] if len(indexes) == 1 else indexes,
        "model": queries[2],
        "encoded_queries": paths.encoded_queries,
        "topics": {"name": paths.topics, "sha256": asked} if topics else None,
        **({"qrels": paths.qrels} if paths.qrels else {}),
    }
    contents = {
        "queries": result.queries,
        "hits": result.hits,
        "ties": searcher.ranking.tied_hits,
        "without_hits": len(result.without_hits),
        "seconds": {"encoding": result.encoding_seconds, "searching": result.searching_seconds},
    }
    describe_run(paths.output, settings, made_from, contents)
    return result


def _write_run(
    paths: SearchPaths, settings: SearchSettings, searcher: Searcher, queries: Queries
) -> SearchResult:
    """Search for batches of queries, which are encoded when they are needed."""
    result, (topics, encode, _) = SearchResult(), queries
    searched = searcher.settings.query_batch
    step = searched * max(1, ENCODED_AT_ONCE // searched)

    def answers(progress: Progress) -> Iterator[tuple[str, Hits]]:
        for first in range(0, len(topics), step):
            batch, before = topics[first : first + step], time.perf_counter()
            vectors = encode(batch)
            result.encoding_seconds += time.perf_counter() - before
            for qid, hits in searcher.search([query.qid for query in batch], vectors):
                yield qid, hits
                result.queries += 1
                if not hits:
                    result.without_hits.append(qid)
                progress.advance()

    forget_run(paths.output)
    start = time.perf_counter()
    with track("searching", len(topics), "queries") as progress:
        form, tag = settings.output_format, settings.tag
        result.hits = write_run(paths.output, answers(progress), form, tag)
    result.searching_seconds = time.perf_counter() - start - result.encoding_seconds
    searcher.ranking.report()
    if missing := result.without_hits:
        logger.warning(
            f"{len(missing):,} queries have no hits and are missing from the run ({some(missing)})"
        )
    return result


def _texts(paths: SearchPaths, opened: OpenedIndex, topics: Sequence[Query]) -> Queries:
    """Return the texts of the queries, for a BM25 index."""
    for option, given in (("--model", paths.model), ("--encoded-queries", paths.encoded_queries)):
        if given is not None:
            raise UsageError(f"{option} {given}: {opened.name} is a BM25 index")
    return topics, lambda batch: np.array([query.text for query in batch], dtype=object), None


def _encoded(
    paths: SearchPaths, opened: OpenedIndex, name: str, topics: Sequence[Query]
) -> Queries:
    """Read the vectors of --encoded-queries: all, or those of --topics in its order."""
    source = read_vector_blocks(name, allow_pickle=paths.allow_pickle)
    blocks = list(source.blocks())
    vectors = np.concatenate([block.vectors.astype(np.float32) for block in blocks])
    rows: dict[str, int] = {}
    for position, qid in enumerate(qid for block in blocks for qid in block.ids):
        if rows.setdefault(qid, position) != position:
            raise InputError(name, None, f"the query id {qid} twice", "each id once")
    asked = [Query(qid, "") for qid in rows] if paths.topics is None else topics
    missing = [query.qid for query in asked if query.qid not in rows]
    if missing:
        raise InputError(
            name,
            None,
            f"no vector for {len(missing):,} of {len(asked):,} queries, the first {missing[0]}",
            f"one for each query of {paths.topics}",
        )
    model = model_of(source.manifest)
    refuse_other_queries(opened, vectors.shape[1], model, name, force=paths.force)
    if source.manifest is not None and source.manifest.settings.get("side") == "passage":
        logger.warning(f"{name} was encoded as passages, not as queries")
    return asked, lambda batch: vectors[[rows[query.qid] for query in batch]], model


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
    made = opened.model
    model = name or (made or {}).get("name")
    if model is None:
        raise UsageError(
            f"the manifest of {opened.name} names no model", "give --model, or --encoded-queries"
        )
    if compute.backend is Backend.AUTO and (made or {}).get("backend") == Backend.TORCH:
        compute = replace(compute, backend=Backend.TORCH)
    if not own_precision:
        compute = _in_precision_of(opened, compute)
    if name is None:
        logger.info(f"queries are encoded by {model}, which encoded {opened.name}")
    from denserk.models.text_encoder import TextEncoder

    like = None if force else made
    encoder = TextEncoder(model, *overrides, compute, like=like)
    int8 = like.get("int8") if like and like["fingerprint"] == encoder.fingerprint else None
    if int8 and encoder.backend is Backend.OPENVINO:
        folder = Path(opened.names[0])
        if (folder / INT8_WEIGHTS).exists():
            encoder.use_int8("passage", folder, int8)
        else:
            logger.info(f"queries are encoded in float32: {folder} has no {INT8_WEIGHTS}")
    described = encoder.description()
    refuse_other_queries(opened, encoder.dimension, described, encoder.name, force=force)
    return encoder


def refuse_other_queries(
    opened: OpenedIndex,
    dimension: int,
    model: Description | None,
    name: str,
    *,
    force: bool = False,
) -> None:
    """Reject queries of another dimension, or, unless `force`, of another model or settings."""
    there = opened.index.dimension
    if there != dimension:
        cut = f" (--truncate-dim {there}, if its vectors were cut)" if there < dimension else ""
        raise MismatchError(
            f"{opened.name} holds vectors of {there} dimensions, {name} makes {dimension}",
            f"search with the model and settings that made the index{cut}",
        )
    if not force:
        teacher = (model or {}).get("queries_of")  # whose index it is for, with any texts
        refuse_other_model(
            opened.model,
            {**(opened.model or {}), **teacher} if teacher else model,
            f"{opened.name} and the queries of {name}",
            "search with the model and settings that made the index, or add --force",
        )
