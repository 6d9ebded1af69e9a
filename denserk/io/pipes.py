"""Pipes among the inputs of a command, which may be read as often as files."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from denserk.errors import UsageError
from denserk.io.file_errors import read_errors, write_errors


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
