"""Output files and folders: protection of inputs, of old outputs and of files of other origin.

An output is claimed before any work begins; a lock beside it excludes other denserk processes.
"""

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any, NamedTuple

from denserk.errors import DenserkError, Interrupted, UsageError
from denserk.io import file_errors, files, written_files
from denserk.io.durability import flush_names, flush_tree, make_folder
from denserk.io.locks import locked, real_path

MANIFEST = "manifest.json"
# beside a manifest
INDEX = "index"
DOCID = "docid"  # ids of an index's vectors, and the suffix of the ids of a block
JOURNAL = "blocks.jsonl"  # the finished blocks
TRAINING_RECORD = "training.json"  # in the folder of a model that denserk trained
DENSERK_FILE = "denserk.json"
MODEL_CONFIG = "config.json"
EXPORT = ".denserk"  # lists the files of a folder in another tool's format
SCRATCH = "denserk-"  # prefix of temporary folders
JOURNALS = "blocks*.jsonl"  # of a folder that is written block by block
CONFIG = "config.yaml"  # of a training run whose data is prepared
TRAINING_SUFFIX = ".training"  # of the folder beside a model's in which its training works
# folders in which a training run works: see training/run_folder.py
CHECKPOINTS = "checkpoints"
BEST = "best"
STEPS = "steps"
START = "start"
DATA = "training-data"
DEV_DATA = "dev-data"
GUIDE_DATA = "guide-data"
LOGS = "logs"
WORK_FOLDERS = (CHECKPOINTS, BEST, STEPS, START, DATA, DEV_DATA, GUIDE_DATA, LOGS)
# errors of a rename that tell that a folder stays where it is: a mount point, a closed parent
NOT_RENAMED = (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)
# Linux's, for renameat2
AT_FDCWD = -100  # names are relative to the working folder
RENAME_EXCHANGE = 2
# hint of the errors for an output that exists
TAKEN = (
    "add --overwrite to replace it, --resume to continue it if the command was interrupted, "
    "or choose another output"
)
# patterns of the files that denserk writes in a folder, separated by spaces
MODEL_FILE_PATTERNS = """
    denserk.json config.json generation_config.json README.md modules.json model.pt
    *.safetensors *.safetensors.index.json pytorch_model*.bin
    tokenizer*.json special_tokens_map.json added_tokens.json chat_template.jinja
    vocab.txt vocab.json merges.txt *.model
    config_sentence_transformers.json sentence_bert_config.json adapter_config.json canary.json
"""
MANIFEST_FILE_PATTERNS = """
    manifest.json blocks*.jsonl block-[0-9]*.npy block-[0-9]*.docid block-[0-9]*.hash
    block-[0-9]*.jsonl tokens.jsonl
    word-frequencies.json index index.ivfdata docid vectors *.index.npy *.index.json
    segments_* _*.* write.lock int8.xml int8.bin control-vectors.json
"""
TRAINING_FILE_PATTERNS = f"""
    {MODEL_FILE_PATTERNS} training.json config.yaml training.png events.out.tfevents.*
    optimizer.pt scheduler.pt scaler.pt trainer.pt rng_state*.pth trainer_state.json
    manifest.json *.npy *.bin *.arrow
"""
# patterns of folders below a model folder or the folder of a training run
FOLDER_PATTERNS = f"""
    {" ".join(WORK_FOLDERS)} checkpoint-* step-*
    scratch .saving query document adapter [0-9]_*
"""


class Mark(NamedTuple):
    """What tells that a folder is denserk's: a JSON file with certain keys."""

    keys: set[str]
    file_patterns: str  # of the files in such a folder, separated by spaces


# by the name of the file
MARKS = {
    EXPORT: Mark({"files"}, EXPORT),
    MANIFEST: Mark(written_files.MANIFEST_KEYS, MANIFEST_FILE_PATTERNS),
    TRAINING_RECORD: Mark({"versions"}, TRAINING_FILE_PATTERNS),
    DENSERK_FILE: Mark({"denserk_version"}, MODEL_FILE_PATTERNS),
}


def _json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if it holds none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _marker(folder: Path) -> str | None:
    """Return the name of the file that marks a folder of denserk's, or None."""
    for name, mark in MARKS.items():
        if mark.keys <= _json_object(folder / name).keys():
            return name
    return None


