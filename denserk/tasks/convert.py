"""Conversion between the formats of a kind, streaming."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from denserk.config.conversion import ConversionSettings, Kind, TrainingFormat
from denserk.config.encoding import ComputeSettings, ModelLayout, VectorFormat
from denserk.config.formats import (
    CorpusFormat,
    CorpusSettings,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
)
from denserk.errors import InputError, UsageError
from denserk.io import corpus, qrels, runs, topics, training
from denserk.io.block_journal import Block
from denserk.io.detect import detect_kind, format_by_name
from denserk.io.files import STREAM
from denserk.io.manifest import Kind as ManifestKind
from denserk.io.manifest import Manifest
from denserk.io.outputs import prepare_folder, whole_folder
from denserk.io.pretraining_text import append_queries
from denserk.io.vector_folder import VectorFolderWriter
from denserk.io.vector_formats import VectorBlock, regrouped
from denserk.io.vectors import VectorSource, open_writer, read_vector_blocks
from denserk.records import Candidate, TrainingExample, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
SHOWN = 5  # ids that an error names
WITH_SCORES = (TrainingFormat.TEVATRON, TrainingFormat.DPR, TrainingFormat.FLAG)
BLOCK_SIZE = 4096  # vectors a block of a converted folder, as encode has it
T = TypeVar("T")
Form = TypeVar("Form", bound=StrEnum)


@dataclass(frozen=True)
class ConversionResult:
    """What was converted, and how many of it."""

    kind: Kind
    format: str
    count: int
    unit: str


@dataclass(frozen=True)
class _Job:
    source: str
    target: str
    settings: ConversionSettings
    representation: Mapping[str, Any]
    text: Mapping[str, Any]
    compute: ComputeSettings

    def source_format(self, formats: type[Form]) -> Form | None:
        """Return the format given by --from; None is for the reader to detect."""
        name = self.settings.from_format
        return None if name is None else _named(name, list(formats), "--from")


def _counted(records: Iterable[T], unit: str) -> Iterator[T]:
    """Pass records on and count them on a progress bar."""
    with track("converting", None, unit) as progress:
        for record in records:
            yield record
            progress.advance()


def _named(name: str, formats: Iterable[Form], flag: str) -> Form:
    known = {form.value: form for form in formats}
    if name not in known:
        raise UsageError(f"{flag} {name}: no such format", f"one of {', '.join(known)}")
    return known[name]


def _corpus(job: _Job, form: CorpusFormat) -> int:
    settings = CorpusSettings(corpus_format=job.source_format(CorpusFormat))
    passages = corpus.read_passages(job.source, settings, job.text.get("fields"))
    if job.settings.expansions is not None:
        passages = append_queries(passages, job.settings.expansions)
    return corpus.write_passages(job.target, _counted(passages, "passages"), form)


def _queries(job: _Job, form: TopicsFormat) -> int:
    queries = topics.read_queries(job.source, job.source_format(TopicsFormat))
    return topics.write_queries(job.target, _counted(queries, "queries"), form)


def _qrels(job: _Job, form: QrelsFormat) -> int:
    judgments = qrels.read_qrels(job.source, job.source_format(QrelsFormat))
    return qrels.write_qrels(job.target, _counted(judgments, "judgments"), form)


def _run(job: _Job, form: RunFormat) -> int:
    queries = runs.read_run(job.source, job.source_format(RunFormat))
    results = (
        (hits.qid, best_first(zip(hits.docids, hits.scores, strict=True)))
        for hits in _counted(queries, "queries")
    )
    return runs.write_run(job.target, results, form, job.settings.tag)


def _training(job: _Job, form: TrainingFormat) -> int:
    given, settings = job.source_format(TrainingFormat), job.settings
    examples = with_texts(job.source, given, settings.corpus, settings.queries)
    if settings.teacher is not None:
        if form not in WITH_SCORES:
            raise UsageError(
                f"--teacher gives scores, for which {form} has no place",
                f"add --to with one of {', '.join(WITH_SCORES)}",
            )
        from denserk.mining.teacher import load_teacher, scored  # torch is for models alone

        teacher = load_teacher(settings.teacher, job.text, job.compute)
        examples = scored(examples, teacher, job.source)
    return training.write_training(job.target, _counted(examples, "examples"), form)


def with_texts(
    source: str, form: TrainingFormat | None, passages: str | None, queries: str | None
) -> Iterator[TrainingExample]:
    """Yield training examples, with texts for the passages and queries known by id alone.

    The training data is read twice. In memory are the texts that it needs, not the corpus.

    Args:
        source: the training data.
        form: its format; None detects it.
        passages: the corpus, or None to leave passages as they are.
        queries: the queries, or None to leave queries as they are.

    Raises:
        UsageError: the training data is a stream.
        InputError: the corpus or the queries lack some of the ids; the first few are named.
    """
    if passages is None and queries is None:
        yield from training.read_training(source, form)
        return
    if STREAM in (source, passages, queries):
        raise UsageError(
            "--corpus and --queries need the training data twice, and - comes once",
            "write it to a file first",
        )
    qids: set[str] = set()
    docids: set[str] = set()
    for example in training.read_training(source, form):
        if not example.query:
            qids.add(example.qid)
        docids.update(c.docid for c in training.all_candidates(example) if not c.text)
    query_texts = {} if queries is None else _query_texts(queries, qids)
    texts = {} if passages is None else _passage_texts(passages, docids)

    def filled(candidate: Candidate) -> Candidate:
        if candidate.text or candidate.docid not in texts:
            return candidate
        title, text = texts[candidate.docid]
        return candidate._replace(title=candidate.title or title, text=text)

    for example in training.read_training(source, form):
        yield example._replace(
            query=example.query or query_texts.get(example.qid, ""),
            positives=tuple(map(filled, example.positives)),
            negatives=tuple(map(filled, example.negatives)),
        )


def _query_texts(source: str, qids: set[str]) -> dict[str, str]:
    texts = {query.qid: query.text for query in topics.read_queries(source) if query.qid in qids}
    _reject_missing(qids - texts.keys(), "queries", source)
    return texts


def _passage_texts(source: str, docids: set[str]) -> dict[str, tuple[str, str]]:
    texts = {}
    with track("gathering texts", None, "passages") as progress:
        for passage in corpus.read_passages(source):
            if passage.docid in docids:
                texts[passage.docid] = passage.title, passage.text
            progress.advance()
    _reject_missing(docids - texts.keys(), "passages", source)
    return texts


def _reject_missing(missing: set[str], what: str, where: str) -> None:
    if missing:
        named = ", ".join(sorted(missing)[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        found = f"no {what} with {len(missing):,} of the ids that the training data names ({named})"
        raise InputError(where, None, found, f"all its {what}")


def _vectors(job: _Job, form: VectorFormat) -> int:
    job.source_format(VectorFormat)  # detected by content; the name must still be one
    source = read_vector_blocks(job.source, allow_pickle=job.settings.allow_pickle)
    if form is VectorFormat.NPY:
        return _write_folder(job, source)
    made = source.manifest
    known = made if made is not None and made.kind is ManifestKind.VECTORS else None
    with (
        track("converting", None, "vectors") as progress,
        open_writer(job.target, form, overwrite=job.settings.overwrite, manifest=known) as writer,
    ):
        for block in _single_vectors(source):
            writer.write(block.ids, block.vectors, block.texts)
            progress.advance(len(block.ids))
        return writer.count


def _single_vectors(source: VectorSource) -> Iterator[VectorBlock]:
    """Yield blocks with an id for each row: the rows of passage d1 become d1#0, d1#1, ..."""
    rows = source.vectors_per_passage
    for block in source.blocks():
        if rows == 1:
            yield block
        else:
            ids = [f"{docid}#{part}" for docid in block.ids for part in range(rows)]
            yield VectorBlock(ids, block.vectors)


