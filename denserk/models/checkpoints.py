"""Files of a saved model: its folder, config.json and tensors, and transformers' model of them."""

import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.utils import logging as transformers_logging

from denserk.data.tokenization import TOKENIZER_FILES
from denserk.errors import InputError, ModelError
from denserk.io.model_files import FETCH_AGAIN, SHOWN, library_errors, path_inside, read_json
from denserk.io.outputs import MODEL_CONFIG
from denserk.io.written_files import whole_binary

Tensors = Mapping[str, Tensor]
# the first of these that a folder has is read; an index names several files
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# fields by which a configuration would choose other code to run; they are ignored
LOADS_CODE = ("_attn_implementation", "attn_implementation", "output_attentions", "auto_map")
# names of the number of layers, by architecture
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layers", "n_layer")
MOST_LAYERS = 1_000
# A model may have this many parameters for each one of its weights: new heads have none.
MOST_PARAMETERS_PER_STORED = 10
MOST_SHOWN = 30  # tensors that an error names


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights; an index comes first, then what it names."""
    paths = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not paths:
        raise ModelError(f"{folder} has no weights: none of {', '.join(WEIGHTS)}")
    path = paths[0]
    if path.suffix != ".json":
        return [path]
    index = read_json(path, {"weight_map": {...: str}})
    file_names = sorted(set(index["weight_map"].values()))
    return [path, *(path_inside(folder, name, path) for name in file_names)]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file to the CPU; nothing in it is executed."""
    with library_errors(f"{path} cannot be read as a file of tensors"):
        tensors = load_file(path) if path.suffix == ".safetensors" else _read_pickle(path)
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ModelError(f"{path} holds something other than named tensors")
    return tensors


def _read_pickle(path: Path) -> Any:
    """Read what torch saved; a ModelError for anything but tensors."""
    try:
        with warnings.catch_warnings(action="ignore"):  # old pickles are fine
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own message advises a setting that runs the code in the file
        raise ModelError(
            f"{path} cannot be read as a file of tensors (a pickle that is broken or holds more "
            "than tensors)",
            "fetch the file again",
        ) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if path.suffix != ".json":
            tensors.update(read_tensors(path))
    return tensors


def encoder_files(folder: Path) -> list[Path]:
    """Return the files of a transformers folder that an encoder depends on."""
    paths = [folder / name for name in (MODEL_CONFIG, *TOKENIZER_FILES)]
    return [*weight_files(folder), *(path for path in paths if path.is_file())]


def read_config(folder: Path) -> PretrainedConfig:
    """Read the configuration of a folder's model; DPR's encoders are BERTs."""
    path = folder / MODEL_CONFIG
    values = read_json(path, {"model_type": str})
    values = {name: value for name, value in values.items() if name not in LOADS_CODE}
    if values["model_type"] == "dpr":
        values["model_type"] = "bert"
    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ModelError(f"{path}: transformers does not know the model_type {model_type[:60]!r}")
    _check_layer_fields(values, path)
    with library_errors(f"{path}: transformers makes no model of it"):
        config: PretrainedConfig = CONFIG_MAPPING[model_type].from_dict(values)
    return config


def _check_layer_fields(values: Mapping[str, Any], path: Path) -> None:
    """Reject a number of layers that no model has: to build them would take hours."""
    for name in LAYER_COUNTS:
        layer_count = values.get(name)
        if layer_count is None:
            continue
        if type(layer_count) is not int or not 0 <= layer_count <= MOST_LAYERS:
            raise InputError(
                path,
                None,
                f"{name} {str(layer_count)[:SHOWN]}",
                f"a whole number up to {MOST_LAYERS:,}",
                FETCH_AGAIN,
            )


def _check_layer_count(folder: Path, config: PretrainedConfig, tensors: Tensors) -> None:
    """Reject more layers than there are tensors, before they are built."""
    layer_count = getattr(config, "num_hidden_layers", None) or 0
    if layer_count > len(tensors):
        raise InputError(
            folder / MODEL_CONFIG,
            None,
            f"{layer_count:,} layers",
            f"those of the weights, which have {len(tensors):,} tensors",
            FETCH_AGAIN,
        )


def _check_parameter_count(folder: Path, meta_model: nn.Module, tensors: Tensors) -> None:
    """Reject a model that is much larger than its weights, before memory is taken for it.

    `meta_model` has the sizes of the model and no values, as of torch's device "meta".
    """
    parameter_count = sum(parameter.numel() for parameter in meta_model.parameters())
    stored_count = sum(tensor.numel() for tensor in tensors.values())
    if parameter_count > MOST_PARAMETERS_PER_STORED * max(stored_count, 1):
        raise InputError(
            folder / MODEL_CONFIG,
            None,
            f"sizes of a model of {parameter_count:,} parameters",
            f"those of the weights, which have {stored_count:,}",
            FETCH_AGAIN,
        )


