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
from denserk.io.unchanged import checksum, refuse_change

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
        self.folder = folder
        found = manifest.read_manifest(folder, kind)
        self.settings, self.made_from = found.settings, found.made_from
        self.contents = found.contents

    def warn(self, warnings: Mapping[str, str]) -> None:
        """Log the counts that are not zero, each under its warning."""
        for name, warning in warnings.items():
            if count := self.contents.get(name):
                logger.warning(f"{warning}: {count:,}")


def token_lists(tokenizer: TextTokenizer) -> List:
    """Return the smallest type that holds lists of a tokenizer's ids."""
    return List(Value("uint16" if tokenizer.vocabulary_size <= 1 << 16 else "int32"))


def plan_of(settings: Mapping[str, Any], inputs: Inputs, kind: Kind = Kind.TRAINING) -> Manifest:
    """Return the manifest of prepared data as far as it is known beforehand."""
    named: dict[str, str] = {}
    for use, given in inputs.items():
        if isinstance(given, str):
            named[use] = given
        else:
            named |= {f"{use} {n}": name for n, name in enumerate(given or (), start=1)}
    made_from = {use: {"name": name, "sha256": checksum(name)} for use, name in named.items()}
    return Manifest(kind, complete=False, settings=settings, made_from=made_from)


def rules_of(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return what decides the token ids of a text."""
    known = {"tokenizer": tokenizer.fingerprint(), "pad_id": tokenizer.pad_id}
    return known | as_json(tokenizer.settings)


def prepare_folder(
    folder: Path,
    plan: Manifest,
    write: Callable[[Path, Path], Mapping[str, Any]],
    *,
    again: bool = True,
    is_part: bool = True,
) -> None:
    """Write a prepared folder, unless it holds what the plan would make.

    `write` writes the files of a folder, given another one for temporary files; it returns the
    manifest's contents. Under `again` differing data is prepared again. Otherwise, in a resumed
    run, it is a MismatchError, and data from standard input counts as unchanged. `is_part` is as in
    `whole_folder`.
    """
    if folder.is_dir() and any(folder.iterdir()):
        old = manifest.read_manifest(folder, plan.kind)
        found = manifest.differences(old.settings, plan.settings)
        found += manifest.differences(old.made_from, plan.made_from)
        if found and not again:
            raise MismatchError(
                f"{folder} cannot be used again, it was made otherwise: {'; '.join(found)}",
                "give what the run was started with, or --overwrite to start again",
            )
        if again and any(made["name"] == STREAM for made in plan.made_from.values()):
            found.append("standard input may hold something else")
        if not found:
            return
        logger.info(f"{folder} is prepared again: {'; '.join(found)}")
    with whole_folder(folder, overwrite=True, is_part=is_part) as part:
        with TemporaryDirectory(dir=part) as scratch:
            contents = write(part, Path(scratch))
        for source in plan.made_from.values():
            refuse_change(source["name"], source["sha256"])
        manifest.write_manifest(part, replace(plan, contents=contents, complete=True))
