"""Questions with their answers: DPR's qa files, JSON by query id, EntityQuestions' relations.

With the passages retrieved for them they are written as DPR's JSON array or Pyserini's object, one
question at a time; scores are strings, as both toolkits have them.

Lists of answers that are written as Python literals are parsed as literals, never run.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk.errors import InputError
from denserk.formats.detection import columns
from denserk.formats.files import whole_binary, write_lines
from denserk.formats.text_jsonl import QUERIES, Keys, Objects, read_queries, recognise
from denserk.formats.tsv import Lines, one_line, quote, unquote
from denserk.records import Passage, Query
from denserk.settings.formats import TopicsFormat

_QA = {TopicsFormat.QA: QUERIES[TopicsFormat.QA]}


def is_answer_list(column: str) -> bool:
    """Whether a column looks like a list written as a Python literal, quoted or not.

    >>> is_answer_list("['18 May']"), is_answer_list("a text")
    (True, False)
    """
    bare = unquote(column.strip())
    return bare.startswith("[") and bare.endswith("]")


def parse_answers(column: str) -> tuple[str, ...]:
    r"""The answers of a column that holds a list written as a Python literal.

    Raises:
        ValueError: it is not a list of strings.

    >>> parse_answers('"[\'Sunset\', ""Sunset\'s end""]"')
    ('Sunset', "Sunset's end")
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a pattern is what its author meant
            value = ast.literal_eval(unquote(column.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError(column) from None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(column)
    return tuple(value)


def read_dpr(lines: Lines, path: str | Path) -> Iterator[Query]:
    """Questions of a `question <tab> list of answers` file; the id is the position from 0.

    Raises:
        InputError: a line has another number of columns, or no list of strings in the second.
    """
    position = 0
    for line, row in lines:
        if not row.strip():
            continue
        parts = row.split("\t")
        if len(parts) != 2:
            raise InputError(
                path, line, f"{columns(len(parts))} between tabs", "2: question, list of answers"
            )
        try:
            answers = parse_answers(parts[1])
        except ValueError:
            raise InputError(
                path, line, f"answers {parts[1][:60]!r}", "a list of strings, ['...', '...']"
            ) from None
        yield Query(str(position), unquote(parts[0]), answers)
        position += 1


def keyed_records(data: bytes, path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of one JSON object that has a record a query id, as Pyserini writes them.

    Yields:
        (where it stands, for errors; the record, its id under `_id`).

    Raises:
        InputError: it is not such an object.
    """
    expected = "an object of objects by query id, or one object a line"
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise InputError(path, None, f"a document that is not JSON ({error})", expected) from None
    if not isinstance(value, dict):
        raise InputError(path, None, f"JSON {type(value).__name__}", expected)
    for qid, record in value.items():
        if not isinstance(record, dict):
            raise InputError(path, None, f"JSON {type(record).__name__} for query {qid}", expected)
        yield f"{path}, query {qid}", {**record, "_id": qid}


def read_keyed(data: bytes, path: str | Path) -> Iterator[Query]:
    """Questions of one JSON object that has a record a query id.

    Raises:
        InputError: it is not such an object, or a record has no question.
    """
    for where, record in keyed_records(data, path):
        _, keys = recognise(record, _QA, TopicsFormat.QA, where, None)
        yield from read_queries([(None, record)], keys, where)


def is_relation_file(path: str | Path) -> bool:
    """Whether a file is named as EntityQuestions names its relations.

    >>> is_relation_file("test/P17.test.json"), is_relation_file("queries.json")
    (True, False)
    """
    return re.fullmatch(r"P\d+\..*json(\.gz)?", Path(path).name) is not None


def read_relation(objects: Objects, path: str | Path) -> Iterator[Query]:
    """Questions of one file of EntityQuestions: ids are its relation, a dash, the position from 0.

    The relation is kept in `extra`.

    Raises:
        InputError: a record is not a question.
    """
    relation = Path(path).name.partition(".")[0]
    keys = Keys(None, "question", None)
    for query in read_queries(objects, keys, path):
        yield query._replace(
            qid=f"{relation}-{query.qid}", extra={**query.extra, "relation": relation}
        )


def write_dpr(path: str | Path, queries: Iterable[Query]) -> int:
    """Writes `question <tab> ['answer', ...]`; returns how many. The ids become positions."""
    rows = (f"{quote(one_line(query.text))}\t{list(query.answers)!r}\n" for query in queries)
    return write_lines(path, rows)


class Context(NamedTuple):
    """A passage that was retrieved, its score, and whether it holds an answer."""

    passage: Passage
    score: float
    has_answer: bool


Write = Callable[[Query, Sequence[Context]], None]
"""Writes a question with its contexts, best first."""


@contextmanager
def dpr_json(path: str | Path) -> Iterator[Write]:
    """Opens a file of DPR's shape: an array of `question`, `answers`, `ctxs`.

    Raises:
        OutputError: it cannot be written.
    """
    with _opened(path, b"[", b"]", _dpr_entry) as write:
        yield write


@contextmanager
def pyserini_json(path: str | Path) -> Iterator[Write]:
    """Opens a file of Pyserini's shape: `question`, `answers`, `contexts` by query id.

    The text of a context is its title and its text with one line end between them.

    Raises:
        OutputError: it cannot be written.
    """
    with _opened(path, b"{", b"}", _pyserini_entry) as write:
        yield write


@contextmanager
def _opened(
    path: str | Path,
    opening: bytes,
    closing: bytes,
    entry: Callable[[Query, Sequence[Context]], bytes],
) -> Iterator[Write]:
    with whole_binary(path) as out:
        lead = opening + b"\n"

        def write(query: Query, contexts: Sequence[Context]) -> None:
            nonlocal lead
            out.write(lead + entry(query, contexts))
            lead = b",\n"

        yield write
        out.write((b"" if lead == b",\n" else lead) + b"\n" + closing + b"\n")


def _question(query: Query) -> dict[str, Any]:
    return {"question": query.text, "answers": query.answers}


def _dpr_entry(query: Query, contexts: Sequence[Context]) -> bytes:
    entries = [
        {
            "id": passage.docid,
            "title": passage.title,
            "text": passage.text,
            "score": f"{score:.9g}",
            "has_answer": has_answer,
        }
        for passage, score, has_answer in contexts
    ]
    return orjson.dumps({**_question(query), "ctxs": entries})


def _pyserini_entry(query: Query, contexts: Sequence[Context]) -> bytes:
    entries = [
        {
            "docid": passage.docid,
            "score": f"{score:.9g}",
            "text": f"{one_line(passage.title)}\n{one_line(passage.text)}",
            "has_answer": has_answer,
        }
        for passage, score, has_answer in contexts
    ]
    named = orjson.dumps(query.qid) + b":"
    return named + orjson.dumps({**_question(query), "contexts": entries})