def _write_folder(job: _Job, source: VectorSource) -> int:
    """Write denserk's own folder; the record of what made the vectors is kept."""
    made_from = dict(source.manifest.made_from) if source.manifest else {}
    was_vectors = source.manifest is not None and source.manifest.kind is ManifestKind.VECTORS
    manifest = Manifest(
        ManifestKind.VECTORS,
        complete=False,
        settings=dict(source.manifest.settings) if source.manifest and was_vectors else {},
        made_from=made_from | {"converted_from": job.source},
    )
    blocks = iter(regrouped(_single_vectors(source), BLOCK_SIZE))
    first = next(blocks)
    folder = prepare_folder(job.target, overwrite=job.settings.overwrite)
    dtype = "float16" if first.vectors.dtype == np.float16 else "float32"
    writer = VectorFolderWriter(folder, manifest, dtype)
    with track("converting", None, "vectors") as progress:
        for number, block in enumerate(chain([first], blocks)):
            digest = sha256("\n".join(block.ids).encode())
            digest.update(np.ascontiguousarray(block.vectors).data)
            writer.write(
                Block(number, len(block.ids), digest.hexdigest()), block.ids, block.vectors
            )
            progress.advance(len(block.ids))
    dimension = first.vectors.shape[1]
    finished = writer.finish({"dimension": dimension, "vectors_per_passage": 1})
    return int(finished.contents["count"])


