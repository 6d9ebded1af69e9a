"""Inputs: gzip by suffix, "-" for standard input, lines and their encoding."""

import gzip
import io
import os
import re
import shlex
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from denserk.errors import InputError, UsageError
from denserk.io.file_errors import read_errors
from denserk.io.near_paths import no_such_path
from denserk.io.pipes import readable_path
from denserk.io.tables import is_table, table_lines

STREAM = "-"
BOM = b"\xef\xbb\xbf"
HEAD_SIZE = 1 << 20  # bytes of an input by which its format is recognised
CHUNK_SIZE = 1 << 16  # bytes that are read at once
# control characters that texts have in no encoding but UTF-16
NOT_IN_TEXTS = re.compile(rb"\A(?!\xff\xfe|\xfe\xff).*[\x00-\x08\x0e-\x1a]", re.DOTALL)
T = TypeVar("T")
Lines = Iterable[tuple[int, str]]  # numbered from 1, without line ends


@contextmanager
def open_binary(path: str | Path, part: str = "") -> Iterator[BinaryIO]:
    """Open an input for reading; `.gz` is decompressed, "-" is standard input.

    With a `part` of a collection, tables are opened as JSON lines: see `tables.table_lines`.
    """
    if str(path) == STREAM:
        yield sys.stdin.buffer
        return
    if part and is_table(path, part):
        yield io.BufferedReader(_Chunks(table_lines(str(path), part)), CHUNK_SIZE)
        return
    opener: Callable[..., Any] = gzip.open if str(path).endswith(".gz") else open
    with read_errors(path):
        if Path(path).is_dir():
            raise UsageError(f"{path} is a folder; a file is expected")
        if not os.path.lexists(path):
            raise no_such_path(path, f"{path}: no such file")
        opened = opener(readable_path(path), "rb")
    with opened as handle:
        yield cast(BinaryIO, handle)


def number_lines(handle: BinaryIO, path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of an open input, without line ends and byte-order mark."""
    with read_errors(path):
        for number, line in enumerate(handle, start=1):
            if number == 1:
                reject_carriage_returns(line, path)
                line = line.removeprefix(BOM)
            yield number, line.rstrip(b"\r\n")


def shell_path(path: str | Path) -> str:
    """Return a path as a shell reads it; FILE stands for what came through standard input."""
    return "FILE" if str(path) == STREAM else shlex.quote(str(path))


def reject_zero_bytes(lines: bytes, path: str | Path, first_line: int) -> None:
    """Raise an InputError for lines with a zero byte; the first of them has a number in the file.

    trec_eval would end an id there, and take two passages for one.
    """
    position = lines.find(b"\0")
    if position >= 0:
        line = first_line + lines.count(b"\n", 0, position)
        raise InputError(path, line, "a zero byte", "text", "the file is damaged: make it again")


def reject_carriage_returns(beginning: bytes, path: str | Path) -> None:
    """Raise an InputError for an input whose lines end with carriage returns alone.

    Its `beginning` is the first line, which then is the whole input, or more of it.
    """
    if b"\n" in beginning or b"\r" not in beginning.rstrip(b"\r"):
        return
    name = shell_path(path)
    found = "lines that end with carriage returns alone, as on old Macs"
    hint = f"write line feeds: tr '\\r' '\\n' < {name} > {name}.lines && mv {name}.lines {name}"
    raise InputError(path, None, found, "lines that end with line feeds", hint)


class _Chunks(io.RawIOBase):
    """An input of bytes that come in chunks; an empty one would be its end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")  # of a chunk

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        data = self._rest[: len(buffer)]
        buffer[: len(data)] = data
        self._rest = self._rest[len(data) :]
        return len(data)


@contextmanager
def open_ahead(
    path: str | Path, size: int = HEAD_SIZE, part: str = ""
) -> Iterator[tuple[bytes, BinaryIO]]:
    """Yield the first bytes of an input, and the input from its start; without byte-order mark."""
    with open_binary(path, part) as handle:
        head = read_all(handle, path, size).removeprefix(BOM)
        chunks = iter(partial(handle.read, CHUNK_SIZE), b"")
        if head:
            chunks = chain([head], chunks)
        yield head, io.BufferedReader(_Chunks(chunks), CHUNK_SIZE)


def read_all(handle: BinaryIO, path: str | Path, size: int = -1) -> bytes:
    """Return the rest of an open input, or its next `size` bytes; `path` names it in errors."""
    with read_errors(path):
        return handle.read(size)


def read_text_lines(path: str | Path, handle: BinaryIO | None = None) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file, or of an open input, decoded from UTF-8."""
    source = open_binary(path) if handle is None else nullcontext(handle)
    with source as opened:
        yield from decode_lines(number_lines(opened, path), path)


def decode_lines(
    numbered: Iterable[tuple[int, bytes]], path: str | Path
) -> Iterator[tuple[int, str]]:
    """Decode numbered lines from UTF-8; `path` names them in errors."""
    for number, line in numbered:
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise encoding_error(path, number, line, error) from None


def encoding_error(
    path: str | Path, line: int | None, data: bytes, error: UnicodeDecodeError
) -> InputError:
    """Return the error of bytes that are not UTF-8, with a command that converts the file."""
    found = f"a byte that is not UTF-8 (0x{data[error.start]:02x})"
    hint = None if NOT_IN_TEXTS.search(data) else _recoding_hint(data, path)
    return InputError(path, line, found, "UTF-8 text", hint)


def _recoding_hint(data: bytes, path: str | Path) -> str:
    """Return a command that converts a file to UTF-8 from the encoding that it probably has.

    Windows-1252 has the letters of ISO-8859-1, and signs where that has none.
    """
    encoding = "ENCODING"
    condition = "if it is text, name its encoding in place of ENCODING"
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        encoding = "UTF-16"
        condition = "if it is UTF-16, convert it"
    else:
        with suppress(UnicodeDecodeError):
            data.decode("cp1252")
            encoding = "WINDOWS-1252"
            condition = "if it is of Windows or ISO-8859-1, convert it"
    name = shell_path(path)
    command = f"iconv -f {encoding} -t UTF-8 {name}"
    if str(path).endswith(".gz"):
        command = f"zcat {name} | iconv -f {encoding} -t UTF-8 | gzip"
    return f"{condition}: {command} > {name}.utf8 && mv {name}.utf8 {name}"


def read_file(path: str | Path) -> bytes:
    """Return the bytes of a small file."""
    with read_errors(path):
        return Path(path).read_bytes()


def first_line(head: bytes) -> bytes:
    """Return the first line of a file's beginning that is not blank, without its end."""
    for line in head.split(b"\n"):
        if line.strip():
            return line.rstrip(b"\r")
    return b""


def is_json(start: bytes) -> bool:
    """Return whether a file that begins with this line is JSON: lines, an array or one object."""
    return start.lstrip().startswith((b"{", b"["))


def first_and_all(items: Iterator[T]) -> tuple[T | None, Iterator[T]]:
    """Return the first item of an iterator, or None, and an iterator over all items."""
    for first_item in items:
        return first_item, chain([first_item], items)
    return None, items


def display_name(path: str | Path) -> str:
    """Return a file's name, without its folder, for log messages."""
    return "standard input" if str(path) == STREAM else Path(path).name
