"""Tables as JSON lines: Parquet, saved datasets, and hf:NAME on the hub, over the network."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from denserk.errors import DenserkError, InputError, UsageError, reason_of

HUB = "hf:"
CONVERTED = "refs/convert/parquet"  # the hub's copy of a dataset that is published as a script
SAVED = ("dataset_dict.json", "state.json")  # in a folder of save_to_disk
SHARD = re.compile(r"[-_.]?\d+(-of-\d+)?$")  # ends the names of a split's files
ROWS = 1000  # that are held at once
EXPECTED = "Parquet, a folder of save_to_disk, or hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG/SPLIT"


def is_table(source: str | Path, part: str) -> bool:
    """Return whether a source is a table: see `table_lines`."""
    if str(source).startswith(HUB):
        return True
    path = Path(source)
    is_saved = any((path / name).is_file() for name in SAVED)
    return is_saved or bool(_parquet_files(path, part))


def table_lines(source: str, part: str) -> Iterator[bytes]:
    """Yield the rows of a table as lines of JSON, in constant memory.

    Of several configs, splits, folders or files that of the name `part` is read: "corpus",
    "queries", "qrels" or "train". Whatever the files or the network raise is an InputError.
    """
    try:
        for batch in _batches(source, part):
            for row in batch.to_pylist():
                yield orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except DenserkError:
        raise
    except Exception as error:
        found = f"no dataset that can be read ({reason_of(error, 300)})"
        raise InputError(source, None, found, EXPECTED, _fetching_hint(source)) from error


def _fetching_hint(source: str) -> str | None:
    """Return how to read a dataset of the hub without a network; None for files."""
    if not source.startswith(HUB):
        return None
    name = source.removeprefix(HUB).partition(":")[0]
    return (
        f"without a network fetch it elsewhere: hf download {name} --repo-type dataset "
        f"--local-dir DIR, then {HUB}DIR"
    )


def _batches(source: str, part: str) -> Iterator[Any]:
    """Yield batches of rows in Arrow."""
    files_by_split = _parquet_files(Path(source), part)
    if files_by_split:
        return _parquet_batches(_chosen(files_by_split, source, part))
    data = _of_hub(source, part) if source.startswith(HUB) else _saved(source, part)
    batches: Iterator[Any] = data.with_format("arrow").iter(ROWS)
    return batches


def _parquet_batches(paths: Sequence[Path]) -> Iterator[Any]:
    """Yield batches of the rows of Parquet files."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        # one page at a time, however large a row group is
        with ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield from file.iter_batches(ROWS)


def _saved(folder: str, part: str) -> Any:
    """Return a dataset of save_to_disk, which holds splits or none."""
    from datasets import Dataset, load_from_disk

    data = load_from_disk(folder)
    return data if isinstance(data, Dataset) else _chosen(data, folder, part)


def _of_hub(source: str, part: str) -> Any:
    """Return a dataset of the hub, memory-mapped in the cache of `datasets`."""
    from datasets import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    name, _, config_and_split = source.removeprefix(HUB).partition(":")
    config, _, split = config_and_split.partition("/")
    # NAME/SPLIT: names on the hub have one slash, but a folder may have more
    if not config_and_split and name.count("/") > 1 and not Path(name).is_dir():
        name, _, split = name.rpartition("/")
    try:
        splits = _load_splits(name, config, part)
    except RuntimeError:  # scripts are not run
        splits = _load_splits(name, config, part, revision=CONVERTED)
    return _chosen(splits, source, part, split)


def _load_splits(name: str, config: str, part: str, revision: str | None = None) -> Any:
    """Return the splits of a config: the named one, that of the part, or the only one."""
    from datasets import load_dataset

    try:
        return load_dataset(name, config or part, revision=revision)
    except ValueError:  # no config of that name: there is one alone, or a default
        if config:
            raise
        return load_dataset(name, revision=revision)


def _parquet_files(path: Path, part: str) -> dict[str, list[Path]]:
    """Return Parquet files by split: a file, or those of a folder, sorted by name."""
    if path.suffix == ".parquet":
        return {"": [path]} if path.is_file() else {}
    if any(path.glob("corpus.jsonl*")):  # a dataset of BEIR
        return {}
    for pattern in (f"{part}.parquet", f"{part}/*.parquet", "*.parquet", "data/*.parquet"):
        files_by_split: dict[str, list[Path]] = {}
        for file in sorted(path.glob(pattern)):
            files_by_split.setdefault(SHARD.sub("", file.stem), []).append(file)
        if files_by_split:
            return files_by_split
    return {}


def _chosen(splits: Mapping[Any, Any], source: str, part: str, split: str = "") -> Any:
    """Return a split: the named one, the only one, or that of the part."""
    if split:
        name = split
    elif len(splits) == 1:
        name = next(iter(splits))
    else:
        name = part
    if name in splits:
        return splits[name]
    names = ", ".join(splits)
    message = f"{source}: several splits, and none is named {part} (there: {names})"
    if split:
        message = f"{source}: no split {split} (there: {names})"
    hint = f"name one: {HUB}NAME:CONFIG/SPLIT, or its Parquet file"
    folder_of_split = Path(source, str(next(iter(splits))))
    if folder_of_split.is_dir():
        hint = f"name one: {folder_of_split}"
    raise UsageError(message, hint)
