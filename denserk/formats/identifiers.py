"""Ids as every reader takes them: strings without white space, in the spelling of the file."""

from pathlib import Path
from typing import Any

from denserk.errors import InputError


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
