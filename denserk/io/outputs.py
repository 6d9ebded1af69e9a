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
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from denserk.errors import DenserkError, Interrupted, UsageError
from denserk.io import files
from denserk.io.durability import flush_names, flush_tree, make_folder
from denserk.io.locks import locked, real_path

MANIFEST, TRAINING, MODEL = "manifest.json", "training.json", "denserk.json"
MODEL_CONFIG = "config.json"
EXPORT = ".denserk"  # lists the files of a folder in another tool's format
SCRATCH = "denserk-"  # prefix of temporary folders
JOURNALS = "blocks*.jsonl"  # of a folder that is written block by block
CONFIG = "config.yaml"  # of a training run whose data is prepared
# errors of a rename that tell that a folder stays where it is: a mount point, a closed parent
NOT_RENAMED = (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)
TAKEN = (
    "add --overwrite to replace it, --resume to continue it if the command was interrupted, "
    "or choose another output"
)
MODEL_FILES = """
    denserk.json config.json generation_config.json README.md modules.json model.pt
    *.safetensors *.safetensors.index.json pytorch_model*.bin
    tokenizer*.json special_tokens_map.json added_tokens.json chat_template.jinja
    vocab.txt vocab.json merges.txt *.model
    config_sentence_transformers.json sentence_bert_config.json adapter_config.json
"""
MANIFEST_FILES = """
    manifest.json blocks*.jsonl block-[0-9]*.npy block-[0-9]*.docid block-[0-9]*.hash tokens.jsonl
    word-frequencies.json index index.ivfdata docid vectors *.index.npy *.index.json
    segments_* _*.* write.lock int8.xml int8.bin
"""
TRAINING_FILES = f"""
    {MODEL_FILES} training.json config.yaml training.png events.out.tfevents.*
    optimizer.pt scheduler.pt scaler.pt trainer.pt rng_state*.pth trainer_state.json
    manifest.json *.npy *.bin *.arrow
"""
# patterns of folders below a model folder or the folder of a training run
FOLDERS = """
    checkpoints checkpoint-* best steps step-* start logs training-data dev-data guide-data
    scratch .saving query document adapter [0-9]_*
"""
# the file that marks a folder of denserk's -> keys of its JSON object, patterns of other files
MARKS = {
    EXPORT: ({"files"}, EXPORT),
    MANIFEST: ({"kind", "complete", "settings"}, MANIFEST_FILES),
    TRAINING: ({"versions"}, TRAINING_FILES),
    MODEL: ({"denserk_version"}, MODEL_FILES),
}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _marker(folder: Path) -> str | None:
    """Return the file that marks a folder of denserk's, or None."""
    marks = (name for name, (keys, _) in MARKS.items() if keys <= _json(folder / name).keys())
    return next(marks, None)


def foreign_items(folder: Path) -> Iterator[Path]:
    """Yield the files and folders in `folder` that denserk did not write.

    A folder is denserk's if it holds a manifest, the settings of a training run, a model, or the
    list of an export; in it, only files and folders with names that denserk uses are denserk's.
    """
    marker = _marker(folder)
    names = MARKS[marker][1].split() if marker else []
    folders = FOLDERS.split() if marker in (TRAINING, MODEL) else []
    if marker == EXPORT:
        names += _json(folder / EXPORT)["files"]
        folders = [parent.as_posix() for name in names for parent in Path(name).parents]
    for item in sorted(folder.rglob("*") if marker else folder.iterdir()):
        name = item.relative_to(folder)
        if any(files.is_temporary(Path(part)) for part in name.parts):
            continue
        compared = name.as_posix() if marker == EXPORT else item.name
        patterns = folders if item.is_dir() and not item.is_symlink() else names
        if not any(fnmatchcase(compared, pattern) for pattern in patterns):
            yield item


