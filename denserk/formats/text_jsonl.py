"""Passages and queries as JSON lines: the keys of Anserini, BEIR, Tevatron, FlagEmbedding, QA sets.

A shape is a row of a table: which keys may hold the id, which the text, which the title. The first
record of a file settles the keys; the others must have them too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from denserk.errors import InputError, UsageError
from denserk.formats.detection import list_keys
from denserk.formats.json_records import identifier, write_objects
from denserk.records import NO_FIELDS, Passage, Query
from denserk.settings.formats import CorpusFormat, TopicsFormat

Objects = Iterable[tuple[int | None, dict[str, Any]]]
Form = TypeVar("Form", CorpusFormat, TopicsFormat)


class Shape(NamedTuple):
    """The keys of one shape; of several names the first that a record has counts.

    Without an id key the id is the record's position from 0, or an error under `must_have_id`.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    title: str | None = None
    must_have_id: bool = True


class Keys(NamedTuple):
    """The keys that the records of one file use."""

    id: str | None
    text: str
    title: str | None


PASSAGES = {
    CorpusFormat.ANSERINI: Shape(("id", "_id", "docid"), ("contents",)),
    CorpusFormat.BEIR: Shape(("_id", "id"), ("text",), "title"),
    CorpusFormat.TEVATRON: Shape(("docid",), ("text",), "title"),
    CorpusFormat.FLAG: Shape((), ("text",), "title", must_have_id=False),
}
QUERIES = {
    TopicsFormat.BEIR: Shape(("_id",), ("text",)),
    TopicsFormat.TEVATRON: Shape(("query_id",), ("query", "query_text")),
    TopicsFormat.ANSERINI: Shape(("id", "qid"), ("title", "query", "text")),
    TopicsFormat.QA: Shape(("_id", "id", "qid"), ("question",), must_have_id=False),
}
ANSWERS = ("answers", "answer")


def match(record: Mapping[str, Any], shape: Shape) -> Keys | None:
    """The keys under which a record fits a shape, or None."""
    key = next((name for name in shape.ids if name in record), None)
    text = next((name for name in shape.texts if name in record), None)
    if text is None or (key is None and shape.must_have_id):
        return None
    return Keys(key, text, shape.title)


def recognise(
    record: Mapping[str, Any],
    shapes: Mapping[Form, Shape],
    form: Form | None,
    path: str | Path,
    line: int | None,
) -> tuple[Form, Keys]:
    """The shape of a file by its first record, or the forced one.

    Raises:
        InputError: the record has not the keys of any shape, or of the forced one.
    """
    for candidate in shapes if form is None else [form]:
        keys = match(record, shapes[candidate])
        if keys is not None:
            return candidate, keys
    wanted = [shapes[form]] if form else list(shapes.values())
    raise InputError(
        path,
        line,
        f"the keys {list_keys(record)}",
        " or ".join(dict.fromkeys(_told(shape) for shape in wanted)),
        f"force a shape: {', '.join(shapes)}" if form is None else None,
    )


def _told(shape: Shape) -> str:
    parts = ["|".join(shape.ids), "|".join(shape.texts)]
    return " with ".join(part for part in parts if part)


