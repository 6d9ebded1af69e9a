"""config.json of a model: checked field by field before transformers reads it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.activations import ACT2FN

from denserk.errors import ModelError
from denserk.formats.schema import OBJECT, TEXT, Rule, number, one_of, optional, record, require
from denserk.formats.schema import whole as whole_number
from denserk.modeling.weight_files import UNREADABLE, read_json, weight_files

FILE = "config.json"
HIDDEN = ("hidden_size", "dim", "d_model", "n_embd")
HEADS = ("num_attention_heads", "n_heads", "num_heads", "n_head")
LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
INNER = ("intermediate_size", "hidden_dim", "d_ff", "n_inner")
POSITIONS = ("max_position_embeddings", "n_positions")
"""Names of one size in the architectures of transformers."""
_DROPOUTS = (
    *("attention_probs_dropout_prob", "attention_dropout", "dropout", "dropout_rate"),
    *("hidden_dropout_prob", "embd_pdrop", "attn_pdrop", "resid_pdrop"),
)
_TYPES = ("float32", "float16", "bfloat16", "float64", "auto")
_FIELDS: Mapping[str, Rule] = {
    **dict.fromkeys((*HIDDEN, "embedding_size", "d_kv"), whole_number(1, 1 << 16)),
    **dict.fromkeys(HEADS, whole_number(1, 1 << 10)),
    **dict.fromkeys((*LAYERS, "num_decoder_layers"), optional(whole_number(1, 1000))),
    **dict.fromkeys(INNER, optional(whole_number(1, 1 << 20))),
    **dict.fromkeys((*POSITIONS, "vocab_size"), whole_number(1, 10**7)),
    **dict.fromkeys(("type_vocab_size", "num_labels"), whole_number(0, 10**6)),
    **dict.fromkeys(_DROPOUTS, number(0, 1)),
    **dict.fromkeys(("hidden_act", "activation", "activation_function"), one_of(*ACT2FN)),
    **dict.fromkeys(("dtype", "torch_dtype"), optional(one_of(*_TYPES))),
    **dict.fromkeys(("id2label", "label2id"), optional(OBJECT)),
    "classifier_dropout": optional(number(0, 1)),
    "initializer_range": number(0, 1000),
    "layer_norm_eps": number(0, 1),
    "pad_token_id": optional(whole_number(-1)),
}
LOADS_CODE = ("_attn_implementation", "attn_implementation", "auto_map")
"""Fields by which a file would choose other code to run; they are ignored."""


def read_model_type(folder: Path) -> str:
    """The kind of transformer that a folder's config.json names.

    Raises:
        ModelError: there is no config.json, or it cannot be read.
        InputError: it names none.
    """
    if not (folder / FILE).is_file():
        raise ModelError(f"{folder} has no {FILE}: it is not a saved transformer")
    values = read_json(folder / FILE)
    require(values, record({"model_type": TEXT}), folder / FILE)
    kind: str = values["model_type"]
    return kind


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of a folder's model.

    Raises:
        ModelError: there is none, it contradicts itself, or the weights are not of its size.
        InputError: a field is of the wrong type or out of range.
    """
    kind, path = read_model_type(folder), folder / FILE
    values = {name: value for name, value in read_json(path).items() if name not in LOADS_CODE}
    require(values, record({"vocab_size": _FIELDS["vocab_size"]}, _FIELDS), path)
    hidden, heads = _first(values, HIDDEN), _first(values, HEADS)
    if hidden and heads and "d_kv" not in values and hidden % heads:
        raise ModelError(f"{path}: a hidden size of {hidden} does not divide by {heads} heads")
    padding, vocabulary = values.get("pad_token_id"), values.get("vocab_size")
    if padding is not None and vocabulary is not None and padding >= vocabulary:
        raise ModelError(f"{path}: pad_token_id {padding} is beyond the {vocabulary} tokens")
    needed, there = _least_weights(values), _bytes(weight_files(folder))
    if needed > there:
        raise ModelError(
            f"{path} describes a model of {needed:,} weights or more; the files of weights have "
            f"{there:,} bytes",
            "fetch the files again: they belong to different models",
        )
    if kind not in CONFIG_MAPPING:
        raise ModelError(f"{path}: transformers does not know the model_type {kind[:60]!r}")
    with config_errors(folder):
        config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(values)
    return config


@contextmanager
def config_errors(folder: Path) -> Iterator[None]:
    """Turn what transformers raises for a configuration into one line.

    Raises:
        ModelError: no model can be made from it.
    """
    try:
        yield
    except (*UNREADABLE, AssertionError, ImportError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(
            f"{folder / FILE}: transformers makes no model of it ({reason})", "fetch it again"
        ) from None


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """A size by the name that a configuration has for it; 0 where it has none."""
    return next((values[name] for name in names if values.get(name)), 0)


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.exists())


def _least_weights(values: Mapping[str, Any]) -> int:
    """A lower bound of the number of a model's weights."""
    hidden = _first(values, HIDDEN)
    width = values.get("embedding_size", hidden)
    tables = (values.get("vocab_size", 0) + _first(values, POSITIONS)) * width
    attention = min(hidden, values.get("d_kv", hidden) * _first(values, HEADS))
    layer = 2 * hidden * (attention + _first(values, INNER))
    return int(tables + _first(values, LAYERS) * layer)