def refuse_occupied(folder: str | Path, *, overwrite: bool, resume: bool = False) -> None:
    """Raise a UsageError for an output folder whose content may not be replaced or continued."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{folder} is a file; a folder is expected", "choose another --output")
    items = path.iterdir() if path.is_dir() else ()
    present = [item for item in items if not files.is_temporary(item)]
    failed_at_its_start = _json(path / TRAINING).keys() == {"versions"}  # a training run
    if not present or (failed_at_its_start and [item.name for item in present] == [TRAINING]):
        return
    if not (overwrite or resume):
        raise UsageError(f"{folder} is not empty (it holds {min(present).name})", TAKEN)
    foreign = None if resume and _marker(path) else next(foreign_items(path), None)
    if foreign is not None:
        found = f"{folder} holds {foreign.relative_to(path)}, which denserk did not write"
        raise UsageError(found, f"choose another output, or remove {folder} yourself")


def unfinished_folder(output: str | Path) -> Path:
    """Return the folder of a file that is written block by block, until it is complete."""
    return Path(f"{output}.unfinished")


def prepare_folder(
    folder: str | Path, *, overwrite: bool, resume: bool = False, restorable: bool = False
) -> Path:
    """Create an output folder, or put an empty one in its place; `resume` keeps what it holds.

    It is for what is written under its own name from the start, because it can be resumed.
    A `restorable` old folder is put aside until `discard_replaced` removes it, or until a `claim`
    that fails puts it back.
    """
    refuse_occupied(folder, overwrite=overwrite, resume=resume)
    target = real_path(folder)
    with files.write_errors(folder):
        if resume or _is_free(target):
            make_folder(target)
            return Path(folder)
        discard_replaced(target)
        try:
            old = replaced_folder(target)
            old.mkdir()
            _exchange(old, target)
            flush_names(target.parent)  # before the old folder is removed
        except OSError as error:
            if error.errno not in NOT_RENAMED:
                raise
            discard_replaced(target)
            _mark_unfinished(target, _json(target / MANIFEST))
            _empty(target)
        if not restorable:
            discard_replaced(target)
    return Path(folder)


def replaced_folder(target: str | Path) -> Path:
    """Return where the old folder stands until the new one holds finished work."""
    path = real_path(target)
    return path.with_name(f".{path.name}.{'0' * 8}.part")


def discard_replaced(target: str | Path) -> None:
    """Remove the old folder that `prepare_folder` has put aside, if there is one."""
    old = replaced_folder(target)
    if old.is_dir():
        with suppress(OSError):  # it is in nobody's way
            remove_folder(old, like=real_path(target))


def remove_folder(folder: Path, *, like: Path | None = None) -> None:
    """Remove a folder whose content is of no use once a part of it is missing.

    It gets a temporary name first, that of `like`, by which the next command finds what a killed
    one leaves.
    """
    temporary = files.temporary_beside(like or folder)
    folder.replace(temporary)
    flush_names(folder.absolute().parent)
    shutil.rmtree(temporary)


@contextmanager
def whole_folder(
    folder: str | Path, *, overwrite: bool = False, export: bool = False, own: bool = False
) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success.

    `overwrite` replaces a folder that is not empty; `own` replaces one inside a folder of denserk's
    without a check; `export` records the names of files in another tool's format.
    """
    if not own:
        refuse_occupied(folder, overwrite=overwrite)
    target = real_path(folder)
    temporary = _building_place(target)
    try:
        with files.write_errors(folder):
            make_folder(temporary.parent)
            temporary.mkdir()
            yield temporary
            if export:
                items = (item for item in temporary.rglob("*") if item.is_file())
                names = sorted(item.relative_to(temporary).as_posix() for item in items)
                (temporary / EXPORT).write_text(json.dumps({"files": names}) + "\n")
            flush_tree(temporary)  # before it gets its name
            _replace_folder(target, temporary)
            flush_names(target.parent)  # before the old folder is removed
    except DenserkError as error:  # it names the folder that the user gave
        error.message = error.message.replace(str(temporary), str(folder))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _building_place(target: Path) -> Path:
    """Return where a folder is built: beside its target, or inside one that cannot be renamed."""
    if target.is_dir() and (os.path.ismount(target) or not os.access(target.parent, os.W_OK)):
        return files.temporary_beside(target / target.name)
    return files.temporary_beside(target)


