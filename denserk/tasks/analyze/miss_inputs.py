"""What `denserk analyze misses` reads: what is not given is what the run's manifest records."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings, DtypeChoice, is_served
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json, select
from denserk.config.retrieval import BM25_ENGINES, SearchSettings
from denserk.errors import MismatchError, UsageError
from denserk.index import folder
from denserk.index.bm25 import query_texts
from denserk.index.inputs import expanded
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.query_encoder import as_index, in_precision_of_index, load_query_encoder
from denserk.index.ranking import Hits
from denserk.io.corpus import as_searched, find_records, read_passages
from denserk.io.data_sets import is_on_disk
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    corpora_of,
    corpora_of_run,
    indexes_of,
    read_any_manifest,
    read_manifest,
    runs_of,
)
from denserk.io.runs import read_run_scores
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries
from denserk.io.trec_topics import FULL_NAMES, query_of_fields
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query, best_first
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery
from denserk.tasks.reproduce_steps import fields_of_topics, overrides_of

logger = logging.getLogger(__name__)

LEAST_AGREEMENT = 0.8  # of the run's first hits, which a search of the index must return
COMPARED_QUERIES = 50
NO_QUERIES = "no texts of queries (--topics)"


@dataclass(frozen=True)
class RunOrigin:
    """What a run was made from: what was given, else what was recorded and still exists."""

    manifest: Manifest | None
    indexes: tuple[str, ...]  # of the run, or of the runs that it was fused or reranked from
    is_searched: bool  # it is a search of these indexes, and not fused or reranked
    topics: str | None
    topics_fields: tuple[str, ...] | None
    corpus: str | None


def origin_of(settings: MissesSettings) -> RunOrigin:
    """Return what a run was made from; a UsageError for a run of documents."""
    manifest = None
    if beside(settings.run).is_file():
        manifest = read_manifest(settings.run, Kind.RUN)
        if manifest.settings.get("max_passage"):
            raise UsageError(
                f"{settings.run} ranks documents by their passages (--max-passage)",
                "search without --max-passage, with judgments of passages",
            )
    made_from: Mapping[str, Any] = {} if manifest is None else manifest.made_from
    indexes = tuple(expanded(settings.index, "--index")) if settings.index else ()
    recorded_topics = _recorded_topics(made_from)
    topics = settings.topics
    if topics is None:
        recorded_name = recorded_topics.get("name")
        topics = _first_on_disk([recorded_name] if recorded_name else [], "--topics")
    topics_fields = None
    if topics is not None and _is_same_source(topics, recorded_topics.get("name") or ""):
        topics_fields = fields_of_topics(recorded_topics)
    corpus = settings.corpus
    if corpus is None:
        corpus = _first_on_disk(_recorded_corpora(settings.run, indexes), "--corpus")
    return RunOrigin(
        manifest,
        indexes or recorded_indexes(settings.run),
        is_searched=not runs_of(made_from),
        topics=topics,
        topics_fields=topics_fields,
        corpus=corpus,
    )


def _is_same_source(name: str, other: str) -> bool:
    """Return whether two names are of the same file, folder or data set."""
    return name == other or Path(name).resolve() == Path(other).resolve()


def _first_on_disk(recorded_names: Sequence[str], option: str) -> str | None:
    """Return the first source that needs no download; warn if one is recorded and none is there."""
    for name in recorded_names:
        if is_on_disk(name):
            return name
    if recorded_names:
        logger.warning(
            f"the run was made from {recorded_names[0]}, which is not here: give {option}, or less "
            "is tried"
        )
    return None


def _recorded_topics(made_from: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is recorded of a run's topics, or else of a run's that it was made from."""
    if made_from.get("topics"):
        topics: Mapping[str, Any] = made_from["topics"]
        return topics
    for source in runs_of(made_from):
        topics = _topics_of_run(source.get("name") or "")
        if topics:
            return topics
    return {}


