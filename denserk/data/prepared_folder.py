"""Whether a folder of prepared data still is what its inputs would make it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denserk.data.tokenization import TextTokenizer
from denserk.errors import MismatchError
from denserk.formats.files import STREAM
from denserk.formats.manifest import Kind, Manifest, differences, file_sha256, read_manifest
from denserk.settings.options import as_json

logger = logging.getLogger(__name__)


def plan_of(
    settings: Mapping[str, Any], inputs: Mapping[str, str], kind: Kind = Kind.TRAINING
) -> Manifest:
    """The manifest of prepared data as far as it is known beforehand.

    Args:
        settings: what decides how the inputs are prepared, as JSON.
        inputs: the name of each input, by what it is for.
        kind: of data.
    """
    made_from = {use: {"name": name, "sha256": checksum(name)} for use, name in inputs.items()}
    return Manifest(kind, complete=False, settings=settings, made_from=made_from)


def rules_of(tokenizer: TextTokenizer) -> dict[str, Any]:
    """What decides the token ids of a text."""
    rules = {"tokenizer": tokenizer.fingerprint(), "pad_id": tokenizer.pad_id}
    return rules | as_json(tokenizer.settings)


def checksum(source: str) -> Any:
    """A file's SHA-256, or those of a folder's files; None of a stream or of a data set's name."""
    path = Path(source)
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file())
        return {str(item.relative_to(path)): file_sha256(item) for item in files}
    return file_sha256(path) if path.is_file() else None


def is_prepared(folder: Path, plan: Manifest, *, again: bool = True) -> bool:
    """Whether a folder holds what the plan would make; tells the differences.

    Args:
        folder: what was prepared, if anything was.
        plan: what would be made now.
        again: it may be; otherwise a run that goes on depends on it, and differences are refused.
            What came from standard input then counts as it is.

    Raises:
        MismatchError: it holds something else that denserk wrote, or is unfinished; or it must not
            be prepared again, and would have to be.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    old = read_manifest(folder, plan.kind)
    found = differences(old.settings, plan.settings)
    found += differences(old.made_from, plan.made_from)
    if found and not again:
        raise MismatchError(
            f"{folder} cannot be used again, it was made otherwise: {'; '.join(found)}",
            "give what the run was begun with, or --overwrite to begin again",
        )
    if again and any(made["name"] == STREAM for made in plan.made_from.values()):
        found.append("standard input may hold something else")
    if found:
        logger.info(f"{folder} is prepared again: {'; '.join(found)}")
    return not found