def _replace_folder(target: Path, new: Path) -> None:
    """Put a new folder in the place of the target, atomically where the file system can."""
    if not target.exists():
        new.replace(target)
        return
    if new.parent != target:
        try:
            _exchange(new, target)
        except OSError as error:
            if error.errno not in NOT_RENAMED:
                raise
        else:
            return
    _refill(target, new)


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders, atomically where the file system can."""
    shutil.copymode(other, one)
    here, exchange = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return
    aside = files.temporary_beside(other)
    other.replace(aside)
    try:
        one.replace(other)
    except OSError:
        aside.replace(other)
        raise
    aside.replace(one)


def _refill(target: Path, new: Path) -> None:
    """Move the files of a new folder into one that cannot be renamed, such as a mount point.

    Readers reject it meanwhile: its manifest says that it is unfinished, and is replaced last.
    """
    keep = [new.name]
    if (new / MANIFEST).exists():
        _mark_unfinished(target, _json(new / MANIFEST))
        keep.append(MANIFEST)
    _empty(target, keep)
    for item in [item for item in new.iterdir() if item.name != MANIFEST]:
        shutil.move(item, target / item.name)
    flush_names(target)  # before the manifest says that the folder is complete
    if (new / MANIFEST).exists():
        shutil.move(new / MANIFEST, target / MANIFEST)
    flush_names(target)


def _mark_unfinished(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest that says that its folder is unfinished, if it is one."""
    if manifest:
        with files.whole_binary(folder / MANIFEST) as out:
            out.write(json.dumps({**manifest, "complete": False}).encode())


def _empty(folder: Path, keep: Sequence[str] = ()) -> None:
    """Remove what is in a folder, in an order that a power cut keeps.

    A model without config.json does not load: it goes first. What marks the folder as denserk's
    goes last.
    """
    if MODEL_CONFIG not in keep and (folder / MODEL_CONFIG).is_file():
        (folder / MODEL_CONFIG).unlink()
        flush_names(folder)
    items = [item for item in folder.iterdir() if item.name not in keep]
    marks = [item for item in items if item.name in MARKS]
    for item in items:
        if item in marks or item.name.endswith(files.LOCK_SUFFIX):
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
    if _json(folder / MANIFEST).get("complete") is True:
        return True
    if any(journal.stat().st_size for journal in folder.glob(JOURNALS)):
        return True
    if any((folder / "checkpoints").glob("checkpoint-*")):
        return True
    if (folder / CONFIG).exists() or (folder / EXPORT).exists():
        return True
    if with_data and holds_work(folder / "training-data"):
        return True
    of_benchmarks = (*folder.glob("*.trec"), *folder.glob("corpora/*/*"))
    return any(path.is_file() or holds_work(path) for path in of_benchmarks)


