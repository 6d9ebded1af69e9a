"""Queries x index -> a run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError, UsageError
from denserk.formats.manifest import Kind, Manifest, file_sha256, write_manifest
from denserk.formats.sources import read_queries
from denserk.formats.trec_run import write_run
from denserk.formats.vectors import read_vector_blocks
from denserk.index.backends import open_vector_index
from denserk.index.bm25_index import Bm25Index
from denserk.index.index_folder import (
    DOCID,
    PassageIds,
    check_count,
    folder_bytes,
    foreign_engine,
    read_index_manifest,
)
from denserk.index.lucene_index import LuceneIndex
from denserk.index.searcher import Hits, Searcher
from denserk.index.vector_index import SearchableIndex, VectorIndex
from denserk.modeling.devices import choose_device
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Query
from denserk.reporting import SILENT, Progress, Reporter
from denserk.settings.encoding import ComputeSettings
from denserk.settings.options import as_json, from_json
from denserk.settings.retrieval import (
    WORD_ENGINES,
    Bm25Settings,
    Engine,
    SearchPaths,
    SearchSettings,
)
from denserk.tasks.model_chain import Description, model_of, refuse_other_model
from denserk.tasks.run_manifest import forget_manifest, has_manifest, queries_sha256

ENCODED_AT_ONCE = 4096
"""Queries encoded together, sorted by length."""
NAMED = 5
"""Queries without hits that are named."""
NOTHING: Mapping[str, Any] = {}

Asked = Iterator[tuple[Sequence[str], NDArray[Any]]]
"""Query ids beside their vectors, or their texts where the index holds words."""


@dataclass
class SearchResult:
    """What came out: queries, hits, the queries without any; seconds of encoding and searching."""

    queries: int = 0
    hits: int = 0
    without_hits: list[str] = field(default_factory=list)
    encoding_seconds: float = 0.0
    searching_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Queries searched a second, encoding left out."""
        return self.queries / self.searching_seconds if self.searching_seconds else 0.0


@dataclass(frozen=True)
class _Opened:
    """An index ready to be asked, its ids, and what made it (nothing, where another tool did)."""

    index: SearchableIndex
    ids: Sequence[str]
    manifest: Manifest | None
    holds_words: bool

    @property
    def vectors_per_passage(self) -> int:
        """How many neighbouring rows are one passage."""
        contents = {} if self.manifest is None else self.manifest.contents
        return int(contents.get("vectors_per_passage", 1))


@dataclass(frozen=True)
class _Questions:
    """What is asked: ids and vectors (or texts) in batches, how many, what made the vectors."""

    asked: Asked
    count: int
    model: Description | None = None


def search(
    paths: SearchPaths,
    settings: SearchSettings = SearchSettings(),  # noqa: B008  (frozen)
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    reporter: Reporter = SILENT,
) -> SearchResult:
    """Searches an index and writes the run, in the order of the queries.

    Args:
        paths: the index, the queries, the model, and where the run goes.
        settings: depth, breadth, filters, ties, shape of the run.
        representation: fields of RepresentationSettings that replace the model's own.
        text: the same for TextSettings.
        compute: where queries are encoded and, unless `settings` says otherwise, searched.
        reporter: told what goes on.

    Raises:
        UsageError: options do not go together, or something named is not there.
        InputError: index, queries or vectors are broken.
        MismatchError: index and queries were not made alike.
        OutputError: the run cannot be written.
    """
    opened = _open(paths, settings, compute, reporter)
    queries = None
    if paths.topics is not None:
        queries = list(read_queries(paths.topics, paths.topics_format, reporter))
    result = SearchResult()
    if opened.holds_words:
        questions = _texts(paths, queries)
    elif paths.encoded_queries is not None:
        questions = _encoded(paths, opened, queries, reporter)
    else:
        encoder = _load_encoder(paths, opened, (representation, text), compute, reporter)
        questions = _encoding(paths, opened, encoder, queries or [], result)
    if isinstance(opened.index, LuceneIndex):
        settings = opened.index.many_at_once(settings)
    searcher = Searcher(opened.index, opened.ids, settings, opened.vectors_per_passage)
    forget_manifest(paths.output)
    start = time.perf_counter()
    with reporter.track("searching", questions.count, "queries") as progress:
        answers = _answers(questions, searcher, result, progress)
        write_run(paths.output, answers, settings.output_format, settings.tag)
    result.searching_seconds = time.perf_counter() - start - result.encoding_seconds
    _tell_missing(result.without_hits, reporter)
    _write_manifest(paths, settings, opened, questions, queries, result)
    return result


