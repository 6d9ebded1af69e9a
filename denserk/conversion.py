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

from denserk.config.encoding import ComputeSettings, ModelLayout, VectorFormat
from denserk.config.formats import (
    ConversionSettings,
    CorpusSettings,
    Kind,
    QrelsFormat,
    RunFormat,
    TrainingFormat,
)
from denserk.errors import InputError, UsageError
from denserk.io import corpus, qrels, runs, topics, training
from denserk.io.blocks import Block
from denserk.io.detect import detect_kind, format_by_name
from denserk.io.files import STREAM
from denserk.io.manifest import Kind as ManifestKind
from denserk.io.manifest import Manifest
from denserk.io.outputs import prepare_folder, whole_folder
from denserk.io.pretraining_text import append_queries
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import VectorFolderWriter, VectorSource, read_vector_blocks
from denserk.records import Candidate, Passage, Query, TrainingExample, best_first
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
SHOWN = 5  # ids that an error names
WITH_SCORES = (TrainingFormat.TEVATRON, TrainingFormat.DPR, TrainingFormat.FLAG)
T = TypeVar("T")
R = TypeVar("R", Query, Passage)
Form = TypeVar("Form", bound=StrEnum)


@dataclass(frozen=True)
class ConversionResult:
    """What was converted: kind, format, and number of `unit`s."""

    kind: Kind
    format: str
    count: int
    unit: str


class _Job(NamedTuple):
    """The arguments of `convert`, formats of source (None: detected) and target, progress."""

    source: str
    target: str
    settings: ConversionSettings
    representation: Mapping[str, Any]
    text: Mapping[str, Any]
    compute: ComputeSettings
    from_format: Any
    to_format: Any
    progress: Progress

    def counted(self, records: Iterable[T]) -> Iterator[T]:
        """Yield the records, and advance the progress."""
        for record in records:
            yield record
            self.progress.advance()


def _corpus(job: _Job) -> int:
    settings = CorpusSettings(corpus_format=job.from_format)
    passages = corpus.read_passages(job.source, settings, job.text.get("fields"))
    if job.settings.expansions is not None:
        passages = append_queries(passages, job.settings.expansions)
    return corpus.write_passages(job.target, job.counted(passages), job.to_format)


def _queries(job: _Job) -> int:
    queries = topics.read_queries(job.source, job.from_format)
    return topics.write_queries(job.target, job.counted(queries), job.to_format)


def _qrels(job: _Job) -> int:
    judgments = qrels.read_qrels(job.source, job.from_format)
    return qrels.write_qrels(job.target, job.counted(judgments), job.to_format)


def _run(job: _Job) -> int:
    def ranked() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for hits in runs.read_run(job.source, job.from_format):
            yield hits.qid, best_first(zip(hits.docids, hits.scores, strict=True))
            job.progress.advance(len(hits.docids))

    return runs.write_run(job.target, ranked(), job.to_format, job.settings.tag)


def _training(job: _Job) -> int:
    settings = job.settings
    examples = with_texts(job.source, job.from_format, settings.corpus, settings.queries)
    if settings.teacher is not None:
        if job.to_format not in WITH_SCORES:
            raise UsageError(
                f"--teacher gives scores, for which {job.to_format} has no place",
                f"add --to with one of {', '.join(WITH_SCORES)}",
            )
        from denserk.mining.mining import scored
        from denserk.models.cross_encoder import PairScorer  # torch is for models alone

        teacher = PairScorer.load(settings.teacher, job.text, None, job.compute)
        examples = scored(examples, teacher.score, job.source)
    return training.write_training(job.target, job.counted(examples), job.to_format)


def with_texts(
    source: str, form: TrainingFormat | None, passages: str | None, queries: str | None
) -> Iterator[TrainingExample]:
    """Yield training examples, with texts for the passages and queries known by id alone.

    The training data is read twice. In memory are the texts that it needs, not the corpus. Without
    a corpus or queries, passages or queries are left as they are.
    """
    qids: set[str] = set()
    docids: set[str] = set()
    if passages or queries:
        if STREAM in (source, passages, queries):
            raise UsageError(
                "--corpus and --queries need the training data twice, and - comes once",
                "write it to a file first",
            )
        for example in training.read_training(source, form):
            if not example.query:
                qids.add(example.qid)
            docids.update(c.docid for c in training.all_candidates(example) if not c.text)
    asked = _gathered(topics.read_queries(queries), qids, "queries", queries) if queries else {}
    found = (
        _gathered(corpus.read_passages(passages), docids, "passages", passages) if passages else {}
    )

    def filled(candidate: Candidate) -> Candidate:
        if candidate.text or candidate.docid not in found:
            return candidate
        passage = found[candidate.docid]
        return candidate._replace(title=candidate.title or passage.title, text=passage.text)

    for example in training.read_training(source, form):
        query = asked.get(example.qid)
        yield example._replace(
            query=example.query or (query.text if query else ""),
            positives=tuple(map(filled, example.positives)),
            negatives=tuple(map(filled, example.negatives)),
        )


