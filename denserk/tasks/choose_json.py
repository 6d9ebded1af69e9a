"""JSON files in the folder of `denserk choose`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from denserk.errors import InputError
from denserk.io.files import read_file
from denserk.io.written_files import whole_binary

INDENTED = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote."""
    try:
        values = orjson.loads(read_file(path))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InputError(path, None, "another text", "a JSON object that denserk wrote")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    with whole_binary(path) as out:
        out.write(orjson.dumps(values, option=INDENTED))
