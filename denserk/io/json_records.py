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
from contextlib import nullcontext, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from denserk.errors import InputError
from denserk.io import files, written_files
from denserk.io.column_names import Table
from denserk.io.json_hints import array_of_texts_hint, keys_hint, rewriting_hint
from denserk.records import NO_FIELDS

logger = logging.getLogger(__name__)

Format = TypeVar("Format", bound=StrEnum)
Numbered = tuple[int, dict[str, Any]]  # the line on which an object starts, and the object
Row = tuple[int | None, dict[str, Any]]  # the same, or a record that has no line of its own
Record = tuple[int | None, str, str, str, dict[str, Any]]  # line, id, text, title, other keys

# of items of lists, and of what a file should hold: for messages
NAMES_OF_ITEMS: dict[type, str] = {str: "strings", dict: "objects"}
NAMES_OF_TYPES: dict[type, str] = {
    list: "a list",
    dict: "an object",
    str: "a string",
    bool: "true or false",
}
ONE_A_LINE = "one JSON object a line"
ONE_ARRAY = "one JSON array of objects"
LONGEST = 1 << 26  # characters of an object, past which a quote or bracket was never closed
# what stands before the first and the next object of an array, or ends it
BEFORE_FIRST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?:\]|(?=\{))")
BEFORE_NEXT = re.compile(r"[ \t\r\n]*(?:\]|,[ \t\r\n]*(?=\{))")


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

    lines = _CountedLines(numbered)
    reader = jsonlines.Reader(lines, loads=orjson.loads)
    try:
        for value in reader.iter(type=dict, skip_empty=True):
            yield lines.number, value
    except jsonlines.InvalidLineError as error:
        cause = error.__cause__
        found = f"a line that is not JSON ({cause})" if cause else "JSON that is no object"
        hint = None
        if isinstance(cause, json.JSONDecodeError):
            is_first = lines.number == 1
            hint = rewriting_hint(lines.text, cause.pos, path, is_first=is_first)
        raise InputError(path, lines.number, found, ONE_A_LINE, hint) from None


class _CountedLines:
    """Lines that are read by a library; the one that it read last, and its number."""

    def __init__(self, numbered: Iterable[tuple[int, bytes]]) -> None:
        self._numbered = numbered
        self.number = 0
        self.text = b""

    def __iter__(self) -> Iterator[bytes]:
        for number, text in self._numbered:
            self.number = number
            self.text = text
            yield text


