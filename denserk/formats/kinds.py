"""What a file or folder holds, by its beginning and name; the shape a target's name asks for."""

import re
from collections.abc import Set
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path

import orjson

from denserk.errors import UsageError
from denserk.formats.detection import first_line, is_number
from denserk.formats.files import BOM, STREAM, look_ahead, open_binary
from denserk.formats.manifest import NAME as MANIFEST
from denserk.formats.question_answers import is_answer_list, is_relation_file
from denserk.formats.training import detect_training
from denserk.settings.conversion import Kind, TrainingFormat
from denserk.settings.encoding import VectorFormat
from denserk.settings.formats import CorpusFormat, QrelsFormat, RunFormat, TopicsFormat

BINARY = (b"PAR1", b"\x93NUMPY", b"\x80")
"""How files of vectors begin that are no text: Parquet, NumPy, pickle."""

MODEL_FILES = {"config.json", "denserk.json", "modules.json", "pooler.pt", "TermWeightTrans.pt"}
"""Files that stand in a model's folder, one or another of them in each layout."""

NAME_WORDS = {
    "corpus": Kind.CORPUS,
    "collection": Kind.CORPUS,
    "passages": Kind.CORPUS,
    "psgs": Kind.CORPUS,
    "queries": Kind.QUERIES,
    "topics": Kind.QUERIES,
    "questions": Kind.QUERIES,
    "qrels": Kind.QRELS,
    "run": Kind.RUN,
    "train": Kind.TRAINING,
    "triples": Kind.TRAINING,
    "qidpidtriples": Kind.TRAINING,
    "vectors": Kind.VECTORS,
    "embeddings": Kind.VECTORS,
}
"""Words in a name that settle what its content leaves open."""


def detect_kind(source: str, target: str) -> Kind:
    """What a source holds: by its content, and where that leaves several, by the two names.

    Raises:
        UsageError: there is no such source, or neither settles it.
    """
    if source == STREAM:
        raise UsageError(
            "what standard input holds is not guessed", f"add --kind with one of {', '.join(Kind)}"
        )
    path = Path(source)
    if ":" in source and not path.exists():
        possible: Set[Kind] = {Kind.CORPUS, Kind.QUERIES, Kind.QRELS}
    else:
        possible = _of_folder(path) if path.is_dir() else _of_file(path)
    if len(possible) == 1:
        return next(iter(possible))
    for name in (source, target):
        words = re.findall("[a-z]+", Path(name).name.lower())
        named = {NAME_WORDS[word] for word in words if word in NAME_WORDS}
        if len(named) == 1 and (named <= possible or not possible):
            return named.pop()
    choices = [kind for kind in Kind if kind in possible] or list(Kind)
    raise UsageError(
        f"{source} could hold {' or '.join(choices)}"
        if possible
        else f"{source} is of no kind that is known by its content",
        f"add --kind with one of {', '.join(choices)}",
    )


def _of_folder(folder: Path) -> Set[Kind]:
    names = {item.name for item in folder.iterdir()}
    if names & MODEL_FILES:
        return {Kind.MODEL}
    if MANIFEST in names or {"index", "docid"} <= names or "embedding.pkl" in names:
        return {Kind.VECTORS}
    if names & {"corpus.jsonl", "corpus.jsonl.gz"}:
        return {Kind.CORPUS, Kind.QUERIES, Kind.QRELS}
    if any(is_relation_file(name) for name in names):
        return {Kind.QUERIES}
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    files = sorted(item for item in visible if item.is_file())
    return _of_file(files[0]) if files else set()


def _of_file(path: Path) -> Set[Kind]:
    with open_binary(path) as handle:
        head, _ = look_ahead(handle, path)
    head = head.removeprefix(BOM)
    if head.startswith(BINARY) or path.suffix in (".pkl", ".pickle"):
        return {Kind.VECTORS}
    start = first_line(head)
    sign = start.lstrip()[:1]
    if sign == b"[":
        return _of_array(head)
    if sign == b"{":
        return _of_object(start)
    return _of_columns(head, start)


def _of_array(head: bytes) -> Set[Kind]:
    if detect_training(head) is not None:
        return {Kind.TRAINING}
    return {Kind.QUERIES} if b'"question"' in head else {Kind.CORPUS}


