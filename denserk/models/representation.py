"""The table Representation -> the module that makes the vector, and the modules."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from denserk.config.encoding import (
    AggKind,
    AggOrder,
    MlmHead,
    Representation,
    RepresentationSettings,
    TermWeight,
)
from denserk.data.batches import TokenBatch
from denserk.errors import ModelError
from denserk.models.architectures import Architecture
from denserk.models.backbone import Backbone
from denserk.models.lexical import (
    WEIGHT_RULES,
    VocabularyBlock,
    aggregate,
    aggregate_tokens,
    inference_linear,
    vocabulary_blocks,
)
from denserk.models.multi_vector import MultiVector
from denserk.models.pooling import at_least_float32, pool_cls, pool_last, pool_max, pool_mean
from denserk.models.slice_layout import SliceLayout


class Pooled(nn.Module):
    """A pooling without weights of its own.

    Args:
        pool: (B, T, H) and a mask -> (B, H).
        hidden_size: H.
    """

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], hidden_size: int) -> None:
        super().__init__()
        self.pool = pool
        self.dimension = hidden_size

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32."""
        return at_least_float32(self.pool(hidden, batch.attention_mask))


class Aggretriever(nn.Module):
    """[CLS] projection beside the folded lexical vector (Aggretriever paper, section 3).

    The weights are `tok_proj` (a position's weight, from its last hidden state), `cls_proj` (the
    [CLS] part) and, for the kinds that map linearly, `agg_proj`; each exists only where the
    settings use it.

    Args:
        settings: how the vector is made.
        hidden_size: H.
        vocabulary: V.
    """

    def __init__(self, settings: RepresentationSettings, hidden_size: int, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        self._blocks: list[VocabularyBlock] | None = None
        self.vocabulary = vocabulary
        self.cls_dim, self.agg_dim = part_sizes(settings, vocabulary)
        kind = settings.agg_kind
        self.layout: SliceLayout | None = None
        if self.agg_dim and kind in (AggKind.STAR, AggKind.PLUS):
            self.layout = SliceLayout.build(
                vocabulary, self.agg_dim, kind, settings.agg_layout, settings.agg_seed
            )
        self.cls_proj = nn.Linear(hidden_size, self.cls_dim) if self.cls_dim else None
        weighs = self.agg_dim and kind is not AggKind.AVERAGE
        learned = weighs and settings.term_weight is not TermWeight.ONE
        self.tok_proj = nn.Linear(hidden_size, 1) if learned else None
        inputs = {AggKind.LINEAR: vocabulary, AggKind.AVERAGE: hidden_size}.get(kind)
        self.agg_proj = nn.Linear(inputs, self.agg_dim) if self.agg_dim and inputs else None

    @property
    def dimension(self) -> int:
        """D."""
        return self.cls_dim + self.agg_dim

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32."""
        parts = []
        if self.cls_proj is not None:
            parts.append(self.cls_proj(at_least_float32(hidden[:, 0])))
        if self.agg_dim:
            parts.append(self.lexical_part(hidden, batch, backbone))
        if self.settings.agg_order is AggOrder.AGG_CLS:
            parts.reverse()
        return torch.cat(parts, dim=-1)

    def prepare_inference(self, backbone: Backbone, dtype: torch.dtype) -> None:
        """Lay the MLM decoder out once, in the precision to compute in; no training afterwards."""
        if needs_mlm_head(self.settings):
            decoder = backbone.decoder
            self._blocks = vocabulary_blocks(
                decoder.weight, decoder.bias, self.layout, inference_linear(dtype)
            )

    def lexical_part(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """The lexical part: (B, T, H) -> (B, agg_dim); position 0 takes no part, [SEP] does."""
        states, mask = hidden[:, 1:], batch.attention_mask[:, 1:]
        if self.settings.agg_kind is AggKind.AVERAGE:
            vector = pool_mean(states, mask)
        elif self.settings.mlm_head is MlmHead.NONE:
            weights = self.term_weights(states, mask)
            vector = aggregate_tokens(batch.input_ids[:, 1:], weights, mask, self.vocabulary)
            vector = vector if self.layout is None else self.layout.fold(vector)
        else:
            vector = self.head_part(states, mask, backbone)
            vector = vector if self.layout is None else self.layout.join_halves(vector)
        return vector if self.agg_proj is None else self.agg_proj(vector)

    def head_part(self, states: Tensor, mask: Tensor, backbone: Backbone) -> Tensor:
        """The maxima of the layout's columns, through the MLM head: (B, T, H) -> (B, modulus)."""
        decoder, blocks = backbone.decoder, self._blocks
        return aggregate(
            states,
            self.term_weights(states, mask),
            mask,
            backbone.transform,
            blocks or vocabulary_blocks(decoder.weight, decoder.bias, self.layout),
            self.vocabulary if self.layout is None else self.layout.modulus,
            signed=self.settings.term_weight is TermWeight.SIGNED,
        )

    def term_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """`w_i` of the paper, after its rule: (B, T, H) and a mask (B, T) -> (B, T)."""
        raw = mask if self.tok_proj is None else self.tok_proj(at_least_float32(states)).squeeze(-1)
        return WEIGHT_RULES[self.settings.term_weight](at_least_float32(raw))


def part_sizes(settings: RepresentationSettings, vocabulary: int) -> tuple[int, int]:
    """Dimensions of the [CLS] part and the lexical part; without pruning, no [CLS] part."""
    if settings.agg_kind is AggKind.NONE:
        return 0, vocabulary
    return settings.cls_dim, settings.agg_dim


def needs_mlm_head(settings: RepresentationSettings) -> bool:
    """Return True if vectors are made through the masked-language-model head."""
    return (
        settings.representation is Representation.AGG
        and settings.agg_kind is not AggKind.AVERAGE
        and (settings.agg_dim > 0 or settings.agg_kind is AggKind.NONE)
        and settings.mlm_head is not MlmHead.NONE
    )


NEEDS_CLS = (Representation.CLS, Representation.AGG)
SEVERAL_VECTORS = (Representation.MLR, Representation.ME_BERT, Representation.COLBERT)
POOLINGS = {
    Representation.CLS: pool_cls,
    Representation.MEAN: pool_mean,
    Representation.MAX: pool_max,
    Representation.LAST: pool_last,
}


def refuse_architecture(settings: RepresentationSettings, architecture: Architecture) -> None:
    """Raise an error for what a backbone cannot do.

    Raises:
        ModelError: the representation reads [CLS], and the backbone has none; or it is no vector.
    """
    chosen = settings.representation
    if chosen is Representation.CROSS_ENCODER:
        raise ModelError(
            "--representation cross-encoder: a cross-encoder makes no vectors",
            "rerank with it: denserk rerank --model MODEL --run RUN --topics Q --corpus C",
        )
    if chosen in NEEDS_CLS and not architecture.has_cls:
        head = " and through a masked-language-model head" if chosen is Representation.AGG else ""
        raise ModelError(
            f"--representation {chosen} is made from [CLS]{head}, "
            f"which a {architecture.model_type} backbone does not have",
            "make its vectors with --representation mean",
        )


def build_representation(
    settings: RepresentationSettings, backbone: Backbone
) -> "Pooled | Aggretriever | MultiVector":
    """The module that makes vectors as the settings say, its weights as torch starts them."""
    if settings.representation in SEVERAL_VECTORS:
        return MultiVector(settings, backbone)
    if settings.representation is Representation.AGG:
        return Aggretriever(settings, backbone.hidden_size, backbone.vocabulary)
    return Pooled(POOLINGS[settings.representation], backbone.hidden_size)
