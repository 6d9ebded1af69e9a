"""A model from one published layout to another."""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from denserk.config.encoding import (
    AggKind,
    AggLayout,
    MlmHead,
    ModelLayout,
    Representation,
    RepresentationSettings,
    TermWeight,
    TextSettings,
)
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.io.files import whole_text
from denserk.models.checkpoints import find_model
from denserk.models.encoder import Encoder
from denserk.models.model_folder import (
    head_tensors,
    save_model,
    save_tokenizer,
    write_config,
    write_pickled_tensors,
)
from denserk.models.stored_model import (
    AUTHORS_SIDES,
    POOLER_FILE,
    TERM_WEIGHT_FILE,
    read_model_folder,
)
from denserk.models.text_encoder import override

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """Both sides of a model, ready to be written."""

    query: Encoder
    passage: Encoder
    tokenizer: Any
    text: TextSettings
    base: str

    @property
    def settings(self) -> RepresentationSettings:
        """The representation of passages."""
        return self.passage.settings

    @property
    def longest(self) -> int:
        """The longer of the two lengths."""
        return max(self.text.query_max_length, self.text.passage_max_length)


def convert_model(
    source: str,
    target: Path,
    layout: ModelLayout,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
) -> None:
    """Write a model in another layout.

    Args:
        source: a short name, a folder, or a name on the hub.
        target: the folder to write.
        layout: the layout to write it in.
        representation: fields of `RepresentationSettings` that replace what the source says about
            itself; the authors' layout does not record its dimensions.
        text: the same for `TextSettings`.

    Raises:
        ModelError: the source cannot be loaded, or the layout cannot hold it; all reasons are
            given.
    """
    name, folder = find_model(source)
    stored = read_model_folder(folder)
    query, passage = stored.build(override(stored.representation, representation))
    tokenizer = load_tokenizer(stored.passage.folder)
    model = LoadedModel(query, passage, tokenizer, override(stored.text, text), name)
    WRITERS[layout](target, model)


def _write_denserk(target: Path, model: LoadedModel) -> None:
    save_model(target, model.passage, model.tokenizer, model.text, model.query, model.base)


def _write_pyserini(target: Path, model: LoadedModel) -> None:
    settings = model.settings
    fixed = {"agg_dim": 640, "cls_dim": 128, "agg_kind": AggKind.STAR}
    wrong = [
        f"{name.replace('_', '-')} is {getattr(settings, name)}, not {value}"
        for name, value in {**AGGRETRIEVER, **fixed}.items()
        if getattr(settings, name) != value
    ]
    if model.query is not model.passage:
        wrong.append("queries have weights of their own")
    if model.passage.backbone.architecture.model_type not in WORD_LIST_BACKBONES:
        wrong.append(f"its backbone is {model.passage.backbone.architecture.model_type}")
    _refuse(ModelLayout.AGGRETRIEVER_PYSERINI, wrong)
    _tell_unrecorded(ModelLayout.AGGRETRIEVER_PYSERINI, model)
    backbone = model.passage.backbone
    tensors = {f"encoder.{name}": tensor for name, tensor in backbone.model.state_dict().items()}
    write_pickled_tensors(target / "pytorch_model.bin", {**tensors, **head_tensors(model.passage)})
    save_tokenizer(target, model.tokenizer, model.longest, backbone.max_length)
    write_config(target, backbone.model, hidden_states=True)


def _write_authors(target: Path, model: LoadedModel) -> None:
    settings = model.settings
    wrong = [
        f"{name.replace('_', '-')} is {getattr(settings, name)}, not {value}"
        for name, value in AGGRETRIEVER.items()
        if getattr(settings, name) != value
    ]
    model_types = {encoder.backbone.architecture.model_type for encoder in _sides(model).values()}
    wrong += [f"its backbone is {name}" for name in model_types - WORD_LIST_BACKBONES]
    if settings.agg_kind not in (AggKind.STAR, AggKind.PLUS, AggKind.NONE):
        wrong.append(f"agg-kind is {settings.agg_kind}")
    _refuse(ModelLayout.AGGRETRIEVER_AUTHORS, wrong)
    _tell_unrecorded(ModelLayout.AGGRETRIEVER_AUTHORS, model)
    shared = model.query is model.passage
    heads = {letter: head_tensors(encoder) for letter, encoder in _sides(model).items()}
    for file, name in ((POOLER_FILE, "cls_proj"), (TERM_WEIGHT_FILE, "tok_proj")):
        if f"{name}.weight" in heads["p"]:
            _write_linear(target / file, name, heads, tied=shared)
    folders = [target] * 2 if shared else [target / side for side in AUTHORS_SIDES]
    for folder, encoder in zip(folders, _sides(model).values(), strict=True):
        write_pickled_tensors(folder / "pytorch_model.bin", encoder.backbone.model.state_dict())
        save_tokenizer(folder, model.tokenizer, model.longest, encoder.backbone.max_length)
        _write_word_list(folder / "vocab.txt", model.tokenizer)
        write_config(folder, encoder.backbone.model, hidden_states=True)


def _write_word_list(path: Path, tokenizer: Any) -> None:
    """The vocabulary by id, a line each, as the released code's tokenizer reads it."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with whole_text(path) as out:
        out.writelines(f"{word}\n" for word, _ in words)


def _sides(model: LoadedModel) -> dict[str, Encoder]:
    return {"q": model.query, "p": model.passage}


def _write_linear(
    path: Path, name: str, heads: Mapping[str, Mapping[str, Tensor]], *, tied: bool
) -> None:
    tensors = {
        f"linear_{letter}.{leaf}": own[f"{name}.{leaf}"]
        for letter, own in heads.items()
        for leaf in ("weight", "bias")
    }
    write_pickled_tensors(path, tensors)
    outputs, inputs = heads["p"][f"{name}.weight"].shape
    config = {"input_dim": inputs, "output_dim": outputs, "tied": tied}
    with whole_text(path.with_name(f"{path.stem}_config.json")) as out:
        out.write(json.dumps(config) + "\n")


# Settings that readers of the published Aggretriever layouts assume.
AGGRETRIEVER: Mapping[str, Any] = {
    "representation": Representation.AGG,
    "l2_norm": False,
    "agg_layout": AggLayout.STRIDED,
    "term_weight": TermWeight.CLAMP,
    "mlm_head": MlmHead.PRETRAINED,
}
# Backbones that those readers know.
WORD_LIST_BACKBONES = {"bert", "distilbert"}


def _refuse(layout: ModelLayout, wrong: list[str]) -> None:
    if wrong:
        raise ModelError(
            f"the layout {layout} cannot hold this model: {'; '.join(wrong)}",
            f"write it with --to {ModelLayout.DENSERK}",
        )


def _tell_unrecorded(layout: ModelLayout, model: LoadedModel) -> None:
    s, t = model.settings, model.text
    logger.info(
        f"{layout} does not record agg-kind {s.agg_kind}, agg-dim {s.agg_dim}, agg-order "
        f"{s.agg_order}, lengths {t.query_max_length} and {t.passage_max_length}"
    )


WRITERS: Mapping[ModelLayout, Callable[[Path, LoadedModel], None]] = {
    ModelLayout.DENSERK: _write_denserk,
    ModelLayout.AGGRETRIEVER_PYSERINI: _write_pyserini,
    ModelLayout.AGGRETRIEVER_AUTHORS: _write_authors,
}
