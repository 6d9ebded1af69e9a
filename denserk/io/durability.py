"""Flushing to the disk: what a power cut must not take away.

What a process has written survives a kill. After a power cut, the disk holds of it what was
flushed, and any part of the rest: a file without its bytes, a new name without the older one, a
later change without an earlier one. So whatever says that something is complete (a manifest, a
line of a journal, the final name of a file or folder) is written after a flush of what it speaks
of; and what is replaced is removed after a flush of what replaces it.

A file is on the disk when its bytes are flushed and, separately, the names of its folder.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

# errors of file systems that do not flush folders, and of a folder that only its owner may read
CANNOT_FLUSH_NAMES = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


def flush_bytes(path: Path) -> None:
    """Flush the bytes of a file to the disk, whoever wrote them."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def flush_names(folder: Path) -> None:
    """Flush the names in a folder to the disk: those that are new, changed or gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH_NAMES:
            raise


def flush_files(paths: Iterable[Path]) -> None:
    """Flush files to the disk: their bytes, and once for each folder their names."""
    folders = set()
    for path in paths:
        flush_bytes(path)
        folders.add(path.parent)
    for folder in sorted(folders):
        flush_names(folder)


def flush_tree(folder: Path) -> None:
    """Flush a folder to the disk, with all files and folders in it; not its own name."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            continue
        if path.is_dir():
            flush_names(path)
        elif path.is_file():
            flush_bytes(path)
    flush_names(folder)


def make_folder(folder: Path) -> None:
    """Create a folder, and its parents, unless it exists; its name is on the disk."""
    if folder.is_dir():
        return
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new_folder in new_folders:
        flush_names(new_folder.parent)
