"""Locks of outputs: which process writes a file or folder at this moment.

A lock is a hidden file beside the output, or inside a folder whose parent is not writable. It is
held for as long as its process lives: what a killed process leaves behind locks nothing.
"""

import fcntl
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from denserk.errors import BeingWrittenError, OutputError, UsageError
from denserk.io.durability import make_folder
from denserk.io.file_errors import write_errors
from denserk.io.written_files import LOCK_SUFFIX

# lines of a lock: its process, and for a command with --overwrite that it replaces an output
PROCESS_LINE = re.compile(r"process \d+( .*)?")
REPLACES = "replaces what was there"
PATIENCE = 0.3  # seconds: a reader that looks whether a lock is held holds it for a moment


class Writer(NamedTuple):
    """The process that writes an output."""

    name: str  # "process 12 on host"
    replaces: bool = False  # whether the output was there before

    def error(self, path: str | Path) -> BeingWrittenError:
        """Return the error of a reader of `path`."""
        if self.replaces:
            message = f"{path} is being rewritten by {self.name}"
        else:
            message = f"{path} is being written by {self.name}"
        return BeingWrittenError(message, "wait for it to end, and run this command again")


def real_path(path: str | Path) -> Path:
    """Return the path of an output itself, where links lead to it; also if it does not exist."""
    return Path(os.path.realpath(path))  # Path.resolve() takes no link to itself


def lock_paths(output: Path) -> tuple[Path, Path]:
    """Return the two paths that an output's lock may have: beside it, and inside."""
    name = f".{output.name}{LOCK_SUFFIX}"
    return output.with_name(name), output / name


def writer_of(path: str | Path, *, around: bool = True) -> Writer | None:
    """Return the process that writes a file or folder, or, `around`, a folder that holds it."""
    output = real_path(path)
    locked_paths = [output]
    if around:
        locked_paths += output.parents
    for locked_path in locked_paths:
        if not locked_path.name:  # the root of the file system
            continue
        for lock in lock_paths(locked_path):
            if _is_held(lock):
                return _holder(lock)
    return None


def reject_being_written(path: str | Path, *, around: bool = True) -> None:
    """Raise a BeingWrittenError if another process writes a file or folder; see `writer_of`."""
    writer = writer_of(path, around=around)
    if writer is not None:
        raise writer.error(path)


@contextmanager
def locked(output: str | Path, *, replaces: bool = False) -> Iterator[None]:
    """Hold the lock of an output; an OutputError names the process that holds it already.

    The folder of the output is made; if nothing is written there, it is removed again.
    """
    from filelock import FileLock, Timeout  # only where something is written

    target = real_path(output)
    beside, inside = lock_paths(target)
    parent_is_closed = target.is_dir() and not os.access(target.parent, os.W_OK)
    path = inside if parent_is_closed else beside
    lock = FileLock(path)
    missing_folders = [folder for folder in path.parents if not folder.exists()]
    with write_errors(output):
        make_folder(path.parent)
        _reject_foreign(path)
        try:
            lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
        except Timeout:
            message = f"{output} is being written by {_holder(path).name}"
            hint = "wait for it to end, or choose another output"
            raise OutputError(message, hint) from None
    try:
        with suppress(OSError):  # it only serves messages
            _write_lock(path, replaces=replaces)
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: FileLock takes no lock without a name
        lock.release()
        _remove_empty(missing_folders)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, up to one that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _write_lock(path: Path, *, replaces: bool) -> None:
    """Write this process into its lock."""
    lines = [f"process {os.getpid()} on {socket.gethostname()}"]
    if replaces:
        lines.append(REPLACES)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _is_held(lock: Path) -> bool:
    """Return whether a process holds a lock."""
    try:
        with lock.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or one that is not ours to read
        return False
    return False


def _holder(lock: Path) -> Writer:
    """Return the process that holds a lock, as it has written there."""
    try:
        lines = lock.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    if not lines:  # it has only just taken the lock
        return Writer("another denserk")
    return Writer(lines[0].strip(), REPLACES in lines)


def _reject_foreign(path: Path) -> None:
    """Raise a UsageError if a file that denserk did not write has the name of a lock."""
    try:
        content = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return
    # a process that has just taken the lock has not written its name yet
    if not _is_lock(content) and not _is_held(path):
        message = f"{path} is no lock that denserk wrote, and denserk needs this name"
        raise UsageError(message, "rename that file, or choose another output")


def _is_lock(content: str) -> bool:
    """Return whether denserk wrote this; a power cut may leave its beginning, or zeros."""
    first_line, _, second_line = content.rstrip("\0").partition("\n")
    names_process = PROCESS_LINE.fullmatch(first_line) is not None
    breaks_off = "process ".startswith(first_line)
    if not names_process and not breaks_off:
        return False
    return REPLACES.startswith(second_line.removesuffix("\n"))