def foreign_items(folder: Path) -> Iterator[Path]:
    """Yield the files and folders in `folder` that denserk did not write.

    A folder is denserk's if it holds a manifest, the settings of a training run, a model, or the
    list of an export; in it, only files and folders with names that denserk uses are denserk's.
    """
    marker = _marker(folder)
    file_patterns = _file_patterns(folder, marker)
    folder_patterns = _folder_patterns(folder, marker)
    # without a marker no item is denserk's, and a folder stands for what is in it
    items = folder.iterdir() if marker is None else folder.rglob("*")
    work_folder = training_folder(folder)  # if it is inside, it is judged by its own marker
    for item in sorted(items):
        if item.is_relative_to(work_folder):
            continue
        path = item.relative_to(folder)
        if any(written_files.is_temporary(Path(part)) for part in path.parts):
            continue
        # an export lists paths; all other folders have the same names at any depth
        name = path.as_posix() if marker == EXPORT else item.name
        is_folder = item.is_dir() and not item.is_symlink()
        patterns = folder_patterns if is_folder else file_patterns
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            yield item


def _file_patterns(folder: Path, marker: str | None) -> list[str]:
    """Return patterns of the files that denserk writes in a marked folder."""
    if marker is None:
        return []
    patterns = MARKS[marker].file_patterns.split()
    if marker == EXPORT:
        patterns += _exported_files(folder)
    return patterns


def _folder_patterns(folder: Path, marker: str | None) -> list[str]:
    """Return patterns of the folders that denserk writes in a marked folder."""
    if marker == EXPORT:
        patterns: list[str] = []
        for name in _exported_files(folder):
            patterns += [parent.as_posix() for parent in Path(name).parents]
        return patterns
    if marker in (TRAINING_RECORD, DENSERK_FILE):
        return FOLDER_PATTERNS.split()
    return []