def _open(
    paths: SearchPaths, settings: SearchSettings, compute: ComputeSettings, reporter: Reporter
) -> _Opened:
    """Opens the index folder with the engine that it names."""
    manifest = read_index_manifest(paths.index)
    contents = {} if manifest is None else manifest.contents
    chosen = {} if manifest is None else manifest.settings
    engine = Engine(chosen["engine"]) if chosen else foreign_engine(paths.index)
    assert engine is not None  # read_index_manifest saw to it
    words = from_json(Bm25Settings, chosen.get("bm25", {}))
    if engine is Engine.LUCENE:
        lucene = LuceneIndex(Path(paths.index), words, contents.get("count"), compute.threads)
        return _Opened(lucene, lucene.ids, manifest, holds_words=True)
    ids = PassageIds(Path(paths.index) / DOCID)
    index: SearchableIndex
    if engine is Engine.BM25S:
        index = Bm25Index(Path(paths.index), words, compute.threads)
    else:
        index = open_vector_index(
            paths.index,
            engine,
            settings,
            device=str(choose_device(settings.index_device or compute.device)),
            threads=compute.threads,
            vectors_per_passage=int(contents.get("vectors_per_passage", 1)),
            reporter=reporter,
        )
    check_count(paths.index, len(index), len(ids))
    return _Opened(index, ids, manifest, engine in WORD_ENGINES)


def _texts(paths: SearchPaths, queries: Sequence[Query] | None) -> _Questions:
    """The texts of the queries, for an index of words."""
    for option, given in (("--model", paths.model), ("--encoded-queries", paths.encoded_queries)):
        if given is not None:
            raise UsageError(
                f"{option} {given}: {paths.index} is an index of words", f"leave out {option}"
            )
    assert queries is not None  # SearchPaths saw to it
    texts = np.array([query.text for query in queries], dtype=object)
    return _Questions(iter([([query.qid for query in queries], texts)]), len(queries))


def _encoded(
    paths: SearchPaths, opened: _Opened, queries: Sequence[Query] | None, reporter: Reporter
) -> _Questions:
    """Vectors from --encoded-queries: all of them, or those of --topics in its order."""
    assert paths.encoded_queries is not None
    source = read_vector_blocks(
        paths.encoded_queries, allow_pickle=paths.allow_pickle, reporter=reporter
    )
    blocks = list(source.blocks())
    vectors = np.concatenate([block.astype(np.float32) for _, block in blocks])
    rows: dict[str, int] = {}
    for position, qid in enumerate(qid for ids, _ in blocks for qid in ids):
        if rows.setdefault(qid, position) != position:
            raise InputError(source.name, None, f"the query id {qid} twice", "each id once")
    qids = list(rows) if queries is None else [query.qid for query in queries]
    missing = [qid for qid in qids if qid not in rows]
    if missing:
        raise InputError(
            source.name,
            None,
            f"no vector for {len(missing):,} of {len(qids):,} queries, the first {missing[0]}",
            f"one for each query of {paths.topics}",
        )
    _refuse_dimension(paths, opened, vectors.shape[1], source.name)
    _refuse_model(paths, opened, model_of(source.manifest), source.name)
    if source.manifest is not None and source.manifest.settings.get("side") == "passage":
        reporter.warn(f"{source.name} was encoded as passages, not as queries")
    asked = vectors[[rows[qid] for qid in qids]]
    return _Questions(iter([(qids, asked)]), len(qids), model_of(source.manifest))


