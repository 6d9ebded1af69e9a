"""Prepared data on disk: Arrow files beside a manifest that says what they were made from.

Readers feed `datasets.Dataset.from_generator`, batched maps tokenise what was read, and batches are
assembled from the memory-mapped result. A prepared folder is used again while its inputs stay the
same.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from numpy.typing import NDArray

from denserk.config.options import as_json
from denserk.data.tokenization import TextTokenizer
from denserk.errors import MismatchError
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, Manifest, differences, file_sha256, read_manifest

logger = logging.getLogger(__name__)

FORMAT = 3  # version of prepared folders; data of another version is rejected
BATCH = 2048  # rows per call of a batched map

Rows = NDArray[np.int64]
Columns = Mapping[str, list[Any]]


def read_rows(
    rows: Callable[[], Iterable[Mapping[str, Any]]], features: datasets.Features, scratch: Path
) -> datasets.Dataset:
    """Write the rows of a reader to an Arrow dataset in a scratch folder.

    An error of the reader, which names file and line, is raised as it is.
    """
    datasets.disable_progress_bars()
    try:
        return datasets.Dataset.from_generator(
            rows, features, cache_dir=str(scratch), fingerprint=scratch.name
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def map_rows(
    data: datasets.Dataset,
    function: Callable[[Columns], Columns],
    features: datasets.Features,
    path: Path,
    batch_size: int | None = None,
) -> None:
    """Write an Arrow file of the rows that a function makes of batches of a dataset."""
    data.map(
        function,
        batched=True,
        batch_size=batch_size or BATCH,
        remove_columns=data.column_names,
        features=features,
        cache_file_name=str(path),
        load_from_cache_file=False,
        new_fingerprint=path.stem,
    )


def open_rows(path: Path) -> datasets.Dataset:
    """Open an Arrow file, memory-mapped."""
    return datasets.Dataset.from_file(str(path)).with_format("arrow")


class Lists:
    """A column of lists of numbers, memory-mapped.

    Args:
        data: what `open_rows` opened.
        column: its name.
    """

    def __init__(self, data: datasets.Dataset, column: str) -> None:
        self._data, self._column = data.select_columns(column), column

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.take([row])[0]

    def take(self, rows: Sequence[int] | Rows) -> list[NDArray[Any]]:
        """Return the lists of some rows."""
        values, ends = self.joined(rows)
        return np.split(values, ends[:-1]) if len(ends) else []

    def joined(self, rows: Sequence[int] | Rows) -> tuple[NDArray[Any], Rows]:
        """Return the lists of some rows one after another, and where each ends."""
        numbers = np.asarray(rows, dtype=np.int64)
        chosen = self._data[numbers].column(self._column).combine_chunks()
        values: NDArray[Any] = chosen.flatten().to_numpy()
        return values, np.cumsum(pc.list_value_length(chosen).to_numpy(), dtype=np.int64)

    def lengths(self) -> Rows:
        """Return the length of every list: (N,)."""
        found: Rows = pc.list_value_length(self._data.data.column(self._column)).to_numpy()
        return found.astype(np.int64)


def token_type(vocabulary_size: int) -> datasets.Value:
    """Return the smallest type that holds the token ids of a vocabulary."""
    return datasets.Value("uint16" if vocabulary_size <= 1 << 16 else "int32")


def plan_of(
    settings: Mapping[str, Any], inputs: Mapping[str, str], kind: Kind = Kind.TRAINING
) -> Manifest:
    """Return the manifest of prepared data as far as it is known beforehand.

    Args:
        settings: what decides how the inputs are prepared, as JSON.
        inputs: the name of each input, by what it is for.
        kind: of data.
    """
    made_from = {use: {"name": name, "sha256": checksum(name)} for use, name in inputs.items()}
    return Manifest(kind, complete=False, settings=settings, made_from=made_from)


def rules_of(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return what decides the token ids of a text."""
    rules = {"tokenizer": tokenizer.fingerprint(), "pad_id": tokenizer.pad_id}
    return rules | as_json(tokenizer.settings)


def checksum(source: str) -> Any:
    """Return a file's SHA-256, or those of a folder's files; None of a stream or a dataset name."""
    path = Path(source)
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file())
        return {str(item.relative_to(path)): file_sha256(item) for item in files}
    return file_sha256(path) if path.is_file() else None


def is_prepared(folder: Path, plan: Manifest, *, again: bool = True) -> bool:
    """Return whether a folder holds what the plan would make.

    Args:
        folder: what was prepared, if anything was.
        plan: what would be made now.
        again: differing data is prepared again. Otherwise, in a resumed run, it is an error, and
            data from standard input counts as unchanged.

    Raises:
        MismatchError: the folder holds something else that denserk wrote, is unfinished, was
            prepared by another version, or differs and must not be prepared again.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    old = read_manifest(folder, plan.kind)
    if old.settings.get("format") != plan.settings.get("format"):
        raise MismatchError(
            f"{folder} was prepared by another version of denserk ({old.version})",
            "delete it, or --overwrite to start again",
        )
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
