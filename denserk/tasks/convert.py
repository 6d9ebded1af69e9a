"""One shape of data -> another shape of the same kind, streaming."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeVar, cast

import numpy as np

from denserk.errors import UsageError
from denserk.formats import corpus_file, runs, sources, topics_file, training, trec_qrels
from denserk.formats.block_journal import Block
from denserk.formats.expansions import append_queries
from denserk.formats.files import STREAM
from denserk.formats.kinds import detect_kind, shape_by_name
from denserk.formats.manifest import Kind as ManifestKind
from denserk.formats.manifest import Manifest
from denserk.formats.outputs import prepare_folder, whole_folder
from denserk.formats.vector_block import VectorBlock, regrouped
from denserk.formats.vector_folder import VectorFolderWriter
from denserk.formats.vectors import VectorSource, open_writer, read_vector_blocks
from denserk.records import best_first
from denserk.reporting import track
from denserk.settings.conversion import ConversionSettings, Kind, TrainingFormat
from denserk.settings.encoding import ComputeSettings, ModelLayout, VectorFormat
from denserk.settings.formats import (
    CorpusFormat,
    CorpusSettings,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
)
from denserk.tasks.training_texts import TextFiller

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
WITH_SCORES = (TrainingFormat.TEVATRON, TrainingFormat.DPR, TrainingFormat.FLAG)
"""Shapes of training data that hold a score for each passage."""
BLOCK_SIZE = 4096
"""Vectors a block of a converted folder, as encode has it."""
T = TypeVar("T")
Form = TypeVar("Form", bound=StrEnum)


@dataclass(frozen=True)
class ConversionResult:
    """What was converted, and how many of it."""

    kind: Kind
    shape: str
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

    def source_shape(self, shapes: type[Form]) -> Form | None:
        """The shape given by --from; None is for the reader to detect."""
        name = self.settings.from_format
        return None if name is None else _named(name, list(shapes), "--from")

    def watched(self, records: Iterable[T], unit: str) -> Iterator[T]:
        """Passes records on and counts them on the bar."""
        with track("converting", None, unit) as progress:
            for record in records:
                yield record
                progress.advance()


def _named(name: str, shapes: Iterable[Form], flag: str) -> Form:
    known = {shape.value: shape for shape in shapes}
    if name not in known:
        raise UsageError(f"{flag} {name}: no such shape", f"one of {', '.join(known)}")
    return known[name]


def _corpus(job: _Job, form: StrEnum) -> int:
    settings = CorpusSettings(corpus_format=job.source_shape(CorpusFormat))
    fields = job.text.get("fields")
    passages = sources.read_passages(job.source, settings, fields)
    if job.settings.expansions is not None:
        passages = append_queries(passages, job.settings.expansions)
    watched = job.watched(passages, "passages")
    return corpus_file.write_passages(job.target, watched, cast(CorpusFormat, form))


def _queries(job: _Job, form: StrEnum) -> int:
    queries = sources.read_queries(job.source, job.source_shape(TopicsFormat))
    watched = job.watched(queries, "queries")
    return topics_file.write_queries(job.target, watched, cast(TopicsFormat, form))


def _qrels(job: _Job, form: StrEnum) -> int:
    qrels = sources.read_qrels(job.source, job.source_shape(QrelsFormat))
    watched = job.watched(qrels, "judgements")
    return trec_qrels.write_qrels(job.target, watched, cast(QrelsFormat, form))


def _run(job: _Job, form: StrEnum) -> int:
    queries = runs.read_run(job.source, job.source_shape(RunFormat))
    results = (
        (hits.qid, best_first(zip(hits.docids, hits.scores, strict=True)))
        for hits in job.watched(queries, "queries")
    )
    return runs.write_run(job.target, results, cast(RunFormat, form), job.settings.tag)


def _training(job: _Job, form: StrEnum) -> int:
    shape = job.source_shape(TrainingFormat)
    filler = TextFiller(job.source, shape, job.settings.corpus, job.settings.queries)
    examples = filler.examples()
    if job.settings.teacher is not None:
        if form not in WITH_SCORES:
            raise UsageError(
                f"--teacher gives scores, for which {form} has no place",
                f"add --to with one of {', '.join(WITH_SCORES)}",
            )
        from denserk.mining.teacher import load_teacher, scored  # torch is for models alone

        teacher = load_teacher(job.settings.teacher, job.text, job.compute)
        examples = scored(examples, teacher, job.source)
    watched = job.watched(examples, "examples")
    return training.write_training(job.target, watched, cast(TrainingFormat, form))


def _vectors(job: _Job, form: StrEnum) -> int:
    job.source_shape(VectorFormat)  # its content tells the shape; the name must still be one
    source = read_vector_blocks(job.source, allow_pickle=job.settings.allow_pickle)
    if form is VectorFormat.NPY:
        return _write_folder(job, source)
    overwrite = job.settings.overwrite
    made = source.manifest
    known = made if made is not None and made.kind is ManifestKind.VECTORS else None
    with (
        track("converting", None, "vectors") as progress,
        open_writer(
            job.target,
            cast(VectorFormat, form),
            overwrite=overwrite,
            manifest=known,
        ) as writer,
    ):
        for block in _single_vectors(source):
            writer.write(block.ids, block.vectors, block.texts)
            progress.advance(len(block.ids))
        return writer.count


def _single_vectors(source: VectorSource) -> Iterator[VectorBlock]:
    """Blocks with an id for each row: the rows of passage d1 become d1#0, d1#1, ..."""
    rows = source.vectors_per_passage
    for block in source.blocks_with_texts():
        if rows == 1:
            yield block
        else:
            ids = [f"{docid}#{part}" for docid in block.ids for part in range(rows)]
            yield VectorBlock(ids, block.vectors)


