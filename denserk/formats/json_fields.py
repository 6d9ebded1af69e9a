"""The fields of one JSON object of a file, each read with its type checked."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from denserk.errors import InputError
from denserk.formats.identifiers import identifier
from denserk.records import NO_FIELDS


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