def _load_encoder(
    paths: SearchPaths,
    opened: _Opened,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
    reporter: Reporter,
) -> TextEncoder:
    """The model of the queries; the index's own, and set up as it was for the index, by default."""
    made = model_of(opened.manifest)
    name = paths.model or (made or {}).get("name")
    if name is None:
        raise UsageError(
            f"{paths.index} does not say which model made it", "give --model, or --encoded-queries"
        )
    if paths.model is None:
        reporter.note(f"queries are encoded by {name}, which made the index")
    encoder = TextEncoder.load(name, *overrides, compute, reporter)
    if made is None or paths.force or made.get("fingerprint") != encoder.fingerprint:
        return encoder
    # the same weights: what was chosen when the passages were encoded holds for the queries too
    representation = {**made["representation"], **overrides[0]}
    text = {**made["text"], **overrides[1]}
    now = encoder.description()
    if (now["representation"], now["text"]) != (representation, text):
        encoder = TextEncoder.load(name, representation, text, compute)
    return encoder


def _encoding(
    paths: SearchPaths,
    opened: _Opened,
    encoder: TextEncoder,
    queries: Sequence[Query],
    result: SearchResult,
) -> _Questions:
    """Queries that are encoded as they are needed."""
    _refuse_dimension(paths, opened, encoder.dimension, encoder.name)
    _refuse_model(paths, opened, encoder.description(), encoder.name)

    def asked() -> Asked:
        for first in range(0, len(queries), ENCODED_AT_ONCE):
            batch = queries[first : first + ENCODED_AT_ONCE]
            start = time.perf_counter()
            vectors = encoder.encode_queries(batch)
            result.encoding_seconds += time.perf_counter() - start
            yield [query.qid for query in batch], vectors

    return _Questions(asked(), len(queries), encoder.description())


def _refuse_dimension(paths: SearchPaths, opened: _Opened, dimension: int, name: str) -> None:
    """Refuses queries that cannot be compared at all; --force does not help."""
    there = cast(VectorIndex, opened.index).dimension
    if there != dimension:
        raise MismatchError(
            f"{paths.index} holds vectors of {there} dimensions, {name} makes {dimension}",
            "search with the model that made the index",
        )


def _refuse_model(
    paths: SearchPaths, opened: _Opened, model: Description | None, name: str
) -> None:
    """Refuses queries that were made otherwise than the index, unless --force."""
    if not paths.force:
        refuse_other_model(
            model_of(opened.manifest),
            model,
            f"{paths.index} and the queries of {name}",
            "search with the model and settings that made the index, or add --force",
        )


def _answers(
    questions: _Questions, searcher: Searcher, result: SearchResult, progress: Progress
) -> Iterator[tuple[str, Hits]]:
    """Searches; counts on the way."""
    for qids, queries in questions.asked:
        for qid, hits in searcher.search(qids, queries):
            result.queries += 1
            result.hits += len(hits)
            if not hits:
                result.without_hits.append(qid)
            progress.advance()
            yield qid, hits


def _tell_missing(without_hits: Sequence[str], reporter: Reporter) -> None:
    if without_hits:
        named = ", ".join(without_hits[:NAMED]) + (", ..." if len(without_hits) > NAMED else "")
        reporter.warn(
            f"{len(without_hits):,} queries have no hits and are missing from the run: {named}"
        )


def _write_manifest(
    paths: SearchPaths,
    settings: SearchSettings,
    opened: _Opened,
    questions: _Questions,
    queries: Sequence[Query] | None,
    result: SearchResult,
) -> None:
    if not has_manifest(paths.output):
        return
    index = {} if opened.manifest is None else opened.manifest.contents.get("sha256", {})
    made_from = {
        "index": {
            "name": paths.index,
            "sha256": index,
            "bytes": folder_bytes(Path(paths.index)),
        },
        "model": questions.model,
        "encoded_queries": paths.encoded_queries,
        "topics": {"name": paths.topics, "sha256": queries_sha256(queries)} if queries else None,
    }
    contents = {
        "queries": result.queries,
        "hits": result.hits,
        "without_hits": len(result.without_hits),
        "seconds": {"encoding": result.encoding_seconds, "searching": result.searching_seconds},
        "sha256": file_sha256(paths.output),
    }
    write_manifest(paths.output, Manifest(Kind.RUN, True, as_json(settings), made_from, contents))
