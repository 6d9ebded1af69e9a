"""JSON records: lines through jsonlines and orjson, arrays, keys by format, fields by type.

Errors name the file and the line.
"""

import codecs
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from denserk.errors import InputError
from denserk.io.files import READ_FAILURES, number_lines, read_failure, read_lines, whole_binary
from denserk.records import NO_FIELDS

Format = TypeVar("Format", bound=StrEnum)
Numbered = tuple[int, dict[str, Any]]  # the line on which an object starts, and the object

CHUNK = 1 << 20  # characters of an array that are read at once
LONGEST = 1 << 26  # characters of an object, past which a quote or bracket was never closed
TOKEN = 16  # the longest piece of JSON that looks broken where it is cut off, but for strings
ARRAY = "one JSON array of objects"


def dump_json(value: Any) -> bytes:
    r"""Return a JSON value as a line of UTF-8; arrays of numpy as lists.

    >>> dump_json({"id": "d1", "vector": [0.5]})
    b'{"id":"d1","vector":[0.5]}\n'
    """
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def read_objects(path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of JSON lines; blank lines are skipped.

    Raises:
        InputError: a line is not JSON, or not an object.
    """
    return parse_objects(read_lines(path), path)


def parse_objects(numbered: Iterable[tuple[int, bytes]], path: str | Path) -> Iterator[Numbered]:
    """`read_objects` of numbered lines; `path` names the file in errors."""
    line = 0

    def lines() -> Iterator[bytes]:
        nonlocal line
        for number, text in numbered:
            line = number
            yield text

    import jsonlines  # only where JSON lines are read: `eval` starts without

    reader = jsonlines.Reader(lines(), loads=orjson.loads)
    while True:
        try:
            value = reader.read(skip_empty=True)
        except EOFError:
            return
        except jsonlines.InvalidLineError as error:
            found = f"a line that is not JSON ({error.__cause__})"
            raise InputError(path, line, found, "one JSON object a line") from None
        if not isinstance(value, dict):
            found = f"JSON {type(value).__name__}"
            raise InputError(path, line, found, "one JSON object a line")
        yield line, value


def write_objects(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Write one object a line; return how many. "-" is standard output."""
    count = 0
    with whole_binary(path) as handle:
        for value in objects:
            handle.write(dump_json(value))
            count += 1
    return count


class _Window:
    """The part of a file that is in memory: `text[at:]` is unread."""

    def __init__(self, handle: BinaryIO, path: str | Path) -> None:
        self._handle, self.path = handle, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.at, self.line = "", 0, 1

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        try:
            data = self._handle.read(max(CHUNK, len(self.text) - self.at))
            more = self._decoder.decode(data, final=not data)
        except READ_FAILURES as error:
            raise read_failure(self.path, self.line, error) from None
        except UnicodeDecodeError:
            raise self.error("a byte that is not UTF-8") from None
        self.text, self.at = self.text[self.at :] + more, 0
        return bool(data)

    def take(self, end: int) -> str:
        """Return the text up to `end`, counting its lines."""
        taken = self.text[self.at : end]
        self.line += taken.count("\n")
        self.at = end
        return taken

    def sign(self) -> str:
        """Return the next character that is no white space; empty at the end of the file."""
        while True:
            rest = self.text[self.at : self.at + TOKEN]
            if sign := rest.lstrip(" \t\r\n")[:1]:
                self.take(self.at + rest.index(sign))
                return sign
            self.take(self.at + len(rest))
            if not rest and not self.more():
                return ""

    def object(self) -> Any:
        """Return the object that starts here."""
        while True:
            try:
                _, end = json.JSONDecoder().raw_decode(self.text, self.at)
                break
            except json.JSONDecodeError as error:
                open_string = error.msg.startswith("Unterminated")
                ends = open_string or error.pos >= len(self.text.rstrip())
                if not (ends or error.pos > len(self.text) - TOKEN):
                    raise self.error(f"an object that is not JSON ({error.msg})") from None
                if len(self.text) - self.at > LONGEST:
                    raise self.error("a quote or bracket that is never closed") from None
                if not self.more():
                    broken = f"an object that is not JSON ({error.msg})"
                    raise self.error("an array that breaks off" if ends else broken) from None
            except RecursionError:
                raise self.error("an object that is nested too deeply") from None
        line = self.line
        try:
            return orjson.loads(self.take(end))
        except orjson.JSONDecodeError as error:
            self.line = line
            raise self.error(f"an object that is not JSON ({error.msg})") from None

    def error(self, found: str, expected: str = ARRAY) -> InputError:
        return InputError(self.path, self.line, found, expected)


def read_array(handle: BinaryIO, path: str | Path) -> Iterator[Numbered]:
    r"""Yield (line number, object) of a JSON array, which may be larger than the memory.

    Raises:
        InputError: the file is not one JSON array of objects, or breaks off.

    >>> import io
    >>> list(read_array(io.BytesIO(b'[{"a": 1},\n {"a": "]"}]'), "x.json"))
    [(1, {'a': 1}), (2, {'a': ']'})]
    """
    window = _Window(handle, path)
    sign = window.sign()
    if sign != "[":
        raise window.error(f"{sign!r} at its start" if sign else "an empty file")
    window.take(window.at + 1)
    sign = window.sign()
    while sign != "]":
        if sign != "{":
            raise window.error(f"{sign!r}" if sign else "an array that breaks off")
        yield window.line, window.object()
        sign = window.sign()
        if sign == ",":
            window.take(window.at + 1)
            sign = window.sign()
            if sign == "]":
                raise window.error("a comma before the closing bracket")
        elif sign not in ("]", ""):
            raise window.error(f"{sign!r} after an object", "a comma")
    window.take(window.at + 1)
    if window.sign():
        raise window.error("more after the array's end")


def read_json(handle: BinaryIO, start: bytes, path: str | Path) -> Iterator[Numbered]:
    """Yield (line number, object) of JSON lines, or of an array if `start` begins one."""
    if start.lstrip().startswith(b"["):
        return read_array(handle, path)
    return parse_objects(number_lines(handle, path), path)


class RecordKeys(NamedTuple):
    """The keys of one JSON format of passages or queries; the first key that a record has counts.

    Without an id key the id is the record's position from 0, unless `must_have_id`.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    title: str | None = None
    must_have_id: bool = True

    def __str__(self) -> str:
        parts = ["|".join(self.ids), "|".join(self.texts)]
        return " with ".join(part for part in parts if part)

    def match(self, record: Mapping[str, Any]) -> "Keys | None":
        """Return the keys that a record uses; None if it lacks some."""
        key = next((name for name in self.ids if name in record), None)
        text = next((name for name in self.texts if name in record), None)
        if text is None or (key is None and self.must_have_id):
            return None
        return Keys(key, text, self.title)


class Keys(NamedTuple):
    """The keys that the records of one file use."""

    id: str | None
    text: str
    title: str | None = None


def match_keys(
    record: Mapping[str, Any],
    formats: Mapping[Format, RecordKeys],
    format: Format | None,
    path: str | Path,
    line: int | None,
) -> tuple[Format, Keys]:
    """Return the format of a file by its first record, and the keys that it uses.

    Args:
        record: the first record.
        formats: the formats, in the order in which they are tried.
        format: a forced format; None detects it.
        path: the file, for errors.
        line: the line, for errors.

    Raises:
        InputError: the record lacks the keys of every format, or of the forced one.
    """
    wanted = [format] if format else list(formats)
    for candidate in wanted:
        if keys := formats[candidate].match(record):
            return candidate, keys
    raise InputError(
        path,
        line,
        f"the keys {list_keys(record)}",
        " or ".join(dict.fromkeys(str(formats[name]) for name in wanted)),
        None if format else f"force a format: {', '.join(formats)}",
    )


def list_keys(record: Iterable[str]) -> str:
    r"""Return the first keys of a record, on one line.

    >>> list_keys({"_id": 1, "a\nb": 2}), list_keys({})
    ("_id, 'a\\nb'", 'of an empty object')
    """
    keys = list(record)
    shown = [key if key.isprintable() else repr(key) for key in (key[:40] for key in keys[:8])]
    return ", ".join([*shown, *["..."] * (len(keys) > 8)]) or "of an empty object"


def take_key(record: dict[str, Any], key: str, path: str | Path, line: int | None) -> Any:
    """Remove and return the value of a key that a record must have."""
    try:
        return record.pop(key)
    except KeyError:
        found = f"no {key} (keys: {list_keys(record)})"
        raise InputError(path, line, found, f"a record with {key}") from None


def as_text(value: Any, key: str, path: str | Path, line: int | None) -> str:
    """Return the text under a key; null is an empty text.

    Raises:
        InputError: it is no text.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(path, line, f"{key} that is {type(value).__name__}", "a string")
    return value


def identifier(value: Any, path: str | Path, line: int | None, what: str) -> str:
    """Return an id as a string; an integer keeps its digits. `what` is "passage" or "query".

    Raises:
        InputError: it is empty, holds white space, or is neither a string nor an integer.

    >>> identifier("007", "queries.tsv", 1, "query")
    '007'
    """
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
    """One JSON object, with the file and line that errors name.

    >>> fields = Fields({"qid": 7, "text": None, "score": "1.5"}, "f.jsonl", 1)
    >>> fields.identifier("qid"), fields.text("text"), fields.number("score")
    ('7', '', 1.5)
    """

    def __init__(self, record: Mapping[str, Any], path: str | Path, line: int | None) -> None:
        self.record, self.path, self.line = record, path, line

    def error(self, found: str, expected: str, hint: str | None = None) -> InputError:
        """Return an error that names the file and line."""
        return InputError(self.path, self.line, found, expected, hint)

    def __contains__(self, key: str) -> bool:
        return self.record.get(key) is not None

    def identifier(self, key: str, default: str = "") -> str:
        """Return an id; an integer keeps its digits; absent, null or empty gives the default."""
        value = self.record.get(key)
        if value is None or value == "":
            return default
        return self.as_identifier(value, key)

    def as_identifier(self, value: Any, key: str) -> str:
        """Check a value found under `key` that must be an id."""
        return identifier(value, self.path, self.line, key)

    def text(self, key: str) -> str:
        """Return a text; absent or null is empty."""
        value = self.record.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"{type(value).__name__} as {key}", "a string")
        return value

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
            raise self.error(f"{key} {value!r}", "a finite number")
        return number

    def items(self, key: str) -> list[Any]:
        """Return a list; absent or null is empty."""
        value = self.record.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"{type(value).__name__} as {key}", "a list")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.items(key)
        for value in values:
            if not isinstance(value, str):
                raise self.error(f"{type(value).__name__} in {key}", "a list of strings")
        return tuple(values)

    def identifiers(self, key: str) -> tuple[str, ...]:
        """Return a list of ids."""
        return tuple(self.as_identifier(value, key) for value in self.items(key))

    def objects(self, key: str) -> Iterator["Fields"]:
        """Yield the objects of a list."""
        for value in self.items(key):
            if not isinstance(value, dict):
                raise self.error(f"{type(value).__name__} in {key}", "a list of objects")
            yield Fields(value, self.path, self.line)

    def rest(self, known: Collection[str]) -> Mapping[str, Any]:
        """Return the fields that are not among the known ones."""
        return {key: value for key, value in self.record.items() if key not in known} or NO_FIELDS
