"""Versions of what is read: folders and files that another process may replace meanwhile.

A command with --overwrite puts a new folder under the name of the old one. A reader that opens one
file before and another one after that moment would join two states. So readers compare the version
of what they read, the sizes and times of the files that every writer replaces, before and after:
they return one state, or raise a BeingWrittenError.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from denserk.errors import BeingWrittenError
from denserk.io.locks import writer_of
from denserk.io.outputs import (
    CONFIG,
    DOCID,
    INDEX,
    JOURNAL,
    MANIFEST,
    TRAINING_RECORD,
    TRAINING_SUFFIX,
    WORK_FOLDERS,
)
from denserk.io.pipes import readable_path
from denserk.io.written_files import is_temporary

T = TypeVar("T")

# further files of a folder that has a manifest
FILES_BESIDE_MANIFEST = (INDEX, DOCID, JOURNAL)
# files of a training run that change while its model stays the same
CHANGING_FILES = (TRAINING_RECORD, "training.png", CONFIG, "README.md")
ATTEMPTS = 5  # to read files that are replaced during every attempt, before an error


@dataclass(frozen=True)
class Version:
    """A version of a file or folder."""

    path: Path
    # size and time of each of its files, and the hash of a manifest, by path
    files: Mapping[str, tuple[object, ...]]
    # inode, size and time of its manifest, which is compared first: while it stays, so does the
    # folder, and a reader of thousands of files looks at one
    manifest: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, path: str | Path) -> "Version":
        """Return the version that is there now; without files if nothing is."""
        source = Path(readable_path(path))
        manifest = _stamp(source / MANIFEST)  # before its content
        files = {}
        for file in _deciding_files(source):
            with suppress(OSError):  # it has just been replaced or removed
                files[str(file)] = _file_version(file)
        return cls(source, files, manifest)

    def require_unchanged(self) -> None:
        """Raise a BeingWrittenError if another version is there now."""
        if self.manifest is not None and _stamp(self.path / MANIFEST) == self.manifest:
            return
        if Version.of(self.path).files == self.files:
            return
        writer = writer_of(self.path)
        if writer is None:
            message = f"{self.path} is being rewritten: it was replaced while it was read"
        else:
            message = (
                f"{self.path} is being rewritten by {writer.name}: "
                "it was replaced while it was read"
            )
        hint = "run the command again (in Python: open it again) when the other command has ended"
        raise BeingWrittenError(message, hint)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise a BeingWrittenError, also in place of any other error, if the version changed."""
        try:
            yield
        except Exception:
            self.require_unchanged()
            raise
        self.require_unchanged()

    def guard(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items that are read from this version, each after a check."""
        iterator = iter(items)
        end = object()
        while True:
            with self.reading():
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]


class Versions(tuple[Version, ...]):
    """Versions of several folders and files that are read together."""

    @classmethod
    def of(cls, paths: Iterable[str | Path]) -> "Versions":
        """Return the versions that are there now."""
        return cls(Version.of(path) for path in paths)

    def require_unchanged(self) -> None:
        """Raise a BeingWrittenError if another version of one is there now."""
        for version in self:
            version.require_unchanged()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise a BeingWrittenError, also in place of any other error, if a version changed."""
        with ExitStack() as stack:
            for version in self:
                stack.enter_context(version.reading())
            yield


@contextmanager
def reading(paths: Iterable[str | Path]) -> Iterator[None]:
    """Raise a BeingWrittenError if a file or folder is replaced while it is read."""
    with Versions.of(paths).reading():
        yield


def read_whole(paths: Iterable[str | Path], read: Callable[[], T]) -> T:
    """Return what `read` returns of one version of files and folders.

    It reads again if they were replaced meanwhile, which takes a moment: new folders are built
    under another name.
    """
    sources = list(paths)
    for _ in range(ATTEMPTS - 1):
        with suppress(BeingWrittenError), reading(sources):
            return read()
    with reading(sources):
        return read()


def _deciding_files(path: Path) -> Iterator[Path]:
    """Yield the files that are replaced whenever a file or folder is: by them it has a version."""
    if not path.is_dir():
        yield path
    elif (path / MANIFEST).exists():
        for name in (MANIFEST, *FILES_BESIDE_MANIFEST):
            yield path / name
    else:
        with suppress(OSError):  # it has just been replaced or removed
            yield from _files_of_model(path)


def _files_of_model(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder without a manifest, such as a model's, and of folders in it.

    What changes while a model is trained is left out.
    """
    for item in folder.iterdir():
        if item.name in CHANGING_FILES or is_temporary(item):
            continue
        if not item.is_dir():
            yield item
        elif not _changes_in_training(item):
            yield from (file for file in item.iterdir() if not file.is_dir())


def _changes_in_training(folder: Path) -> bool:
    """Return whether a sub-folder of a model changes while the model stays the same.

    Older versions, and a run that can have no folder beside its model, work inside of it.
    """
    if folder.name.endswith(TRAINING_SUFFIX):
        return True
    return folder.name in WORK_FOLDERS or folder.name.startswith((".", "checkpoint-"))


def _file_version(file: Path) -> tuple[object, ...]:
    """Return size and time of a file, and the hash of a manifest.

    Not the inode of the file, which some file systems change while the file stays.
    """
    status = file.stat()
    if file.name == MANIFEST:
        return status.st_size, status.st_mtime_ns, _digest(file)
    return status.st_size, status.st_mtime_ns


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return inode, size and time of a file; None if it is not there."""
    try:
        status = os.stat(file)  # noqa: PTH116  (twice as fast as Path.stat, and called often)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _digest(file: Path) -> str:
    """Return a hash of a manifest, which holds the checksums of the files beside it."""
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