def _topics_of_run(run: str) -> Mapping[str, Any]:
    """Return what the manifest of a run records of its topics; nothing if it has none."""
    if not beside(run).is_file():
        return {}
    return read_any_manifest(beside(run)).made_from.get("topics") or {}


def recorded_indexes(run: str) -> tuple[str, ...]:
    """Return the indexes that a run, or the runs that it was made from, searched.

    Only those that still exist.
    """
    if not beside(run).is_file():
        return ()
    made_from = read_any_manifest(beside(run)).made_from
    existing_indexes: list[str] = []
    for recorded_index in indexes_of(made_from):
        index = recorded_index.get("name") or ""
        if beside(index).is_file():
            existing_indexes.append(index)
    for recorded_run in runs_of(made_from):
        existing_indexes += recorded_indexes(recorded_run.get("name") or "")
    return tuple(dict.fromkeys(existing_indexes))  # each once


def _recorded_corpora(run: str, indexes: Sequence[str]) -> list[str]:
    """Return the corpora of a run's indexes, and of indexes that are given."""
    sources = list(corpora_of_run(run))
    for index in indexes:
        if beside(index).is_file():
            sources += corpora_of(read_any_manifest(beside(index)))
    return [source.name for source in sources]


def read_texts(
    origin: RunOrigin, run: str, corpus: CorpusSettings, docids: Collection[str]
) -> dict[str, Passage]:
    """Return, by id, the passages that the corpus has; none without a corpus."""
    if origin.corpus is None:
        return {}
    passages = read_passages(origin.corpus, reading_of(origin, run, corpus))
    return find_records(passages, docids, origin.corpus)


def reading_of(origin: RunOrigin, run: str, corpus: CorpusSettings) -> CorpusSettings:
    """Return how the corpus is read: as given, or as it was for the index."""
    return as_searched(origin.corpus, corpus, [run])


class Topics(NamedTuple):
    """The queries that are analysed: as they were searched, and with a further field."""

    queries: dict[str, Query]
    queries_with_field: dict[str, dict[str, Query]]  # by what --set topics-field takes for them


def read_topics(origin: RunOrigin, qids: Collection[str]) -> Topics:
    """Return the queries of some ids; a MismatchError if one is missing."""
    if origin.topics is None:
        return Topics({}, {})
    # where fields were named, a topic may lack a text of its own
    text_field = None if origin.topics_fields is None else ("text",)
    topics = list(read_queries(origin.topics, fields=text_field))
    topic_by_qid = {topic.qid: topic for topic in topics if topic.qid in qids}
    missing = [qid for qid in qids if qid not in topic_by_qid]
    if missing:
        raise MismatchError(
            f"{origin.topics} lacks {len(missing):,} queries of the run ({first_names(missing)})",
            "give the --topics that were searched",
        )
    searched_fields = origin.topics_fields or ("text",)
    queries = topic_by_qid
    if origin.topics_fields is not None:
        queries = _with_fields(topic_by_qid, origin.topics_fields, origin.topics)
    queries_with_field = {}
    for field in unsearched_fields(topics, searched_fields):
        fields = (field, *searched_fields)
        queries_with_field[",".join(fields)] = _with_fields(topic_by_qid, fields, origin.topics)
    return Topics(queries, queries_with_field)


def _with_fields(
    topic_by_qid: Mapping[str, Query], fields: Sequence[str], source: str
) -> dict[str, Query]:
    """Return queries by id, whose texts are made of some fields of their topics."""
    return {qid: query_of_fields(topic, fields, source) for qid, topic in topic_by_qid.items()}


def unsearched_fields(topics: Sequence[Query], searched_fields: Collection[str]) -> list[str]:
    """Return the fields that all topics have as texts, and that were not searched.

    >>> topic = Query("q1", "why did he leave", extra={"title": "The hobbit", "page": 7})
    >>> unsearched_fields([topic], ["text"]), unsearched_fields([topic], ["title"])
    (['title'], ['text'])
    """
    searched_names = _full_names(searched_fields, topics[0])
    texts_of_topics = [{"text": topic.text, **topic.extra} for topic in topics]
    fields = []
    for field in texts_of_topics[0]:
        if field in searched_names:
            continue
        values = [texts.get(field) for texts in texts_of_topics]
        are_texts = all(isinstance(value, str) for value in values)
        if are_texts and any(values):
            fields.append(field)
    return fields


