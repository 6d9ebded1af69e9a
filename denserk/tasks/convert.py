"""`denserk convert`: conversion between the formats of a kind, streaming.

`CONVERSIONS` has a function for each kind, which takes a `_Job`. `TARGET_NAMES` has the names of
targets that decide a format.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from denserk.config import formats
from denserk.config.encoding import (
    DEFAULTS,
    ModelLayout,
    ModelOptions,
    VectorFormat,
    reject_overrides,
)
from denserk.config.formats import (
    ConversionSettings,
    CorpusFormat,
    CorpusSettings,
    Kind,
    TrainingFormat,
)
from denserk.config.options import reject_given, unused_options
from denserk.config.retrieval import SUFFIXES_OF_RUNS
from denserk.data.sentences import sentence_spans
from denserk.data.splitting import DocumentSplitter, Span, word_spans
from denserk.errors import InputError, UsageError
from denserk.io import clicks, corpus, generated, runs, topics, training
from denserk.io import manifest as manifests
from denserk.io.blocks import Block
from denserk.io.detection import detect_kind, kind_of_name, possible_kinds
from denserk.io.files import STREAM, display_name
from denserk.io.known_positives import without_known_positives
from denserk.io.outputs import whole_folder
from denserk.io.pretraining_text import append_queries
from denserk.io.qrels import WRITTEN_QRELS, read_qrels, write_qrels
from denserk.io.short_texts import first_names
from denserk.io.unchanged import checksum, reject_change
from denserk.io.vector_formats import VectorBlock, is_single_file, write_vectors
from denserk.io.vectors import VectorFolderWriter, VectorSource, read_vector_blocks
from denserk.io.written_files import reject_folder
from denserk.records import Candidate, Passage, Query, TrainingExample, best_first
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

LONG_WORD = 25  # characters on average: there are hardly spaces between words
WITH_SCORES = (TrainingFormat.TEVATRON, TrainingFormat.DPR, TrainingFormat.FLAG)
T = TypeVar("T")
R = TypeVar("R", Query, Passage)
Format = TypeVar("Format", bound=StrEnum)


@dataclass(frozen=True)
class ConversionResult:
    """What was converted: kind, format, and number of `unit`s."""

    kind: Kind
    format: str
    count: int
    unit: str


class _Job(NamedTuple):
    """A conversion: the arguments of `convert` and what they mean."""

    source: str
    target: str
    settings: ConversionSettings
    options: ModelOptions
    from_format: Any  # a format of the kind; None: detected by the reader
    to_format: Any  # a format of the target's kind
    progress: Progress

    def counted(self, records: Iterable[T]) -> Iterator[T]:
        """Pass records on, and count them as progress."""
        for record in records:
            yield record
            self.progress.advance()


def _convert_corpus(job: _Job) -> int:
    """Convert a corpus, perhaps with generated queries appended, or documents split."""
    passages = _distinct_passages(job)
    if job.settings.expansions is not None:
        passages = append_queries(passages, job.settings.expansions)
    if job.settings.split_words is not None:
        return _write_split(job, passages, word_spans, job.settings.split_words)
    if job.settings.split_sentences is not None:
        return _write_split(job, passages, sentence_spans, job.settings.split_sentences)
    return corpus.write_passages(job.target, job.counted(passages), job.to_format)


def _distinct_passages(job: _Job) -> Iterator[Passage]:
    """Yield the passages of the source; raise an InputError at their end if an id repeats."""
    settings = _corpus_settings(job, job.from_format)
    fields = job.options.text.get("fields")  # inside Anserini's `contents`
    ledger = corpus.IdLedger()
    ledger.start(job.source)
    for passage in corpus.read_passages(job.source, settings, fields):
        ledger.extend((passage.docid,))
        yield passage

    def read_ids() -> Iterator[str]:
        for passage in corpus.read_passages(job.source, settings, fields):
            yield passage.docid

    ledger.reject_repeat(None if job.source == STREAM else read_ids)


def _corpus_settings(job: _Job, corpus_format: CorpusFormat | None) -> CorpusSettings:
    """Return how the source, or the --corpus beside it, is read; None: its format is detected."""
    return CorpusSettings(
        corpus_format=corpus_format,
        id_field=job.settings.id_field,
        text_field=job.settings.text_field,
        title_field=job.settings.title_field,
    )


def _write_split(
    job: _Job,
    documents: Iterable[Passage],
    spans: Callable[[str], Iterable[Span]],
    size: int,
) -> int:
    """Write documents as passages of `size` words or sentences, which `spans` finds in a text.

    Log how long the passages are; return their number.
    """
    delimiter = job.settings.max_passage_delimiter
    stride = job.settings.stride or size
    splitter = DocumentSplitter(spans, size, stride, delimiter, job.source)
    passages = splitter.split(documents)
    count = corpus.write_passages(job.target, job.counted(passages), job.to_format)
    name = display_name(job.source)
    logger.info(
        f"{name}: {splitter.documents:,} documents, split into passages of "
        f"{splitter.characters / count:,.0f} characters on average and {splitter.longest:,} at most"
    )
    if spans is word_spans and splitter.mean_unit > LONG_WORD:
        logger.warning(
            f"{name}: words of {splitter.mean_unit:,.0f} characters on average, as in languages "
            "without spaces between words: --split-sentences suits Chinese and Japanese"
        )
    return count


def _convert_queries(job: _Job) -> int:
    """Convert queries, perhaps with the text of other fields."""
    queries = topics.read_queries(job.source, job.from_format, fields=job.settings.topics_field)
    return topics.write_queries(job.target, job.counted(queries), job.to_format)


def _convert_qrels(job: _Job) -> int:
    """Convert qrels, or the clicks of a log."""
    if clicks.is_click_log(job.source, job.from_format):
        qrels = clicks.clicked_qrels(job.source, job.settings.click_grades)
    else:
        _reject_click_grades(job)
        qrels = read_qrels(job.source, job.from_format)
    return write_qrels(job.target, job.counted(qrels), job.to_format)


def _reject_click_grades(job: _Job) -> None:
    """Raise a UsageError for thresholds of clicks where the source is no click log."""
    hint = "--from clicks reads one from standard input" if job.source == STREAM else None
    reject_given(job.settings, why=f"{job.source} is no click log", hint=hint, among="click_grades")


def _read_examples(job: _Job) -> Iterator[TrainingExample]:
    """Return training examples, those of a click log with the clicked passages as positives."""
    if clicks.is_click_log(job.source, job.from_format):
        return clicks.clicked_examples(job.source, job.settings.click_grades)
    _reject_click_grades(job)
    return training.read_training(job.source, job.from_format)


def _convert_run(job: _Job) -> int:
    """Convert a run, whose hits are ranked by score."""
    return runs.write_run(job.target, _ranked_hits(job), job.to_format, job.settings.tag)


def _ranked_hits(job: _Job) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield each query's id and its hits, the best first."""
    for hits in runs.read_run(job.source, job.from_format):
        yield hits.qid, best_first(zip(hits.docids, hits.scores, strict=True))
        job.progress.advance(len(hits.docids))