def _gathered(records: Iterable[R], ids: set[str], unit: str, source: str) -> dict[str, R]:
    """Return the records of some ids; raise an InputError if the source lacks one."""
    found = corpus.find_records(records, ids, source, unit)
    if missing := sorted(ids - found.keys()):
        named = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        lacking = f"no {unit} with {len(missing):,} of the ids that the training data names"
        raise InputError(source, None, f"{lacking} ({named})", f"all its {unit}")
    return found


def _vectors(job: _Job) -> int:
    source = read_vector_blocks(job.source, allow_pickle=job.settings.allow_pickle)
    made, overwrite = source.manifest, job.settings.overwrite
    known = made if made is not None and made.kind is ManifestKind.VECTORS else None
    if job.to_format is VectorFormat.NPY:
        return _write_folder(job, source, known)
    return write_vectors(
        job.target, job.to_format, _single_vectors(job, source), overwrite=overwrite, manifest=known
    )


def _single_vectors(job: _Job, source: VectorSource) -> Iterator[VectorBlock]:
    """Yield blocks with an id for each row: the rows of passage d1 become d1#0, d1#1, ..."""
    rows = source.vectors_per_passage
    for block in source.blocks():
        if rows > 1:
            ids = [f"{docid}#{part}" for docid in block.ids for part in range(rows)]
            block = VectorBlock(ids, block.vectors)
        yield block
        job.progress.advance(len(block.ids))


def _write_folder(job: _Job, source: VectorSource, known: Manifest | None) -> int:
    """Write denserk's own folder; the manifest keeps what encoded the vectors."""
    made_from = {} if source.manifest is None else source.manifest.made_from
    made_from = {**made_from, "converted_from": job.source}
    settings = known.settings if known else {}
    blocks = _single_vectors(job, source)
    first = next(blocks)  # before anything is removed
    folder = prepare_folder(job.target, overwrite=job.settings.overwrite)
    dtype = "float16" if first.vectors.dtype == np.float16 else "float32"
    manifest = Manifest(ManifestKind.VECTORS, False, settings, made_from)
    writer = VectorFolderWriter(folder, manifest, dtype)
    for number, block in enumerate(chain([first], blocks)):
        digest = sha256("\n".join(block.ids).encode())
        digest.update(np.ascontiguousarray(block.vectors).data)
        done = Block(number, len(block.ids), digest.hexdigest())
        writer.write(done, block.ids, block.vectors)
    contents = {"dimension": first.vectors.shape[1], "vectors_per_passage": 1}
    return int(writer.finish(contents).contents["count"])


def _model(job: _Job) -> int:
    from denserk.models.model_folder import convert_model  # torch is for models alone

    with whole_folder(job.target, overwrite=job.settings.overwrite, export=True) as folder:
        convert_model(job.source, folder, job.to_format, job.representation, job.text)
    return 1


# for each kind: the formats that can be written, what is counted, and the function that converts
CONVERSIONS: dict[Kind, tuple[tuple[StrEnum, ...], str, Callable[[_Job], int]]] = {
    Kind.CORPUS: (corpus.WRITTEN, "passages", _corpus),
    Kind.QUERIES: (topics.WRITTEN, "queries", _queries),
    Kind.QRELS: (tuple(QrelsFormat), "judgments", _qrels),
    Kind.RUN: (tuple(RunFormat), "lines", _run),
    Kind.VECTORS: (tuple(VectorFormat), "vectors", _vectors),
    Kind.TRAINING: (tuple(TrainingFormat), "examples", _training),
    Kind.MODEL: (tuple(ModelLayout), "model", _model),
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
        text: for a model: the same of TextSettings; for a corpus: the `fields` inside Anserini's
            `contents`; for training data: what replaces the teacher's own settings.
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
    formats, unit, convert_kind = CONVERSIONS[kind]
    to_format = format_by_name(target, kind)
    if settings.to_format is not None:
        to_format = _named(settings.to_format, formats, "--to")
    if to_format is None:
        raise UsageError(
            f"{'standard output' if target == STREAM else target} could be any of several formats "
            f"of {kind}",
            f"add --to with one of {', '.join(formats)}",
        )
    from_format = None
    if settings.from_format is not None:
        from_format = _named(settings.from_format, type(to_format), "--from")
    with track("converting", None, unit) as progress:
        job = _Job(
            *(source, target, settings, representation, text, compute),
            *(from_format, to_format, progress),
        )
        return ConversionResult(kind, to_format.value, convert_kind(job), unit)


def _named(name: str, formats: Iterable[Form], flag: str) -> Form:
    known = {form.value: form for form in formats}
    if name not in known:
        raise UsageError(f"{flag} {name}: no such format", f"one of {', '.join(known)}")
    return known[name]