def _full_names(fields: Iterable[str], topic: Query) -> set[str]:
    """Return the names that a topic has for some fields: `text` for the title that is its query."""
    names = set()
    for field in fields:
        name = FULL_NAMES.get(field, field)
        names.add(name if name in topic.extra else "text")
    return names


def read_hits(path: str) -> dict[str, Hits]:
    """Read the hits of a run, the best first, by query id."""
    run = read_run_scores(path)
    return {qid: best_first(scores.items()) for qid, scores in run.items()}


class NotTriedError(Exception):
    """The changes of a cause cannot be tried. The message is the reason, which the user reads."""


class DoesNotApplyError(NotTriedError):
    """No passage can be missed for a cause, so that nothing is left to try."""


class OpenIndexes(NamedTuple):
    """The open indexes that a run comes from."""

    vectors: OpenedIndex | None  # of a search by vectors, perhaps several as one
    bm25: OpenedIndex | None  # of a search by BM25
    all: list[OpenedIndex]  # also those of a fused or reranked run


def open_indexes(origin: RunOrigin, compute: ComputeSettings, hits: int) -> OpenIndexes:
    """Open the indexes of a run: of a search as one, of other runs one by one."""
    if not origin.indexes:
        return OpenIndexes(None, None, [])
    if not origin.is_searched:
        settings = SearchSettings(hits=hits)
        opened = [open_index([name], settings, compute) for name in origin.indexes]
        return OpenIndexes(None, None, opened)
    settings = search_settings(origin.manifest, hits)
    index = open_index(origin.indexes, settings, compute)
    if index.bm25 is not None:
        return OpenIndexes(None, index, [index])
    return OpenIndexes(index, None, [index])


def is_bm25(name: str) -> bool:
    """Return whether a folder is a BM25 index."""
    if folder.is_vector_folder(name):
        return False
    _, engine = folder.read_index_manifest(name)
    return engine in BM25_ENGINES


def search_settings(manifest: Manifest | None, hits: int) -> SearchSettings:
    """Return the settings of a run's search, without feedback, for a number of hits."""
    if manifest is None:
        return SearchSettings(hits=hits)
    recorded = select(manifest.settings, SearchSettings)
    values = {name: recorded[name] for name in recorded if not name.startswith("prf")}
    return replace(from_json(SearchSettings, values), hits=hits)


def open_dense_search(
    origin: RunOrigin,
    opened: OpenedIndex | None,
    settings: MissesSettings,
    compute: ComputeSettings,
    hits: HitsByQuery,
    queries: Mapping[str, Query],
) -> DenseSearch:
    """Return the search of a run by vectors; a NotTriedError says why it cannot be repeated."""
    if not origin.is_searched:
        raise NotTriedError("the run is fused or reranked; analyse the run of its encoder")
    if opened is None:
        raise NotTriedError("no index of vectors (--index)")
    if not queries:
        raise NotTriedError(NO_QUERIES)
    passage_model = settings.model or (opened.model or {}).get("name")
    if passage_model is None:
        raise NotTriedError(f"{opened.name} names no model (--model)")
    if is_served(passage_model):
        raise NotTriedError(f"{passage_model} is behind a URL, and its files are needed")
    made_from = {} if origin.manifest is None else origin.manifest.made_from
    run_model = made_from.get("model") or {}
    depth = max(map(len, hits.values()))
    if compute.dtype is DtypeChoice.AUTO:
        compute = in_precision_of_index(opened, compute)
    query_encoder = load_query_encoder(
        opened, settings.model or run_model.get("name"), overrides_of(made_from), compute
    )
    passage_encoder = TextEncoder(
        passage_model, compute=as_index(opened, compute), like=opened.model
    )
    search = DenseSearch(
        opened=opened,
        exact=_open_full_vectors(opened, compute),
        settings=search_settings(origin.manifest, depth),
        query_encoder=query_encoder,
        passage_encoder=passage_encoder,
        queries=list(queries.values()),
        hits=hits,
        exact_depth=settings.k,
    )
    repeated_hits = search.search(search.queries[:COMPARED_QUERIES])
    searched = f"{opened.name} by {search.query_encoder.name}"
    reject_other_hits(searched, repeated_hits, hits, settings.k)
    return search


