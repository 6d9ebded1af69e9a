"""JSON records: lines through jsonlines and orjson, arrays, keys by format, fields by type.

Errors name the file and the line.
"""

import codecs
import io
import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from denserk.errors import InputError
from denserk.io import files
from denserk.io.detection import Table, renaming_hint
from denserk.records import NO_FIELDS

logger = logging.getLogger(__name__)

Format = TypeVar("Format", bound=StrEnum)
Numbered = tuple[int, dict[str, Any]]  # the line on which an object starts, and the object
Record = tuple[int | None, str, str, str, dict[str, Any]]  # line, id, text, title, other keys

NAMES: dict[type, str] = {str: "strings", dict: "objects"}
ONE_A_LINE, ONE_ARRAY = "one JSON object a line", "one JSON array of objects"
LONGEST = 1 << 26  # characters of an object, past which a quote or bracket was never closed
# what stands before the first and the next object of an array, or ends it
FIRST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?:\]|(?=\{))")
NEXT = re.compile(r"[ \t\r\n]*(?:\]|,[ \t\r\n]*(?=\{))")


def dump_json(value: Any) -> bytes:
    """Return a JSON value as a line of UTF-8; arrays of numpy as lists."""
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def read_objects(path: str | Path, handle: BinaryIO | None = None) -> Iterator[Numbered]:
    """Yield (line number, object) of JSON lines, of a file or an open input; skip blank lines."""
    with files.open_binary(path) if handle is None else nullcontext(handle) as opened:
        yield from parse_objects(files.number_lines(opened, path), path)


def parse_objects(numbered: Iterable[tuple[int, bytes]], path: str | Path) -> Iterator[Numbered]:
    """`read_objects` of numbered lines; `path` names the file in errors."""
    import jsonlines  # only where JSON lines are read: `eval` starts without

    line = 0

    def lines() -> Iterator[bytes]:
        nonlocal line
        for line, text in numbered:  # noqa: B007
            yield text

    try:
        for value in jsonlines.Reader(lines(), loads=orjson.loads).iter(type=dict, skip_empty=True):
            yield line, value
    except jsonlines.InvalidLineError as error:
        cause = error.__cause__
        found = f"a line that is not JSON ({cause})" if cause else "JSON that is no object"
        raise InputError(path, line, found, ONE_A_LINE) from None