def _exported_files(folder: Path) -> list[str]:
    """Return the names that the list of an export has; none if it is no list of names."""
    names = _json_object(folder / EXPORT).get("files")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def reject_occupied(folder: str | Path, *, overwrite: bool, resume: bool = False) -> None:
    """Raise a UsageError for an output folder whose content may not be replaced or continued."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{folder} is a file; a folder is expected", "choose another --output")
    if not path.is_dir():
        return
    item = _first_item(path)
    if item is None:
        return
    if _marker(path) is not None:
        if resume:
            return
        if not overwrite:
            raise UsageError(f"{folder} is not empty (it holds {item.name})", TAKEN)
    foreign = next(foreign_items(path), None)
    if foreign is not None:
        message = f"{folder} holds {foreign.relative_to(path)}, which denserk did not write"
        raise UsageError(message, f"choose another output, or remove {folder} yourself")


def _first_item(folder: Path) -> Path | None:
    """Return the first item of an output folder that is in the way of a command, or None."""
    work_folder = training_folder(folder)
    items = [
        item
        for item in folder.iterdir()
        if not written_files.is_temporary(item) and item != work_folder
    ]
    if not items or _is_failed_start(folder, items):
        return None
    return min(items)


def _is_failed_start(folder: Path, items: Sequence[Path]) -> bool:
    """Return whether a folder holds nothing but the record of a training run that did not begin."""
    if [item.name for item in items] != [TRAINING_RECORD]:
        return False
    return _json_object(folder / TRAINING_RECORD).keys() == {"versions"}


def unfinished_folder(output: str | Path) -> Path:
    """Return the folder of a file that is written block by block, until it is complete."""
    return Path(f"{output}.unfinished")


def training_folder(output: str | Path) -> Path:
    """Return the folder beside a model's in which its training works, and which stays there.

    What is in it is not part of the model: prepared data, checkpoints, logs. It is inside the
    model's folder where nothing can be beside it.
    """
    path = Path(output)
    if path.is_symlink() or path.name in ("", ".."):
        path = real_path(path)
    name = f"{path.name}{TRAINING_SUFFIX}"
    if path.is_dir() and _is_fixed(path):
        return path / name
    return path.with_name(name)


def remove_own_files(folder: Path) -> None:
    """Remove what denserk wrote in a folder, and the folder if it holds nothing else."""
    foreign = set(foreign_items(folder))
    for item in list(folder.iterdir()):
        if item in foreign:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
    if not foreign:
        folder.rmdir()


def prepare_folder(
    folder: str | Path, *, overwrite: bool, resume: bool = False, restorable: bool = False
) -> Path:
    """Create an output folder, or put an empty one in its place; `resume` keeps what it holds.

    It is for what is written under its own name from the start, because it can be resumed.
    A `restorable` old folder is put aside until `discard_replaced` removes it, or until a `claim`
    that fails puts it back.
    """
    reject_occupied(folder, overwrite=overwrite, resume=resume)
    target = real_path(folder)
    with file_errors.write_errors(folder):
        if resume or is_free(target):
            make_folder(target)
        else:
            _put_aside(target)
            if not restorable:
                discard_replaced(target)
    return Path(folder)


def _put_aside(target: Path) -> None:
    """Rename an old folder and put an empty one in its place; empty one that stays in its place."""
    discard_replaced(target)  # an older one has the name that this one gets
    if _holds_working_folder(target):
        _empty_in_place(target)
        return
    try:
        old_folder = replaced_folder(target)
        old_folder.mkdir()  # empty, until it is exchanged with the target
        _exchange(old_folder, target)
        flush_names(target.parent)  # before the old folder is removed
    except OSError as error:
        if error.errno not in NOT_RENAMED:
            raise
        discard_replaced(target)
        _empty_in_place(target)


def _empty_in_place(target: Path) -> None:
    """Remove what an old folder holds; its readers learn first that it is unfinished."""
    _mark_unfinished(target, _json_object(target / MANIFEST))
    _empty(target)


def replaced_folder(target: str | Path) -> Path:
    """Return where the old folder stands until the new one holds finished work.

    The name is one of `temporary_beside`, but always the same, by which a later command finds it.
    """
    path = real_path(target)
    return path.with_name(f".{path.name}.{'0' * 8}.part")


def discard_replaced(target: str | Path) -> None:
    """Remove the old folder that `prepare_folder` has put aside, if there is one."""
    old_folder = replaced_folder(target)
    if old_folder.is_dir():
        with suppress(OSError):  # it is in nobody's way
            remove_folder(old_folder, like=real_path(target))


def remove_folder(folder: Path, *, like: Path | None = None) -> None:
    """Remove a folder whose content is of no use once a part of it is missing.

    It gets a temporary name first, that of `like`, by which the next command finds what a killed
    one leaves.
    """
    temporary = written_files.temporary_beside(like or folder)
    folder.replace(temporary)
    flush_names(folder.absolute().parent)
    shutil.rmtree(temporary)


@contextmanager
def whole_folder(
    folder: str | Path, *, overwrite: bool = False, export: bool = False, is_part: bool = False
) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success.

    `overwrite` replaces a folder that is not empty; `is_part` replaces a part of another folder of
    denserk's without a check; `export` records the names of files in another tool's format.
    """
    if not is_part:
        reject_occupied(folder, overwrite=overwrite)
    target = real_path(folder)
    temporary = _building_folder(target)
    try:
        with file_errors.write_errors(folder):
            make_folder(temporary.parent)
            temporary.mkdir()
            yield temporary
            if export:
                _list_export(temporary)
            flush_tree(temporary)  # before it gets its name
            _replace_folder(target, temporary)
            flush_names(target.parent)  # before the old folder is removed
    except DenserkError as error:  # it names the folder that the user gave
        error.message = error.message.replace(str(temporary), str(folder))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _list_export(folder: Path) -> None:
    """Record the names of the files in a folder of another tool's format."""
    items = [item for item in folder.rglob("*") if item.is_file()]
    names = sorted(item.relative_to(folder).as_posix() for item in items)
    (folder / EXPORT).write_text(json.dumps({"files": names}) + "\n")


def _building_folder(target: Path) -> Path:
    """Return where a folder is built: beside its target, or inside one that stays in its place."""
    if target.is_dir() and (_is_fixed(target) or _holds_working_folder(target)):
        return written_files.temporary_beside(target / target.name)
    return written_files.temporary_beside(target)


def _is_fixed(folder: Path) -> bool:
    """Return whether a folder cannot be renamed: a mount point, or one in a closed folder."""
    parent_is_closed = not os.access(real_path(folder).parent, os.W_OK)
    return os.path.ismount(folder) or parent_is_closed