def with_all_dimensions(search: DenseSearch, compute: ComputeSettings) -> DenseSearch:
    """Return a search by the same model, which cuts no dimension."""
    encoder = search.passage_encoder
    whole_encoder = TextEncoder(
        encoder.name,
        {"truncate_dim": None},
        compute=as_index(search.opened, compute),
        like=search.opened.model,
    )
    return replace(search, exact=None, query_encoder=whole_encoder, passage_encoder=whole_encoder)


def _open_full_vectors(opened: OpenedIndex, compute: ComputeSettings) -> OpenedIndex | None:
    """Open the vectors that an approximate index was built of.

    None for an index that is exact, or if the vectors no longer exist.
    """
    if opened.index.is_exhaustive:
        return None
    names: list[str] = []
    for name, manifest in zip(opened.names, opened.manifests, strict=True):
        made_from: Mapping[str, Any] = {} if manifest is None else manifest.made_from
        names += made_from.get("vectors", ()) or [name]
    full = [name for name in names if Path(name).is_dir() and beside(name).is_file()]
    if len(full) < len(names):
        logger.warning(
            f"the vectors that {opened.name} was built of are not there: it is not compared with "
            "an exact search"
        )
        return None
    exact = open_index(full, SearchSettings(), compute)
    return exact if exact.index.is_exhaustive else None


def reject_other_hits(
    searched: str, repeated_hits: HitsByQuery, run_hits: HitsByQuery, k: int
) -> None:
    """Raise a NotTriedError if a search that is repeated does not return the run's first hits.

    `searched` names the index; `repeated_hits` may be those of some queries alone.
    """
    expected_count = 0
    same_count = 0
    for qid, hits in repeated_hits.items():
        expected = {docid for docid, _ in run_hits[qid][:k]}
        repeated = {docid for docid, _ in hits[:k]}
        expected_count += len(expected)
        same_count += len(expected & repeated)
    if same_count < LEAST_AGREEMENT * expected_count:
        raise NotTriedError(
            f"a search of {searched} returns {same_count:,} of the run's first "
            f"{expected_count:,} hits: it is another model, other queries, or a search with "
            "feedback"
        )


def bm25_hits(
    source: str, queries: Mapping[str, Query], compute: ComputeSettings, hits: int
) -> dict[str, Hits]:
    """Return the hits of a BM25 run, or of a search of a BM25 index, by query id."""
    if Path(source).is_file():
        run = read_hits(source)
        if run.keys().isdisjoint(queries):
            message = f"{source} answers none of the analysed queries"
            raise MismatchError(message, "give a run of the same queries")
        return run
    if not is_bm25(source):
        raise UsageError(
            f"--bm25 {source}: not a BM25 index", "denserk index --type bm25 makes one"
        )
    opened = open_index([source], SearchSettings(), compute)
    return search_bm25(opened, queries, hits)


def search_bm25(opened: OpenedIndex, queries: Mapping[str, Query], hits: int) -> dict[str, Hits]:
    """Return the hits of queries in a BM25 index, by query id."""
    searcher = opened.searcher(SearchSettings(hits=hits))
    qids = list(queries)
    texts = query_texts(list(queries.values()))
    return {qid: list(hits_of_query) for qid, hits_of_query in searcher.search(qids, texts)}
