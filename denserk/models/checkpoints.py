"""Files of a saved model: its folder, config.json and tensors, and transformers' model of them."""

import hashlib
import io
import json
import logging
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, snapshot_download
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.utils import logging as transformers_logging

from denserk.config.encoding import PUBLISHED, WITHOUT_WEIGHTS
from denserk.data.tokenization import TOKENIZER_FILES
from denserk.errors import InputError, ModelError, UsageError
from denserk.io.files import read_file, whole_binary
from denserk.io.manifest import Rule, check, file_sha256

logger = logging.getLogger(__name__)

Tensors = Mapping[str, Tensor]
CONFIG = "config.json"
# the first of these that a folder has is read; an index names several files
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
# fields by which a configuration would choose other code to run; they are ignored
LOADS_CODE = ("_attn_implementation", "attn_implementation", "auto_map")
# what is downloaded besides the weights: no optimizer states, and pre-training heads on request
HUB_FILES = ("*.json", "*.txt", "*.model", "pooler.pt", "TermWeightTrans.pt")
HUB_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
HUB_FOLDERS = ("", "query/", "document/", "query_model/", "passage_model/", "0_Transformer/")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def can_be_on_hub(model: str) -> bool:
    """Return whether a model's name can be a short name, or one on the hub."""
    return HUB_NAME.fullmatch(model) is not None and not model.startswith(".")


def find_model(model: str, option: str = "--model", beside: Sequence[str] = ()) -> tuple[str, Path]:
    """Return the full name of a model and its folder; a name on the hub is downloaded or cached.

    The model, given by `option`, is a folder, a short name, or a name on the hub: the first that
    exists. `beside` are further files to download where they exist.
    """
    if Path(model).is_dir():
        return model, Path(model)
    if model in WITHOUT_WEIGHTS:
        raise UsageError(f"{option} {model}: {WITHOUT_WEIGHTS[model]}")
    if model in PUBLISHED:
        logger.info(f"{model} is {PUBLISHED[model]}")
        model = PUBLISHED[model]
    elif not can_be_on_hub(model):
        raise UsageError(f"{option} {model}: no such folder")
    for pattern in HUB_WEIGHTS:  # pickles where there are no safetensors
        files = [*HUB_FILES, *(folder + pattern for folder in HUB_FOLDERS), *beside]
        try:
            snapshot = Path(snapshot_download(model, allow_patterns=files))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"{model} is no folder, no short name ({', '.join(PUBLISHED)}) and cannot be "
                f"fetched from the hub or its cache {constants.HF_HUB_CACHE}: {reason}",
                f"a private model needs HF_TOKEN; without network: hf download {model} "
                "--local-dir DIR elsewhere, then --model DIR",
            ) from None
        if any(snapshot.glob(pattern)) or any(snapshot.glob(f"*/{pattern}")):
            return model, snapshot
    raise ModelError(f"{model} on the hub holds no weights that denserk reads")


def read_json(path: Path, rule: Rule = dict) -> Any:
    """Read a small JSON file, by default an object; fields of the rule are required."""
    if not path.exists():
        raise ModelError(f"{path} is missing")
    try:
        value = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, f"text that is not JSON ({error})", "JSON") from None
    check(value, rule, path)
    return value


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights; an index comes first, then what it names."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(f"{folder} has no weights: none of {', '.join(WEIGHTS)}")
    if path.suffix != ".json":
        return [path]
    index = read_json(path, {"weight_map": {...: str}})
    parts = sorted(set(index["weight_map"].values()))
    return [path, *(folder / part for part in parts)]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file to the CPU; nothing in it is executed."""
    with _explained(f"{path} cannot be read as a file of tensors"):
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # old pickles are fine; others fail below
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ModelError(f"{path} holds something other than named tensors")
    return tensors


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn whatever transformers, safetensors or torch raise for broken files into one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch advises to run the code in it
            reason = "a pickle that is broken or holds more than tensors"
        raise ModelError(f"{what} ({reason})", "fetch the file again") from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if path.suffix != ".json":
            tensors.update(read_tensors(path))
    return tensors


def encoder_files(folder: Path) -> list[Path]:
    """Return the files of a transformers folder that an encoder depends on."""
    names = [folder / CONFIG, *(folder / name for name in TOKENIZER_FILES)]
    return [*weight_files(folder), *(path for path in names if path.is_file())]


def fingerprint(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of files' names (below `root`) and contents; equal on any machine."""
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def read_config(folder: Path) -> PretrainedConfig:
    """Read the configuration of a folder's model; DPR's encoders are BERTs."""
    path = folder / CONFIG
    values = read_json(path, {"model_type": str})
    values = {name: value for name, value in values.items() if name not in LOADS_CODE}
    kind = "bert" if values["model_type"] == "dpr" else values["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(f"{path}: transformers does not know the model_type {kind[:60]!r}")
    with _explained(f"{path}: transformers makes no model of it"):
        config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict({**values, "model_type": kind})
    return config


def load_model(
    auto: Any, folder: Path, config: PretrainedConfig, tensors: Tensors, heads: tuple[str, ...] = ()
) -> Any:
    """Build a transformers model from tensors, in float32 on the CPU, in evaluation mode.

    transformers renames old tensors, adds or removes the prefix of the encoder and ties weights.
    The pooler of a bare encoder, which no representation reads, is dropped. Heads of other tasks
    are ignored; missing tensors whose names begin with one of `heads` are initialised.
    """
    with _explained(f"{folder / CONFIG}: transformers makes no model of it"), torch.device("meta"):
        kind = type(auto.from_config(config))
    options: Any = {"config": config, "state_dict": dict(tensors), "dtype": torch.float32}
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    with _explained(f"{folder} cannot be loaded"), silent():
        model, info = kind.from_pretrained(None, **options)
    missing = sorted(info["missing_keys"])
    prefix, base = f"{model.base_model_prefix}.", model.base_model
    if base is model and hasattr(model, "pooler"):  # no representation reads it
        model.pooler = None
        missing = [name for name in missing if not name.startswith("pooler.")]
    own = {name for name, _ in base.named_children()} - {"pooler"}
    unexpected = [  # of the encoder itself; heads of other tasks are welcome
        name
        for name in sorted(info["unexpected_keys"])
        if name.removeprefix(prefix).partition(".")[0] in own and not name.endswith("position_ids")
    ]
    wrong = [
        *(f"{name} is missing" for name in missing if not name.startswith(heads)),
        *(f"{name} is unexpected" for name in unexpected),
        *(
            f"{name} is {tuple(found)}, expected {tuple(expected)}"
            for name, found, expected in sorted(info["mismatched_keys"])
        ),
    ]
    if problems := "; ".join(wrong):
        raise ModelError(f"{folder}: the weights are not those of its config.json; {problems}")
    return model.eval()


def fill(where: Path, module: nn.Module, tensors: Tensors) -> None:
    """Copy tensors into a module; a ModelError names all that are missing, surplus or misshapen."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        named = " ".join(str(error).partition("\n")[2].split())
        raise ModelError(f"{where}: {named}") from None


@contextmanager
def silent() -> Iterator[None]:
    """Turn transformers' messages and progress bars off."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors in float32: safetensors by the name's suffix, or else a pickle."""
    owned = {n: t.detach().to("cpu", torch.float32).clone() for n, t in tensors.items()}
    with whole_binary(path) as handle:
        if path.suffix == ".safetensors":
            handle.write(save(owned, metadata={"format": "pt"}))
        else:
            buffer = io.BytesIO()  # torch reports a full disk by an error of its own
            torch.save(owned, buffer)
            handle.write(buffer.getvalue())
