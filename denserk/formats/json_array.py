"""One JSON array of objects, read an element at a time: the file may be larger than the memory."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from denserk.errors import InputError
from denserk.formats.files import BOM, READ_FAILURES, read_failure

CHUNK = 1 << 20
LONGEST = 1 << 26
"""No element is longer than this many bytes; past it, a quote or bracket was never closed."""

EXPECTED = "one JSON array of objects"
_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")


class _Window:
    """The part of the file that is at hand: `data[at:]` is unread."""

    def __init__(self, handle: BinaryIO, path: str | Path) -> None:
        self._handle, self.path = handle, path
        self.data, self.at, self.line = b"", 0, 1

    def more(self) -> bool:
        """Reads on; False at the end of the file."""
        try:
            chunk = self._handle.read(CHUNK)
        except READ_FAILURES as error:
            raise read_failure(self.path, self.line, error) from None
        self.data, self.at = self.data[self.at :] + chunk, 0
        return bool(chunk)

    def skip_to(self, end: int) -> bytes:
        """Moves to `end` and returns what was passed, counting its lines."""
        passed = self.data[self.at : end]
        self.line += passed.count(b"\n")
        self.at = end
        return passed

    def next_byte(self) -> bytes:
        """The next byte that is no white space, left in place; empty at the end of the file."""
        while True:
            match = _SPACE.match(self.data, self.at)
            assert match is not None
            self.skip_to(match.end())
            if self.at < len(self.data):
                return self.data[self.at : self.at + 1]
            if not self.more():
                return b""

    def error(self, found: str, expected: str = EXPECTED) -> InputError:
        return InputError(self.path, self.line, found, expected)


def _object(window: _Window) -> bytes:
    """The bytes of the object that begins here: to the bracket that closes it."""
    depth, position = 0, window.at
    while True:
        for mark in _MARK.finditer(window.data, position):
            sign = mark.group()
            if sign == b'"':  # a string whose end is not at hand yet
                position = mark.start()
                break
            if len(sign) == 1:
                depth += 1 if sign in b"{[" else -1
            position = mark.end()
            if depth == 0:
                return window.skip_to(position)
        if len(window.data) - window.at > LONGEST:
            raise window.error("a quote or bracket that is never closed")
        position -= window.at
        if not window.more():
            raise window.error("an array that breaks off")


def _elements(window: _Window) -> Iterator[tuple[int, bytes]]:
    """The line where each object begins, and its bytes."""
    sign = window.next_byte()
    if sign != b"[":
        raise window.error(f"{sign!r} at its start" if sign else "an empty file")
    window.skip_to(window.at + 1)
    sign = window.next_byte()
    while sign != b"]":
        if sign != b"{":
            raise window.error(
                f"{sign.decode('latin-1')!r}" if sign else "an array that breaks off"
            )
        yield window.line, _object(window)
        sign = window.next_byte()
        if sign == b",":
            window.skip_to(window.at + 1)
            sign = window.next_byte()
            if sign == b"]":
                raise window.error("a comma before the closing bracket")
        elif sign not in (b"]", b""):
            raise window.error(f"{sign.decode('latin-1')!r} after an object", "a comma")
    window.skip_to(window.at + 1)
    if window.next_byte():
        raise window.error("more after the array's end")


def read_array(handle: BinaryIO, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yields (line number where it begins, object); `path` names the input in errors.

    Raises:
        InputError: the file is not one JSON array of objects, or breaks off.

    >>> import io
    >>> list(read_array(io.BytesIO(b'[{"a": 1},\n {"a": "]"}]'), "x.json"))
    [(1, {'a': 1}), (2, {'a': ']'})]
    """
    window = _Window(handle, path)
    window.more()
    if window.data.startswith(BOM):
        window.at = len(BOM)
    for line, element in _elements(window):
        try:
            yield line, orjson.loads(element)
        except orjson.JSONDecodeError as error:
            raise InputError(
                path, line, f"an object that is not JSON ({error.msg})", EXPECTED
            ) from None
