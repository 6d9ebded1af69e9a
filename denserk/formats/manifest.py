"""manifest.json: what made a folder, from what, and what it holds.

Every folder denserk writes carries one, with `complete: false` until the last file is there;
readers refuse an unfinished folder. Settings and fingerprints travel along the chain model ->
vectors -> index -> run, so that each step can refuse what was not made for it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from denserk import __version__
from denserk.errors import InputError, MismatchError, UsageError
from denserk.formats.files import whole_binary

NAME = "manifest.json"


class Kind(StrEnum):
    """What a manifest stands beside."""

    VECTORS = "vectors"
    INDEX = "index"
    RUN = "run"
    RUNS = "runs of suites"
    TRAINING = "training data"
    PRETRAINING = "pre-training data"
    TOKENS = "tokenised text"
    EXPANSIONS = "generated queries and continuations"
    START = "a model from nothing"


@dataclass(frozen=True)
class Manifest:
    """One manifest.

    `settings` is what was asked for, `made_from` names and fingerprints the inputs (a model, a
    corpus, vectors), `contents` counts what is there. All three hold plain JSON.
    """

    kind: Kind
    complete: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__


def beside(path: str | Path) -> Path:
    """Where the manifest of a folder, or of a single file such as a run, stands."""
    path = Path(path)
    return path / NAME if path.is_dir() else path.with_name(f"{path.name}.{NAME}")


def encoded(manifest: Manifest) -> bytes:
    """A manifest as JSON."""
    return orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decoded(data: bytes | str, where: str | Path) -> Manifest:
    """A manifest from JSON.

    Args:
        data: what `encoded` made.
        where: what it was found in, for the error.

    Raises:
        InputError: it is not a manifest.
    """
    try:
        values = orjson.loads(data)
        return Manifest(**{**values, "kind": Kind(values["kind"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            where, None, f"a broken manifest ({error})", "a manifest that denserk wrote"
        ) from None


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    """Writes the manifest of a folder or file, whole."""
    with whole_binary(beside(path)) as handle:
        handle.write(encoded(manifest))


def read_manifest(path: str | Path, kind: Kind, *, unfinished: bool = False) -> Manifest:
    """Reads the manifest of a folder or file.

    Args:
        path: the folder, or the file it stands beside.
        kind: what it must be.
        unfinished: also accept a folder whose writing was interrupted.

    Raises:
        UsageError: there is no such folder, or it has no manifest.
        MismatchError: it is a manifest of another kind, or of a folder that was never finished.
        InputError: it is not a manifest.
    """
    where = beside(path)
    try:
        data = where.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not Path(path).exists():
            raise UsageError(f"{path}: no such file or folder") from None
        raise UsageError(f"{path} has no {NAME}: it is not {kind} that denserk wrote") from None
    manifest = decoded(data, where)
    if manifest.kind is not kind:
        raise MismatchError(f"{path} holds {manifest.kind}, not {kind}")
    if not manifest.complete and not unfinished:
        raise MismatchError(
            f"{path} is unfinished: the command that writes it was interrupted",
            "run that command again with --resume",
        )
    return manifest


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two parts of manifests, one phrase a value.

    >>> differences({"model": {"name": "a"}, "k": 1}, {"model": {"name": "b"}, "k": 1})
    ["model.name was 'a', now 'b'"]
    """
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r}, now {after!r}")
    return found


def file_sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