def write_objects(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Write one object a line; return how many. "-" is standard output."""
    with files.whole_binary(path) as handle:
        return sum(1 for _ in map(handle.write, map(dump_json, objects)))


def read_json(handle: BinaryIO, start: bytes, path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of JSON lines, or of an array if `start` begins one."""
    if start.lstrip().startswith(b"["):
        return read_array(handle, path)
    return parse_objects(files.number_lines(handle, path), path)


def first_record(head: bytes) -> dict[str, Any] | None:
    """Return a file's first object; {} if `head` does not hold all of it, None if it is no JSON."""
    if not files.is_json(start := files.first_line(head)):
        return None
    try:
        return next(read_json(io.BytesIO(head), start, ""), (0, {}))[1]
    except InputError:
        return {}


def read_array(handle: BinaryIO, path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of a JSON array, which may be larger than the memory."""
    # only finds the end of an object, which orjson then parses: Python limits a number's digits
    decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
    chunks = _characters(handle, path)
    text, at, line, before = "", 0, 1, FIRST
    while True:
        try:
            place = before.match(text, at)
            if place is None:
                raise json.JSONDecodeError("no object, or end of the array", text, at)
            start = end = place.end()
            if text[end - 1] != "]":
                _, end = decode(text, start)
                value = orjson.loads(text[start:end])  # rejects NaN and lone surrogates
        except (json.JSONDecodeError, RecursionError) as error:
            # the text ends too early, or is broken
            if len(text) - at <= LONGEST and (more := next(chunks, "")):
                text, at = text[at:] + more, 0
                continue
            rest = text[at:].lstrip(" \t\r\n,[")
            line += text.count("\n", at, len(text) - len(rest))
            reason = getattr(error, "msg", "nested too deeply")
            raise InputError(path, line, f"{rest[:20]!r} ({reason})", ONE_ARRAY) from None
        line += text.count("\n", at, start)
        if start == end:
            break
        yield line, value
        line += text.count("\n", start, end)
        at, before = end, NEXT
    if text[end:].strip() or any(more.strip() for more in chunks):
        raise InputError(path, line, "more after the array's end", ONE_ARRAY)


def _characters(handle: BinaryIO, path: str | Path) -> Iterator[str]:
    chunks = iter(partial(files.read_all, handle, path, 1 << 20), b"")
    try:
        yield from codecs.iterdecode(chunks, "utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(path, None, "a byte that is not UTF-8", "UTF-8 text") from None


class RecordKeys(NamedTuple):
    """The keys of one JSON format of passages or queries; the first key that a record has counts.

    Without an id key the id is the record's position from 0, unless `must_have_id`.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    title: str | None = None
    must_have_id: bool = True

    def __str__(self) -> str:
        return " with ".join("|".join(keys) for keys in (self.ids, self.texts) if keys)


def read_records(
    objects: Iterable[tuple[int | None, dict[str, Any]]],
    formats: Mapping[Format, RecordKeys],
    format: Format | None,
    path: str | Path,
    what: str,
) -> tuple[Format | None, Iterator[Record]]:
    """Return the format of a file, None if it is empty, and its records.

    The first record decides which of the format's keys the file uses; others must have them.
    Without a `format`, `formats` are tried in their order. `what` is "corpus" or "queries".
    """
    first, objects = files.peek(iter(objects))
    if first is None:
        return None, iter(())
    line, record = first
    wanted = [format] if format else list(formats)
    for name in wanted:
        keys = formats[name]
        ids, texts = ([key for key in each if key in record] for each in (keys.ids, keys.texts))
        if texts and (ids or not keys.must_have_id):
            break
    else:
        expected = " or ".join(dict.fromkeys(str(formats[name]) for name in wanted))
        table = Table.CORPUS if what == "corpus" else Table.QUERIES
        hint = renaming_hint(record, path, table)
        raise InputError(path, line, f"the keys {list_keys(record)}", expected, hint)
    id_key, text_key, title_key = next(iter(ids), None), texts[0], keys.title
    if format is None:
        used = ", ".join(key for key in (id_key, text_key, title_key) if key in record)
        counted = "" if ids else "; ids count from 0"
        logger.info(f"{files.display_name(path)}: {name} {what} ({used}{counted})")
    unit = "passage" if what == "corpus" else "query"

    def records() -> Iterator[Record]:
        for number, (line, record) in enumerate(objects):
            for key in (id_key, text_key):
                if key is not None and key not in record:
                    lacks = f"no {key} (keys: {list_keys(record)})"
                    raise InputError(path, line, lacks, f"a record with {key}")
            id = str(number) if id_key is None else identifier(record.pop(id_key), path, line, unit)
            text = as_text(record.pop(text_key), text_key, path, line)
            title = as_text(record.pop(title_key, None), title_key, path, line) if title_key else ""
            yield line, id, text, title, record

    return name, records()


def list_keys(record: Iterable[str]) -> str:
    """Return the first keys of a record for a message, on one line."""
    keys = list(record)
    shown = [key if key.isprintable() else repr(key) for key in (key[:40] for key in keys[:8])]
    return ", ".join([*shown, *["..."] * (len(keys) > 8)]) or "of an empty object"


def as_text(value: Any, key: str, path: str | Path, line: int | None) -> str:
    """Return the text under a key; null is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(path, line, f"{type(value).__name__} as {key}", "a string")
    return value


def identifier(value: Any, path: str | Path, line: int | None, what: str) -> str:
    """Return an id, a string without white space; an integer keeps its digits."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise InputError(path, line, f"a {what} id that is {kind}", "a string")
    parts = value.split()
    if parts != [value]:
        found = f"the {what} id {value[:80]!r}" if parts else f"an empty {what} id"
        raise InputError(path, line, found, "an id without white space")
    return value


class Fields:
    """One JSON object, with the file and line that errors name."""

    def __init__(self, record: Mapping[str, Any], path: str | Path, line: int | None) -> None:
        self.record, self.path, self.line = record, path, line

    def error(self, found: str, expected: str) -> InputError:
        """Return an error that names the file and line."""
        return InputError(self.path, self.line, found, expected)

    def __contains__(self, key: str) -> bool:
        return self.record.get(key) is not None

    def identifier(self, key: str, default: str = "") -> str:
        """Return an id; an integer keeps its digits; absent, null or empty gives the default."""
        value = self.record.get(key)
        if value is None or value == "":
            return default
        return identifier(value, self.path, self.line, key)

    def text(self, key: str) -> str:
        """Return a text; absent or null is empty."""
        return as_text(self.record.get(key), key, self.path, self.line)

    def number(self, key: str) -> float | None:
        """Return a finite number, which may be a string; None if it is absent or null."""
        return self.as_number(self.record.get(key), key)

    def as_number(self, value: Any, key: str) -> float | None:
        """Check a value found under `key` that must be a finite number or null."""
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{key} {repr(value)[:40]}", "a finite number")
        return number

    def items(self, key: str, kind: type = object) -> list[Any]:
        """Return a list of values of one type; absent or null is empty."""
        values = self.record.get(key)
        if values is None:
            return []
        if not isinstance(values, list):
            raise self.error(f"{type(values).__name__} as {key}", "a list")
        for value in values:
            if not isinstance(value, kind):
                raise self.error(f"{type(value).__name__} in {key}", f"a list of {NAMES[kind]}")
        return values

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the strings of a list."""
        return tuple(self.items(key, str))

    def identifiers(self, key: str) -> tuple[str, ...]:
        """Return the ids of a list."""
        return tuple(identifier(value, self.path, self.line, key) for value in self.items(key))

    def rest(self, known: Collection[str]) -> Mapping[str, Any]:
        """Return the fields that are not among the known ones."""
        return {key: value for key, value in self.record.items() if key not in known} or NO_FIELDS
