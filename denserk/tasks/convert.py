"""Conversion between the formats of a kind, streaming; what a file or folder holds."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from denserk.config import formats
from denserk.config.encoding import DEFAULTS, ModelLayout, ModelOptions, VectorFormat
from denserk.config.formats import ConversionSettings, CorpusSettings, Kind, TrainingFormat
from denserk.config.options import unused_options
from denserk.errors import InputError, UsageError
from denserk.io import corpus, runs, topics, training
from denserk.io import manifest as manifests
from denserk.io.blocks import Block
from denserk.io.column_names import Table, recognise_header, run_or_qrels, split_columns
from denserk.io.files import STREAM, first_line, is_number, open_ahead, refuse_folder, some
from denserk.io.json_records import first_record
from denserk.io.known_positives import without_known_positives
from denserk.io.outputs import whole_folder
from denserk.io.pretraining_text import append_queries
from denserk.io.tables import HUB
from denserk.io.unchanged import checksum, refuse_change
from denserk.io.unread_files import OBJECT_OF_SCORES
from denserk.io.vector_formats import VectorBlock, is_single_file, write_vectors
from denserk.io.vectors import VectorFolderWriter, read_vector_blocks
from denserk.records import Candidate, Passage, Query, TrainingExample, best_first
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

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
    options: ModelOptions
    from_format: Any
    to_format: Any
    progress: Progress

    def counted(self, records: Iterable[T]) -> Iterator[T]:
        for record in records:
            yield record
            self.progress.advance()


def _corpus(job: _Job) -> int:
    """Convert a corpus, perhaps with generated queries appended to its passages."""
    settings = CorpusSettings(corpus_format=job.from_format)
    passages = corpus.read_passages(job.source, settings, job.options.text.get("fields"))
    if job.settings.expansions is not None:
        passages = append_queries(passages, job.settings.expansions)
    return corpus.write_passages(job.target, job.counted(passages), job.to_format)


def _records(read: Callable[..., Any], write: Callable[..., int], job: _Job) -> int:
    """Convert queries or qrels."""
    return write(job.target, job.counted(read(job.source, job.from_format)), job.to_format)


_queries = partial(_records, topics.read_queries, topics.write_queries)
_qrels = partial(_records, topics.read_qrels, topics.write_qrels)


def _run(job: _Job) -> int:
    """Convert a run, whose hits are ranked by score."""

    def ranked() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for hits in runs.read_run(job.source, job.from_format):
            yield hits.qid, best_first(zip(hits.docids, hits.scores, strict=True))
            job.progress.advance(len(hits.docids))

    return runs.write_run(job.target, ranked(), job.to_format, job.settings.tag)


def _training(job: _Job) -> int:
    """Convert training data, perhaps with texts and a teacher's scores."""
    settings = job.settings
    examples = without_known_positives(_with_texts(job))
    if settings.teacher is not None:
        if job.to_format not in WITH_SCORES:
            message = f"--teacher gives scores, for which {job.to_format} has no place"
            raise UsageError(message, f"add --to with one of {', '.join(WITH_SCORES)}")
        from denserk.models.cross_encoder import PairScorer  # torch is for models alone
        from denserk.tasks.mine_negatives import scored

        teacher = PairScorer(settings.teacher, job.options.text, None, job.options.compute)
        examples = scored(examples, teacher.score, job.source)
    return training.write_training(job.target, job.counted(examples), job.to_format)