def _convert_training(job: _Job) -> int:
    """Convert training data, perhaps with texts and a teacher's scores."""
    settings = job.settings
    examples = without_known_positives(_examples_with_texts(job))
    if settings.teacher is not None:
        if job.to_format not in WITH_SCORES:
            message = f"--teacher gives scores, for which {job.to_format} has no place"
            raise UsageError(message, f"add --to with one of {', '.join(WITH_SCORES)}")
        from denserk.models.cross_encoder import PairScorer  # torch is for models alone
        from denserk.tasks.teacher_scores import with_teacher_scores

        teacher = PairScorer(settings.teacher, job.options.text, None, job.options.compute)
        examples = with_teacher_scores(examples, teacher.score, job.source)
    return training.write_training(job.target, job.counted(examples), job.to_format)


def _write_generated_topics(job: _Job) -> int:
    """Write generated queries as topics."""
    queries = generated.generated_topics(job.source)
    return topics.write_queries(job.target, job.counted(queries), job.to_format)


def _write_generated_qrels(job: _Job) -> int:
    """Write qrels that judge a generated query's passage as relevant."""
    qrels = generated.generated_qrels(job.source)
    return write_qrels(job.target, job.counted(qrels), job.to_format)


def _write_generated_training(job: _Job) -> int:
    """Write generated queries with their passages as training data."""
    passages = None
    if job.settings.corpus is not None:
        if job.source == STREAM and job.settings.corpus == STREAM:
            raise UsageError("source and --corpus cannot both be standard input")
        fields = job.options.text.get("fields")
        passages = corpus.read_passages(job.settings.corpus, _corpus_settings(job, None), fields)
    elif job.to_format not in formats.WITHOUT_TEXTS:
        message = f"{job.to_format} holds the texts of passages, and {job.source} their ids"
        raise UsageError(message, "add --corpus")
    examples = generated.generated_examples(job.source, passages)
    return training.write_training(job.target, job.counted(examples), job.to_format)


