"""Writing models: denserk's one folder, and what every layout shares."""

import copy
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save
from torch import Tensor
from transformers import PretrainedConfig

from denserk import __version__
from denserk.formats.files import whole_binary, whole_text, write_errors
from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.folder_layouts import DENSERK_FILE, FORMAT_VERSION, PASSAGE_SIDE, QUERY_SIDE
from denserk.modeling.sentence_transformers_folder import write_sentence_transformers
from denserk.settings.encoding import MlmHead, TextSettings
from denserk.settings.options import as_json


class Transformer(Protocol):
    """What the files beside the weights tell of a model."""

    config: PretrainedConfig
    model: Any

    @property
    def max_length(self) -> int | None:
        """The longest input it has positions for; None: any length."""


def save_model(
    folder: Path,
    passage: Encoder,
    tokenizer: Any,
    text: TextSettings,
    query: Encoder | None = None,
    base: str = "",
) -> None:
    """Writes a model so that denserk, transformers, sentence-transformers and Pyserini load it.

    `model.safetensors` holds the masked-LM model's tensors by their usual names, tied ones
    included, and the representation's own beside them; `denserk.json` how vectors are made. A model
    whose sides have weights of their own has a whole folder for each, `query/` and `document/`.
    config.json comes last: a folder whose writing was cut short has none, and nothing loads it.

    Args:
        folder: where; made if absent, files of the same names are replaced.
        passage: the encoder of passages, and of queries where `query` is left out.
        tokenizer: a fast tokenizer of transformers.
        text: how records become text.
        query: the encoder of queries, where it has weights of its own.
        base: the model that it was made from, for the model card.

    Raises:
        OutputError: the folder cannot be written.
    """
    if query is None or query is passage:
        _save_side(folder, passage, tokenizer, text, base)
        return
    _save_side(folder / QUERY_SIDE, query, tokenizer, text, base)
    _save_side(folder / PASSAGE_SIDE, passage, tokenizer, text, base)
    write_sentence_transformers(folder, passage, text, base, tied=False)
    _write_own_file(folder, passage, text)


def _save_side(
    folder: Path, encoder: Encoder, tokenizer: Any, text: TextSettings, base: str
) -> None:
    heads = head_tensors(encoder)
    tensors = {**encoder.backbone.canonical(), **heads}
    write_tensors(folder / "model.safetensors", tensors)
    if heads:  # Pyserini's newer readers take the heads from here
        write_pickled_tensors(folder / "pytorch_model.bin", heads)
    save_tokenizer(folder, tokenizer, text, encoder.backbone)
    write_sentence_transformers(folder, encoder, text, base)
    _write_own_file(folder, encoder, text)
    write_config(folder, encoder.backbone, hidden_states=bool(heads))


def save_masked_lm(folder: Path, backbone: Backbone, tokenizer: Any) -> None:
    """Writes a backbone with its MLM head as an ordinary model of transformers.

    config.json comes last, as in `save_model`.

    Args:
        folder: where; made if absent, files of the same names are replaced.
        backbone: with its MLM head.
        tokenizer: a fast tokenizer of transformers.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_tensors(folder / "model.safetensors", backbone.canonical())
    save_limited_tokenizer(folder, tokenizer, tokenizer.model_max_length, backbone)
    write_config(folder, backbone, hidden_states=False)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors, float32, sharing no memory."""
    owned = {n: t.detach().to("cpu", torch.float32).clone() for n, t in tensors.items()}
    with whole_binary(path) as handle:
        handle.write(save(owned, metadata={"format": "pt"}))


def _write_own_file(folder: Path, encoder: Encoder, text: TextSettings) -> None:
    representation = as_json(encoder.settings)
    if representation["mlm_head"] == MlmHead.FRESH:
        representation["mlm_head"] = MlmHead.PRETRAINED.value
    backbone = encoder.backbone.architecture.model_type
    write_own_file(folder, backbone, {"representation": representation, "text": as_json(text)})


def write_own_file(folder: Path, backbone: str, told: Mapping[str, Any]) -> None:
    """Writes denserk.json: what a model is used as.

    Args:
        folder: where.
        backbone: its kind of transformer.
        told: settings by class, as JSON.
    """
    versions = {"format_version": FORMAT_VERSION, "denserk_version": __version__}
    with whole_text(folder / DENSERK_FILE) as out:
        text = json.dumps({**versions, "backbone": backbone, **told}, indent=2, ensure_ascii=False)
        out.write(text + "\n")


def head_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """The representation's own tensors; empty where it has none."""
    return {n: t.detach() for n, t in encoder.representation.state_dict().items()}


def write_pickled_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as a plain pickle of tensors, float32, sharing no memory."""
    owned = {name: t.detach().to("cpu", torch.float32).clone() for name, t in tensors.items()}
    buffer = io.BytesIO()
    torch.save(owned, buffer)
    with whole_binary(path) as handle:
        handle.write(buffer.getbuffer())


def write_config(folder: Path, backbone: Transformer, *, hidden_states: bool) -> None:
    """Writes config.json.

    Args:
        folder: where.
        backbone: the model it describes.
        hidden_states: ask for all hidden states, which Pyserini's Aggretriever class needs.
    """
    config = copy.deepcopy(backbone.config)
    config.architectures = [type(backbone.model).__name__]
    values = {**config.to_dict(), "output_hidden_states": hidden_states, "dtype": "float32"}
    values.pop("_name_or_path", None)
    with whole_text(folder / "config.json") as out:
        out.write(json.dumps(values, indent=2, sort_keys=True) + "\n")


def save_tokenizer(folder: Path, tokenizer: Any, text: TextSettings, backbone: Transformer) -> None:
    """Writes a tokenizer, limited to the model's lengths for readers that ask for no other."""
    longest = max(text.query_max_length, text.passage_max_length)
    save_limited_tokenizer(folder, tokenizer, longest, backbone)


def save_limited_tokenizer(
    folder: Path, tokenizer: Any, longest: int, backbone: Transformer
) -> None:
    """Writes a tokenizer that cuts at `longest`, or at the model's positions."""
    own = copy.deepcopy(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    own.model_max_length = min(longest, backbone.max_length or longest)
    with write_errors(folder):
        own.save_pretrained(folder)
