"""Output files and folders: locks, and protection of inputs and of files denserk did not write.

An output is claimed before any work begins; a lock beside it excludes other denserk processes.
"""

import ctypes
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from denserk.errors import Interrupted, OutputError, UsageError
from denserk.io import files

MANIFEST, TRAINING, MODEL = "manifest.json", "training.json", "denserk.json"
EXPORT = ".denserk"  # lists the files of a folder in another tool's format
SCRATCH = "denserk-"  # prefix of temporary folders
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
    except (OSError, ValueError):
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


def prepare_folder(folder: str | Path, *, overwrite: bool, resume: bool = False) -> Path:
    """Create an output folder, or empty it if `refuse_occupied` accepts; `resume` keeps it."""
    refuse_occupied(folder, overwrite=overwrite, resume=resume)
    path = Path(folder)
    with files.write_errors(folder):
        path.mkdir(parents=True, exist_ok=True)
        if resume:
            return path
        if _marker(path) == MANIFEST:
            with files.whole_binary(path / MANIFEST) as out:
                out.write(json.dumps({**_json(path / MANIFEST), "complete": False}).encode())
        # what marks the folder as denserk's goes last
        for item in sorted(path.iterdir(), key=lambda item: item.name in MARKS):
            shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
    return path


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
    target = Path(folder)
    temporary = files.temporary_beside(target)
    try:
        with files.write_errors(folder):
            temporary.mkdir(parents=True)
            yield temporary
            if export:
                items = (item for item in temporary.rglob("*") if item.is_file())
                names = sorted(item.relative_to(temporary).as_posix() for item in items)
                (temporary / EXPORT).write_text(json.dumps({"files": names}) + "\n")
            # exchange the two folders' names, atomically if the file system can
            here, exchange = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE
            old, new = os.fsencode(target), os.fsencode(temporary)
            rename = getattr(ctypes.CDLL(None), "renameat2", None)
            if not target.exists():
                temporary.replace(target)
            elif not rename or rename(here, new, here, old, exchange):
                aside = files.temporary_beside(target)
                target.replace(aside)
                temporary.replace(target)
                aside.replace(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
    """Check and lock outputs while they are written; pipes, devices and `-` are not locked."""
    paths, read = [Path(name) for name in outputs if str(name) != files.STREAM], list(inputs)
    targets = [path for path in paths if not files.is_special(path)]
    with ExitStack() as stack:
        for target in targets:
            refuse_inputs(target, read, resume=resume)
            stack.enter_context(_locked(target))
            if not (overwrite or resume or target.is_dir()):
                if (unfinished := unfinished_folder(target)).exists():
                    found = f"{target} was started and not finished (it is in {unfinished})"
                    raise UsageError(found, TAKEN)
                if target.exists():
                    hint = "add --overwrite, or choose another output"
                    raise UsageError(f"{target} exists", hint)
        try:
            yield
        except BaseException as error:
            stop = error if isinstance(error, Interrupted) else Interrupted.received
            if stop is not None:
                stop.kept = ", ".join(str(target) for target in targets if _is_resumable(target))
            raise


def _is_resumable(target: Path) -> bool:
    return (
        unfinished_folder(target).is_dir()
        or _json(target / MANIFEST).get("complete") is False
        or any((target / "checkpoints").glob("checkpoint-*"))
    )


def refuse_inputs(target: Path, inputs: Iterable[Path], *, resume: bool = False) -> None:
    """Raise a UsageError for an output that is an input, or a folder that contains one."""
    real = Path(os.path.realpath(target))  # resolve() takes no link to itself
    for path in inputs:
        source = Path(os.path.realpath(path))
        if source == real or (target.is_file() and path.is_file() and target.samefile(path)):
            raise UsageError(f"{path} is both input and output", "choose another output")
        if real.is_dir() and source.is_relative_to(real) and not resume:
            raise UsageError(f"the output {target} holds an input, {path}", "choose another output")


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold a lock file beside an output, or inside a folder whose parent is not writable.

    Remove the temporary files of killed processes: the lock proves that none is running.
    """
    from filelock import FileLock, Timeout  # only where something is written

    whole = target.absolute()
    inside = whole.is_dir() and not os.access(whole.parent, os.W_OK)
    place = (whole if inside else whole.parent) / f".{whole.name}.lock"
    lock = FileLock(place, blocking=False)
    with files.write_errors(target):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            holder = place.read_text("utf-8", "replace").strip() or "another denserk"
            hint = "wait for it to end, or choose another output"
            raise OutputError(f"{target} is being written by {holder}", hint) from None
    try:
        with suppress(OSError):  # for the message above
            place.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", "utf-8")
        name = rf"\.{re.escape(whole.name)}(\.{re.escape(MANIFEST)})?\.[0-9a-f]{{8}}\.part"
        left = [path for path in whole.parent.iterdir() if re.fullmatch(name, path.name)]
        if whole.is_dir() and _marker(whole):
            left += [path for path in whole.rglob(".*.part") if files.is_temporary(path)]
        for path in left:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield
    finally:
        place.unlink(missing_ok=True)  # before the release: FileLock takes no lock without a name
        lock.release()


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
