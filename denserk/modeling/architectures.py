"""What differs from one kind of transformer to the next: the one file that knows architectures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from denserk.errors import ModelError
from denserk.modeling.model_config import read_model_type


@dataclass(frozen=True)
class LayerParts:
    """What one layer computes with: attention, norm, feed-forward, norm, each with a residual."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attended: nn.Linear
    attended_norm: nn.LayerNorm
    inner: nn.Linear
    outer: nn.Linear
    norm: nn.LayerNorm


@dataclass(frozen=True)
class Architecture:
    """What differs from one kind of transformer to the next.

    `prefix` is how the masked-LM model names its encoder's tensors, and those names are the ones
    denserk keeps. `head` lists the first parts of the MLM head's tensors. `tied` maps a tensor to
    the one it must be. `ignored` are first parts of tensors that other model classes leave in a
    file. `transform` is the MLM head up to its last layer, `decoder` the path of that layer.
    `final_norm` is the path of a norm after the last layer. `layers` is the path of the encoder's
    layers, `parts` what one of them computes with, where it is of the kind that `LayerParts` names,
    `activation` the name of its feed-forward's activation; `cross` is a layer with queries of
    their own, `first_position` the row of the position embeddings that a text begins with.
    """

    model_type: str
    encoder: str
    prefix: str = ""
    masked_lm: str | None = None
    head: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    transform: Callable[[Any, Tensor], Tensor] | None = None
    decoder: str = ""
    encoder_arguments: Mapping[str, Any] = field(default_factory=dict)
    has_cls: bool = True
    final_norm: str = ""
    positions: Callable[[PretrainedConfig], int | None] = lambda config: int(
        config.max_position_embeddings
    )
    layers: str = "encoder.layer"
    parts: Callable[[Any], LayerParts] | None = None
    activation: Callable[[PretrainedConfig], str] = lambda config: str(config.hidden_act)
    cross: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None
    first_position: Callable[[PretrainedConfig], int] = lambda config: 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name alone: functions cannot be pickled, and the table has them."""
        return _by_name, (self.model_type,)


def _by_name(model_type: str) -> Architecture:
    return ARCHITECTURES[model_type]


def _bert_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.cls.predictions.transform(hidden)
    return transformed


def _roberta_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.lm_head.layer_norm(F.gelu(model.lm_head.dense(hidden)))
    return transformed


def _distilbert_transform(model: Any, hidden: Tensor) -> Tensor:
    transformed: Tensor = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    return transformed


def _bert_parts(layer: Any) -> LayerParts:
    own, after = layer.attention.self, layer.attention.output
    return LayerParts(
        own.query,
        own.key,
        own.value,
        after.dense,
        after.LayerNorm,
        layer.intermediate.dense,
        layer.output.dense,
        layer.output.LayerNorm,
    )


def _distilbert_parts(layer: Any) -> LayerParts:
    own = layer.attention
    return LayerParts(
        own.q_lin,
        own.k_lin,
        own.v_lin,
        own.out_lin,
        layer.sa_layer_norm,
        layer.ffn.lin1,
        layer.ffn.lin2,
        layer.output_layer_norm,
    )


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, heads: int, dropout: float
) -> Tensor:
    """(B, T, H) three times, and who sees whom, (B, T, T) bool -> (B, T, H)."""
    query, key, value = (
        part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in (queries, keys, values)
    )
    context = F.scaled_dot_product_attention(query, key, value, seen.unsqueeze(1), dropout)
    return context.transpose(1, 2).flatten(2)


def _bert_cross(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    own = layer.attention.self
    projected = own.query(queries), own.key(states), own.value(states)
    dropout = own.dropout.p if layer.training else 0.0
    context = _attend(*projected, seen, own.num_attention_heads, dropout)
    result: Tensor = layer.feed_forward_chunk(layer.attention.output(context, queries))
    return result


def _distilbert_cross(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    own = layer.attention
    projected = own.q_lin(queries), own.k_lin(states), own.v_lin(states)
    dropout = own.dropout.p if layer.training else 0.0
    context = own.out_lin(_attend(*projected, seen, own.n_heads, dropout))
    attended = layer.sa_layer_norm(context + queries)
    result: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
    return result


ARCHITECTURES = {
    architecture.model_type: architecture
    for architecture in (
        Architecture(
            "bert",
            encoder="BertModel",
            prefix="bert.",
            masked_lm="BertForMaskedLM",
            head=("cls.predictions.",),
            tied={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
            ignored=("bert.pooler.", "cls.seq_relationship."),
            transform=_bert_transform,
            decoder="cls.predictions.decoder",
            encoder_arguments={"add_pooling_layer": False},
            parts=_bert_parts,
            cross=_bert_cross,
        ),
        Architecture(
            "roberta",
            encoder="RobertaModel",
            prefix="roberta.",
            masked_lm="RobertaForMaskedLM",
            head=("lm_head.",),
            tied={
                "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
            ignored=("roberta.pooler.",),
            transform=_roberta_transform,
            decoder="lm_head.decoder",
            encoder_arguments={"add_pooling_layer": False},
            parts=_bert_parts,
            # positions of real tokens start after the padding id
            positions=lambda config: config.max_position_embeddings - config.pad_token_id - 1,
            cross=_bert_cross,
            first_position=lambda config: int(config.pad_token_id) + 1,
        ),
        Architecture(
            "distilbert",
            encoder="DistilBertModel",
            prefix="distilbert.",
            masked_lm="DistilBertForMaskedLM",
            head=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
            tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
            transform=_distilbert_transform,
            decoder="vocab_projector",
            layers="transformer.layer",
            parts=_distilbert_parts,
            activation=lambda config: str(config.activation),
            cross=_distilbert_cross,
        ),
        Architecture(  # the discriminator; its generator and its heads are for pre-training alone
            "electra",
            encoder="ElectraModel",
            prefix="electra.",
            parts=_bert_parts,
            ignored=(
                "discriminator_predictions.",
                "generator_predictions.",
                "generator_lm_head.",
            ),
        ),
        Architecture(
            "t5",
            encoder="T5EncoderModel",
            tied={"encoder.embed_tokens.weight": "shared.weight"},
            ignored=("decoder.", "lm_head."),
            has_cls=False,
            final_norm="encoder.final_layer_norm",
            positions=lambda config: None,
        ),
    )
}


def architecture_of(folder: Path) -> Architecture:
    """The architecture that a folder's config.json names.

    Raises:
        ModelError: there is no config.json, or it names an architecture outside the table.
    """
    model_type = read_model_type(folder)
    if model_type not in ARCHITECTURES:
        raise ModelError(
            f"{folder}: the backbone {model_type!r} is not supported",
            f"supported: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[model_type]
