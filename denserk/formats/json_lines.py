"""JSON lines through jsonlines, with orjson as its parser; errors by file and line."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonlines
import orjson

from denserk.errors import InputError
from denserk.formats.files import read_lines, whole_binary

Numbered = tuple[int, dict[str, Any]]
"""A line number, and the object that begins there."""


def dump_json(value: Any) -> bytes:
    r"""One JSON value as a line of UTF-8; arrays of numpy as lists.

    >>> dump_json({"id": "d1", "vector": [0.5]})
    b'{"id":"d1","vector":[0.5]}\n'
    """
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def read_objects(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object); empty lines are passed over.

    Raises:
        InputError: a line is not JSON, or not an object.
    """
    return parse_objects(read_lines(path), path)


def parse_objects(
    numbered: Iterable[tuple[int, bytes]], path: str | Path
) -> Iterator[tuple[int, dict[str, Any]]]:
    """`read_objects` of lines that are at hand; `path` names them in errors.

    Raises:
        InputError: a line is not JSON, or not an object.
    """
    position = [0]

    def lines() -> Iterator[bytes]:
        for number, line in numbered:
            position[0] = number
            yield line

    reader = jsonlines.Reader(lines(), loads=orjson.loads)
    while True:
        try:
            value = reader.read(skip_empty=True)
        except EOFError:
            return
        except jsonlines.InvalidLineError as error:
            raise InputError(
                path,
                position[0],
                f"a line that is not JSON ({_reason(error)})",
                "one JSON object a line",
            ) from None
        if not isinstance(value, dict):
            raise InputError(
                path, position[0], f"JSON {type(value).__name__}", "one JSON object a line"
            )
        yield position[0], value


def _reason(error: jsonlines.InvalidLineError) -> str:
    return str(error).partition(" (line ")[0].removeprefix("line contains invalid json: ")


def write_objects(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Writes one object a line, keys in their order; returns how many. "-" is standard output."""
    count = 0
    with whole_binary(path) as handle:
        for value in objects:
            handle.write(dump_json(value))
            count += 1
    return count