def _with_texts(job: _Job) -> Iterator[TrainingExample]:
    """Yield training examples, with texts for the passages and queries known by id alone.

    The training data is read twice. In memory are the texts that it needs, not the corpus.
    """
    corpus_source = job.settings.corpus
    queries_source = job.settings.queries
    if not corpus_source and not queries_source:
        yield from training.read_training(job.source, job.from_format)
        return
    if STREAM in (job.source, corpus_source, queries_source):
        message = "--corpus and --queries need the training data twice, and - comes once"
        raise UsageError(message, "write it to a file first")
    before = checksum(job.source)
    qids: set[str] = set()
    docids: set[str] = set()
    for example in training.read_training(job.source, job.from_format):
        if not example.query:
            qids.add(example.qid)
        for candidate in training.all_candidates(example):
            if not candidate.text:
                docids.add(candidate.docid)
    queries = _gathered(topics.read_queries, queries_source, qids, "queries")
    passages = _gathered(corpus.read_passages, corpus_source, docids, "passages")
    for example in training.read_training(job.source, job.from_format):
        query = example.query
        if not query and example.qid in queries:
            query = queries[example.qid].text
        yield example._replace(
            query=query,
            positives=tuple(_with_text(candidate, passages) for candidate in example.positives),
            negatives=tuple(_with_text(candidate, passages) for candidate in example.negatives),
        )
    refuse_change(job.source, before)


def _with_text(candidate: Candidate, passages: Mapping[str, Passage]) -> Candidate:
    """Return a passage with the text that the corpus has for its id, if it has none."""
    passage = passages.get(candidate.docid)
    if candidate.text or passage is None:
        return candidate
    return candidate._replace(title=candidate.title or passage.title, text=passage.text)


def _gathered(
    read: Callable[[str], Iterable[R]], source: str | None, ids: set[str], unit: str
) -> dict[str, R]:
    """Return the records of some ids; raise an InputError if the source lacks one."""
    if not source:
        return {}
    records = corpus.find_records(read(source), ids, source, unit)
    missing = sorted(ids - records.keys())
    if missing:
        found = (
            f"no {unit} with {len(missing):,} of the ids that the training data names "
            f"({some(missing)})"
        )
        raise InputError(source, None, found, f"all its {unit}")
    return records


def _vectors(job: _Job) -> int:
    """Convert vectors, one row a record."""
    source = read_vector_blocks(job.source, allow_pickle=job.settings.allow_pickle)
    rows = source.vectors_per_passage
    overwrite = job.settings.overwrite

    def single_vectors() -> Iterator[VectorBlock]:
        for block in source.blocks():
            if rows > 1:  # an id for each row: those of passage d1 become d1#0, d1#1, ...
                ids = [f"{docid}#{part}" for docid in block.ids for part in range(rows)]
                block = VectorBlock(ids, block.vectors)
            yield block
            job.progress.advance(len(block.ids))

    blocks = single_vectors()
    source_manifest = source.manifest
    known = None  # how the vectors were encoded
    if source_manifest is not None and source_manifest.kind is manifests.Kind.VECTORS:
        known = source_manifest
    if job.to_format is not VectorFormat.NPY:
        return write_vectors(job.target, job.to_format, blocks, overwrite=overwrite, manifest=known)
    # denserk's own folder; the manifest keeps what encoded the vectors
    made_from = dict(source_manifest.made_from) if source_manifest else {}
    made_from["converted_from"] = job.source
    first_block = next(blocks)
    dtype = "float16" if first_block.vectors.dtype == np.float16 else "float32"
    settings = known.settings if known else {}
    manifest = manifests.Manifest(manifests.Kind.VECTORS, False, settings, made_from)
    with whole_folder(job.target, overwrite=overwrite) as folder:
        writer = VectorFolderWriter(folder, manifest, dtype)
        for number, block in enumerate(chain([first_block], blocks)):
            writer.write(Block(number, len(block.ids), ""), block.ids, block.vectors)
        contents = {"dimension": first_block.vectors.shape[1], "vectors_per_passage": 1}
        return int(writer.finish(contents).contents["count"])


def _model(job: _Job) -> int:
    """Convert a model folder."""
    from denserk.models.layouts import convert_model  # torch is for models alone

    if job.target == STREAM:
        raise UsageError(f"{STREAM}: a folder is expected, not a stream")
    with whole_folder(job.target, overwrite=job.settings.overwrite, export=True) as folder:
        options = job.options.representation, job.options.text
        convert_model(job.source, folder, job.to_format, *options, job.settings.average)
    return 1


