"""Queries x index -> a run."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError, UsageError
from denserk.formats.folder_checks import verify_folders
from denserk.formats.manifest import (
    Kind,
    Manifest,
    file_sha256,
    forget_manifest,
    has_manifest,
    queries_sha256,
    write_manifest,
)
from denserk.formats.model_chain import Description, model_of, refuse_other_model
from denserk.formats.runs import RunWriter, run_writer
from denserk.formats.sources import read_queries
from denserk.formats.vectors import read_vector_blocks
from denserk.index.lucene import LuceneIndex
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.searcher import Searcher, TieCount
from denserk.index.vector_index import VectorIndex
from denserk.index.vector_inputs import expanded
from denserk.records import Query
from denserk.reporting import Progress, track
from denserk.settings.encoding import ComputeSettings, Dtype
from denserk.settings.milvus import CollectionSettings
from denserk.settings.options import as_json
from denserk.settings.retrieval import Engine, SearchPaths, SearchSettings

if TYPE_CHECKING:  # torch is imported only where queries are encoded
    from denserk.modeling.text_encoder import TextEncoder

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 4096
"""Queries encoded together, sorted by length."""
NAMED = 5
"""Queries without hits that are named."""
NOTHING: Mapping[str, Any] = {}

Asked = Iterator[tuple[Sequence[str], NDArray[Any]]]
"""Query ids beside their vectors, or their texts for a BM25 index."""


@dataclass
class SearchResult:
    """Counts of queries, hits and ties, queries without hits, seconds of encoding and search."""

    queries: int = 0
    hits: int = 0
    ties: TieCount = field(default_factory=TieCount)
    without_hits: list[str] = field(default_factory=list)
    encoding_seconds: float = 0.0
    searching_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Queries searched a second, encoding left out."""
        return self.queries / self.searching_seconds if self.searching_seconds else 0.0


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
    milvus: CollectionSettings = CollectionSettings(),  # noqa: B008
    *,
    own_precision: bool = False,
) -> SearchResult:
    """Searches an index and writes the run, in the order of the queries.

    Args:
        paths: the index, the queries, the model, and where the run goes.
        settings: depth, breadth, filters, ties, shape of the run.
        representation: fields of RepresentationSettings that replace the model's own.
        text: the same for TextSettings.
        compute: where queries are encoded and, unless `settings` says otherwise, searched.
        milvus: the collection that is searched where `paths` has no index.
        own_precision: encode queries in the precision of `compute`, even if it is the default;
            otherwise that default gives way to the precision that made the index.

    Raises:
        UsageError: options do not go together, or something named is not there.
        InputError: index, queries or vectors are broken.
        MismatchError: index and queries were not made alike.
        OutputError: the run cannot be written.
        ServerError: a server does not answer, or refuses.
    """
    own_precision |= (compute.dtype, compute.head_dtype) != (Dtype.FLOAT32, None)
    given = (
        representation,
        text,
        compute,
        own_precision,
    )
    if paths.verify:
        named = [*expanded(paths.index, "--index"), *filter(None, [paths.encoded_queries])]
        verify_folders(named)
    if paths.engine is not Engine.MILVUS:
        encodes = paths.encoded_queries is None
        opened = open_index(paths.index, settings, compute, encodes=encodes)
        return _search(paths, opened, settings, *given)
    with closing(MilvusIndex(milvus, settings)) as index:
        opened = OpenedIndex((index.place,), index, index.ids, (index.manifest,))
        return _search(paths, opened, settings, *given)


