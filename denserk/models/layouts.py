"""A model in another layout: denserk's own, or those of published Aggretriever models."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from denserk.config import encoding
from denserk.config.encoding import Representation
from denserk.config.options import NOTHING
from denserk.errors import ModelError
from denserk.io.manifest import differences
from denserk.io.model_files import find_model, read_json
from denserk.io.outputs import DENSERK_FILE
from denserk.io.written_files import whole_text
from denserk.models.checkpoints import write_tensors
from denserk.models.model_card import origin_of
from denserk.models.model_folder import (
    AUTHORS_HEADS,
    AUTHORS_SIDES,
    StoredModel,
    override,
    read_model_folder,
)
from denserk.models.representation import Encoder
from denserk.models.saving import (
    PICKLE_FILE,
    save_canary,
    save_model,
    save_transformer,
    write_json,
)

logger = logging.getLogger(__name__)

# Settings and backbones that readers of the published Aggretriever layouts assume.
AGGRETRIEVER: dict[str, Any] = {
    "representation": Representation.AGG,
    "l2_norm": False,
    "agg_layout": encoding.AggLayout.STRIDED,
    "term_weight": encoding.TermWeight.CLAMP,
    "mlm_head": encoding.MlmHead.PRETRAINED,
    "projection": 0,
}
PYSERINI = {**AGGRETRIEVER, "agg_dim": 640, "cls_dim": 128, "agg_kind": encoding.AggKind.STAR}
WORD_LIST_BACKBONES = ("bert", "distilbert")


def convert_model(
    source: str,
    target: Path,
    layout: encoding.ModelLayout,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    average: Sequence[str] = (),
) -> None:
    """Write a model, given by a short name, a folder or a name on the hub, in another layout.

    `representation` and `text` replace settings of the source. With models to `average`, weights
    are the mean (w_1 + ... + w_k) / k of all, in float32 ("Model soups", Wortsman et al., 2022).
    """
    name, folder = find_model(source)
    stored = read_model_folder(folder)
    query, passage = stored.build(stored.choose(representation, text))
    averaged_fingerprints = _average((query, passage), stored, average)
    tokenizer = stored.load_tokenizer(stored.passage.folder)
    text_settings = override(stored.text, text)
    if layout is encoding.ModelLayout.DENSERK:
        save_model(
            target,
            passage,
            tokenizer,
            text_settings,
            query,
            base=origin_of(name, folder),
            dimensions=stored.dimensions,
            queries_of=stored.queries_of,
            metric=stored.metric,
        )
        if average:
            fingerprints = {name: stored.fingerprint(), **averaged_fingerprints}
            recorded = read_json(target / DENSERK_FILE)
            write_json(target / DENSERK_FILE, {**recorded, "average_of": fingerprints})
        return
    _reject_layout(layout, query, passage)
    settings = passage.settings
    logger.info(
        f"{layout} does not record agg-kind {settings.agg_kind}, agg-dim {settings.agg_dim}, "
        f"agg-order {settings.agg_order}, lengths {text_settings.query_max_length} and "
        f"{text_settings.passage_max_length}"
    )
    longest = max(text_settings.query_max_length, text_settings.passage_max_length)
    if layout is encoding.ModelLayout.AGGRETRIEVER_PYSERINI:
        _write_pyserini(target, passage, tokenizer, longest)
    else:
        _write_authors(target, query, passage, tokenizer, longest)
    _add_canary(target)


def _add_canary(folder: Path) -> None:
    """Write the canary of a folder in a format that records not all settings.

    The model is read again, as others will read it: with the settings that were recorded.
    """
    stored = read_model_folder(folder)
    query, passage = stored.build(stored.representation)
    tokenizer = stored.load_tokenizer(stored.passage.folder)
    save_canary(folder, passage, query, tokenizer, stored.text)


def _write_pyserini(target: Path, encoder: Encoder, tokenizer: Any, longest: int) -> None:
    """Write Aggretriever's layout that Pyserini reads, one file with the heads."""
    model = encoder.backbone.model
    tensors = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= encoder.representation.state_dict()
    save_transformer(
        target, model, tensors, tokenizer, longest, file=PICKLE_FILE, hidden_states=True
    )


