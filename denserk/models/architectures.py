"""Table of architectures: what denserk must know of each beyond what AutoModel does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)


@dataclass(frozen=True)
class Architecture:
    """An architecture: what denserk must know of it beyond what AutoModel does.

    An architecture without a row in `ARCHITECTURES` can be an encoder and nothing else.

    Attributes:
        model_type: as in config.json.
        head: first parts of the names of the masked-language-model head's tensors.
        transform: that head up to its last layer, the decoder.
        final_norm: path of the norm after the last layer (T5).
        layers: path of the encoder's layers, for those that new decoder layers are made after.
        run: new layers over states (B, T, H) and a mask (B, T).
        cross: a layer whose queries are of other states than its keys and values (RetroMAE).
        offset: whether positions are counted from the padding id on, as in RoBERTa.
    """

    model_type: str
    head: tuple[str, ...] = ()
    transform: Callable[[Any, Tensor], Tensor] | None = None
    final_norm: str = ""
    layers: str = ""
    run: Callable[[Any, Iterable[nn.Module], Tensor, Tensor], Tensor] | None = None
    cross: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None
    offset: bool = False

    @property
    def has_cls(self) -> bool:
        """True if texts begin with a [CLS] token that attends to all others."""
        return self.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES

    @property
    def is_decoder(self) -> bool:
        """True if a token attends to earlier ones only."""
        return not self.has_cls and self.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    def first_position(self, config: PretrainedConfig) -> int:
        """The row of the position embeddings that a text begins with."""
        return int(config.pad_token_id or 0) + 1 if self.offset else 0

    def positions(self, config: PretrainedConfig) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        count = getattr(config, "max_position_embeddings", None)
        return int(count) - self.first_position(config) if count and count > 0 else None


# MLM heads up to their decoder: (model, (..., H)) -> (..., H)
_TRANSFORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": lambda model, hidden: model.cls.predictions.transform(hidden),
    "roberta": lambda model, hidden: model.lm_head.layer_norm(F.gelu(model.lm_head.dense(hidden))),
    "distilbert": lambda model, hidden: model.vocab_layer_norm(
        model.activation(model.vocab_transform(hidden))
    ),
    "modernbert": lambda model, hidden: model.head(hidden),
}


def _cross(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    """Layer of BERT or DistilBERT whose queries, and residual, are not its keys' states."""
    named = hasattr(layer.attention, "self")  # BERT's names, or DistilBERT's
    own = layer.attention.self if named else layer.attention
    linears = (own.query, own.key, own.value) if named else (own.q_lin, own.k_lin, own.v_lin)
    query, key, value = (
        linear(part).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
        for linear, part in zip(linears, (queries, states, states), strict=True)
    )
    dropout = own.dropout.p if layer.training else 0.0
    context = F.scaled_dot_product_attention(query, key, value, seen.unsqueeze(1), dropout)
    context = context.transpose(1, 2).flatten(2)
    result: Tensor
    if named:
        result = layer.feed_forward_chunk(layer.attention.output(context, queries))
    else:
        attended = layer.sa_layer_norm(own.out_lin(context) + queries)
        result = layer.output_layer_norm(layer.ffn(attended) + attended)
    return result


def _run(model: Any, layers: Iterable[nn.Module], states: Tensor, mask: Tensor) -> Tensor:
    """Run new layers; ModernBERT's have rotary positions, and its own norm follows the last."""
    encoder = model.base_model
    bias = create_bidirectional_mask(model.config, states, mask)
    if not hasattr(encoder, "rotary_emb"):
        for layer in layers:
            states = layer(states, bias)
        return states
    places = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
    for layer in layers:
        rotary = encoder.rotary_emb(states, places, layer.attention_type)
        states = layer(states, attention_mask=bias, position_embeddings=rotary)
    normed: Tensor = encoder.final_norm(states)
    return normed


_BERT = Architecture(
    "bert",
    head=("cls.predictions.",),
    transform=_TRANSFORMS["bert"],
    layers="encoder.layer",
    run=_run,
    cross=_cross,
)
_ROBERTA = Architecture(
    "roberta",
    head=("lm_head.",),
    transform=_TRANSFORMS["roberta"],
    layers="encoder.layer",
    run=_run,
    cross=_cross,
    offset=True,
)
_T5 = Architecture("t5", final_norm="encoder.final_layer_norm")
ARCHITECTURES = {
    row.model_type: row
    for row in (
        _BERT,
        _ROBERTA,
        replace(_ROBERTA, model_type="xlm-roberta"),
        Architecture(
            "distilbert",
            head=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
            transform=_TRANSFORMS["distilbert"],
            layers="transformer.layer",
            run=_run,
            cross=_cross,
        ),
        Architecture(
            "modernbert",
            head=("head.", "decoder."),
            transform=_TRANSFORMS["modernbert"],
            layers="layers",
            run=_run,
        ),
        Architecture("mpnet", head=("lm_head.",), transform=_TRANSFORMS["roberta"], offset=True),
        Architecture("deberta-v2", head=("cls.predictions.",), transform=_TRANSFORMS["bert"]),
        _T5,
        replace(_T5, model_type="mt5"),
        replace(_T5, model_type="umt5"),
        *(
            Architecture(name, offset=True)
            for name in ("camembert", "data2vec-text", "longformer", "xlm-roberta-xl", "xmod")
        ),
    )
}


def architecture_of(model_type: str) -> Architecture:
    """Return the row of a model type, or one that knows nothing but its name."""
    return ARCHITECTURES.get(model_type, Architecture(model_type))
