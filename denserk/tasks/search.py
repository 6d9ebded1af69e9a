"""`denserk search`: a run over an index, or answers to a few queries."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings, reject_overrides
from denserk.config.formats import RunFormat
from denserk.config.options import NOTHING, reject_given
from denserk.config.retrieval import CollectionSettings, Engine, SearchPaths, SearchSettings
from denserk.errors import InputError, UsageError
from denserk.index.bm25 import query_texts
from denserk.index.inputs import expanded
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.query_encoder import load_query_encoder, reject_other_queries
from denserk.index.ranking import Hits
from denserk.index.searcher import Searcher
from denserk.io import vectors
from denserk.io.exclusions import Exclusions, chosen_exclusions, read_exclusions
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import Description, model_of
from denserk.io.run_columns import RankedWords
from denserk.io.runs import write_run
from denserk.io.topics import describe_topics, read_queries
from denserk.io.vector_formats import VectorBlock
from denserk.records import Query
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 4096  # queries encoded together, sorted by length
NO_MODEL = "--encoded-queries takes no model"  # why options of a model are rejected


@dataclass
class SearchResult:
    """The size of a run, and the work."""

    queries: int = 0
    hits: int = 0  # lines of the run
    without_hits: list[str] = field(default_factory=list)  # ids of queries
    encoding_seconds: float = 0.0
    searching_seconds: float = 0.0  # also of writing the run


@dataclass(frozen=True)
class PreparedQueries:
    """Queries, and how they are searched for."""

    queries: Sequence[Query]
    # B queries to vectors (B, D), or for BM25 to their texts (B,)
    encode: Callable[[Sequence[Query]], NDArray[Any]]
    model: Description | None = None  # that encodes, or encoded, them; None for BM25


@dataclass(frozen=True)
class SearchSession:
    """An open index, its searcher, and the queries that are prepared for it."""

    opened: OpenedIndex
    searcher: Searcher
    topics: Sequence[Query]  # of --topics and --query; none where --encoded-queries stands alone
    prepared: PreparedQueries
    excluded: Exclusions  # passages that are removed, by query id

    def answer(self, queries: Sequence[Query]) -> list[tuple[str, Hits]]:
        """Return the hits of queries by query id."""
        qids = [query.qid for query in queries]
        return list(self.searcher.search(qids, self.prepared.encode(queries)))


def search(
    paths: SearchPaths,
    settings: SearchSettings = SearchSettings(),  # noqa: B008  (frozen)
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    milvus: CollectionSettings = CollectionSettings(),  # noqa: B008
    server: ServerSettings = NO_SERVER,
) -> SearchResult:
    """Search an index, and write the run in the queries' order; parameters as in `open_search`."""
    run_format = settings.format_of_run(paths.output)
    search_parameters = (paths, settings, representation, text, compute, milvus, server)
    with open_search(*search_parameters) as session:
        result = _write_run(paths, run_format, session)
    _write_manifest(paths, settings, session, result)
    return result


@contextmanager
def open_search(
    paths: SearchPaths,
    settings: SearchSettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    milvus: CollectionSettings = CollectionSettings(),  # noqa: B008
    server: ServerSettings = NO_SERVER,
) -> Iterator[SearchSession]:
    """Open an index, or else the `milvus` collection, and prepare the queries of `paths`.

    `representation` and `text` hold fields that replace those of the model's settings. `compute` is
    also for the search, unless `settings` has a device. Unless it names a precision, queries are
    encoded in that of the index. `server` is for a model behind a URL.
    """
    if paths.verify:
        _verify_inputs(paths)
    with ExitStack() as stack:
        if paths.engine is Engine.MILVUS:
            collection = stack.enter_context(closing(MilvusIndex(milvus, settings)))
            opened = open_collection(collection)
        else:
            opened = open_index(paths.index, settings, compute)
        searcher = opened.searcher(settings)
        topics = _read_topics(paths)
        overrides = (representation, text)
        prepared = _prepare_queries(paths, opened, topics, overrides, compute, server)
        excluded = _read_exclusions(paths, settings, prepared.queries)
        searcher.exclude(excluded)
        yield SearchSession(opened, searcher, topics, prepared, excluded)