def named_paths(*given: Any) -> Iterator[Path]:
    """Yield the existing files and folders among the values of options, also nested ones."""
    for value in given:
        if isinstance(value, Path) or (isinstance(value, str) and value not in ("", files.STREAM)):
            with suppress(OSError, ValueError):  # a text too long for a path is no path
                if has_magic(str(value)):
                    yield from map(Path, glob(str(value)))  # noqa: PTH207  (patterns may be absolute)
                if Path(value).exists():
                    yield Path(value)
        elif isinstance(value, Mapping):
            yield from named_paths(*value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from named_paths(*value)


@contextmanager
def claim(
    outputs: list[str], inputs: Iterable[Path] = (), overwrite: bool = False, resume: bool = False
) -> Iterator[None]:
    """Check and lock outputs while they are written; pipes, devices and `-` are not locked.

    A command that fails leaves nothing in the way of the next one: a new folder without finished
    work is removed, and an old one that it was to replace is put back.
    """
    paths, read = [Path(name) for name in outputs if str(name) != files.STREAM], list(inputs)
    targets = [path for path in paths if not files.is_special(path)]
    with ExitStack() as stack:
        for target in targets:
            refuse_inputs(target, read, resume=resume)
            stack.enter_context(_locked(target, replaces=overwrite and not _is_free(target)))
            if not (overwrite or resume or target.is_dir()):
                if (unfinished := unfinished_folder(target)).exists():
                    found = f"{target} was started and not finished (it is in {unfinished})"
                    raise UsageError(found, TAKEN)
                if target.exists():
                    hint = "add --overwrite, or choose another output"
                    raise UsageError(f"{target} exists", hint)
        places = [place for target in targets for place in (target, unfinished_folder(target))]
        free_places = [place for place in places if _is_free(place)]
        empty_folders = [place for place in free_places if place.is_dir()]
        try:
            yield
        except BaseException as error:
            stop = error if isinstance(error, Interrupted) else Interrupted.received
            interrupted = stop is not None or not isinstance(error, Exception)
            for target in targets:
                _put_back(target)
            for place in free_places:
                existed = place in empty_folders
                _remove_started(place, interrupted=interrupted, existed=existed)
            if stop is not None:
                stop.kept = ", ".join(str(target) for target in targets if _is_resumable(target))
            raise
        finally:
            for target in targets:
                discard_replaced(target)


def _is_free(path: Path) -> bool:
    """Return whether nothing is there, or an empty folder."""
    if not path.is_dir():
        return not os.path.lexists(path)
    return all(files.is_temporary(item) for item in path.iterdir())


def _put_back(target: Path) -> None:
    """Put an old folder back in its place if the new one there holds no finished work."""
    old, new = replaced_folder(target), real_path(target)
    if not old.is_dir() or holds_work(new):
        return
    if os.path.lexists(new) and (not new.is_dir() or any(foreign_items(new))):
        return  # a killed process left the old one, and the user has put something else there
    with files.write_errors(target):
        if new.exists():
            _exchange(old, new)
        else:
            old.replace(new)
        flush_names(new.parent)
    discard_replaced(target)


def _remove_started(folder: Path, *, interrupted: bool, existed: bool = False) -> None:
    """Remove a new folder that holds no finished work, and no file of another origin.

    Prepared data is kept of a command that was interrupted, and not of one that failed: its inputs
    will be others. A folder that existed before stays, and is empty again.
    """
    if not folder.is_dir() or holds_work(folder, with_data=interrupted):
        return
    for part in (*folder.glob("corpora/*/*"), *folder.glob("corpora/*"), *folder.glob("corpora")):
        _remove_started(part, interrupted=interrupted)  # of a benchmark
    if next(foreign_items(folder), None) is not None:
        return
    with suppress(OSError):
        _empty(folder)
        if not existed:
            folder.rmdir()


def _is_resumable(target: Path) -> bool:
    return (
        unfinished_folder(target).is_dir()
        or _json(target / MANIFEST).get("complete") is False
        or any((target / "checkpoints").glob("checkpoint-*"))
    )


def refuse_inputs(target: Path, inputs: Iterable[Path], *, resume: bool = False) -> None:
    """Raise a UsageError for an output that is an input, or a folder that contains one."""
    real = real_path(target)
    for path in inputs:
        source = real_path(path)
        if source == real or (target.is_file() and path.is_file() and target.samefile(path)):
            raise UsageError(f"{path} is both input and output", "choose another output")
        if real.is_dir() and source.is_relative_to(real) and not resume:
            raise UsageError(f"the output {target} holds an input, {path}", "choose another output")


@contextmanager
def _locked(target: Path, *, replaces: bool) -> Iterator[None]:
    """Hold the lock of an output, and clear away what killed processes have left."""
    with locked(target, replaces=replaces):
        _put_back(target)
        output = real_path(target)
        name = rf"\.{re.escape(output.name)}(\.{re.escape(MANIFEST)})?\.[0-9a-f]{{8}}\.part"
        around = [output.parent, *([output] if output.is_dir() else [])]
        items = [item for folder in around for item in folder.iterdir()]
        remains = [item for item in items if re.fullmatch(name, item.name)]
        if output.is_dir() and _marker(output):
            remains += [path for path in output.rglob(".*.part") if files.is_temporary(path)]
        for path in remains:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder, removed at the end; folders of killed processes go too."""
    root = Path(gettempdir())
    for path in root.glob(f"{SCRATCH}*/lock"):  # locked while its process lives
        with suppress(OSError), path.open("r+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    with files.write_errors(root):
        folder = Path(mkdtemp(prefix=f"{SCRATCH}{purpose}-"))
    try:
        with (folder / "new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "new").rename(folder / "lock")
            (folder / "files").mkdir()
            yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
