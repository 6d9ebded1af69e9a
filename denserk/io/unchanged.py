"""Inputs that are read more than once, and must hold the same each time."""

from pathlib import Path
from typing import Any

from denserk.errors import MismatchError
from denserk.io.manifest import file_sha256
from denserk.io.pipes import readable_path


def checksum(source: str | Path) -> Any:
    """Return a file's SHA-256, or those of a folder's files; None of a stream or a dataset name."""
    path = Path(readable_path(source))
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file())
        return {str(item.relative_to(path)): file_sha256(item) for item in files}
    if path.is_file():
        return file_sha256(path)
    return None


def changed(source: str | Path, change: str = "") -> MismatchError:
    """Return the error of an input that changed while it was read; `change` says how."""
    message = f"{source} changed while it was read"
    if change:
        message += f": {change}"
    return MismatchError(message, "run the command again when nothing writes to the file any more")


def reject_change(source: str | Path, before: Any) -> None:
    """Raise a MismatchError if an input has another `checksum` than before it was read."""
    if checksum(source) != before:
        raise changed(source)