def _verify_inputs(paths: SearchPaths) -> None:
    """Verify the checksums of indexes and query vectors."""
    folders = [*expanded(paths.index, "--index")]
    if paths.encoded_queries:
        folders.append(paths.encoded_queries)
    vectors.verify_folders(folders)


def open_collection(index: MilvusIndex) -> OpenedIndex:
    """Return a collection of Milvus as an index that can be searched."""
    return OpenedIndex(
        names=(index.place,),
        index=index,
        ids=index.names,
        manifests=(index.manifest,),
        vectors_per_passage=index.vectors_per_passage,
    )


def _read_topics(paths: SearchPaths) -> list[Query]:
    """Return the queries of --topics, and those of --query as q1, q2, ..."""
    topics: list[Query] = []
    if paths.topics is not None:
        topics += read_queries(paths.topics, paths.topics_format, paths.qrels, paths.topics_field)
    for number, text in enumerate(paths.query, start=1):
        topics.append(Query(f"q{number}", text))
    return topics


def _prepare_queries(
    paths: SearchPaths,
    opened: OpenedIndex,
    topics: Sequence[Query],
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
    server: ServerSettings,
) -> PreparedQueries:
    """Return the queries with what encodes them for an index: nothing for BM25, else a model.

    With --encoded-queries, their vectors are read. `overrides` are fields of the representation and
    of the texts that replace those of the model.
    """
    if opened.bm25 is not None:
        _reject_vector_options(paths, opened, overrides, server)
        return PreparedQueries(topics, query_texts)
    if paths.encoded_queries is not None:
        reject_given(server, why=NO_MODEL)
        reject_overrides(*overrides, why=NO_MODEL)
        return _read_query_vectors(paths, opened, paths.encoded_queries, topics)
    encoder = load_query_encoder(
        opened,
        paths.model,
        overrides,
        compute,
        server=server,
        force=paths.force,
        query_count=max(1, len(topics)),  # with --interactive, there are none yet
    )
    return PreparedQueries(topics, encoder.encode_queries, encoder.description())


def _read_exclusions(
    paths: SearchPaths, settings: SearchSettings, queries: Sequence[Query]
) -> Exclusions:
    """Return the passages that are removed: those of --exclude, and those that topics list."""
    given_exclusions: Exclusions = {}
    if paths.exclude is not None:
        given_exclusions = read_exclusions(paths.exclude)
    name_of_queries = paths.topics or paths.encoded_queries or "the queries"
    return chosen_exclusions(
        queries,
        name_of_queries,
        given_exclusions,
        paths.exclude or "",
        use_listed=settings.exclude_listed,
    )


def _reject_vector_options(
    paths: SearchPaths,
    opened: OpenedIndex,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    server: ServerSettings,
) -> None:
    """Raise a UsageError for options of vectors of queries beside a BM25 index."""
    reject_given(server, why=f"{opened.name} is a BM25 index")
    reject_overrides(*overrides, why=f"{opened.name} is a BM25 index")
    if paths.model is not None:
        raise UsageError(f"--model {paths.model}: {opened.name} is a BM25 index")
    if paths.encoded_queries is not None:
        raise UsageError(
            f"--encoded-queries {paths.encoded_queries}: {opened.name} is a BM25 index"
        )


def _read_query_vectors(
    paths: SearchPaths, opened: OpenedIndex, name: str, topics: Sequence[Query]
) -> PreparedQueries:
    """Read the vectors of --encoded-queries: all, or those of --topics in its order.

    `name` is the folder or file that --encoded-queries gives. Raise an error unless it has a vector
    for each query, which the index can be searched with.
    """
    source = vectors.read_vector_blocks(name, allow_pickle=paths.allow_pickle)
    blocks = list(source.blocks())
    query_vectors = np.concatenate([block.vectors.astype(np.float32) for block in blocks])
    rows = _rows_by_id(name, blocks)
    queries = topics
    if paths.topics is None:
        queries = [Query(qid, text="") for qid in rows]
    missing = [query.qid for query in queries if query.qid not in rows]
    if missing:
        found = (
            f"no vector for {len(missing):,} of {len(queries):,} queries, the first {missing[0]}"
        )
        raise InputError(name, None, found, f"one for each query of {paths.topics}")
    model = model_of(source.manifest)
    reject_other_queries(opened, query_vectors.shape[1], model, name, force=paths.force)
    if source.manifest is not None and source.manifest.settings.get("side") == "passage":
        logger.warning(f"{name} was encoded as passages, not as queries")

    def vectors_of(batch: Sequence[Query]) -> NDArray[Any]:
        rows_of_batch = [rows[query.qid] for query in batch]
        return query_vectors[rows_of_batch]

    return PreparedQueries(queries, vectors_of, model)