def _examples_with_texts(job: _Job) -> Iterator[TrainingExample]:
    """Yield training examples, with texts for the passages and queries known by id alone.

    The training data is read twice. In memory are the texts that it needs, not the corpus.
    """
    corpus_source = job.settings.corpus
    queries_source = job.settings.queries
    if not corpus_source and not queries_source:
        yield from _read_examples(job)
        return
    if STREAM in (job.source, corpus_source, queries_source):
        message = "--corpus and --queries need the training data twice, and - comes once"
        raise UsageError(message, "write it to a file first")
    source_checksum = checksum(job.source)
    qids, docids = _ids_without_text(_read_examples(job))
    queries = _find_records(topics.read_queries, queries_source, qids, "queries")
    read_passages = partial(corpus.read_passages, settings=_corpus_settings(job, None))
    passages = _find_records(read_passages, corpus_source, docids, "passages")
    for example in _read_examples(job):
        query = example.query
        if not query and example.qid in queries:  # without --queries none is
            query = queries[example.qid].text
        yield example._replace(
            query=query,
            positives=tuple(_with_text(candidate, passages) for candidate in example.positives),
            negatives=tuple(_with_text(candidate, passages) for candidate in example.negatives),
        )
    reject_change(job.source, source_checksum)


def _ids_without_text(examples: Iterable[TrainingExample]) -> tuple[set[str], set[str]]:
    """Return the ids of the queries, and of the passages, that are known by id alone."""
    qids: set[str] = set()
    docids: set[str] = set()
    for example in examples:
        if not example.query:
            qids.add(example.qid)
        for candidate in training.all_candidates(example):
            if not candidate.text:
                docids.add(candidate.docid)
    return qids, docids


def _with_text(candidate: Candidate, passages: Mapping[str, Passage]) -> Candidate:
    """Return a candidate as it is if it has a text, else with the text of its id, if known."""
    passage = passages.get(candidate.docid)
    if candidate.text or passage is None:
        return candidate
    return candidate._replace(title=candidate.title or passage.title, text=passage.text)


def _find_records(
    read: Callable[[str], Iterable[R]], source: str | None, ids: set[str], unit: str
) -> dict[str, R]:
    """Return the queries or passages of some ids; raise an InputError if the source lacks one.

    Without a source there are none, and none is required.
    """
    if not source:
        return {}
    records = corpus.find_records(read(source), ids, source, unit)
    missing = sorted(ids - records.keys())
    if missing:
        raise InputError(
            source,
            None,
            f"no {unit} with {len(missing):,} of the ids that the training data names "
            f"({first_names(missing)})",
            f"all its {unit}",
        )
    return records


def _convert_vectors(job: _Job) -> int:
    """Convert vectors, each to a record of its own, with the manifest of how they were encoded."""
    source = read_vector_blocks(job.source, allow_pickle=job.settings.allow_pickle)
    blocks = _single_vectors(source, job.progress)
    if job.to_format is VectorFormat.NPY:
        return _write_vector_folder(job, source.manifest, blocks)
    manifest = source.manifest
    if manifest is not None and manifest.kind is not manifests.Kind.VECTORS:
        manifest = None  # of an index: it says how that was built
    return write_vectors(
        job.target,
        job.to_format,
        blocks,
        overwrite=job.settings.overwrite,
        manifest=manifest,
    )


