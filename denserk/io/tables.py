"""Tables as JSON lines: Parquet, saved datasets, and hf:NAME on the hub, over the network."""

import re
import sys
from collections.abc import Iterator, Mapping
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
    is_saved = any((Path(source) / name).is_file() for name in SAVED)
    return str(source).startswith(HUB) or is_saved or bool(_parquet_files(Path(source), part))


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
        name = source.removeprefix(HUB).partition(":")[0]
        fetch = f"fetch it elsewhere: hf download {name} --repo-type dataset --local-dir DIR"
        hint = f"without a network {fetch}, then {HUB}DIR" if source.startswith(HUB) else None
        raise InputError(source, None, found, EXPECTED, hint) from error


def _batches(source: str, part: str) -> Iterator[Any]:
    """Yield batches of Arrow."""
    from datasets import Dataset, load_from_disk
    from pyarrow.parquet import ParquetFile

    if splits := _parquet_files(Path(source), part):
        for path in _chosen(splits, source, part):
            # one page at a time, however large a row group is
            with ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
                yield from file.iter_batches(ROWS)
        return
    found = _of_hub(source, part) if source.startswith(HUB) else load_from_disk(source)
    data = found if isinstance(found, Dataset) else _chosen(found, source, part)
    yield from data.with_format("arrow").iter(ROWS)


def _of_hub(source: str, part: str) -> Any:
    """Return a dataset, memory-mapped in the cache of `datasets`."""
    from datasets import disable_progress_bars, load_dataset

    if not sys.stderr.isatty():
        disable_progress_bars()
    name, _, rest = source.removeprefix(HUB).partition(":")
    config, _, split = rest.partition("/")
    if not rest and name.count("/") > 1 and not Path(name).is_dir():
        name, _, split = name.rpartition("/")

    def load(**options: Any) -> Any:
        try:
            return load_dataset(name, config or part, **options)
        except ValueError:  # no config of that name: there is one alone, or a default
            if config:
                raise
            return load_dataset(name, **options)

    try:
        found = load()
    except RuntimeError:  # scripts are not run
        found = load(revision=CONVERTED)
    return _chosen(found, source, part, split)


def _parquet_files(path: Path, part: str) -> dict[str, list[Path]]:
    """Return Parquet files by split: a file, or those of a folder, sorted by name."""
    if path.suffix == ".parquet":
        return {"": [path]} if path.is_file() else {}
    splits: dict[str, list[Path]] = {}
    for pattern in (f"{part}.parquet", f"{part}/*.parquet", "*.parquet", "data/*.parquet"):
        is_beir = any(path.glob("corpus.jsonl*"))
        for file in () if splits or is_beir else sorted(path.glob(pattern)):
            splits.setdefault(SHARD.sub("", file.stem), []).append(file)
    return splits


def _chosen(splits: Mapping[Any, Any], source: str, part: str, split: str = "") -> Any:
    """Return a split: the named one, the only one, or that of the part."""
    name = split or (next(iter(splits)) if len(splits) == 1 else part)
    if name not in splits:
        asked = f"no split {split}" if split else f"several splits, and none is named {part}"
        hint = f"name one: {HUB}NAME:CONFIG/SPLIT, or its Parquet file"
        raise UsageError(f"{source}: {asked} (there: {', '.join(splits)})", hint)
    return splits[name]