# for each kind: the formats that can be written, what is counted, and the function that converts
CONVERSIONS: dict[Kind, tuple[tuple[StrEnum, ...], str, Callable[[_Job], int]]] = {
    Kind.CORPUS: (corpus.WRITTEN, "passages", _corpus),
    Kind.QUERIES: (topics.WRITTEN, "queries", _queries),
    Kind.QRELS: (tuple(formats.QrelsFormat), "judgments", _qrels),
    Kind.RUN: (tuple(formats.RunFormat), "lines", _run),
    Kind.VECTORS: (tuple(VectorFormat), "vectors", _vectors),
    Kind.TRAINING: (tuple(TrainingFormat), "examples", _training),
    Kind.MODEL: (tuple(ModelLayout), "model", _model),
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
    kind = settings.kind or detect_kind(source, target)
    if settings.kind is None:
        logger.info(f"{source}: {kind}")
    unused = unused_options(kind, settings)
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {kind}", "leave out what is named")
    written, unit, convert_kind = CONVERSIONS[kind]
    to_format = _format_of_name(target, kind)
    if settings.to_format is not None:
        to_format = _named(settings.to_format, written, "--to")
    if to_format is None:
        name = "standard output" if target == STREAM else target
        hint = f"add --to with one of {', '.join(written)}"
        raise UsageError(f"{name} could be any of several formats of {kind}", hint)
    if _writes_file(kind, to_format):
        refuse_folder(target)
    from_format = None
    if settings.from_format is not None:
        from_format = _named(settings.from_format, type(to_format), "--from")
    with track("converting", None, unit) as progress:
        job = _Job(source, target, settings, options, from_format, to_format, progress)
        count = convert_kind(job)
    return ConversionResult(kind, to_format.value, count, unit)


def _writes_file(kind: Kind, to_format: StrEnum) -> bool:
    """Return whether a target in a format is a file, and not a folder."""
    if isinstance(to_format, VectorFormat):
        return is_single_file(to_format)
    return kind is not Kind.MODEL


def _format_of_name(target: str, kind: Kind) -> StrEnum | None:
    """Return the format that the name of a target leaves no choice of."""
    name = Path(target).name.lower().removesuffix(".gz")
    for patterns, form in TARGET_NAMES.get(kind, {}).items():
        if any(fnmatch(name, pattern) for pattern in patterns.split()):
            return form
    return None


def _named(name: str, formats: Iterable[Form], flag: str) -> Form:
    """Return the format that an option names."""
    known = {form.value: form for form in formats}
    if name not in known:
        raise UsageError(f"{flag} {name}: no such format", f"one of {', '.join(known)}")
    return known[name]


KINDS = {
    Table.RUN: Kind.RUN,
    Table.QRELS: Kind.QRELS,
    Table.QUERIES: Kind.QUERIES,
    Table.CORPUS: Kind.CORPUS,
    Table.TRAINING: Kind.TRAINING,
}
COLLECTION = {Kind.CORPUS, Kind.QUERIES, Kind.QRELS}
BINARY = (b"PAR1", b"\x93NUMPY", b"\x80")  # of vectors: Parquet, NumPy, pickle
MODEL_FILES = {"config.json", "denserk.json", "modules.json", "pooler.pt", "TermWeightTrans.pt"}
# terms in a name that settle what the content leaves open
TERMS = {
    Kind.CORPUS: {"corpus", "collection", "passages", "psgs"},
    Kind.QUERIES: {"queries", "topics", "questions"},
    Kind.QRELS: {"qrels"},
    Kind.RUN: {"run"},
    Kind.TRAINING: {"train", "triples", "qidpidtriples"},
    Kind.VECTORS: {"vectors", "embeddings"},
}


def detect_kind(source: str, target: str) -> Kind:
    """Return what a source holds: by its content, else by its name and that of the target."""
    if source == STREAM:
        hint = f"add --kind with one of {', '.join(Kind)}"
        raise UsageError("what standard input holds is not guessed", hint)
    path = Path(source)
    is_dataset_name = ":" in source and not path.exists()
    if is_dataset_name and source.startswith(HUB):
        possible: Set[Kind] = COLLECTION | {Kind.TRAINING}
    elif is_dataset_name:
        possible = COLLECTION
    elif path.is_dir():
        possible = _folder_kinds(path)
    else:
        possible = _file_kinds(path)
    if len(possible) == 1:
        return next(iter(possible))
    for name in (source, target):
        name_terms = set(re.findall("[a-z]+", Path(name).name.lower()))
        named = {kind for kind, terms in TERMS.items() if terms & name_terms}
        if len(named) == 1 and (named <= possible or not possible):
            return named.pop()
    choices = [kind for kind in Kind if kind in possible] or list(Kind)
    message = f"{source} is of no known kind"
    if possible:
        message = f"{source} could hold {' or '.join(choices)}"
    raise UsageError(message, f"add --kind with one of {', '.join(choices)}")


def _folder_kinds(folder: Path) -> Set[Kind]:
    """Return what a folder may hold, by the names in it or else by its first file."""
    names = {item.name for item in folder.iterdir()}
    if names & MODEL_FILES:
        return {Kind.MODEL}
    if manifests.NAME in names or {"index", "docid"} <= names or "embedding.pkl" in names:
        return {Kind.VECTORS}
    if names & {"corpus.jsonl", "corpus.jsonl.gz"}:
        return COLLECTION
    if any(topics.is_relation_file(name) for name in names):
        return {Kind.QUERIES}
    paths = (folder / name for name in sorted(names) if not name.startswith("."))
    first_file = next((path for path in paths if path.is_file()), None)
    return set() if first_file is None else _file_kinds(first_file)


def _file_kinds(path: Path) -> Set[Kind]:
    """Return what a file may hold, by its first bytes."""
    with open_ahead(path, part="train") as (head, _):
        record = first_record(head)
    if head.startswith(BINARY) or path.suffix in (".pkl", ".pickle"):
        return {Kind.VECTORS}
    if runs.PREDICTIONS.match(head):
        return {Kind.RUN}
    if record is not None:
        return _json_kinds(record, head)
    return _header_kinds(head) or _column_kinds(head)


def _json_kinds(record: Mapping[str, Any], head: bytes) -> Set[Kind]:
    """Return what JSON may hold, by its first record."""
    keys = record.keys()
    run_or_qrels_table = run_or_qrels(keys)
    if "vector" in keys:
        return {Kind.VECTORS}
    if training.detect_training(head) is not None:
        return {Kind.TRAINING}
    if OBJECT_OF_SCORES.match(head):
        return {Kind.RUN, Kind.QRELS}
    if run_or_qrels_table is not None:
        return {KINDS[run_or_qrels_table]}
    # the first of these that holds decides
    has_records = all(isinstance(value, dict) for value in record.values())
    rules: Sequence[tuple[object, Set[Kind]]] = (
        ({"query-id", "corpus-id"} <= keys, {Kind.QRELS}),
        ({"qid", "docid"} <= keys, {Kind.RUN}),
        (keys & {"question", "query", "query_id", "query_text", "qid"}, {Kind.QUERIES}),
        (has_records, {Kind.QUERIES}),
        (keys & {"contents", "docid"} or {"title", "text"} <= keys, {Kind.CORPUS}),
        ("title" in keys, {Kind.QUERIES}),
        ("text" in keys, {Kind.CORPUS, Kind.QUERIES}),
    )
    return next((kinds for holds, kinds in rules if holds), set())


def _column_kinds(head: bytes) -> Set[Kind]:
    """Return what lines of columns without a header may hold, by the first of them."""
    line = first_line(head).decode("utf-8", "replace")
    form = training.detect_training(head)
    tabs = line.split("\t")
    terms = line.split()
    has_two = len(tabs) == 2
    has_three = len(tabs) == 3
    # text may follow the tag
    has_run_columns = len(terms) == 6 or (len(terms) > 6 and terms[1] == "Q0")
    ends_with_number = has_three and form is TrainingFormat.TRIPLES and is_number(tabs[2])
    is_id_list = has_two and form is TrainingFormat.NEGATIVES and "," in tabs[1]
    rules: Sequence[tuple[bool, Set[Kind]]] = (  # the first that holds decides
        (has_run_columns and is_number(terms[3]) and is_number(terms[4]), {Kind.RUN}),
        (len(terms) == 4 and is_number(terms[3]), {Kind.QRELS}),
        (has_two and topics.is_answer_list(tabs[1]), {Kind.QUERIES}),
        (form is TrainingFormat.ST_TRIPLET, {Kind.TRAINING}),
        (is_id_list, {Kind.TRAINING}),
        (has_two, {Kind.CORPUS, Kind.QUERIES}),
        (ends_with_number and "." in tabs[-1], {Kind.RUN}),
        (ends_with_number, {Kind.QRELS, Kind.RUN, Kind.TRAINING}),
        (form is TrainingFormat.TRIPLES, {Kind.TRAINING}),
        (has_three, {Kind.CORPUS, Kind.TRAINING}),
    )
    return next((kinds for holds, kinds in rules if holds), set())


def _header_kinds(head: bytes) -> Set[Kind]:
    """Return what a file with a header may hold, by the names of its columns; none without one."""
    text = head[: 1 << 16].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return set()
    columns = split_columns(lines[0])
    if recognise_header(columns, Table.RUN) or recognise_header(columns, Table.QRELS):
        table = run_or_qrels(columns)
        return {KINDS[table]} if table else set()
    cells = lines[0].split("\t")
    tables = (Table.QUERIES, Table.CORPUS, Table.TRAINING)
    kinds = {KINDS[table] for table in tables if recognise_header(cells, table)}
    if kinds == {Kind.QUERIES, Kind.TRAINING}:  # question and answer: DPR's answers are lists
        first_row = lines[1].split("\t") if len(lines) > 1 else []
        has_answer_list = any(topics.is_answer_list(cell) for cell in first_row)
        return {Kind.QUERIES} if has_answer_list else {Kind.TRAINING}
    return kinds


# names that leave no choice, by kind; others need the format by name
TARGET_NAMES: dict[Kind, dict[str, StrEnum]] = {
    Kind.CORPUS: {
        "corpus.jsonl": formats.CorpusFormat.BEIR,
        "collection*.tsv": formats.CorpusFormat.MARCO,
        "psgs*.tsv": formats.CorpusFormat.DPR,
    },
    Kind.QUERIES: {
        "queries.jsonl": formats.TopicsFormat.BEIR,
        "*.csv": formats.TopicsFormat.DPR,
        "*.tsv *.txt": formats.TopicsFormat.TSV,
    },
    Kind.QRELS: {
        "*.tsv": formats.QrelsFormat.BEIR,
        "*.txt *.trec *.qrels": formats.QrelsFormat.TREC,
    },
    Kind.RUN: {
        "*.trec *.txt *.run": formats.RunFormat.TREC,
        "*.jsonl": formats.RunFormat.JSONL,
        "*_predictions.json": formats.RunFormat.MTEB,
    },
    Kind.VECTORS: {"*.pkl *.pickle": VectorFormat.TEVATRON},
    Kind.TRAINING: {"*.json": TrainingFormat.DPR, "qidpidtriples*": TrainingFormat.TRIPLES},
}