def _rows_by_id(name: str, blocks: Sequence[VectorBlock]) -> dict[str, int]:
    """Return the row of each query id in the joined blocks of vectors; reject a repeated id.

    Messages call the vectors `name`.
    """
    rows: dict[str, int] = {}
    for block in blocks:
        for qid in block.ids:
            if qid in rows:
                raise InputError(name, None, f"the query id {qid} twice", "each id once")
            rows[qid] = len(rows)
    return rows


def _write_run(paths: SearchPaths, run_format: RunFormat, session: SearchSession) -> SearchResult:
    """Write the run; queries are encoded and searched for, batch by batch, while it is written."""
    result = SearchResult()
    searcher = session.searcher
    settings = searcher.settings
    queries = session.prepared.queries
    started = time.perf_counter()
    with track("searching", len(queries), "queries") as progress:
        result.hits = write_run(
            paths.output,
            _rankings(session, result, progress),
            run_format,
            settings.tag,
            searcher.score_format,
        )
    result.searching_seconds = time.perf_counter() - started - result.encoding_seconds
    searcher.report()
    texts = {query.qid: query.text for query in queries}
    without_hits = {qid: texts[qid] for qid in result.without_hits}
    session.opened.warn_without_hits(without_hits, missing=" and are missing from the run")
    return result


def _rankings(
    session: SearchSession, result: SearchResult, progress: Progress
) -> Iterator[tuple[str, Hits | RankedWords]]:
    """Yield the hits of each query; count the queries and the seconds of encoding in `result`."""
    queries = session.prepared.queries
    query_batch = session.searcher.settings.query_batch
    step = query_batch * max(1, ENCODED_AT_ONCE // query_batch)  # whole batches of the search
    for start in range(0, len(queries), step):
        batch = queries[start : start + step]
        started = time.perf_counter()
        encoded = session.prepared.encode(batch)
        result.encoding_seconds += time.perf_counter() - started
        qids = [query.qid for query in batch]
        for qid, hits in session.searcher.ranked_hits(qids, encoded):
            yield qid, hits
            result.queries += 1
            if not hits:
                result.without_hits.append(qid)
            progress.advance()


def _write_manifest(
    paths: SearchPaths, settings: SearchSettings, session: SearchSession, result: SearchResult
) -> None:
    """Write the manifest beside the run."""
    indexes = session.opened.descriptions()
    index = indexes[0] if len(indexes) == 1 else indexes
    topics: dict[str, Any] | None = None
    if session.topics:
        topics = describe_topics(paths.topics, paths.topics_field, session.topics)
    origin: dict[str, Any] = {
        "index": index,
        "model": session.prepared.model,
        "encoded_queries": paths.encoded_queries,
        "topics": topics,
    }
    if paths.qrels:
        origin["qrels"] = paths.qrels
    if session.excluded:
        origin["excluded"] = {
            "name": paths.exclude,
            "queries": len(session.excluded),
            "passages": sum(map(len, session.excluded.values())),
        }
    ranking = session.searcher.ranking
    contents = {
        "queries": result.queries,
        "hits": result.hits,
        "ties": ranking.tied_hits,
        "without_hits": len(result.without_hits),
        "seconds": {"encoding": result.encoding_seconds, "searching": result.searching_seconds},
    }
    describe_run(paths.output, settings, origin, contents, ties=ranking.ties.value)