def _single_vectors(source: VectorSource, progress: Progress) -> Iterator[VectorBlock]:
    """Yield blocks with an id for each row; several vectors of passage d1 are d1#0, d1#1, ..."""
    vectors_per_passage = source.vectors_per_passage
    for block in source.blocks():
        if vectors_per_passage > 1:
            ids: list[str] = []
            for docid in block.ids:
                ids += [f"{docid}#{number}" for number in range(vectors_per_passage)]
            block = VectorBlock(ids, block.vectors)
        yield block
        progress.advance(len(block.ids))


def _write_vector_folder(
    job: _Job, source_manifest: manifests.Manifest | None, blocks: Iterator[VectorBlock]
) -> int:
    """Write denserk's own folder, whose manifest keeps what the vectors were made from."""
    settings: Mapping[str, Any] = {}
    made_from: dict[str, Any] = {}
    if source_manifest is not None:
        made_from.update(source_manifest.made_from)
        if source_manifest.kind is manifests.Kind.VECTORS:
            settings = source_manifest.settings
    made_from["converted_from"] = job.source
    first_block = next(blocks)
    dtype = "float16" if first_block.vectors.dtype == np.float16 else "float32"
    manifest = manifests.Manifest(manifests.Kind.VECTORS, False, settings, made_from)
    with whole_folder(job.target, overwrite=job.settings.overwrite) as folder:
        writer = VectorFolderWriter(folder, manifest, dtype)
        for number, block in enumerate(chain([first_block], blocks)):
            # the texts, of which a block records the checksum, are not known here
            texts_block = Block(number, len(block.ids), input_sha256="")
            writer.write(texts_block, block.ids, block.vectors)
        contents = {"dimension": first_block.vectors.shape[1], "vectors_per_passage": 1}
        return int(writer.finish(contents).contents["count"])


def _convert_model(job: _Job) -> int:
    """Convert a model folder; return 1, the number of models."""
    from denserk.models.layouts import convert_model  # torch is for models alone

    if job.target == STREAM:
        raise UsageError(f"{STREAM}: a folder is expected, not a stream")
    with whole_folder(job.target, overwrite=job.settings.overwrite, export=True) as folder:
        convert_model(
            job.source,
            folder,
            job.to_format,
            job.options.representation,
            job.options.text,
            job.settings.average,
        )
    return 1


class Conversion(NamedTuple):
    """How one kind is converted."""

    formats: tuple[StrEnum, ...]  # that can be written
    unit: str  # what is counted
    convert: Callable[[_Job], int]  # writes the target; returns how many units it has


CONVERSIONS: dict[Kind, Conversion] = {
    Kind.CORPUS: Conversion(corpus.WRITTEN, "passages", _convert_corpus),
    Kind.QUERIES: Conversion(topics.WRITTEN, "queries", _convert_queries),
    Kind.QRELS: Conversion(WRITTEN_QRELS, "judgments", _convert_qrels),
    Kind.RUN: Conversion(tuple(formats.RunFormat), "lines", _convert_run),
    Kind.VECTORS: Conversion(tuple(VectorFormat), "vectors", _convert_vectors),
    Kind.TRAINING: Conversion(training.WRITTEN, "examples", _convert_training),
    Kind.MODEL: Conversion(tuple(ModelLayout), "model", _convert_model),
}
# what generated queries are converted to, by the kind of the target
CONVERSIONS_OF_GENERATED: dict[Kind, Conversion] = {
    Kind.QUERIES: Conversion(topics.WRITTEN, "queries", _write_generated_topics),
    Kind.QRELS: Conversion(WRITTEN_QRELS, "judgments", _write_generated_qrels),
    Kind.TRAINING: Conversion(training.WRITTEN, "examples", _write_generated_training),
}