def _of_object(start: bytes) -> Set[Kind]:
    try:
        record = orjson.loads(start)
    except orjson.JSONDecodeError:
        return {Kind.QUERIES} if b'"question"' in start else set()
    keys = record.keys()
    if "vector" in keys:
        return {Kind.VECTORS}
    if detect_training(start) is not None:
        return {Kind.TRAINING}
    if {"qid", "docid"} <= keys:
        return {Kind.RUN}
    if keys & {"question", "query", "query_id", "query_text", "qid"}:
        return {Kind.QUERIES}
    if all(isinstance(value, dict) for value in record.values()):
        return {Kind.QUERIES}
    if "contents" in keys or "docid" in keys or {"title", "text"} <= keys:
        return {Kind.CORPUS}
    if "title" in keys:
        return {Kind.QUERIES}
    return {Kind.CORPUS, Kind.QUERIES} if "text" in keys else set()


def _of_columns(head: bytes, start: bytes) -> Set[Kind]:
    line = start.decode("utf-8", "replace")
    tabs, words = line.split("\t"), line.split()
    if words == ["query-id", "corpus-id", "score"]:
        return {Kind.QRELS}
    if sorted(tabs) == ["id", "text", "title"]:
        return {Kind.CORPUS}
    tagged = len(words) == 6 or (len(words) > 6 and words[1] == "Q0")  # text may follow the tag
    if tagged and is_number(words[3]) and is_number(words[4]):
        return {Kind.RUN}
    if len(words) == 4 and is_number(words[3]):
        return {Kind.QRELS}
    return _of_tabs(tabs, detect_training(head))


def _of_tabs(tabs: list[str], training: TrainingFormat | None) -> Set[Kind]:
    if len(tabs) == 2 and is_answer_list(tabs[1]):
        return {Kind.QUERIES}
    if training is TrainingFormat.ST_TRIPLET:
        return {Kind.TRAINING}
    if len(tabs) == 2:
        lists = training is TrainingFormat.NEGATIVES and "," in tabs[1]
        return {Kind.TRAINING} if lists else {Kind.CORPUS, Kind.QUERIES}
    if training is TrainingFormat.TRIPLES:
        if not is_number(tabs[2]):
            return {Kind.TRAINING}
        return {Kind.RUN} if "." in tabs[2] else {Kind.QRELS, Kind.RUN, Kind.TRAINING}
    return {Kind.CORPUS, Kind.TRAINING} if len(tabs) == 3 else set()


TARGET_NAMES: dict[Kind, tuple[tuple[str, StrEnum], ...]] = {
    Kind.CORPUS: (
        ("corpus.jsonl", CorpusFormat.BEIR),
        ("collection*.tsv", CorpusFormat.MARCO),
        ("psgs*.tsv", CorpusFormat.DPR),
    ),
    Kind.QUERIES: (
        ("queries.jsonl", TopicsFormat.BEIR),
        ("*.csv", TopicsFormat.DPR),
        ("*.tsv", TopicsFormat.TSV),
        ("*.txt", TopicsFormat.TSV),
    ),
    Kind.QRELS: (
        ("*.tsv", QrelsFormat.BEIR),
        ("*.txt", QrelsFormat.TREC),
        ("*.trec", QrelsFormat.TREC),
        ("*.qrels", QrelsFormat.TREC),
    ),
    Kind.RUN: (
        ("*.trec", RunFormat.TREC),
        ("*.txt", RunFormat.TREC),
        ("*.run", RunFormat.TREC),
        ("*.jsonl", RunFormat.JSONL),
    ),
    Kind.VECTORS: (("*.pkl", VectorFormat.TEVATRON), ("*.pickle", VectorFormat.TEVATRON)),
    Kind.TRAINING: (
        ("*.json", TrainingFormat.DPR),
        ("qidpidtriples*", TrainingFormat.TRIPLES),
    ),
}
"""Names that leave no choice, by kind; others need the shape by name."""


def shape_by_name(target: str, kind: Kind) -> StrEnum | None:
    """The shape that a target's name asks for; None where it leaves a choice.

    >>> shape_by_name("out/corpus.jsonl.gz", Kind.CORPUS), shape_by_name("c.jsonl", Kind.CORPUS)
    (<CorpusFormat.BEIR: 'beir'>, None)
    """
    name = Path(target).name.lower().removesuffix(".gz")
    patterns = TARGET_NAMES.get(kind, ())
    return next((form for pattern, form in patterns if fnmatch(name, pattern)), None)
