"""Table of architectures: what denserk must know of each beyond what AutoModel does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
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
        layers: path of the encoder's layers, where denserk can add decoder layers of their kind.
        offset: whether positions are counted from the padding id on, as in RoBERTa.
    """

    model_type: str
    head: tuple[str, ...] = ()
    transform: Callable[[Any, Tensor], Tensor] | None = None
    final_norm: str = ""
    layers: str = ""
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


_BERT = Architecture(
    "bert", head=("cls.predictions.",), transform=_TRANSFORMS["bert"], layers="encoder.layer"
)
_ROBERTA = Architecture(
    "roberta",
    head=("lm_head.",),
    transform=_TRANSFORMS["roberta"],
    layers="encoder.layer",
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
        ),
        Architecture(
            "modernbert",
            head=("head.", "decoder."),
            transform=_TRANSFORMS["modernbert"],
            layers="layers",
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