def words(value: Any, key: str, path: str | Path, line: int | None) -> str:
    """The text under a key; null is an empty text.

    Raises:
        InputError: it is no text.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(path, line, f"{key} that is {type(value).__name__}", "a string")
    return value


def read_passages(
    objects: Objects,
    keys: Keys,
    path: str | Path,
    fields: Sequence[str] | None = None,
    delimiter: str = "\n",
) -> Iterator[Passage]:
    """Passages of JSON records; what the shape does not use is kept in `extra`.

    Args:
        objects: (line, record); a record is used up.
        keys: the keys of this file, from `recognise`.
        path: the file, for errors.
        fields: fields that were asked for by name; `contents` is split into them.
        delimiter: what stands between two fields inside `contents`.

    Raises:
        InputError: a record lacks a key, or holds something else than text there.
    """
    id_key, text_key, title_key = keys
    for position, (line, record) in enumerate(objects):
        try:
            docid = str(position) if id_key is None else record.pop(id_key)
            text = record.pop(text_key)
        except KeyError as error:
            raise _missing(error, record, path, line) from None
        title = record.pop(title_key, "") if title_key else ""
        if type(docid) is not str or docid.split() != [docid]:  # the usual case without a call
            docid = identifier(docid, path, line, "passage")
        if type(text) is not str:
            text = words(text, text_key, path, line)
        if type(title) is not str:
            title = words(title, "title", path, line)
        passage = Passage(docid, text, title, record or NO_FIELDS)
        if fields and text_key == "contents":
            passage = split_contents(passage, fields, delimiter, path, line)
        yield passage


def _missing(
    error: KeyError, record: Mapping[str, Any], path: str | Path, line: int | None
) -> InputError:
    key = error.args[0]
    return InputError(path, line, f"no {key} (keys: {list_keys(record)})", f"a record with {key}")


def split_contents(
    passage: Passage, fields: Sequence[str], delimiter: str, path: str | Path, line: int | None
) -> Passage:
    r"""A passage whose `contents` stand for several fields, as Pyserini's `--fields` has it.

    Fields that the record has as keys are taken from there; otherwise `contents` is cut, and one
    delimiter more than needed at its end is no field.

    Raises:
        InputError: the pieces are not as many as the fields.

    >>> passage = Passage("d1", "River\nthe old river")
    >>> split_contents(passage, ["title", "text"], "\n", "corpus.jsonl", 1)[:3]
    ('d1', 'the old river', 'River')
    """
    extra = dict(passage.extra)
    if all(name in extra or name == "contents" for name in fields):
        text = words(extra.pop("text", passage.text), "text", path, line)
        return passage._replace(
            text=text, title=words(extra.pop("title", ""), "title", path, line), extra=extra
        )
    if len(fields) == 1:
        return passage
    contents = passage.text
    if contents.count(delimiter) == len(fields):
        contents = contents.removesuffix(delimiter)
    pieces = contents.split(delimiter)
    if len(pieces) != len(fields):
        raise InputError(
            path,
            line,
            f"contents of {len(pieces)} parts between {delimiter!r}",
            f"{len(fields)}: {', '.join(fields)}",
            "leave out --fields to take contents as they are, or give --set delimiter",
        )
    named = dict(zip(fields, pieces, strict=True))
    text = named.pop("text", named.pop("contents", ""))
    return Passage(passage.docid, text, named.pop("title", ""), {**extra, **named})


def read_queries(objects: Objects, keys: Keys, path: str | Path) -> Iterator[Query]:
    """Queries of JSON records, with any answers; other keys are kept in `extra`.

    Raises:
        InputError: a record lacks a key, or holds something else than text there.
    """
    for position, (line, record) in enumerate(objects):
        try:
            qid = str(position) if keys.id is None else record.pop(keys.id)
            text = record.pop(keys.text)
        except KeyError as error:
            raise _missing(error, record, path, line) from None
        yield Query(
            identifier(qid, path, line, "query"),
            words(text, keys.text, path, line),
            take_answers(record, path, line),
            record or NO_FIELDS,
        )


def take_answers(record: dict[str, Any], path: str | Path, line: int | None) -> tuple[str, ...]:
    """Removes `answers` or `answer` from a record: a string, or a list of strings.

    Raises:
        InputError: it is something else.
    """
    key = next((name for name in ANSWERS if name in record), None)
    if key is None:
        return ()
    value = record.pop(key)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(path, line, f"{key} {str(value)[:60]}", "a list of strings")
    return tuple(value)


def _passage_record(passage: Passage, form: CorpusFormat) -> dict[str, Any]:
    own: dict[str, Any]
    if form is CorpusFormat.ANSERINI:
        contents = f"{passage.title}\n{passage.text}" if passage.title else passage.text
        own = {"id": passage.docid, "contents": contents}
    elif form in (CorpusFormat.BEIR, CorpusFormat.TEVATRON):
        key = "_id" if form is CorpusFormat.BEIR else "docid"
        own = {key: passage.docid, "title": passage.title, "text": passage.text}
    else:
        raise UsageError(f"{form} has no ids, and is only read", "write beir, anserini or tevatron")
    return {**own, **{key: value for key, value in passage.extra.items() if key not in own}}


def write_passages(path: str | Path, passages: Iterable[Passage], form: CorpusFormat) -> int:
    """Writes passages as JSON lines; returns how many.

    Anserini's `contents` are title, line break, text, as in its own BEIR indexes.
    """
    return write_objects(path, (_passage_record(passage, form) for passage in passages))


def _query_record(query: Query, form: TopicsFormat) -> dict[str, Any]:
    id_key, text_key = {
        TopicsFormat.ANSERINI: ("qid", "title"),
        TopicsFormat.BEIR: ("_id", "text"),
        TopicsFormat.TEVATRON: ("query_id", "query"),
        TopicsFormat.QA: ("id", "question"),
    }[form]
    own: dict[str, Any] = {id_key: query.qid, text_key: query.text}
    if query.answers:
        own["answers"] = list(query.answers)
    return {**own, **{key: value for key, value in query.extra.items() if key not in own}}


def write_queries(path: str | Path, queries: Iterable[Query], form: TopicsFormat) -> int:
    """Writes queries as JSON lines; returns how many."""
    return write_objects(path, (_query_record(query, form) for query in queries))
