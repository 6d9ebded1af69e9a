"""Output files: written to a temporary file and renamed when complete; lines and rows of CSV."""

import csv
import gzip
import io
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from denserk.errors import UsageError
from denserk.io.durability import flush_files, flush_names, make_folder
from denserk.io.file_errors import write_errors
from denserk.io.files import STREAM

logger = logging.getLogger(__name__)

LOCK_SUFFIX = ".denserk.lock"
# of the files beside an output that say what it was made from
MANIFEST_SUFFIX = ".manifest.json"
IR_METADATA_SUFFIX = ".ir_metadata.yaml"
MANIFEST_KEYS = {"kind", "complete", "settings"}  # that every manifest has


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


def write_rows(path: str | Path, rows: Iterable[Sequence[str]], delimiter: str = ",") -> int:
    """Write rows of CSV; return their number."""
    count = 0
    with whole_text(path) as out:
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        for row in rows:
            writer.writerow(row)
            count += 1
    return count
