"""Locks of outputs: which process writes a file or folder at this moment.

A lock is a hidden file beside the output, or inside a folder whose parent is not writable. It is
held for as long as its process lives: what a killed process leaves behind locks nothing.
"""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from denserk.errors import BeingWrittenError, OutputError, UsageError
from denserk.io.durability import make_folder
from denserk.io.files import LOCK_SUFFIX, write_errors

REPLACES = "replaces what was there"  # second line of the lock of a command with --overwrite
FIRST_LINE = re.compile(r"process \d+( .*)?")
PATIENCE = 0.3  # seconds: a reader that looks whether a lock is held holds it for a moment


class Writer(NamedTuple):
    """The process that writes an output."""

    name: str  # "process 12 on host"
    replaces: bool = False  # whether the output was there before

    def error(self, path: str | Path) -> BeingWrittenError:
        """Return the error of a reader of `path`."""
        written = "rewritten" if self.replaces else "written"
        message = f"{path} is being {written} by {self.name}"
        return BeingWrittenError(message, "wait for it to end, and run this command again")


def real_path(path: str | Path) -> Path:
    """Return the path of an output itself, where links lead to it; also if it does not exist."""
    return Path(os.path.realpath(path))  # Path.resolve() takes no link to itself


def lock_places(output: Path) -> tuple[Path, Path]:
    """Return the two places of an output's lock: beside it, and inside."""
    name = f".{output.name}{LOCK_SUFFIX}"
    return output.with_name(name), output / name


def writer_of(path: str | Path, *, around: bool = True) -> Writer | None:
    """Return the process that writes a file or folder, or, `around`, a folder that holds it."""
    output = real_path(path)
    for folder in (output, *(output.parents if around else ())):
        if not folder.name:  # the root of the file system
            continue
        for place in lock_places(folder):
            if _is_held(place):
                return _holder(place)
    return None


def refuse_being_written(path: str | Path, *, around: bool = True) -> None:
    """Raise a BeingWrittenError if another process writes a file or folder; see `writer_of`."""
    writer = writer_of(path, around=around)
    if writer is not None:
        raise writer.error(path)


@contextmanager
def locked(output: str | Path, *, replaces: bool = False) -> Iterator[None]:
    """Hold the lock of an output; an OutputError names the process that holds it already."""
    from filelock import FileLock, Timeout  # only where something is written

    target = real_path(output)
    beside, inside = lock_places(target)
    parent_is_closed = target.is_dir() and not os.access(target.parent, os.W_OK)
    place = inside if parent_is_closed else beside
    lock = FileLock(place)
    with write_errors(output):
        make_folder(place.parent)
        _refuse_foreign(place)
        try:
            lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
        except Timeout:
            hint = "wait for it to end, or choose another output"
            raise OutputError(f"{output} is being written by {_holder(place).name}", hint) from None
    try:
        own_lines = [f"process {os.getpid()} on {socket.gethostname()}"]
        if replaces:
            own_lines.append(REPLACES)
        with suppress(OSError):  # it only serves messages
            place.write_text("".join(f"{line}\n" for line in own_lines), "utf-8")
        yield
    finally:
        place.unlink(missing_ok=True)  # before the release: FileLock takes no lock without a name
        lock.release()


def _is_held(place: Path) -> bool:
    """Return whether a process holds a lock."""
    try:
        with place.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or one that is not ours to read
        return False
    return False


def _holder(place: Path) -> Writer:
    """Return the process that holds a lock, as it has written there."""
    try:
        lines = place.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    if not lines:  # it has only just taken the lock
        return Writer("another denserk")
    return Writer(lines[0].strip(), REPLACES in lines)


def _refuse_foreign(place: Path) -> None:
    """Raise a UsageError if a file that denserk did not write has the name of a lock."""
    try:
        content = place.read_text("utf-8", "replace")
    except FileNotFoundError:
        return
    # a process that has just taken the lock has not written its name yet
    if not _is_lock(content) and not _is_held(place):
        found = f"{place} is no lock that denserk wrote, and denserk needs this name"
        raise UsageError(found, "rename that file, or choose another output")


def _is_lock(content: str) -> bool:
    """Return whether denserk wrote this; a power cut may leave its beginning, or zeros."""
    first, _, second = content.rstrip("\0").partition("\n")
    is_begun = FIRST_LINE.fullmatch(first) is not None or "process ".startswith(first)
    return is_begun and REPLACES.startswith(second.removesuffix("\n"))
