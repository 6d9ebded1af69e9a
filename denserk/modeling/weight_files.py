"""The files of a saved model: JSON, tensors, and the fingerprint of them all."""

import hashlib
import json
import pickle
import re
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from denserk.errors import InputError, ModelError
from denserk.formats.files import read_errors, read_file
from denserk.formats.manifest import file_sha256
from denserk.formats.schema import TEXT, mapping, record, require

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Where a folder's weights may stand; the first there is read, an index names several files."""


UNREADABLE = (
    SafetensorError,
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What readers of tensors raise for a file that is none; pickles break in all these ways."""


def _read(path: Path, kind: type, name: str) -> Any:
    if not path.exists():
        raise ModelError(f"{path} is missing")
    try:
        value = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, f"text that is not JSON ({error})", name) from None
    if not isinstance(value, kind):
        raise InputError(path, None, f"JSON {type(value).__name__}", name)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelError: there is no such file.
        InputError: the file cannot be read, or holds something else.
    """
    value: dict[str, Any] = _read(path, dict, "a JSON object")
    return value


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """A JSON array of objects.

    Raises:
        ModelError: there is no such file.
        InputError: the file holds something else.
    """
    value: list[dict[str, Any]] = _read(path, list, "a JSON array")
    if not all(isinstance(item, dict) for item in value):
        raise InputError(path, None, "items that are no objects", "a JSON array of objects")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights; an index comes first, then what it names.

    Raises:
        ModelError: there are none.
    """
    for name in WEIGHTS:
        path = folder / name
        if not path.is_file():
            continue
        if path.suffix == ".json":
            index = read_json(path)
            require(index, record({"weight_map": mapping(TEXT)}), path)
            parts = sorted(set(index["weight_map"].values()))
            return [path, *(inside(folder, part, path) for part in parts)]
        return [path]
    raise ModelError(
        f"{folder} holds no weights", f"one of these is expected: {', '.join(WEIGHTS)}"
    )


def inside(folder: Path, name: str, where: Path) -> Path:
    """A file or folder that a file of a model names; it must lie in the model's folder.

    Raises:
        InputError: the name leads out of it.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(where, None, f"the path {name[:80]!r}", f"a name inside {folder}")
    return folder / name


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, on the CPU; nothing in it is executed.

    Raises:
        ModelError: the file is absent, cut short, or holds more than tensors.
    """
    if not path.exists():
        raise ModelError(f"{path} is missing")
    with read_errors(path), path.open("rb") as handle:
        handle.read(1)  # the readers below take a file that may not be read for a missing one
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # old pickles are fine; others fail below
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise ModelError(
            f"{path} cannot be read as a file of tensors ({_reason(error)})",
            "fetch the file again; files that hold more than tensors are never opened",
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ModelError(f"{path} holds something other than named tensors")
    return tensors


def _reason(error: Exception) -> str:
    """Why tensors cannot be read, without torch's advice to open the file all the same."""
    if isinstance(error, pickle.UnpicklingError):
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        return f"it asks for {named[1]}, which no tensor needs" if named else "a broken pickle"
    return str(error).strip().partition("\n")[0]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder.

    Raises:
        ModelError: there are none, or a file of them cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if path.suffix != ".json":
            tensors.update(read_tensors(path))
    return tensors


def fingerprint(root: Path, files: Iterable[Path]) -> str:
    """Hexadecimal SHA-256 of files' names (below `root`) and contents; equal on any machine."""
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()