def _model(job: _Job, form: ModelLayout) -> int:
    from denserk.models.model_folder import convert_model  # torch is for models alone

    job.source_format(ModelLayout)  # detected by its files; the name must still be one
    with whole_folder(job.target, overwrite=job.settings.overwrite, export=True) as folder:
        convert_model(job.source, folder, form, job.representation, job.text)
    return 1


class _Conversion(NamedTuple):
    """How one kind is converted: the formats that can be written, what is counted, the function."""

    formats: tuple[StrEnum, ...]
    unit: str
    convert: Callable[[_Job, Any], int]


CONVERSIONS = {
    Kind.CORPUS: _Conversion(corpus.WRITTEN, "passages", _corpus),
    Kind.QUERIES: _Conversion(topics.WRITTEN, "queries", _queries),
    Kind.QRELS: _Conversion(tuple(QrelsFormat), "judgments", _qrels),
    Kind.RUN: _Conversion(tuple(RunFormat), "lines", _run),
    Kind.VECTORS: _Conversion(tuple(VectorFormat), "vectors", _vectors),
    Kind.TRAINING: _Conversion(tuple(TrainingFormat), "examples", _training),
    Kind.MODEL: _Conversion(tuple(ModelLayout), "model", _model),
}


def convert(
    source: str,
    target: str,
    settings: ConversionSettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> ConversionResult:
    """Convert a file or folder into another format of its kind.

    Args:
        source: what is read; "-" is standard input, and `settings.kind` must say what it holds.
        target: what is written, whole or not at all; "-" is standard output.
        settings: kind and formats, if content and names do not decide them.
        representation: for a model: fields of RepresentationSettings that its folder lacks.
        text: the same of TextSettings; for a corpus: the `fields` inside Anserini's `contents`; for
            training data with a teacher: what replaces the teacher's own settings.
        compute: where and how a teacher scores.

    Raises:
        UsageError: a kind or format is not known, or cannot be decided.
        InputError: the source does not keep to its format.
    """
    if STREAM not in (source, target) and os.path.realpath(source) == os.path.realpath(target):
        raise UsageError(f"{source} is both source and target", "choose another target")
    kind = settings.kind or detect_kind(source, target)
    if settings.kind is None:
        logger.info(f"{source}: {kind}")
    if settings.teacher is not None and kind is not Kind.TRAINING:
        raise UsageError(f"--teacher scores training data, not {kind}", "leave it out")
    if settings.expansions is not None and kind is not Kind.CORPUS:
        raise UsageError(f"--expansions are appended to a corpus, not to {kind}", "leave it out")
    conversion = CONVERSIONS[kind]
    form = format_by_name(target, kind)
    if settings.to_format is not None:
        form = _named(settings.to_format, conversion.formats, "--to")
    if form is None:
        raise UsageError(
            f"{'standard output' if target == STREAM else target} could be any of several formats "
            f"of {kind}",
            f"add --to with one of {', '.join(conversion.formats)}",
        )
    job = _Job(source, target, settings, representation, text, compute)
    return ConversionResult(kind, form.value, conversion.convert(job, form), conversion.unit)
