"""One file of queries, whatever its shape: told apart by its first line, read, written."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from denserk.errors import InputError, UsageError
from denserk.formats import question_answers, text_jsonl, tsv
from denserk.formats.detection import first_line, is_json, peek, told
from denserk.formats.files import decode_lines, look_ahead, number_lines, open_binary, read_all
from denserk.formats.json_records import parse_objects, read_array
from denserk.records import Query
from denserk.settings.formats import TopicsFormat

logger = logging.getLogger(__name__)

TSV = (TopicsFormat.TSV, TopicsFormat.DPR)


def read_topics_file(
    path: str | Path,
    form: TopicsFormat | None = None,
    *,
    textless: bool = False,
) -> Iterator[Query]:
    """Queries of one file ("-" is standard input), in its order.

    Args:
        path: the file.
        form: its shape; None detects it.
        textless: answers are what is sought: JSON records may lack the question, and two columns
            are question and answers.

    Raises:
        UsageError: there is no such file.
        InputError: it holds no queries, or a line of it is broken.
    """
    with open_binary(path) as raw:
        head, handle = look_ahead(raw, path)
        start = first_line(head)
        if not start:
            return
        if is_json(start) if form is None else form not in TSV:
            yield from _read_json(handle, start.strip(), path, form, textless)
            return
        if form is None:
            form = _detect_columns(start.decode("utf-8", "replace"), path, textless)
            what = "id, text" if form is TopicsFormat.TSV else "question, answers; ids count from 0"
            logger.info(f"{told(path)}: {form} queries ({what}, tab-separated)")
        read = tsv.read_queries if form is TopicsFormat.TSV else question_answers.read_dpr
        yield from read(decode_lines(number_lines(handle, path), path), path)


def _detect_columns(line: str, path: str | Path, answers: bool) -> TopicsFormat:
    columns = line.split("\t")
    if len(columns) == 1:
        raise InputError(
            path, 1, f"a line without a tab: {line[:60]!r}", "id and text, or question and answers"
        )
    if len(columns) == 2 and (answers or question_answers.is_answer_list(columns[1])):
        return TopicsFormat.DPR
    return TopicsFormat.TSV


def _read_json(
    handle: BinaryIO,
    start: bytes,
    path: str | Path,
    form: TopicsFormat | None,
    textless: bool,
) -> Iterator[Query]:
    if form in (None, TopicsFormat.QA) and is_keyed(start):
        if form is None:
            logger.info(f"{told(path)}: qa queries (an object of questions by id)")
        yield from question_answers.read_keyed(read_all(handle, path), path)
        return
    is_array = start.startswith(b"[")
    objects = (
        read_array(handle, path) if is_array else parse_objects(number_lines(handle, path), path)
    )
    if form is TopicsFormat.ENTITY_QUESTIONS or (
        form is None and is_array and question_answers.is_relation_file(path)
    ):
        if form is None:
            logger.info(f"{told(path)}: entity-questions queries (one relation)")
        yield from question_answers.read_relation(objects, path)
        return
    if textless:
        objects = ((line, {"question": "", **record}) for line, record in objects)
    first, objects = peek(objects)
    if first is None:
        return
    line, record = first
    shape, keys = text_jsonl.recognise(record, text_jsonl.QUERIES, form, path, line)
    if form is None:
        names = ", ".join(key for key in keys[:2] if key)
        counted = "" if keys.id else "; ids count from 0"
        logger.info(f"{told(path)}: {shape} queries ({names}{counted})")
    yield from text_jsonl.read_queries(objects, keys, path)


def is_keyed(start: bytes) -> bool:
    """Whether a file's first line begins one object of records by id, not a record of its own.

    >>> is_keyed(b'{"0": {"question": "who"}}'), is_keyed(b'{"_id": "0", "text": "who"}')
    (True, False)
    """
    if not start.startswith(b"{"):
        return False
    try:
        value = orjson.loads(start)
    except ValueError:
        return start.endswith(b"{")
    return bool(value) and all(isinstance(record, dict) for record in value.values())


_WRITERS: dict[TopicsFormat, Callable[[str | Path, Iterable[Query]], int]] = {
    TopicsFormat.TSV: tsv.write_queries,
    TopicsFormat.DPR: question_answers.write_dpr,
}

WRITTEN = tuple(form for form in TopicsFormat if form is not TopicsFormat.ENTITY_QUESTIONS)
"""Shapes of queries that are written."""


def write_queries(path: str | Path, queries: Iterable[Query], form: TopicsFormat) -> int:
    """Writes queries; returns how many. "-" is standard output, `.gz` is compressed.

    Raises:
        UsageError: the shape is only read.
        OutputError: it cannot be written.
    """
    if form is TopicsFormat.ENTITY_QUESTIONS:
        raise UsageError(
            "entity-questions is a folder, and is only read", f"write one of {', '.join(WRITTEN)}"
        )
    if form in _WRITERS:
        return _WRITERS[form](path, queries)
    return text_jsonl.write_queries(path, queries, form)