def _search(
    paths: SearchPaths,
    opened: OpenedIndex,
    settings: SearchSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    own_precision: bool,
) -> SearchResult:
    """Searches what is open."""
    queries = None
    if paths.topics is not None:
        queries = list(read_queries(paths.topics, paths.topics_format, paths.qrels))
    result = SearchResult()
    if opened.is_bm25:
        questions = _texts(paths, opened, queries)
    elif paths.encoded_queries is not None:
        questions = _encoded(paths, opened, queries)
    else:
        precise = _in_precision_of(opened, compute, own_precision)
        encoder = _load_encoder(paths, opened, (representation, text), precise)
        questions = _encoding(paths, opened, encoder, queries or [], result)
    if isinstance(opened.index, LuceneIndex):
        settings = opened.index.many_at_once(settings)
    searcher = Searcher(
        opened.index,
        opened.ids,
        settings,
        opened.vectors_per_passage,
        engine_order=isinstance(opened.index, LuceneIndex),
    )
    forget_manifest(paths.output)
    start = time.perf_counter()
    with track("searching", questions.count, "queries") as progress:
        form, tag = settings.output_format, settings.tag
        with run_writer(paths.output, form, tag) as writer:
            _answer(questions, searcher, writer, result, progress)
    result.searching_seconds = time.perf_counter() - start - result.encoding_seconds
    result.ties = searcher.ties
    result.ties.report(settings)
    _tell_missing(result.without_hits)
    _write_manifest(paths, settings, opened, questions, queries, result)
    return result


def _texts(paths: SearchPaths, opened: OpenedIndex, queries: Sequence[Query] | None) -> _Questions:
    """The texts of the queries, for a BM25 index."""
    for option, given in (("--model", paths.model), ("--encoded-queries", paths.encoded_queries)):
        if given is not None:
            raise UsageError(
                f"{option} {given}: {opened.name} is a BM25 index", f"leave out {option}"
            )
    assert queries is not None  # SearchPaths saw to it
    texts = np.array([query.text for query in queries], dtype=object)
    return _Questions(iter([([query.qid for query in queries], texts)]), len(queries))


def _encoded(
    paths: SearchPaths, opened: OpenedIndex, queries: Sequence[Query] | None
) -> _Questions:
    """Vectors from --encoded-queries: all of them, or those of --topics in its order."""
    assert paths.encoded_queries is not None
    source = read_vector_blocks(paths.encoded_queries, allow_pickle=paths.allow_pickle)
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
    _refuse_dimension(opened, vectors.shape[1], source.name)
    _refuse_model(paths, opened, model_of(source.manifest), source.name)
    if source.manifest is not None and source.manifest.settings.get("side") == "passage":
        logger.warning(f"{source.name} was encoded as passages, not as queries")
    asked = vectors[[rows[qid] for qid in qids]]
    return _Questions(iter([(qids, asked)]), len(qids), model_of(source.manifest))


def _in_precision_of(opened: OpenedIndex, compute: ComputeSettings, own: bool) -> ComputeSettings:
    """Set the precision of queries: that which made the index, unless `own` keeps that given."""
    made = opened.model or {}
    dtype = next((known for known in Dtype if known == made.get("dtype")), None)
    if dtype is None:
        return compute
    head = next((known for known in Dtype if known == made.get("head_dtype")), dtype)
    from denserk.modeling.devices import choose_device

    on_cpu = choose_device(compute.device).type == "cpu"
    own_head = head if on_cpu and head is not dtype else None
    wanted = replace(compute, dtype=dtype, head_dtype=own_head, fp16=False, bf16=False)
    if wanted.precision == compute.precision:
        return compute
    impossible = on_cpu and dtype is Dtype.FLOAT16
    if own or impossible:
        why = "as a CPU computes no float16" if impossible and not own else "as --dtype says"
        logger.info(
            f"queries are encoded in {compute.precision}, {why}; the {opened.kind} was encoded in "
            f"{wanted.precision}"
        )
        return compute
    logger.info(
        f"queries are encoded in {wanted.precision}, as the {opened.kind} was; --dtype chooses "
        "another precision"
    )
    return wanted


