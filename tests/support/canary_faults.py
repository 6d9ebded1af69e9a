"""Faults planted in the folder of a saved BERT: what the canary must find, and as which stage.

The model that they are planted in reads queries behind the prefix "query: ", cuts texts at 32 and
48 tokens, takes the mean of its states and normalises it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from denserk.models.canary import Stage

REPRESENTATION = {"representation": "mean", "l2_norm": True}
TEXT = {"query_prefix": "query: ", "query_max_length": 32, "passage_max_length": 48}


class Fault(NamedTuple):
    """A change of a model's folder, and the stage that differs by it."""

    name: str
    stage: Stage
    plant: Callable[[Path], None]


def change_json(file: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Return what changes the content of a JSON file in place."""

    def plant(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text("utf-8"))
        change(content)
        path.write_text(json.dumps(content), "utf-8")

    return plant


def change_tokenizer(change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Return what changes tokenizer.json, and lets it be read as it is.

    transformers makes the rules of a BertTokenizer anew, whatever that file says.
    """

    def plant(folder: Path) -> None:
        change_json("tokenizer.json", change)(folder)
        change_json("tokenizer_config.json", _without_class)(folder)

    return plant


def _without_class(content: Any) -> None:
    content["tokenizer_class"] = "PreTrainedTokenizerFast"


def own_setting(section: str, name: str, value: Any) -> Callable[[Path], None]:
    """Return what changes a setting of denserk.json."""

    def change(content: Any) -> None:
        content[section][name] = value

    return change_json("denserk.json", change)


def change_weights(change: Callable[[dict[str, Tensor]], None]) -> Callable[[Path], None]:
    """Return what changes tensors by their names."""

    def plant(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return plant


def _drop_sep(content: Any) -> None:
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_special("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [_special("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"[CLS]": _id_of(content, "[CLS]")},
    }


def _other_cls(content: Any) -> None:
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_special("[MASK]"), {"Sequence": {"id": "A", "type_id": 0}}, _special("[SEP]")],
        "pair": [_special("[MASK]"), {"Sequence": {"id": "A", "type_id": 0}}, _special("[SEP]")],
        "special_tokens": {
            "[MASK]": _id_of(content, "[MASK]"),
            "[SEP]": _id_of(content, "[SEP]"),
        },
    }


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _id_of(content: Any, token: str) -> dict[str, Any]:
    token_id = content["model"]["vocab"][token]
    return {"id": token, "ids": [token_id], "tokens": [token]}


def _keep_case(content: Any) -> None:
    content["normalizer"]["lowercase"] = False


def _swap_two_words(content: Any) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["water"], vocabulary["river"] = vocabulary["river"], vocabulary["water"]


def _round_to(dtype: torch.dtype) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(dtype).to(torch.float32)

    return change


def _matrix_of_layer(tensors: dict[str, Tensor], layer: int) -> str:
    """Return the name of a matrix of a layer, behind whatever prefix the model has."""
    ending = f"encoder.layer.{layer}.attention.output.dense.weight"
    (name,) = [name for name in tensors if name.endswith(ending)]
    return name


def _noise_in_one_layer(tensors: dict[str, Tensor]) -> None:
    name = _matrix_of_layer(tensors, 1)
    noise = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(5))
    tensors[name] = tensors[name] + noise * tensors[name].std()


def _swap_two_layers(tensors: dict[str, Tensor]) -> None:
    first, second = _matrix_of_layer(tensors, 0), _matrix_of_layer(tensors, 1)
    tensors[first], tensors[second] = tensors[second], tensors[first]


def _shift_positions(tensors: dict[str, Tensor]) -> None:
    (name,) = [name for name in tensors if name.endswith("position_embeddings.weight")]
    tensors[name] = tensors[name].roll(1, dims=0)


def _other_weights(tensors: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(9)
    for name, tensor in tensors.items():
        if tensor.dim() > 1:
            tensors[name] = torch.randn(tensor.shape, generator=generator) * tensor.std()


def _other_activation(content: Any) -> None:
    content["hidden_act"] = "relu"


FAULTS = (
    Fault("[SEP] is not added", Stage.TOKENIZER, change_tokenizer(_drop_sep)),
    Fault("[MASK] in place of [CLS]", Stage.TOKENIZER, change_tokenizer(_other_cls)),
    Fault("no lower-casing", Stage.TOKENIZER, change_tokenizer(_keep_case)),
    Fault("two words swapped", Stage.TOKENIZER, change_tokenizer(_swap_two_words)),
    Fault("prefix lost", Stage.PROMPT, own_setting("text", "query_prefix", "")),
    Fault("prefix added", Stage.PROMPT, own_setting("text", "passage_prefix", "passage: ")),
    Fault("queries cut shorter", Stage.LENGTH, own_setting("text", "query_max_length", 16)),
    Fault("passages cut later", Stage.LENGTH, own_setting("text", "passage_max_length", 52)),
    Fault("weights in bfloat16", Stage.PRECISION, change_weights(_round_to(torch.bfloat16))),
    Fault("pooling is cls", Stage.POOLING, own_setting("representation", "representation", "cls")),
    Fault("pooling is max", Stage.POOLING, own_setting("representation", "representation", "max")),
    Fault("fewer dimensions", Stage.DIMENSIONS, own_setting("representation", "truncate_dim", 8)),
    Fault("not normalised", Stage.NORMALISATION, own_setting("representation", "l2_norm", False)),
    Fault("noise in one layer", Stage.WEIGHTS, change_weights(_noise_in_one_layer)),
    Fault("two layers swapped", Stage.WEIGHTS, change_weights(_swap_two_layers)),
    Fault("positions off by one", Stage.WEIGHTS, change_weights(_shift_positions)),
    Fault("another model's weights", Stage.WEIGHTS, change_weights(_other_weights)),
    Fault("another activation", Stage.WEIGHTS, change_json("config.json", _other_activation)),
)