def _holds_working_folder(target: Path) -> bool:
    """Return whether the working folder is the target of a command, or below it.

    Another folder in its place would leave the shell in a folder that is no longer there.
    """
    try:
        working_folder = Path.cwd()
    except FileNotFoundError:  # it has been removed
        return False
    return working_folder.is_relative_to(real_path(target))


def _replace_folder(target: Path, new_folder: Path) -> None:
    """Put a new folder in the place of the target, atomically where the file system can.

    An old folder that was exchanged is then at the path `new_folder`; the caller removes it.
    """
    if not target.exists():
        new_folder.replace(target)
        return
    is_inside = new_folder.parent == target  # built there, as the target cannot be renamed
    if not is_inside and _exchange_if_possible(new_folder, target):
        return
    _refill(target, new_folder)


def _exchange_if_possible(hidden: Path, target: Path) -> bool:
    """Exchange the names of two folders; return whether the target can be renamed."""
    try:
        _exchange(hidden, target)
    except OSError as error:
        if error.errno not in NOT_RENAMED:
            raise
        return False
    return True


def _exchange(hidden: Path, target: Path) -> None:
    """Exchange the names of a hidden folder and its target, atomically where the system can.

    The folder that comes to the target gets the permissions of the one that was there.
    """
    shutil.copymode(target, hidden)
    if _exchanged_at_once(hidden, target):
        return
    aside = written_files.temporary_beside(target)
    target.replace(aside)
    try:
        hidden.replace(target)
    except OSError:
        aside.replace(target)
        raise
    aside.replace(hidden)


def _exchanged_at_once(hidden: Path, target: Path) -> bool:
    """Exchange the names of two folders by renameat2; return whether the system could."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    hidden_name = os.fsencode(hidden)
    target_name = os.fsencode(target)
    status = renameat2(AT_FDCWD, hidden_name, AT_FDCWD, target_name, RENAME_EXCHANGE)
    return bool(status == 0)


def _refill(target: Path, new_folder: Path) -> None:
    """Move the files of a new folder into one that stays in its place, such as a mount point.

    Readers reject it meanwhile: its manifest says that it is unfinished, and is replaced last; so
    is the config.json of a model.
    """
    names_to_keep = [new_folder.name, training_folder(target).name]
    new_manifest = new_folder / MANIFEST
    if new_manifest.exists():
        _mark_unfinished(target, _json_object(new_manifest))
        names_to_keep.append(MANIFEST)
    _empty(target, names_to_keep)
    items = [item for item in new_folder.iterdir() if item.name != MANIFEST]
    items.sort(key=lambda item: item.name == MODEL_CONFIG)  # it comes last
    for item in items:
        shutil.move(item, target / item.name)
    flush_names(target)  # before the manifest says that the folder is complete
    if new_manifest.exists():
        shutil.move(new_manifest, target / MANIFEST)
    flush_names(target)


def _mark_unfinished(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest that says that its folder is unfinished; an empty one is none."""
    if manifest:
        with written_files.whole_binary(folder / MANIFEST) as out:
            out.write(json.dumps({**manifest, "complete": False}).encode())


def _empty(folder: Path, names_to_keep: Sequence[str] = ()) -> None:
    """Remove what is in a folder, in an order that a power cut keeps.

    A model without config.json does not load: it goes first. What marks the folder as denserk's
    goes last.
    """
    config = folder / MODEL_CONFIG
    if config.name not in names_to_keep and config.is_file():
        config.unlink()
        flush_names(folder)
    items = [item for item in folder.iterdir() if item.name not in names_to_keep]
    marks = [item for item in items if item.name in MARKS]
    for item in items:
        # the lock of an output whose parent is closed is inside, and held
        if item in marks or item.name.endswith(written_files.LOCK_SUFFIX):
            continue
        if item.is_dir() and not item.is_symlink():
            remove_folder(item)
        else:
            item.unlink()
    flush_names(folder)
    for mark in marks:
        mark.unlink()


def holds_work(folder: Path, *, with_data: bool = False) -> bool:
    """Return whether a folder is complete or holds finished work, which --resume continues.

    Work is a block, a checkpoint, a training run whose data is prepared, or, `with_data`, the first
    part of the data.
    """
    if _json_object(folder / MANIFEST).get("complete") is True:
        return True
    if _holds_blocks(folder) or _holds_checkpoints(folder):
        return True
    if (folder / CONFIG).exists() or (folder / EXPORT).exists():
        return True
    if with_data and holds_work(folder / DATA):
        return True
    return _holds_runs(folder)


