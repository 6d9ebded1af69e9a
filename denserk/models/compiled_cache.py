"""The folder of compiled models: entries found by their key, whole or not at all, few at a time.

    COMPILED/<SHA-256 of the key>/entry.json       key, description, checksums of the other files
                                  model.xml        the model, as OpenVINO saves it
                                  model.bin        its weights
                                  tokenizer.json   its tokenizer, as tokenizers saves it

An entry is written to a temporary folder beside, and renamed. Its checksums are compared before it
is used: a damaged entry is as good as none. When all entries together are too large, those that
were not used for longest go. Only files of these names are ever removed. Nothing here imports
torch.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from denserk.errors import DenserkError, Interrupted, UsageError
from denserk.io.data_sets import cache_folder
from denserk.io.durability import flush_names, flush_tree
from denserk.io.manifest import file_sha256
from denserk.io.written_files import is_temporary, temporary_beside

logger = logging.getLogger(__name__)

ENTRY = "entry.json"
MODEL = "model.xml"
WEIGHTS = "model.bin"
TOKENIZER = "tokenizer.json"
FILES = (MODEL, WEIGHTS, TOKENIZER)  # those that the entry has checksums of
LIMIT = "DENSERK_COMPILED_GB"  # environment variable: the most that entries take together
DEFAULT_GB = 4.0
ENTRY_NAME = re.compile(r"[0-9a-f]{64}")
ABANDONED = 24 * 3600.0  # seconds after which an unfinished entry is that of a killed process
Key = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """An entry of the cache, whose files are those that were written."""

    folder: Path
    content: Mapping[str, Any]


def compiled_folder() -> Path:
    """Return the folder of entries: `compiled` in that of `cache_folder`."""
    return cache_folder() / "compiled"


def limit_bytes() -> int:
    """Return the most bytes that entries take together: $DENSERK_COMPILED_GB, by default 4 GB.

    0 turns the cache off.
    """
    text = os.environ.get(LIMIT) or str(DEFAULT_GB)
    try:
        return int(max(0.0, float(text)) * 1e9)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{LIMIT}={text}: expected a number of gigabytes", "0 turns it off"
        ) from None


def entry_folder(key: Key) -> Path:
    """Return where the entry of a key is, if there is one."""
    return compiled_folder() / hashlib.sha256(_sorted_json(key)).hexdigest()


def find(key: Key) -> Entry | None:
    """Return the entry of a key; None if there is none, or it is damaged."""
    if not limit_bytes():
        return None
    try:
        folder = entry_folder(key)
    except UsageError as error:  # the user has no home
        logger.debug(f"no compiled model is used: {error}")
        return None
    try:
        if not (folder / ENTRY).is_file():
            return None
        content = _checked_content(folder, key)
    except (OSError, ValueError, KeyError, TypeError, DenserkError) as error:
        logger.debug(f"compiled model {folder} is not used: {error}")
        return None
    with suppress(OSError):  # of a cache that is somebody else's, or can only be read
        os.utime(folder / ENTRY)  # it was used now
    return Entry(folder, content)


def _checked_content(folder: Path, key: Key) -> dict[str, Any]:
    """Return the content of an entry; a ValueError if it, or a file, is not as it was written."""
    content = _read_content(folder)
    if content["key"] != orjson.loads(_sorted_json(key)):
        raise ValueError("its key is another one")
    for name in FILES:
        if file_sha256(folder / name) != content["sha256"][name]:
            raise ValueError(f"{name} is damaged")
    return content


def _read_content(folder: Path) -> dict[str, Any]:
    """Return the content of an entry.json; a ValueError if it is not as it was written."""
    record = orjson.loads((folder / ENTRY).read_bytes())
    content: dict[str, Any] = record["content"]
    if hashlib.sha256(_sorted_json(content)).hexdigest() != record["sha256"]:
        raise ValueError(f"{ENTRY} is damaged")
    return content


def write(
    key: Key,
    content: Mapping[str, Any],
    write_files: Callable[[Path], None],
    check: Callable[[Entry], bool],
) -> Path | None:
    """Write the entry of a key, and return its folder; None where that is not possible.

    `write_files` writes the files into a folder. The entry is kept if `check` returns True for it.
    """
    limit = limit_bytes()
    try:
        target = entry_folder(key)
        temporary = temporary_beside(target)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except (OSError, UsageError) as error:  # a UsageError: the user has no home
        logger.debug(f"no compiled model is kept: {error}")
        return None
    try:
        write_files(temporary)
        sha256 = {name: file_sha256(temporary / name) for name in FILES}
        content = {**content, "key": dict(key), "sha256": sha256}
        record = {"content": content, "sha256": hashlib.sha256(_sorted_json(content)).hexdigest()}
        (temporary / ENTRY).write_bytes(_sorted_json(record))
        size = _size(temporary)
        if size > limit:
            logger.debug(f"no compiled model is kept: {size:,} bytes are more than {LIMIT} allows")
            return None
        if not check(Entry(temporary, orjson.loads(_sorted_json(content)))):
            return None
        flush_tree(temporary)
        _rename_to_target(temporary, target)
    except (OSError, RuntimeError, ValueError, DenserkError) as error:
        Interrupted.raise_received()
        # what could not be kept is no failure of the work that it would have served
        logger.debug(f"no compiled model is kept: {temporary.parent}: {error}")
        return None
    finally:
        remove(temporary)
    _make_room(limit, target)
    return target


def _rename_to_target(temporary: Path, target: Path) -> None:
    """Rename a whole entry to its name; one that is there already makes room for it."""
    replaced = temporary_beside(target)
    with suppress(FileNotFoundError):
        target.rename(replaced)
        remove(replaced)
    # if another process was faster, its entry is as good: the rename fails with an OSError
    temporary.rename(target)
    flush_names(target.parent)


def _make_room(limit: int, newest: Path) -> None:
    """Remove the entries that were not used for longest, until all fit into `limit` bytes."""
    total = 0
    latest_first = sorted(entries(), key=lambda listed_entry: listed_entry.used, reverse=True)
    for listed_entry in latest_first:
        total += listed_entry.size
        if total > limit and listed_entry.folder != newest:
            remove(listed_entry.folder)
            total -= listed_entry.size
            logger.debug(f"compiled model {listed_entry.folder} removed: {LIMIT}")
    for folder in _cached_folders():
        with suppress(OSError):
            if is_temporary(folder) and time.time() - folder.stat().st_mtime > ABANDONED:
                remove(folder)


@dataclass(frozen=True)
class ListedEntry:
    """What `denserk doctor` shows of an entry."""

    folder: Path
    model: str  # its name when it was written
    size: int  # bytes
    used: float  # time of its last use, seconds since 1970


def entries() -> Iterator[ListedEntry]:
    """Yield all entries, also damaged ones."""
    for folder in _cached_folders():
        if ENTRY_NAME.fullmatch(folder.name) is None:
            continue
        model = "damaged"
        with suppress(OSError, ValueError, KeyError, TypeError):
            model = str(_read_content(folder)["name"])
        with suppress(OSError):  # another process has just removed it
            dated_path = folder / ENTRY if (folder / ENTRY).exists() else folder
            used = dated_path.stat().st_mtime
            yield ListedEntry(folder, model, _size(folder), used)


def clear() -> tuple[int, int]:
    """Remove all entries; return their number and bytes. Files of others stay."""
    removed = 0
    removed_bytes = 0
    for folder in _cached_folders():
        if ENTRY_NAME.fullmatch(folder.name) is None and not is_temporary(folder):
            continue
        size = _size(folder)
        remove(folder)
        if not folder.exists():
            removed += 1
            removed_bytes += size
    return removed, removed_bytes


def remove(folder: Path) -> None:
    """Remove the files of an entry, and its folder if it has no others.

    A model is saved by way of a temporary folder, which stays where saving failed or was killed: it
    goes, too.
    """
    # first what makes it an entry
    for name in (ENTRY, *FILES):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for inner_folder in _folders_in(folder):
        if is_temporary(inner_folder):
            remove(inner_folder)
    with suppress(OSError):
        folder.rmdir()


def _cached_folders() -> list[Path]:
    """Return the folders in that of entries, finished or not; none if the user has no home."""
    try:
        return _folders_in(compiled_folder())
    except UsageError:
        return []


def _folders_in(parent: Path) -> list[Path]:
    """Return the folders in another one, sorted; none if that cannot be read."""
    try:
        return [path for path in sorted(parent.iterdir()) if _is_folder(path)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself: what a link leads to may be anybody's."""
    return path.is_dir() and not path.is_symlink()


def _size(folder: Path) -> int:
    """Return the bytes of an entry's files."""
    size = 0
    for name in (ENTRY, *FILES):
        with suppress(OSError):
            size += (folder / name).stat().st_size
    return size


def _sorted_json(value: Any) -> bytes:
    """Return JSON that is the same for equal values, so that its checksum is."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