def _load_encoder(
    paths: SearchPaths,
    opened: OpenedIndex,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
) -> "TextEncoder":
    """The model of the queries; the index's own, and set up as it was for the index, by default."""
    made = opened.model
    name = paths.model or (made or {}).get("name")
    if name is None:
        raise UsageError(
            f"{opened.name} does not say which model made it", "give --model, or --encoded-queries"
        )
    if paths.model is None:
        logger.info(f"queries are encoded by {name}, which made the {opened.kind}")
    from denserk.modeling.text_encoder import TextEncoder

    encoder = TextEncoder.load(name, *overrides, compute)
    if made is None or paths.force or made.get("fingerprint") != encoder.fingerprint:
        return encoder
    # the same weights: what was chosen when the passages were encoded holds for the queries too
    representation = {**made.get("representation", {}), **overrides[0]}
    text = {**made.get("text", {}), **overrides[1]}
    now = encoder.description()
    if (now["representation"], now["text"]) != (representation, text):
        encoder = TextEncoder.load(name, representation, text, compute)
    return encoder


def _encoding(
    paths: SearchPaths,
    opened: OpenedIndex,
    encoder: "TextEncoder",
    queries: Sequence[Query],
    result: SearchResult,
) -> _Questions:
    """Queries that are encoded as they are needed."""
    _refuse_dimension(opened, encoder.dimension, encoder.name)
    _refuse_model(paths, opened, encoder.description(), encoder.name)

    def asked() -> Asked:
        for first in range(0, len(queries), ENCODED_AT_ONCE):
            batch = queries[first : first + ENCODED_AT_ONCE]
            start = time.perf_counter()
            vectors = encoder.encode_queries(batch)
            result.encoding_seconds += time.perf_counter() - start
            yield [query.qid for query in batch], vectors

    return _Questions(asked(), len(queries), encoder.description())


def _refuse_dimension(opened: OpenedIndex, dimension: int, name: str) -> None:
    """Refuses queries that cannot be compared at all; --force does not help."""
    there = cast(VectorIndex, opened.index).dimension
    if there != dimension:
        raise MismatchError(
            f"{opened.name} holds vectors of {there} dimensions, {name} makes {dimension}",
            "search with the model that made the index",
        )


def _refuse_model(
    paths: SearchPaths, opened: OpenedIndex, model: Description | None, name: str
) -> None:
    """Refuses queries that were made otherwise than the index, unless --force."""
    if not paths.force:
        refuse_other_model(
            opened.model,
            model,
            f"{opened.name} and the queries of {name}",
            "search with the model and settings that made the index, or add --force",
        )


def _answer(
    questions: _Questions,
    searcher: Searcher,
    writer: RunWriter,
    result: SearchResult,
    progress: Progress,
) -> None:
    """Searches and writes; counts on the way."""
    for qids, queries in questions.asked:
        for qid, names, scores in searcher.ranked(qids, queries):
            writer.write(qid, names, scores)
            result.queries += 1
            result.hits += len(scores)
            if not len(scores):
                result.without_hits.append(qid)
            progress.advance()


def _tell_missing(without_hits: Sequence[str]) -> None:
    if without_hits:
        named = ", ".join(without_hits[:NAMED]) + (", ..." if len(without_hits) > NAMED else "")
        logger.warning(
            f"{len(without_hits):,} queries have no hits and are missing from the run: {named}"
        )


def _write_manifest(
    paths: SearchPaths,
    settings: SearchSettings,
    opened: OpenedIndex,
    questions: _Questions,
    queries: Sequence[Query] | None,
    result: SearchResult,
) -> None:
    if not has_manifest(paths.output):
        return
    indexes = opened.described()
    made_from = {
        "index": indexes[0] if len(indexes) == 1 else indexes,
        "model": questions.model,
        "encoded_queries": paths.encoded_queries,
        "topics": {"name": paths.topics, "sha256": queries_sha256(queries)} if queries else None,
        **({"qrels": paths.qrels} if paths.qrels else {}),
    }
    contents = {
        "queries": result.queries,
        "hits": result.hits,
        "ties": result.ties.hits,
        "without_hits": len(result.without_hits),
        "seconds": {"encoding": result.encoding_seconds, "searching": result.searching_seconds},
        "sha256": file_sha256(paths.output),
    }
    write_manifest(paths.output, Manifest(Kind.RUN, True, as_json(settings), made_from, contents))