def convert(
    source: str, target: str, settings: ConversionSettings, options: ModelOptions = DEFAULTS
) -> ConversionResult:
    """Convert a file or folder into another format of its kind.

    `source` and `target` may be "-"; kind and formats in `settings` are needed where content and
    names do not decide them. `options` have what a model folder lacks, the `fields` inside
    Anserini's `contents`, or what replaces the settings of a teacher.
    """
    if STREAM not in (source, target) and os.path.realpath(source) == os.path.realpath(target):
        raise UsageError(f"{source} is both source and target", "choose another target")
    kind = settings.kind
    if kind is None:
        kind = _detect_kind(source, target, settings)
        logger.info(f"{source}: {kind}")
    unused = unused_options(kind, settings)
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {kind}", "leave out what is named")
    _reject_unused_options_of_model(kind, settings, options)
    if kind is Kind.GENERATED:
        target_kind = _target_kind_of_generated(target, settings)
        conversion = CONVERSIONS_OF_GENERATED[target_kind]
    else:
        target_kind = kind
        conversion = CONVERSIONS[kind]
    to_format = _target_format(target, target_kind, settings.to_format, source_kind=kind)
    if _writes_file(kind, to_format):
        reject_folder(target)
    if kind is Kind.GENERATED:
        _reject_options_of_generated(settings)
    from_format = None
    if settings.from_format is not None:
        formats_of_kind = type(to_format)  # also those that are only read
        from_format = _format_of_option("--from", settings.from_format, formats_of_kind)
    with track("converting", None, conversion.unit) as progress:
        job = _Job(source, target, settings, options, from_format, to_format, progress)
        count = conversion.convert(job)
    return ConversionResult(target_kind, to_format.value, count, conversion.unit)


def _reject_unused_options_of_model(
    kind: Kind, settings: ConversionSettings, options: ModelOptions
) -> None:
    """Raise a UsageError for options of a model where there is none.

    The fields of passages are also those inside the `contents` of a corpus.
    """
    if kind is Kind.MODEL:
        return
    text = options.text
    if settings.teacher is not None:
        text = {}
    elif kind is Kind.CORPUS or settings.corpus is not None:
        text = {name: value for name, value in text.items() if name != "fields"}
    reject_overrides(options.representation, text, why=f"not used by {kind}")


def _reject_options_of_generated(settings: ConversionSettings) -> None:
    """Raise a UsageError for options that some kinds read, and generated queries do not."""
    option = None
    if settings.from_format:
        option = "--from"
    elif settings.queries:
        option = "--queries"
    if option is not None:
        raise UsageError(f"{option}: not used by generated queries", f"leave out {option}")


def _detect_kind(source: str, target: str, settings: ConversionSettings) -> Kind:
    """Return the kind of a source: a corpus if its fields are named, or else what it looks like.

    Options that only a corpus has make it one, too, unless its content or its name says that it is
    none.
    """
    # with --corpus they may be the fields of that one
    if _names_fields(settings) and settings.corpus is None:
        return Kind.CORPUS
    if _has_options_of_corpus(settings) and _may_be_corpus(source):
        return Kind.CORPUS
    return detect_kind(source, target)


def _names_fields(settings: ConversionSettings) -> bool:
    """Return whether fields of a corpus are named."""
    fields = (settings.id_field, settings.text_field, settings.title_field)
    return any(field is not None for field in fields)


def _has_options_of_corpus(settings: ConversionSettings) -> bool:
    """Return whether an option is given that only a corpus has."""
    options = (settings.split_words, settings.split_sentences, settings.expansions)
    return any(value is not None for value in options)


def _may_be_corpus(source: str) -> bool:
    """Return whether neither the name nor the content of a source says that it is no corpus."""
    if kind_of_name(source) not in (None, Kind.CORPUS):
        return False
    if source == STREAM:
        return True
    kinds = possible_kinds(source)
    return not kinds or Kind.CORPUS in kinds


def _target_kind_of_generated(target: str, settings: ConversionSettings) -> Kind:
    """Return what generated queries are converted to: by an option, or by the target's name."""
    choices = list(CONVERSIONS_OF_GENERATED)
    target_kind = settings.target_kind or kind_of_name(target)
    if target_kind is None:
        message = f"generated queries become {', '.join(choices)}: what is {target}?"
        hint = (
            "say it by the name (queries.tsv, qrels.txt, train.jsonl), or by "
            "--set target-kind=training"
        )
        raise UsageError(message, hint)
    if target_kind not in choices:
        raise UsageError(f"generated queries do not become {target_kind}, but {', '.join(choices)}")
    return target_kind


