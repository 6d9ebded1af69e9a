"""Detect what a file or folder holds, and the format that a target's name implies."""

import re
from collections.abc import Mapping, Set
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import orjson

from denserk.config.encoding import VectorFormat
from denserk.config.formats import (
    CorpusFormat,
    Kind,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
    TrainingFormat,
)
from denserk.errors import UsageError
from denserk.io.files import STREAM, first_line, is_number, open_ahead
from denserk.io.manifest import NAME as MANIFEST
from denserk.io.qrels import BEIR_HEADER
from denserk.io.topics import is_answer_list, is_relation_file
from denserk.io.training import detect_training

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
    if ":" in source and not path.exists():
        possible: Set[Kind] = COLLECTION
    else:
        possible = _of_folder(path) if path.is_dir() else _of_file(path)
    if len(possible) == 1:
        return next(iter(possible))
    for name in (source, target):
        terms = set(re.findall("[a-z]+", Path(name).name.lower()))
        named = {kind for kind, own in TERMS.items() if own & terms}
        if len(named) == 1 and (named <= possible or not possible):
            return named.pop()
    choices = [kind for kind in Kind if kind in possible] or list(Kind)
    found = f"could hold {' or '.join(choices)}" if possible else "is of no known kind"
    raise UsageError(f"{source} {found}", f"add --kind with one of {', '.join(choices)}")


def _of_folder(folder: Path) -> Set[Kind]:
    names = {item.name for item in folder.iterdir()}
    if names & MODEL_FILES:
        return {Kind.MODEL}
    if MANIFEST in names or {"index", "docid"} <= names or "embedding.pkl" in names:
        return {Kind.VECTORS}
    if names & {"corpus.jsonl", "corpus.jsonl.gz"}:
        return COLLECTION
    if any(is_relation_file(name) for name in names):
        return {Kind.QUERIES}
    files = (folder / name for name in sorted(names) if not name.startswith("."))
    first = next((file for file in files if file.is_file()), None)
    return _of_file(first) if first else set()


def _of_file(path: Path) -> Set[Kind]:
    with open_ahead(path) as (head, _):
        start, training = first_line(head), detect_training(head)
    if head.startswith(BINARY) or path.suffix in (".pkl", ".pickle"):
        return {Kind.VECTORS}
    match start.lstrip()[:1]:
        case b"[" if training is None:
            return {Kind.QUERIES} if b'"question"' in head else {Kind.CORPUS}
        case b"[":
            return {Kind.TRAINING}
        case b"{":
            try:
                return _of_record(orjson.loads(start), training)
            except orjson.JSONDecodeError:  # one object on many lines
                return {Kind.QUERIES} if b'"question"' in start else set()
    return _of_columns(start.decode("utf-8", "replace"), training)


def _of_record(record: Mapping[str, Any], training: TrainingFormat | None) -> Set[Kind]:
    keys = record.keys()
    rules = (  # the first that holds decides
        ("vector" in keys, {Kind.VECTORS}),
        (training is not None, {Kind.TRAINING}),
        ({"qid", "docid"} <= keys, {Kind.RUN}),
        (keys & {"question", "query", "query_id", "query_text", "qid"}, {Kind.QUERIES}),
        (all(isinstance(value, dict) for value in record.values()), {Kind.QUERIES}),
        (keys & {"contents", "docid"} or {"title", "text"} <= keys, {Kind.CORPUS}),
        ("title" in keys, {Kind.QUERIES}),
        ("text" in keys, {Kind.CORPUS, Kind.QUERIES}),
    )
    return next((kinds for holds, kinds in rules if holds), set())


def _of_columns(line: str, training: TrainingFormat | None) -> Set[Kind]:
    tabs, terms = line.split("\t"), line.split()
    two, three = len(tabs) == 2, len(tabs) == 3
    run = len(terms) == 6 or (len(terms) > 6 and terms[1] == "Q0")  # text may follow the tag
    numbered = three and training is TrainingFormat.TRIPLES and is_number(tabs[2])
    rules = (  # the first that holds decides
        (tuple(terms) == BEIR_HEADER, {Kind.QRELS}),
        (sorted(tabs) == ["id", "text", "title"], {Kind.CORPUS}),
        (run and is_number(terms[3]) and is_number(terms[4]), {Kind.RUN}),
        (len(terms) == 4 and is_number(terms[3]), {Kind.QRELS}),
        (two and is_answer_list(tabs[1]), {Kind.QUERIES}),
        (training is TrainingFormat.ST_TRIPLET, {Kind.TRAINING}),
        (two and training is TrainingFormat.NEGATIVES and "," in tabs[1], {Kind.TRAINING}),
        (two, {Kind.CORPUS, Kind.QUERIES}),
        (numbered and "." in tabs[-1], {Kind.RUN}),
        (numbered, {Kind.QRELS, Kind.RUN, Kind.TRAINING}),
        (training is TrainingFormat.TRIPLES, {Kind.TRAINING}),
        (three, {Kind.CORPUS, Kind.TRAINING}),
    )
    return next((kinds for holds, kinds in rules if holds), set())


# names that leave no choice, by kind; others need the format by name
TARGET_NAMES: dict[Kind, dict[str, StrEnum]] = {
    Kind.CORPUS: {
        "corpus.jsonl": CorpusFormat.BEIR,
        "collection*.tsv": CorpusFormat.MARCO,
        "psgs*.tsv": CorpusFormat.DPR,
    },
    Kind.QUERIES: {
        "queries.jsonl": TopicsFormat.BEIR,
        "*.csv": TopicsFormat.DPR,
        "*.tsv *.txt": TopicsFormat.TSV,
    },
    Kind.QRELS: {"*.tsv": QrelsFormat.BEIR, "*.txt *.trec *.qrels": QrelsFormat.TREC},
    Kind.RUN: {"*.trec *.txt *.run": RunFormat.TREC, "*.jsonl": RunFormat.JSONL},
    Kind.VECTORS: {"*.pkl *.pickle": VectorFormat.TEVATRON},
    Kind.TRAINING: {"*.json": TrainingFormat.DPR, "qidpidtriples*": TrainingFormat.TRIPLES},
}


def format_by_name(target: str, kind: Kind) -> StrEnum | None:
    """Return the format that a target's name implies; None if it leaves a choice."""
    name = Path(target).name.lower().removesuffix(".gz")
    for patterns, form in TARGET_NAMES.get(kind, {}).items():
        if any(fnmatch(name, pattern) for pattern in patterns.split()):
            return form
    return None