def _write_authors(
    target: Path, query: Encoder, passage: Encoder, tokenizer: Any, longest: int
) -> None:
    """Write the layout of Aggretriever's authors: files of heads, and a folder for each encoder."""
    _write_authors_heads(target, query, passage)
    if query is passage:
        _write_authors_encoder(target, passage, tokenizer, longest)
        return
    query_side, passage_side = AUTHORS_SIDES
    _write_authors_encoder(target / query_side, query, tokenizer, longest)
    _write_authors_encoder(target / passage_side, passage, tokenizer, longest)


def _write_authors_heads(target: Path, query: Encoder, passage: Encoder) -> None:
    """Write a file of each linear layer, and one of its sizes."""
    for file, head in AUTHORS_HEADS.items():
        query_head = getattr(query.representation, head)
        passage_head = getattr(passage.representation, head)
        if passage_head is None:
            continue
        heads = nn.ModuleDict({"linear_q": query_head, "linear_p": passage_head})
        write_tensors(target / file, heads.state_dict())
        config = {
            "input_dim": passage_head.in_features,
            "output_dim": passage_head.out_features,
            "tied": query is passage,
        }
        with whole_text(target / f"{Path(file).stem}_config.json") as out:
            out.write(json.dumps(config) + "\n")


def _write_authors_encoder(folder: Path, encoder: Encoder, tokenizer: Any, longest: int) -> None:
    """Write the folder of an encoder, with its list of words for the released code's tokenizer."""
    ids_by_word = tokenizer.get_vocab()
    with whole_text(folder / "vocab.txt") as out:
        out.writelines(f"{word}\n" for word in sorted(ids_by_word, key=ids_by_word.__getitem__))
    model = encoder.backbone.model
    save_transformer(
        folder,
        model,
        model.state_dict(),
        tokenizer,
        longest,
        file=PICKLE_FILE,
        hidden_states=True,
    )


def _average(sides: Sequence[Encoder], stored: StoredModel, names: Sequence[str]) -> dict[str, str]:
    """Give the sides of a stored model the mean of all models' weights; return fingerprints."""
    fingerprints = {}
    for number, name in enumerate(names, start=2):
        _, folder = find_model(name)
        averaged = read_model_folder(folder)
        changes = differences(stored.shared_settings(), averaged.shared_settings())
        if changes:
            message = f"{name} cannot be averaged with {stored.root}: {'; '.join(changes)}"
            raise ModelError(message, "average models that were trained alike from one model")
        means = nn.ModuleList(sides).parameters()  # shared ones once
        weights = nn.ModuleList(averaged.build(sides[0].settings)).parameters()
        for mean, weight in zip(means, weights, strict=True):
            mean.data.lerp_(weight.data, 1 / number)
        fingerprints[name] = averaged.fingerprint()
    return fingerprints


def _reject_layout(layout: encoding.ModelLayout, query: Encoder, passage: Encoder) -> None:
    """Raise a ModelError that names all that a published Aggretriever layout cannot hold."""
    is_pyserini = layout is encoding.ModelLayout.AGGRETRIEVER_PYSERINI
    assumed_settings = PYSERINI if is_pyserini else AGGRETRIEVER
    wrong = []
    for name, assumed_value in assumed_settings.items():
        value = getattr(passage.settings, name)
        if value != assumed_value:
            wrong.append(f"{name.replace('_', '-')} is {value}, not {assumed_value}")
    if is_pyserini and query is not passage:
        wrong.append("queries have weights of their own")
    if passage.settings.agg_kind in (encoding.AggKind.LINEAR, encoding.AggKind.AVERAGE):
        wrong.append(f"agg-kind is {passage.settings.agg_kind}")
    backbone = passage.backbone.architecture.model_type
    if backbone not in WORD_LIST_BACKBONES:
        wrong.append(f"its backbone is {backbone}")
    if wrong:
        raise ModelError(
            f"the layout {layout} cannot hold this model: {'; '.join(wrong)}",
            f"write it with --to {encoding.ModelLayout.DENSERK}",
        )
