"""Reading and writing of files: gzip by suffix, "-" for streams, outputs renamed when complete."""

import errno
import gzip
import io
import os
import re
import secrets
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from denserk.errors import InputError, OutputError, UsageError

STREAM = "-"
BOM = b"\xef\xbb\xbf"
# bytes of a line from which on a file is rejected: it is not a text file, or a gzip bomb
LONGEST_LINE = 1 << 28


@contextmanager
def open_binary(path: str | Path) -> Iterator[BinaryIO]:
    """Open an input for reading; `.gz` is decompressed, "-" is standard input."""
    if str(path) == STREAM:
        yield sys.stdin.buffer
        return
    opener: Callable[..., Any] = gzip.open if str(path).endswith(".gz") else open
    try:
        opened = opener(path, "rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; a file is expected") from None
    except OSError as error:
        raise read_failure(path, None, error) from None
    with opened as handle:
        yield cast(BinaryIO, handle)


READ_FAILURES = (EOFError, OSError, zlib.error)  # of damaged or unreadable inputs


def read_failure(path: str | Path, line: int | None, error: BaseException) -> InputError:
    """Return the error about an input that raised one of `READ_FAILURES`."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError(path, line, "nothing", "a file")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        reason = error.strerror or str(error)
        return InputError(path, line, f"a file that cannot be read ({reason})", "a readable file")
    found, hint = f"a compressed file that breaks off ({error})", "fetch or write the file again"
    return InputError(path, line, found, "a whole gzip file", hint)


@contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed read of a file into an `InputError`, also where an output is being written."""
    try:
        yield
    except READ_FAILURES as error:
        raise read_failure(path, None, error) from None


def number_lines(handle: BinaryIO, path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of an open input like `read_lines`; `path` names it in errors."""
    number = 0
    try:
        for number, line in enumerate(iter(partial(handle.readline, LONGEST_LINE), b""), start=1):
            if len(line) == LONGEST_LINE:
                raise endless_line(path, number)
            if number == 1 and line.startswith(BOM):
                line = line[len(BOM) :]
            yield number, line.rstrip(b"\r\n")
    except READ_FAILURES as error:
        raise read_failure(path, number + 1, error) from None


def endless_line(path: str | Path, line: int | None) -> InputError:
    """Return the error about a line that is too long to be read into memory."""
    return InputError(path, line, f"a line of {LONGEST_LINE:,} bytes or more", "shorter lines")


def read_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line), without line ends and byte-order mark."""
    with open_binary(path) as handle:
        yield from number_lines(handle, path)


class _Rewound(io.RawIOBase):
    """Bytes that were read already, then the rest of the input they came from."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = memoryview(head), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            data = self._rest.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size


def look_ahead(handle: BinaryIO, path: str | Path, size: int = 1 << 20) -> tuple[bytes, BinaryIO]:
    """Return the first bytes of an open input, and the input from its start (a pipe cannot seek).

    >>> head, rest = look_ahead(io.BytesIO(b"one two"), "x", 3)
    >>> head, rest.read()
    (b'one', b'one two')
    """
    head = read_all(handle, path, size)
    return head, rewound(head, handle)


def rewound(head: bytes, rest: BinaryIO) -> BinaryIO:
    """Return an input that starts with bytes that were already read from it."""
    return io.BufferedReader(_Rewound(head, rest), 1 << 16)


def read_all(handle: BinaryIO, path: str | Path, size: int = -1) -> bytes:
    """Return the rest of an open input, or its next `size` bytes; `path` names it in errors."""
    with read_errors(path):
        return handle.read(size)


def read_text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """`read_lines`, decoded from UTF-8."""
    return decode_lines(read_lines(path), path)


def decode_lines(
    numbered: Iterable[tuple[int, bytes]], path: str | Path
) -> Iterator[tuple[int, str]]:
    """Decode numbered lines from UTF-8; `path` names them in errors."""
    for number, line in numbered:
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"a byte that is not UTF-8 (0x{line[error.start]:02x})"
            raise InputError(path, number, found, "UTF-8 text") from None


AGAIN, ELSEWHERE = "make room and run the command again", "choose another --output"
WRITE_FAILURES = {
    errno.ENOSPC: ("no room left on the disk", AGAIN),
    errno.EFBIG: ("the file would grow past its size limit", "raise the limit (ulimit -f)"),
    errno.EDQUOT: ("the disk quota is used up", AGAIN),
    errno.EACCES: ("no permission to write there", ELSEWHERE),
    errno.EROFS: ("the file system is read-only", ELSEWHERE),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", ELSEWHERE),
    errno.EISDIR: ("there is a folder of that name", ELSEWHERE),
}


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed write into an `OutputError`; a closed pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        unknown = error.strerror or str(error), None
        reason, hint = WRITE_FAILURES.get(error.errno or 0, unknown)
        raise OutputError(f"{path} cannot be written: {reason}", hint) from error


def temporary_beside(target: Path) -> Path:
    """Return a new hidden path beside `target`, which `is_temporary` recognises."""
    whole = target.absolute()
    return whole.with_name(f".{whole.name}.{secrets.token_hex(4)}.part")


def is_temporary(path: Path) -> bool:
    """Return whether a name is one that denserk gives to unfinished files, folders and locks.

    >>> [is_temporary(Path(name)) for name in (".a.trec.0123abcd.part", ".a.lock", ".a.part")]
    [True, True, False]
    """
    return re.fullmatch(r"\..+(\.[0-9a-f]{8}\.part|\.lock)", path.name) is not None


def is_special(path: Path) -> bool:
    """Return whether a path is a pipe or a device, which is written to directly."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def whole_binary(path: str | Path) -> Iterator[BinaryIO]:
    """Open an output for writing.

    Written to a temporary file beside the target, flushed to the disk and renamed on success;
    removed on failure. `.gz` is compressed (without a time stamp, so equal content gives equal
    bytes). "-" is standard output. Parent folders are created.
    """
    if str(path) == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    temporary = temporary_beside(target)
    try:
        with write_errors(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir() or is_special(target):  # /dev/stdout, /dev/full, a named pipe
                with target.open("wb") as special:
                    yield special
                return
            with temporary.open("xb") as raw:
                if target.suffix == ".gz":
                    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                        yield cast(BinaryIO, packed)
                else:
                    yield raw
                raw.flush()
                os.fsync(raw.fileno())
            temporary.replace(target)
    finally:
        with suppress(OSError):  # its folder may be none
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_text(path: str | Path) -> Iterator[TextIO]:
    """`whole_binary` for UTF-8 text with Unix line ends."""
    with whole_binary(path) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        try:
            yield text
            text.flush()
        finally:
            text.detach()


def write_lines(path: str | Path, lines: Iterable[str], header: str = "") -> int:
    """Write a header and lines, which include their line ends; return the number of lines."""
    count = 0
    with whole_text(path) as out:
        out.write(header)
        for line in lines:
            out.write(line)
            count += 1
    return count


def read_file(path: str | Path) -> bytes:
    """Return the bytes of a small file."""
    with read_errors(path):
        return Path(path).read_bytes()