def _holds_blocks(folder: Path) -> bool:
    """Return whether a journal of a folder records a block."""
    return any(journal.stat().st_size for journal in folder.glob(JOURNALS))


def _holds_checkpoints(folder: Path) -> bool:
    """Return whether a folder of a training run has a checkpoint."""
    return any((folder / CHECKPOINTS).glob("checkpoint-*"))


def _holds_runs(folder: Path) -> bool:
    """Return whether a folder of benchmarks has a run, or finished work for one."""
    paths = [*folder.glob("*.trec"), *folder.glob("corpora/*/*")]
    return any(path.is_file() or holds_work(path) for path in paths)


def named_paths(*values: Any) -> Iterator[Path]:
    """Yield the existing files and folders among the values of options, also nested ones."""
    for value in values:
        if isinstance(value, Enum):
            continue  # `--type bm25` names no file, also where there is one of that name
        if isinstance(value, str | Path):
            yield from _existing_paths(str(value))
        elif isinstance(value, Mapping):
            yield from named_paths(*value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from named_paths(*value)


def _existing_paths(name: str) -> Iterator[Path]:
    """Yield the path of a name, and those that it matches as a pattern, if anything is there."""
    if name in ("", files.STREAM):
        return
    with suppress(OSError, ValueError):  # a text too long for a path is no path
        if has_magic(name):
            yield from map(Path, glob(name))  # noqa: PTH207  (patterns may be absolute)
        if Path(name).exists():
            yield Path(name)


@contextmanager
def claim(
    outputs: list[str], inputs: Iterable[Path] = (), overwrite: bool = False, resume: bool = False
) -> Iterator[None]:
    """Check and lock outputs while they are written; pipes, devices and `-` are not locked.

    A command that fails leaves nothing in the way of the next one: a new folder without finished
    work is removed, and an old one that it was to replace is put back.
    """
    names = [name for name in outputs if str(name) != files.STREAM]
    targets = [path for path in map(Path, names) if not written_files.is_special(path)]
    sources = list(inputs)
    with ExitStack() as locks:
        for target in targets:
            reject_inputs(target, sources, resume=resume)
            locks.enter_context(_locked(target, replaces=overwrite and not is_free(target)))
            if not (overwrite or resume):
                _reject_existing_file(target)
        free_folders = _free_folders(targets)
        try:
            yield
        except BaseException as error:
            _clean_up(targets, free_folders, error)
            raise
        for target in targets:
            discard_replaced(target)


class _FreeFolder(NamedTuple):
    """A path at which there is nothing, or an empty folder, before a command begins."""

    path: Path
    existed: bool


def _free_folders(targets: Sequence[Path]) -> list[_FreeFolder]:
    """Return the folders that a command may fill: its outputs, and those of unfinished files."""
    paths = [*targets, *map(unfinished_folder, targets)]
    return [_FreeFolder(path, path.is_dir()) for path in paths if is_free(path)]


def _clean_up(
    targets: Sequence[Path], free_folders: Sequence[_FreeFolder], error: BaseException
) -> None:
    """Put old folders back after an error, and remove new ones without finished work.

    The error of an interrupted command gets the names of what --resume continues.
    """
    # a library may have turned the signal into an error of its own
    interruption = error if isinstance(error, Interrupted) else Interrupted.received
    is_interrupted = interruption is not None or not isinstance(error, Exception)
    for target in targets:
        _put_back(target)  # where this fails, the old folder stays for the next command
        discard_replaced(target)
    for folder in free_folders:
        _remove_started(folder.path, interrupted=is_interrupted, existed=folder.existed)
    if interruption is not None:
        work_paths = filter(None, map(_resumable_work, targets))
        interruption.kept = ", ".join(map(str, work_paths))


def _reject_existing_file(target: Path) -> None:
    """Raise a UsageError for a file that exists, or that a killed command has started."""
    if target.is_dir():  # judged by the command, which knows what may be in it
        return
    unfinished = unfinished_folder(target)
    if unfinished.exists():
        message = f"{target} was started and not finished (it is in {unfinished})"
        raise UsageError(message, TAKEN)
    if target.exists():
        raise UsageError(f"{target} exists", "add --overwrite, or choose another output")


def is_free(path: Path) -> bool:
    """Return whether nothing is there, or an empty folder."""
    if not path.is_dir():
        return not os.path.lexists(path)
    return all(written_files.is_temporary(item) for item in path.iterdir())


def _put_back(target: Path) -> None:
    """Put an old folder back in its place if the new one there holds no finished work."""
    old_folder = replaced_folder(target)
    new_folder = real_path(target)
    if not old_folder.is_dir() or holds_work(new_folder):
        return
    if os.path.lexists(new_folder):
        # a killed process left the old one, and the user has put something else there
        is_of_user = not new_folder.is_dir() or any(foreign_items(new_folder))
        if is_of_user:
            return
    with file_errors.write_errors(target):
        if new_folder.exists():
            _exchange(old_folder, new_folder)
        else:
            old_folder.replace(new_folder)
        flush_names(new_folder.parent)
    discard_replaced(target)


def _remove_started(folder: Path, *, interrupted: bool, existed: bool = False) -> None:
    """Remove a new folder that holds no finished work, and no file of another origin.

    Prepared data is kept of a command that was interrupted, and not of one that failed: its inputs
    will be others. A folder that existed before stays, and is empty again.
    """
    if not folder.is_dir() or holds_work(folder, with_data=interrupted):
        return
    for pattern in ("corpora/*/*", "corpora/*", "corpora"):  # of a benchmark, the innermost first
        for started_folder in folder.glob(pattern):
            _remove_started(started_folder, interrupted=interrupted)
    if next(foreign_items(folder), None) is not None:
        return
    with suppress(OSError):
        _empty(folder)
        if not existed:
            folder.rmdir()


def _resumable_work(target: Path) -> Path | None:
    """Return the path that a message names for work that --resume continues, None without work.

    It is the folder in which a model is trained, and else the output.
    """
    if unfinished_folder(target).is_dir():
        return target
    if _json_object(target / MANIFEST).get("complete") is False or _holds_checkpoints(target):
        return target
    if _holds_checkpoints(training_folder(target)):
        return training_folder(target)
    return None


def reject_inputs(target: Path, inputs: Iterable[Path], *, resume: bool = False) -> None:
    """Raise a UsageError for an output that is an input, or a folder that contains one."""
    output = real_path(target)
    for path in inputs:
        source = real_path(path)
        is_same_file = target.is_file() and path.is_file() and target.samefile(path)
        if source == output or is_same_file:
            raise UsageError(f"{path} is both input and output", "choose another output")
        if output.is_dir() and source.is_relative_to(output) and not resume:
            raise UsageError(f"the output {target} holds an input, {path}", "choose another output")


@contextmanager
def _locked(target: Path, *, replaces: bool) -> Iterator[None]:
    """Hold the lock of an output, and clear away what killed processes have left."""
    with locked(target, replaces=replaces):
        _put_back(target)
        for path in _remains(real_path(target)):
            with suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        yield


def _remains(output: Path) -> list[Path]:
    """Return the temporary files and folders that killed writers of an output have left."""
    pattern = rf"\.{re.escape(output.name)}(\.{re.escape(MANIFEST)})?\.[0-9a-f]{{8}}\.part"
    items = list(output.parent.iterdir())
    if output.is_dir():
        items += output.iterdir()
    remains = [item for item in items if re.fullmatch(pattern, item.name)]
    if output.is_dir() and _marker(output) is not None:
        remains += [path for path in output.rglob(".*.part") if written_files.is_temporary(path)]
    return remains


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder, removed at the end; folders of killed processes go too."""
    root = Path(gettempdir())
    for path in root.glob(f"{SCRATCH}*/lock"):  # locked while its process lives
        with suppress(OSError), path.open("r+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    with file_errors.write_errors(root):
        folder = Path(mkdtemp(prefix=f"{SCRATCH}{purpose}-"))
    lock = folder / "new"
    content = folder / "files"
    try:
        with lock.open("wb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            lock.rename(folder / "lock")  # once it is held: other processes remove folders by it
            content.mkdir()
            yield content
    finally:
        shutil.rmtree(folder, ignore_errors=True)