def load_model(
    auto: Any, folder: Path, config: PretrainedConfig, tensors: Tensors, heads: tuple[str, ...] = ()
) -> Any:
    """Build a transformers model from tensors, in float32 on the CPU, in evaluation mode.

    transformers renames old tensors, adds or removes the prefix of the encoder and ties weights.
    The pooler of a bare encoder, which no representation reads, is dropped (`pooler_tensors` keeps
    its weights). Heads of other tasks are ignored; missing tensors whose names begin with one of
    `heads` are initialised.

    auto: a class of transformers that chooses the model's class by its config, such as AutoModel.
    """
    _check_layer_count(folder, config, tensors)
    with (
        library_errors(f"{folder / MODEL_CONFIG}: transformers makes no model of it"),
        torch.device("meta"),
    ):
        meta_model = auto.from_config(config)
    _check_parameter_count(folder, meta_model, tensors)
    with library_errors(f"{folder} cannot be loaded"), silent():
        model, info = type(meta_model).from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are in `info`, with all other problems
            output_loading_info=True,
        )
    if _is_bare_with_pooler(model):
        model.pooler = None
    problems = _differences(model, info, heads)
    if problems:
        shown = "; ".join(problems[:MOST_SHOWN])
        if len(problems) > MOST_SHOWN:
            shown += f"; and {len(problems) - MOST_SHOWN:,} more"
        raise ModelError(f"{folder}: the weights are not those of its config.json; {shown}")
    return model.eval()


def _is_bare_with_pooler(model: Any) -> bool:
    """Return whether a model is an encoder without a head that has a pooler, or had one."""
    return model.base_model is model and hasattr(model, "pooler")


def _differences(model: Any, info: Mapping[str, Any], heads: tuple[str, ...]) -> list[str]:
    """Return how tensors differ from the model's, by `info`, transformers' report of loading them.

    Heads of other tasks may be among the tensors, and those with a prefix of `heads` missing.
    """
    ignored_prefixes = heads
    if _is_bare_with_pooler(model):
        ignored_prefixes = (*heads, "pooler.")
    differences = []
    for name in sorted(info["missing_keys"]):
        if not name.startswith(ignored_prefixes):
            differences.append(f"{name} is missing")
    for name in sorted(info["unexpected_keys"]):
        if _belongs_to_encoder(name, model):
            differences.append(f"{name} is unexpected")
    for name, shape, expected_shape in sorted(info["mismatched_keys"]):
        differences.append(f"{name} is {tuple(shape)}, expected {tuple(expected_shape)}")
    return differences


def _belongs_to_encoder(name: str, model: Any) -> bool:
    """Return whether a tensor's name is one of the encoder itself, its pooler left out."""
    if name.endswith("position_ids"):  # numbers in order, which older versions saved
        return False
    name_in_encoder = name.removeprefix(f"{model.base_model_prefix}.")
    module_name, _, _ = name_in_encoder.partition(".")
    modules = dict(model.base_model.named_children())
    return module_name in modules and module_name != "pooler"


def pooler_tensors(model: Any, tensors: Tensors) -> dict[str, Tensor]:
    """Return the weights of a pooler among those of which a model was built, by the model's names.

    denserk computes nothing by them, but other libraries build BERT's pooler, and miss them. Empty
    if the weights, or the architecture, have no pooler.
    """
    encoder = model.base_model
    if not hasattr(encoder, "pooler"):
        return {}
    # stored names have the encoder's prefix or not; the model's have it if the model has a head
    encoder_prefix = f"{model.base_model_prefix}."
    model_prefix = "" if encoder is model else encoder_prefix
    poolers = {}
    for name, tensor in tensors.items():
        name_in_encoder = name.removeprefix(encoder_prefix)
        if name_in_encoder.startswith("pooler."):
            poolers[model_prefix + name_in_encoder] = tensor
    return poolers


def fill(folder: Path, module: nn.Module, tensors: Tensors) -> None:
    """Copy tensors into a module; a ModelError names all that are missing, surplus or misshapen."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        _, _, tensor_lines = str(error).partition("\n")  # after a heading
        raise ModelError(f"{folder}: {' '.join(tensor_lines.split())}") from None


@contextmanager
def silent() -> Iterator[None]:
    """Turn transformers' messages and progress bars off."""
    level = transformers_logging.get_verbosity()
    shows_progress = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shows_progress:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors in float32: safetensors by the name's suffix, or else a pickle."""
    written = {}
    for name, tensor in tensors.items():
        # a copy: safetensors writes no tensors that share memory
        written[name] = tensor.detach().to("cpu", torch.float32).clone()
    with whole_binary(path) as handle:
        if path.suffix == ".safetensors":
            handle.write(save(written, metadata={"format": "pt"}))
        else:
            buffer = io.BytesIO()  # torch reports a full disk by an error of its own
            torch.save(written, buffer)
            handle.write(buffer.getvalue())
