"""Prepared data on disk: memory-mapped Arrow files beside a manifest of what they were made from.

A prepared folder is used again while its inputs stay the same.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from denserk.config.options import as_json
from denserk.data.tokenization import TextTokenizer
from denserk.errors import MismatchError
from denserk.io import manifest
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, Manifest
from denserk.io.outputs import whole_folder
from denserk.io.unchanged import checksum, reject_change

logger = logging.getLogger(__name__)

FORMAT = 3  # version of prepared folders; data of another version is prepared again
BATCH = 512  # rows that are written at once
# files, folders and names of datasets by their use; several of one use are numbered
Inputs = Mapping[str, str | Sequence[str] | None]


def write_rows(path: Path, features: Features, rows: Iterable[Mapping[str, Any]]) -> Dataset:
    """Write an Arrow file, and open it."""
    with ArrowWriter(features=features, path=str(path), writer_batch_size=BATCH) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    return open_rows(path)


def open_rows(path: Path) -> Dataset:
    """Open an Arrow file, memory-mapped; its columns return numpy arrays."""
    return Dataset.from_file(str(path)).with_format("numpy")


class Store:
    """Base of prepared data: a folder, and what its manifest says."""

    unit = "examples"  # name of an item in messages

    def __init__(self, folder: Path, kind: Kind) -> None:
        stored = manifest.read_manifest(folder, kind)
        self.folder = folder
        self.settings = stored.settings
        self.made_from = stored.made_from
        self.contents = stored.contents

    def warn(self, warnings: Mapping[str, str]) -> None:
        """Log the counts that are not zero, each under its warning."""
        for name, warning in warnings.items():
            count = self.contents.get(name)
            if count:
                logger.warning(f"{warning}: {count:,}")


def token_lists(tokenizer: TextTokenizer) -> List:
    """Return the smallest type that holds lists of a tokenizer's ids."""
    fits_in_uint16 = tokenizer.vocabulary_size <= 2**16
    return List(Value("uint16" if fits_in_uint16 else "int32"))


def plan_of(settings: Mapping[str, Any], inputs: Inputs, kind: Kind = Kind.TRAINING) -> Manifest:
    """Return the manifest of prepared data as far as it is known beforehand."""
    origins: dict[str, Any] = {}
    for use, names in inputs.items():
        if isinstance(names, str):
            origins[use] = _origin_of(names)
        else:
            for number, name in enumerate(names or (), start=1):
                origins[f"{use} {number}"] = _origin_of(name)
    return Manifest(kind, complete=False, settings=settings, made_from=origins)


def _origin_of(name: str) -> dict[str, Any]:
    """Return what the manifest records of an input."""
    return {"name": name, "sha256": checksum(name)}


def rules_of(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return what decides the token ids of a text."""
    return {
        "tokenizer": tokenizer.fingerprint(),
        "pad_id": tokenizer.pad_id,
        **as_json(tokenizer.settings),
    }


def prepare_folder(
    folder: Path,
    plan: Manifest,
    write: Callable[[Path, Path], Mapping[str, Any]],
    *,
    replace_outdated: bool = True,
    is_part: bool = True,
) -> None:
    """Write a prepared folder, unless it holds what the plan would make.

    `write` writes the files of a folder, given another one for temporary files; it returns the
    manifest's contents. Under `replace_outdated` differing data is prepared again. Otherwise, in a
    resumed run, it is a MismatchError, and data from standard input counts as unchanged. `is_part`
    is as in `whole_folder`.
    """
    if folder.is_dir() and any(folder.iterdir()):
        changes = _changes_since(folder, plan)
        if changes and not replace_outdated:
            raise MismatchError(
                f"{folder} cannot be used again, it was made otherwise: {'; '.join(changes)}",
                "give what the run was started with, or --overwrite to start again",
            )
        if replace_outdated and _reads_standard_input(plan):
            changes.append("standard input may hold something else")
        if not changes:
            return
        logger.info(f"{folder} is prepared again: {'; '.join(changes)}")
    with whole_folder(folder, overwrite=True, is_part=is_part) as unfinished_folder:
        with TemporaryDirectory(dir=unfinished_folder) as scratch:
            contents = write(unfinished_folder, Path(scratch))
        for origin in plan.made_from.values():
            reject_change(origin["name"], origin["sha256"])
        finished_manifest = replace(plan, contents=contents, complete=True)
        manifest.write_manifest(unfinished_folder, finished_manifest)


def _changes_since(folder: Path, plan: Manifest) -> list[str]:
    """Describe how the settings and inputs of a plan differ from those of a prepared folder."""
    stored = manifest.read_manifest(folder, plan.kind)
    changed_settings = manifest.differences(stored.settings, plan.settings)
    changed_inputs = manifest.differences(stored.made_from, plan.made_from)
    return changed_settings + changed_inputs


def _reads_standard_input(plan: Manifest) -> bool:
    return any(origin["name"] == STREAM for origin in plan.made_from.values())