def _target_format(target: str, kind: Kind, to_format: str | None, source_kind: Kind) -> StrEnum:
    """Return the format of a target: that of --to, or the one that its name leaves no choice of.

    Training data of generated queries has Tevatron's format wherever the name allows it.
    """
    choices = CONVERSIONS[kind].formats
    if to_format is not None:
        return _format_of_option("--to", to_format, choices)
    format_of_name = _format_of_name(target, kind)
    is_generated_training = source_kind is Kind.GENERATED and kind is Kind.TRAINING
    if is_generated_training and format_of_name is None and _may_hold_json_lines(target):
        format_of_name = TrainingFormat.TEVATRON
    if format_of_name is None:
        name = "standard output" if target == STREAM else f"the target {target}"
        hint = f"add --to with one of {', '.join(choices)}"
        if kind is Kind.CORPUS:
            hint = f"add --kind corpus --to beir, or another format: {', '.join(choices)}"
        raise UsageError(f"{name} could be any of several formats of {kind}", hint)
    return format_of_name


def _may_hold_json_lines(target: str) -> bool:
    """Return whether a target is standard output, a file in `.jsonl`, or one without an ending."""
    ending = Path(target.removesuffix(".gz")).suffix
    return target == STREAM or ending in ("", ".jsonl")


def _writes_file(kind: Kind, to_format: StrEnum) -> bool:
    """Return whether the target of a source of some kind is a file, and not a folder."""
    if isinstance(to_format, VectorFormat):
        return is_single_file(to_format)
    return kind is not Kind.MODEL


def _format_of_name(target: str, kind: Kind) -> StrEnum | None:
    """Return the format that the name of a target leaves no choice of.

    A corpus has none under a name of another kind, such as train.jsonl.
    """
    if kind is Kind.CORPUS and kind_of_name(target) not in (None, kind):
        return None
    name = Path(target).name.lower().removesuffix(".gz")
    for patterns, target_format in TARGET_NAMES.get(kind, {}).items():
        if any(fnmatch(name, pattern) for pattern in patterns.split()):
            return target_format
    return None


def _format_of_option(flag: str, name: str, choices: Iterable[Format]) -> Format:
    """Return the format that an option names."""
    choice_by_name = {choice.value: choice for choice in choices}
    if name not in choice_by_name:
        raise UsageError(f"{flag} {name}: no such format", f"one of {', '.join(choice_by_name)}")
    return choice_by_name[name]


# Kind -> patterns of names, separated by spaces -> the format that they leave no choice of. The
# first pattern that fits decides; other names need --to.
TARGET_NAMES: dict[Kind, dict[str, StrEnum]] = {
    Kind.CORPUS: {
        "*.jsonl": formats.CorpusFormat.BEIR,
        "psgs*.tsv": formats.CorpusFormat.DPR,
        "*.tsv": formats.CorpusFormat.MARCO,
    },
    Kind.QUERIES: {
        "queries.jsonl": formats.TopicsFormat.BEIR,
        "*.csv": formats.TopicsFormat.DPR,
        "*.tsv *.txt": formats.TopicsFormat.TSV,
    },
    Kind.QRELS: {
        "*.tsv": formats.QrelsFormat.BEIR,
        "*.txt *.trec *.qrels": formats.QrelsFormat.TREC,
        "*.json": formats.QrelsFormat.JSON,
    },
    Kind.RUN: {
        "*.trec *.txt *.run": formats.RunFormat.TREC,
        **{f"*{suffix}": run_format for suffix, run_format in SUFFIXES_OF_RUNS.items()},
    },
    Kind.VECTORS: {"*.pkl *.pickle": VectorFormat.TEVATRON},
    Kind.TRAINING: {
        "train*.jsonl": TrainingFormat.TEVATRON,
        "*.json": TrainingFormat.DPR,
        "qidpidtriples*": TrainingFormat.TRIPLES,
    },
}
