"""`denserk search`: a run over an index, or the hits of a few queries."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.config.options import NOTHING
from denserk.config.retrieval import CollectionSettings, Engine, SearchPaths, SearchSettings
from denserk.errors import InputError, UsageError
from denserk.index import folder
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.query_encoder import load_query_encoder, refuse_other_queries
from denserk.index.searcher import Hits, Searcher
from denserk.io import vectors
from denserk.io.blocks import texts_sha256
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import Description, forget_file, model_of
from denserk.io.runs import write_run
from denserk.io.topics import read_queries
from denserk.records import Query
from denserk.reporting import Progress, track

if TYPE_CHECKING:
    pass


logger = logging.getLogger(__name__)
ENCODED_AT_ONCE = 4096  # queries encoded together, sorted by length
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
