"""Files: gzip by suffix, "-" for streams, lines and columns, outputs renamed when complete."""

import csv
import gzip
import io
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import sys
import zlib
from array import array
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TextIO, TypeVar, cast

from denserk.errors import InputError, OutputError, UsageError
from denserk.io.durability import flush_files, flush_names, make_folder
from denserk.io.near_paths import no_such_path
from denserk.io.short_texts import columns_phrase
from denserk.io.tables import is_table, table_lines

logger = logging.getLogger(__name__)

STREAM = "-"
LOCK_SUFFIX = ".denserk.lock"
# of the files beside an output that say what it was made from
MANIFEST_SUFFIX = ".manifest.json"
IR_METADATA_SUFFIX = ".ir_metadata.yaml"
MANIFEST_KEYS = {"kind", "complete", "settings"}  # that every manifest has
BOM = b"\xef\xbb\xbf"
HEAD_SIZE = 1 << 20  # bytes of an input by which its format is recognised
CHUNK_SIZE = 1 << 16  # bytes that are read at once
# control characters that texts have in no encoding but UTF-16
NOT_IN_TEXTS = re.compile(rb"\A(?!\xff\xfe|\xfe\xff).*[\x00-\x08\x0e-\x1a]", re.DOTALL)
LONGEST_CELL = 1 << 26  # characters of a cell of CSV, past which a quote was never closed

T = TypeVar("T")
Lines = Iterable[tuple[int, str]]  # numbered from 1, without line ends


@contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed read of a file into an `InputError`, also inside of `write_errors`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(path, None, "nothing", "a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found = f"a compressed file that breaks off ({error})"
        expected = "a whole gzip file"
        raise InputError(path, None, found, expected, "fetch or write it again") from None
    except OSError as error:
        found = f"a file that cannot be read ({error.strerror or error})"
        raise InputError(path, None, found, "a readable file") from None


class _PipeCopies:
    """Copies of the pipes that a command reads, by device and inode.

    A pipe can be read once, and opened again it is empty or waits for ever; commands read some
    inputs several times.
    """

    def __init__(self, scratch_folder: Callable[[str], AbstractContextManager[Path]]) -> None:
        self._scratch_folder = scratch_folder
        self._cleanup = ExitStack()  # removes the folder with the copies
        self._folder: Path | None = None  # made for the first pipe
        self._copies: dict[tuple[int, int], Path] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Remove the copies."""
        self._cleanup.close()

    def copy_of(self, path: Path) -> Path:
        """Return the copy of a pipe, which is read to its end the first time."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            message = f"{path} is a pipe, which several processes cannot read"
            raise UsageError(message, "write it to a file first")
        with self._lock:
            status = path.stat()
            key = (status.st_dev, status.st_ino)
            if key not in self._copies:
                self._copies[key] = self._copy(path)
            return self._copies[key]

    def _copy(self, path: Path) -> Path:
        """Copy a pipe; return the copy."""
        if self._folder is None:
            self._folder = self._cleanup.enter_context(self._scratch_folder("pipes"))
        copy = self._folder / str(len(self._copies))
        with read_errors(path):
            pipe = path.open("rb")
        with pipe, write_errors(copy), copy.open("wb") as out:
            shutil.copyfileobj(pipe, out)
        return copy


_pipe_copies: _PipeCopies | None = None  # None while no command runs


@contextmanager
def pipes_copied(scratch_folder: Callable[[str], AbstractContextManager[Path]]) -> Iterator[None]:
    """Let a command read the pipes among its inputs as often as files: they are copied first.

    `scratch_folder` makes a temporary folder for a purpose, and removes it at the end. A command
    inside of another one reads the copies of that one.
    """
    global _pipe_copies
    if _pipe_copies is not None:
        yield
        return
    _pipe_copies = _PipeCopies(scratch_folder)
    try:
        yield
    finally:
        _pipe_copies.close()
        _pipe_copies = None


def readable_path(path: str | Path) -> str | Path:
    """Return the path from which an input is read: the copy of a pipe, or the path itself."""
    if _pipe_copies is not None and Path(path).is_fifo():
        return _pipe_copies.copy_of(Path(path))
    return path


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


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn a failed write into an `OutputError`; a closed pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if re.fullmatch(r"\d+ requested and \d+ written", reason):  # NumPy's
            reason = "the disk is full, or a limit of sizes is reached"
        hint = "run the command again with room on the disk, or with another --output"
        if isinstance(error, NotADirectoryError):
            hint = "a file stands where one of its folders would be: choose another output"
        raise OutputError(f"{path} cannot be written: {reason}", hint) from error


def temporary_beside(target: Path) -> Path:
    """Return a new hidden path beside `target`, which `is_temporary` recognises."""
    path = target.absolute()
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def is_temporary(path: Path) -> bool:
    """Return whether a name is one that denserk gives to unfinished files, folders and locks."""
    pattern = rf"\..+(\.[0-9a-f]{{8}}\.part|{re.escape(LOCK_SUFFIX)})"
    return re.fullmatch(pattern, path.name) is not None


def is_special(path: Path) -> bool:
    """Return whether a path is a pipe or a device, which is written to directly."""
    return path.exists() and not (path.is_file() or path.is_dir())


def is_in_unfinished_folder(path: Path) -> bool:
    """Return whether a file is in a folder that has no name yet: that is flushed as a whole."""
    return any(map(is_temporary, path.absolute().parents))


def flush_written(paths: Iterable[Path]) -> None:
    """Flush written files to the disk, at once; those in an unfinished folder go with that."""
    flush_files(path for path in paths if not is_in_unfinished_folder(path))


def reject_folder(path: str | Path) -> None:
    """Raise a UsageError for an output file whose name is that of a folder."""
    if str(path) != STREAM and Path(path).is_dir():
        raise UsageError(f"{path} is a folder; a file is expected", "choose another output")


@contextmanager
def whole_binary(path: str | Path, *, flush: bool = True) -> Iterator[BinaryIO]:
    """Open an output: a temporary file that is renamed on success; both are flushed to the disk.

    `.gz` is compressed (without a time stamp, so equal content gives equal bytes). "-" is standard
    output. Parent folders are created. Without `flush`, the caller flushes several files at once.
    """
    if str(path) == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    reject_folder(path)
    target = Path(path)
    temporary = temporary_beside(target)
    flushes = flush and not is_in_unfinished_folder(target)
    try:
        with write_errors(path):
            make_folder(target.parent)
            if is_special(target):  # /dev/stdout, /dev/full, a named pipe
                with target.open("wb") as special:
                    yield special
                return
            with temporary.open("xb") as raw:
                if target.suffix == ".gz":
                    with gzip.GzipFile(
                        filename="",
                        mode="wb",
                        compresslevel=6,
                        fileobj=raw,
                        mtime=0,
                    ) as compressed:
                        yield cast(BinaryIO, compressed)
                else:
                    yield raw
                raw.flush()
                if flushes:
                    os.fsync(raw.fileno())
            _forget_descriptions(target)
            temporary.replace(target)
            if flushes:
                flush_names(target.parent)
    finally:
        with suppress(OSError):  # what should be its folder may be a file
            temporary.unlink(missing_ok=True)


def _forget_descriptions(target: Path) -> None:
    """Remove the manifest and the ir_metadata of a file of denserk's that is about to be replaced.

    A manifest of another tool stays.
    """
    manifest = target.with_name(f"{target.name}{MANIFEST_SUFFIX}")
    if not _is_manifest(manifest):
        return
    target.with_name(f"{target.name}{IR_METADATA_SUFFIX}").unlink(missing_ok=True)
    manifest.unlink()
    flush_names(target.parent)  # before the file is another one


def _is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest that denserk wrote."""
    if not path.is_file():
        return False
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.keys() >= MANIFEST_KEYS


@contextmanager
def whole_text(path: str | Path) -> Iterator[TextIO]:
    """`whole_binary` for UTF-8 text with Unix line ends."""
    with whole_binary(path) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        try:
            yield text
            text.flush()
        finally:
            text.detach()  # else it would close the output before that is renamed


def write_lines(path: str | Path, lines: Iterable[str], header: str = "") -> int:
    """Write a header and lines, which include their line ends; return the number of lines."""
    count = 0
    with whole_text(path) as out:
        out.write(header)
        for line in lines:
            out.write(line)
            count += 1
    return count


def log_losses(losses: Mapping[str, int], format_name: str) -> None:
    """Report what an output lacks because its format has no place for it."""
    listed = ", ".join(f"{name}: {number:,}" for name, number in losses.items() if number)
    if listed:
        logger.info(f"left out, as {format_name} has no place for them: {listed}")


def read_file(path: str | Path) -> bytes:
    """Return the bytes of a small file."""
    with read_errors(path):
        return Path(path).read_bytes()


def write_rows(path: str | Path, rows: Iterable[Sequence[str]], delimiter: str = ",") -> int:
    """Write rows of CSV; return their number."""
    count = 0
    with whole_text(path) as out:
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


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


def read_rows(
    lines: Lines, path: str | Path, delimiter: str, expected: str, *, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns) of CSV; a quoted column may hold line ends; skip empty rows.

    If `strict`, text behind a closing quote and a quote that is never closed are errors.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))  # a limit of the process
    row_lines = _LinesOfRow(lines)
    try:
        for row in csv.reader(row_lines, delimiter=delimiter, strict=strict):
            line = row_lines.first_line
            row_lines.first_line = 0
            if any(row):
                yield line, row
    except csv.Error as error:
        found = f"a row that is not quoted as CSV ({error})"
        raise InputError(path, row_lines.first_line or None, found, expected) from None


class _LinesOfRow:
    """The lines of CSV, with the number of the first one that was read of a row."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.first_line = 0  # the reader sets it back after each row

    def __iter__(self) -> Iterator[str]:
        for number, text in self._lines:
            if self.first_line == 0:
                self.first_line = number
            yield text + "\n"


def read_table(
    lines: Lines, path: str | Path, delimiter: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, cells by name) of CSV under a header; see RFC 4180."""
    signs = {",": "commas", ";": "semicolons", "\t": "tabs"}
    expected = f"CSV: {signs[delimiter]} between columns, quotes around a cell that has them"
    rows = read_rows(lines, path, delimiter, expected, strict=True)
    first_row = next(rows, None)
    if first_row is None:
        return
    header_line, header_cells = first_row
    if header_cells[0].startswith("sep="):
        expected = "the names of the columns"
        raise InputError(path, header_line, "Excel's line sep=", expected, "delete this line")
    names = [cell.strip() for cell in header_cells]
    for name, count in Counter(names).items():
        if name and count > 1:
            found = f"the column {name[:80]} twice"
            raise InputError(path, header_line, found, "each column once")
    for line, cells in rows:
        if len(cells) != len(names):
            header = ascii(", ".join(names)[:200])[1:-1]  # without quotes
            found = f"{columns_phrase(len(cells))} between {signs[delimiter]}"
            expected = f"{len(names)}, as in the first row: {header}"
            raise InputError(path, line, found, expected)
        yield line, dict(zip(names, cells, strict=True))


class ScratchRecords:
    """Byte strings in a temporary file, numbered from 0; memory holds 8 bytes a record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w+b", buffering=1 << 20)
        self._offsets = array("q", [0])  # where each record begins, and the last one ends

    def close(self) -> None:
        """Close the file; it stays."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, record: bytes) -> int:
        """Keep a record; return its number."""
        self._file.write(record)
        self._offsets.append(self._offsets[-1] + len(record))
        return len(self) - 1

    def __getitem__(self, number: int) -> bytes:
        self._file.flush()
        start = self._offsets[number]
        size = self._offsets[number + 1] - start
        return os.pread(self._file.fileno(), size, start)