def _write_folder(job: _Job, source: VectorSource) -> int:
    """Writes denserk's own folder; what made the vectors is carried over where it is known."""
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
        for number, block in enumerate(_chained(first, blocks)):
            digest = sha256("\n".join(block.ids).encode())
            digest.update(np.ascontiguousarray(block.vectors).data)
            writer.write(
                Block(number, len(block.ids), digest.hexdigest()), block.ids, block.vectors
            )
            progress.advance(len(block.ids))
    dimension = first.vectors.shape[1]
    finished = writer.finish({"dimension": dimension, "vectors_per_passage": 1})
    return int(finished.contents["count"])


def _model(job: _Job, form: StrEnum) -> int:
    from denserk.modeling.model_conversion import convert_model  # torch is for models alone

    job.source_shape(ModelLayout)  # its files tell the layout; the name must still be one
    with whole_folder(job.target, overwrite=job.settings.overwrite, export=True) as folder:
        convert_model(
            job.source,
            folder,
            cast(ModelLayout, form),
            job.representation,
            job.text,
        )
    return 1


def _chained(first: VectorBlock, rest: Iterator[VectorBlock]) -> Iterator[VectorBlock]:
    yield first
    yield from rest


@dataclass(frozen=True)
class _Conversion:
    """How one kind is converted: its shapes that can be written, what is counted, who does it."""

    shapes: tuple[StrEnum, ...]
    unit: str
    convert: Callable[[_Job, StrEnum], int]


CONVERSIONS = {
    Kind.CORPUS: _Conversion(corpus_file.WRITTEN, "passages", _corpus),
    Kind.QUERIES: _Conversion(topics_file.WRITTEN, "queries", _queries),
    Kind.QRELS: _Conversion(tuple(QrelsFormat), "judgements", _qrels),
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
    """Converts a file or folder into another shape of its kind.

    Args:
        source: what is read; "-" is standard input, and `settings.kind` must say what it holds.
        target: what is written, whole or not at all; "-" is standard output.
        settings: kind and shapes, where content and names do not settle them.
        representation: for a model: fields of RepresentationSettings that its folder does not say.
        text: the same of TextSettings; for a corpus: the `fields` inside Anserini's `contents`; for
            training data with a teacher: what replaces the teacher's own settings.
        compute: where and how a teacher scores.

    Raises:
        UsageError: a kind or shape is not known, or is left open.
        InputError: the source does not keep to its shape.
        OutputError: the target cannot be written.
    """
    if (
        source != STREAM
        and target != STREAM
        and os.path.realpath(source) == os.path.realpath(target)
    ):
        raise UsageError(f"{source} is both source and target", "choose another target")
    kind = settings.kind or detect_kind(source, target)
    if settings.kind is None:
        logger.info(f"{source}: {kind}")
    if settings.teacher is not None and kind is not Kind.TRAINING:
        raise UsageError(f"--teacher scores training data, not {kind}", "leave it out")
    if settings.expansions is not None and kind is not Kind.CORPUS:
        raise UsageError(f"--expansions are appended to a corpus, not to {kind}", "leave it out")
    conversion = CONVERSIONS[kind]
    form = _target_shape(target, kind, conversion, settings.to_format)
    job = _Job(source, target, settings, representation, text, compute)
    count = conversion.convert(job, form)
    return ConversionResult(kind, form.value, count, conversion.unit)


def _target_shape(target: str, kind: Kind, conversion: _Conversion, name: str | None) -> StrEnum:
    if name is not None:
        return _named(name, conversion.shapes, "--to")
    form = shape_by_name(target, kind)
    if form is None:
        named = "standard output" if target == STREAM else target
        raise UsageError(
            f"{named} could be any of several shapes of {kind}",
            f"add --to with one of {', '.join(conversion.shapes)}",
        )
    return form
