"""JSON records: lines through jsonlines and orjson, arrays, and fields with their types.

Errors name the file and the line.
"""

import codecs
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from denserk.errors import InputError
from denserk.formats.files import READ_FAILURES, read_failure, read_lines, whole_binary
from denserk.records import NO_FIELDS

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


def identifier(value: Any, path: str | Path, line: int | None, what: str) -> str:
    """An id as a string; an integer of a JSON file keeps its digits.

    Args:
        value: the id as the file has it.
        path: the file, for the error.
        line: its line, for the error.
        what: "passage" or "query".

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
        """A refusal that names the file and line."""
        return InputError(self.path, self.line, found, expected, hint)

    def __contains__(self, key: str) -> bool:
        return self.record.get(key) is not None

    def identifier(self, key: str, default: str = "") -> str:
        """An id; a whole number keeps its digits; absent, null or empty it is the default."""
        value = self.record.get(key)
        if value is None or value == "":
            return default
        return self.as_identifier(value, key)

    def as_identifier(self, value: Any, key: str) -> str:
        """A value that must be an id, found under `key`."""
        return identifier(value, self.path, self.line, key)

    def text(self, key: str) -> str:
        """A text; absent or null is empty."""
        value = self.record.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"{type(value).__name__} as {key}", "a string")
        return value

    def number(self, key: str) -> float | None:
        """A finite number, perhaps spelled as a string; None where it is absent or null."""
        return self.as_number(self.record.get(key), key)

    def as_number(self, value: Any, key: str) -> float | None:
        """A value that must be a finite number or null, found under `key`."""
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
        """A list; absent or null is empty."""
        value = self.record.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"{type(value).__name__} as {key}", "a list")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.items(key)
        for value in values:
            if not isinstance(value, str):
                raise self.error(f"{type(value).__name__} in {key}", "a list of strings")
        return tuple(values)

    def identifiers(self, key: str) -> tuple[str, ...]:
        """A list of ids."""
        return tuple(self.as_identifier(value, key) for value in self.items(key))

    def objects(self, key: str) -> Iterator["Fields"]:
        """A list of objects."""
        for value in self.items(key):
            if not isinstance(value, dict):
                raise self.error(f"{type(value).__name__} in {key}", "a list of objects")
            yield Fields(value, self.path, self.line)

    def rest(self, known: Collection[str]) -> Mapping[str, Any]:
        """The fields that are not among the known ones."""
        return {key: value for key, value in self.record.items() if key not in known} or NO_FIELDS