def write_objects(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Write one object a line; return how many. "-" is standard output."""
    with written_files.whole_binary(path) as handle:
        count = 0
        for value in objects:
            handle.write(dump_json(value))
            count += 1
        return count


def read_json(handle: BinaryIO, start: bytes, path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of JSON lines, or of an array if `start` begins one."""
    if start.lstrip().startswith(b"["):
        return read_array(handle, path)
    return parse_objects(files.number_lines(handle, path), path)


def first_record(head: bytes) -> dict[str, Any] | None:
    """Return a file's first object; {} if `head` does not hold all of it, None if it is no JSON."""
    start = files.first_line(head)
    if not files.is_json(start):
        return None
    try:
        for _, record in read_json(io.BytesIO(head), start, ""):
            return record
    except InputError:
        pass  # cut short; who reads the whole file reports what is broken
    return {}


def read_array(handle: BinaryIO, path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of a JSON array, which may be larger than the memory."""
    chunks = _characters(handle, path)
    text = ""
    offset = 0  # of what was not yet read, in the text
    line = 1  # on which that begins
    separator = BEFORE_FIRST
    while True:
        try:
            item = _next_item(text, offset, separator)
        except (json.JSONDecodeError, RecursionError) as error:
            # the text ends too early, or is broken: no more text, or too much of it, decides that
            may_end_early = len(text) - offset <= LONGEST
            next_text = next(chunks, "") if may_end_early else ""
            if not next_text:
                raise _array_error(error, text, offset, line, path) from None
            text = text[offset:] + next_text
            offset = 0
            continue
        line += text.count("\n", offset, item.start)
        if item.value is None:
            break
        yield line, item.value
        line += text.count("\n", item.start, item.end)
        offset = item.end
        separator = BEFORE_NEXT
    if text[item.end :].strip() or any(chunk.strip() for chunk in chunks):
        raise InputError(path, line, "more after the array's end", ONE_ARRAY)


class _Item(NamedTuple):
    """An object of a JSON array, and its position in the text; no value at the array's end."""

    start: int
    end: int
    value: dict[str, Any] | None


# only finds the end of an object, which orjson then parses: Python limits a number's digits
_find_end = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _next_item(text: str, offset: int, separator: re.Pattern[str]) -> _Item:
    """Return the object that follows in an array, or the array's end.

    Raises a JSONDecodeError or a RecursionError if the text is broken or ends too early.
    """
    match = separator.match(text, offset)
    if match is None:
        raise json.JSONDecodeError("no object, or end of the array", text, offset)
    start = match.end()
    if text[start - 1] == "]":
        return _Item(start, start, None)
    _, end = _find_end(text, start)
    return _Item(start, end, orjson.loads(text[start:end]))  # rejects NaN and lone surrogates


def _array_error(
    error: Exception, text: str, offset: int, line: int, path: str | Path
) -> InputError:
    """Return the error of an array that is broken behind `offset`, which is on a `line`."""
    broken_text = text[offset:].lstrip(" \t\r\n,[")
    start_of_broken_text = len(text) - len(broken_text)
    line += text.count("\n", offset, start_of_broken_text)
    reason = getattr(error, "msg", "nested too deeply")
    hint = array_of_texts_hint(path) if broken_text.startswith('"') else None
    return InputError(path, line, f"{broken_text[:20]!r} ({reason})", ONE_ARRAY, hint)


def _characters(handle: BinaryIO, path: str | Path) -> Iterator[str]:
    """Yield the text of a file in pieces."""
    chunks = iter(partial(files.read_all, handle, path, 1 << 20), b"")
    try:
        yield from codecs.iterdecode(chunks, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise files.encoding_error(path, None, error.object, error) from None


class RecordKeys(NamedTuple):
    """The keys of one JSON format of passages or queries; the first key that a record has counts.

    Without an id key the id is the record's position from 0, unless `must_have_id`.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    title: str | None = None
    must_have_id: bool = True
    ids_by_text: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # in place of `ids`

    def __str__(self) -> str:
        alternatives = ["|".join(keys) for keys in (self.ids, self.texts) if keys]
        return " with ".join(alternatives)

    def used_in(self, record: Mapping[str, Any]) -> "UsedKeys | None":
        """Return the keys of the format that a record has; None if it is of another format.

        >>> RecordKeys(("_id", "id"), ("text",)).used_in({"id": "d1", "text": "one"})
        UsedKeys(id='id', text='text', title=None)
        """
        text_key = next((key for key in self.texts if key in record), None)
        if text_key is None:
            return None
        ids = self.ids_by_text.get(text_key, self.ids)
        id_key = next((key for key in ids if key in record), None)
        if id_key is None and self.must_have_id:
            return None
        return UsedKeys(id_key, text_key, self.title)


class UsedKeys(NamedTuple):
    """The keys of id, text and title in the records of a file; None of what they have not."""

    id: str | None
    text: str
    title: str | None

    def listed(self, record: Mapping[str, Any]) -> str:
        """Return those that a record has, for a message."""
        names = ", ".join(key for key in self if key is not None and key in record)
        return f"{names}; ids count from 0" if self.id is None else names


def first_used_keys(
    keys_by_format: Mapping[Format, RecordKeys], record: Mapping[str, Any]
) -> UsedKeys | None:
    """Return the keys that a record has of the first format that it fits; None without one."""
    for keys in keys_by_format.values():
        used_keys = keys.used_in(record)
        if used_keys is not None:
            return used_keys
    return None


def read_records(
    objects: Iterable[Row],
    keys_by_format: Mapping[Format, RecordKeys],
    named_format: Format | None,
    path: str | Path,
    table: Table,
) -> tuple[Format | None, Iterator[Record]]:
    """Return the format of a file, None if it is empty, and its records.

    The first record decides which of the format's keys the file uses; others must have them.
    Without a `named_format`, all formats are tried in the order of `keys_by_format`.
    """
    first_object, objects = files.first_and_all(iter(objects))
    if first_object is None:
        return None, iter(())
    line, record = first_object
    candidates = [named_format] if named_format else list(keys_by_format)
    for record_format in candidates:
        used_keys = keys_by_format[record_format].used_in(record)
        if used_keys is not None:
            break
    else:
        descriptions = [str(keys_by_format[candidate]) for candidate in candidates]
        expected = " or ".join(dict.fromkeys(descriptions))
        hint = keys_hint(record, path, table)
        raise InputError(path, line, f"the keys {list_keys(record)}", expected, hint)
    if named_format is None:
        name = files.display_name(path)
        logger.info(f"{name}: {record_format} {table} ({used_keys.listed(record)})")
    unit = "passage" if table is Table.CORPUS else "query"
    return record_format, records_of_keys(objects, used_keys, path, unit)


def records_of_keys(
    objects: Iterable[Row],
    keys: UsedKeys,
    path: str | Path,
    unit: str,
) -> Iterator[Record]:
    """Yield the records of objects, from which id, text and title are taken out.

    Without an id key the ids count from 0. The `unit`, "passage" or "query", is for errors.
    """
    for number, (line, record) in enumerate(objects):
        for key in (keys.id, keys.text):
            if key is not None and key not in record:
                found = f"no {key} (keys: {list_keys(record)})"
                raise InputError(path, line, found, f"a record with {key}")
        text_value = record[keys.text]  # before the id is taken out: one field may be both
        id = str(number)
        if keys.id is not None:
            id = identifier(record.pop(keys.id), path, line, unit)
        text = as_text(text_value, keys.text, path, line)
        record.pop(keys.text, None)
        title = ""
        if keys.title is not None:
            title = as_text(record.pop(keys.title, None), keys.title, path, line)
        yield line, id, text, title, record


def list_keys(record: Iterable[str]) -> str:
    """Return the first keys of a record for a message, on one line."""
    keys = [key[:40] for key in record]
    if not keys:
        return "of an empty object"
    names = [key if key.isprintable() else repr(key) for key in keys[:8]]
    if len(keys) > 8:
        names.append("...")
    return ", ".join(names)


def type_name(value: Any) -> str:
    """Return what a JSON value is, for a message.

    >>> type_name([1]), type_name(None), type_name(2.5)
    ('a list', 'null', 'a number')
    """
    return "null" if value is None else NAMES_OF_TYPES.get(type(value), "a number")


def as_text(value: Any, key: str, path: str | Path, line: int | None) -> str:
    """Return the text under a key; null is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(path, line, f"{type_name(value)} as {key}", "a string")
    return value


def identifier(value: Any, path: str | Path, line: int | None, unit: str) -> str:
    """Return an id, a string without white space; an integer keeps its digits."""
    if type(value) is int:  # a bool is an instance of int, and no id
        return str(value)
    if not isinstance(value, str):
        shown = f"the number {value}" if type(value) is float else type_name(value)
        found = f"a {unit} id that is {shown}"
        raise InputError(path, line, found, "a string or a whole number")
    terms = value.split()
    if terms != [value]:
        found = f"the {unit} id {value[:80]!r}" if terms else f"an empty {unit} id"
        raise InputError(path, line, found, "an id without white space")
    return value


class Fields:
    """One JSON object, with the file and line that errors name."""

    def __init__(self, record: Mapping[str, Any], path: str | Path, line: int | None) -> None:
        self.record = record
        self.path = path
        self.line = line

    def error(self, found: str, expected: str) -> InputError:
        """Return an error that names the file and line."""
        return InputError(self.path, self.line, found, expected)

    def __contains__(self, key: str) -> bool:
        """Return whether the object has a value under a key; null is none."""
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
        """Return the finite number that stands under `key`; None of null."""
        if value is None:
            return None
        number = math.nan
        if not isinstance(value, bool):
            with suppress(TypeError, ValueError, OverflowError):
                number = float(value)
        if not math.isfinite(number):
            raise self.error(f"{key} {repr(value)[:40]}", "a finite number")
        return number

    def items(self, key: str, item_type: type = object) -> list[Any]:
        """Return a list of values of one type; absent or null is empty."""
        values = self.record.get(key)
        if values is None:
            return []
        if not isinstance(values, list):
            raise self.error(f"{type_name(values)} as {key}", "a list")
        for value in values:
            if not isinstance(value, item_type):
                expected = f"a list of {NAMES_OF_ITEMS[item_type]}"
                raise self.error(f"{type_name(value)} in {key}", expected)
        return values

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the strings of a list."""
        return tuple(self.items(key, str))

    def identifiers(self, key: str) -> tuple[str, ...]:
        """Return the ids of a list."""
        return tuple(identifier(value, self.path, self.line, key) for value in self.items(key))

    def rest(self, read_keys: Collection[str]) -> Mapping[str, Any]:
        """Return the fields whose keys are not among those that were read."""
        other_fields = {key: value for key, value in self.record.items() if key not in read_keys}
        return other_fields or NO_FIELDS
