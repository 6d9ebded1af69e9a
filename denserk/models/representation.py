"""Encoders: a backbone, and the representation that turns its states into the vectors of texts.

Aggretriever: Lin, Li and Lin (TACL 2023), section 3. Several vectors per passage: MLR,
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
sections 3 and 5; ME-BERT, Luan et al. (2021); ColBERT, Khattab and Zaharia (2020). A query has one
vector in these three, too: the last layer's [CLS] state, or the mean without a [CLS]. MLR's vectors
are [CLS] states of several layers (0: the embeddings), last layer first; the losses rely on that
order.

Axes: B texts or queries, P passages, T tokens, S vectors of a passage, H hidden, D dimensions.
`hidden`: (B, T, H). `mask`: (B, T) bool, True = a real token. Padding is at either end of a row;
for `cls` at the right end.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.config import encoding
from denserk.config.encoding import AggKind, Representation, RepresentationSettings, TermWeight
from denserk.data.batches import TokenBatch
from denserk.errors import ModelError, UsageError
from denserk.models import lexical
from denserk.models.backbone import Backbone
from denserk.models.devices import at_least_float32
from denserk.models.openvino_modules import Compiled, Traced, compile_module


def pool_cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of position 0: (B, T, H) -> (B, H)."""
    return hidden[:, 0]


def pool_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, summed in float32 at least: (B, T, H) -> (B, H)."""
    is_real = mask.unsqueeze(-1)
    total = at_least_float32(torch.where(is_real, hidden, 0)).sum(dim=1)
    return total / is_real.sum(dim=1).clamp(min=1)


def pool_max(hidden: Tensor, mask: Tensor) -> Tensor:
    """The maximum over real tokens, one dimension at a time: (B, T, H) -> (B, H)."""
    return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def pool_last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of the last real token: (B, T, H) -> (B, H)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    last_positions = (mask * positions).argmax(dim=1)
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, last_positions]


def truncated(vectors: Tensor, size: int | None, *, l2_norm: bool) -> Tensor:
    """Keep the first `size` dimensions, or all, and then normalise: (..., D) -> (..., size).

    >>> truncated(torch.tensor([3.0, 4.0, 9.0]), 2, l2_norm=True)
    tensor([0.6000, 0.8000])
    """
    vectors = vectors[..., :size]
    return F.normalize(vectors, dim=-1) if l2_norm else vectors


class PassageVectors(NamedTuple):
    """The vectors of a batch of passages."""

    values: Tensor  # (P, S, D); an index of one vector per passage keeps vector 0
    mask: Tensor | None = None  # (P, S) bool, True = a real vector; None: all are

    def of(self, rows: Tensor) -> "PassageVectors":
        """The vectors of the passages in these rows: (N,) or (B, N) int64 -> (..., S, D)."""
        mask = None if self.mask is None else self.mask[rows]
        return PassageVectors(self.values[rows], mask)


def vector_scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Inner products with every vector of every passage. (B, D), (P, S, D) -> (B, P, S)."""
    return torch.einsum("bd,psd->bps", queries, passages)


def max_similarity(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """A passage's best vector decides (MLR, equation 2). scores: (B, P, S), mask: (P, S) -> (B, P).

    Masked vectors are ignored. The gradient goes to the best vector only; of equal ones to the
    first, in MLR the last layer's.

    >>> scores = torch.tensor([[[1.0, 2.0, 9.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> max_similarity(scores, mask).item()
    2.0
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    best_vectors = scores.argmax(dim=2, keepdim=True)
    return scores.gather(2, best_vectors).squeeze(2)


SEVERAL_VECTORS = (Representation.MLR, Representation.ME_BERT, Representation.COLBERT)
POOLINGS = {
    Representation.CLS: pool_cls,
    Representation.MEAN: pool_mean,
    Representation.MAX: pool_max,
    Representation.LAST: pool_last,
}


class Pooled(nn.Module):
    """A pooling of token states; base class of the other representations.

    `vectors_per_passage` is the number of vectors that an index keeps of a passage. `sides_alike`:
    a passage has one vector in training, and a text the same one as a query and as a passage.

    pool: (B, T, H) and a mask (B, T) -> (B, H).
    """

    vectors_per_passage = 1
    sides_alike = True

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], dimension: int) -> None:
        super().__init__()
        self.pool = pool
        self.dimension = dimension
        # set and applied by `Encoder`; it is here because it is saved with the other new weights
        self.projection: nn.Module = nn.Identity()

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32, the vector of a query."""
        return at_least_float32(self.pool(hidden, batch.attention_mask))

    def passages(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, D)."""
        return PassageVectors(self(backbone(batch), batch, backbone).unsqueeze(1))

    def indexed_vectors(self, vectors: PassageVectors) -> Tensor:
        """Return the vectors that an index keeps: (P, S, D) -> (P, `vectors_per_passage`, D)."""
        return vectors.values

    def prepare_inference(self, backbone: Backbone, dtype: torch.dtype, *, compiled: bool) -> None:
        """Prepare the MLM head, if there is one, for `Encoder.prepare_inference`."""


class Aggretriever(Pooled):
    """[CLS] projection beside the folded lexical vector.

    The weights are `tok_proj` (a position's weight, from its last hidden state), `cls_proj` (the
    [CLS] part) and, for the kinds that map linearly, `agg_proj`, where the settings use them.

    vocabulary: V, its number of tokens.
    """

    def __init__(self, settings: RepresentationSettings, hidden_size: int, vocabulary: int) -> None:
        kind = settings.agg_kind
        if kind is AggKind.NONE:  # a dimension for each token of the vocabulary, and no [CLS]
            cls_dim = 0
            agg_dim = vocabulary
        else:
            cls_dim = settings.cls_dim
            agg_dim = settings.agg_dim
        super().__init__(pool_mean, cls_dim + agg_dim)  # the mean is for `AggKind.AVERAGE` alone
        self.settings = settings
        self.vocabulary = vocabulary
        self.cls_dim = cls_dim
        self.agg_dim = agg_dim
        # made once by `prepare_inference`; until then, for each batch from the current weights
        self._head: lexical.VocabularyHead | None = None
        self.layout: lexical.SliceLayout | None = None
        if agg_dim and kind in (AggKind.STAR, AggKind.PLUS):
            self.layout = lexical.SliceLayout(
                vocabulary, agg_dim, kind, settings.agg_layout, settings.agg_seed
            )

        # seeded training depends on the order in which these are initialised
        self.cls_proj = nn.Linear(hidden_size, cls_dim) if cls_dim else None
        weighs_terms = agg_dim > 0 and kind is not AggKind.AVERAGE
        learns_weights = weighs_terms and settings.term_weight is not TermWeight.ONE
        self.tok_proj = nn.Linear(hidden_size, 1) if learns_weights else None
        self.agg_proj: nn.Linear | None = None
        input_sizes = {AggKind.LINEAR: vocabulary, AggKind.AVERAGE: hidden_size}
        if agg_dim and kind in input_sizes:
            self.agg_proj = nn.Linear(input_sizes[kind], agg_dim)

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32."""
        vectors = []
        if self.cls_proj is not None:
            vectors.append(self.cls_proj(at_least_float32(hidden[:, 0])))
        if self.agg_dim:
            vectors.append(self.lexical_part(hidden, batch, backbone))
        if self.settings.agg_order is encoding.AggOrder.AGG_CLS:
            vectors.reverse()
        return torch.cat(vectors, dim=-1)

    def prepare_inference(self, backbone: Backbone, dtype: torch.dtype, *, compiled: bool) -> None:
        """See `Pooled`."""
        if not needs_mlm_head(self.settings):
            return
        # OpenVINO computes the head of states alone; signed weights need their signs beside them
        compiled = compiled and self.settings.term_weight is not TermWeight.SIGNED
        # OpenVINO converts from float32 to `dtype` by itself
        stored_dtype = torch.float32 if compiled else dtype
        weight = backbone.decoder.weight.detach().to(stored_dtype)
        bias = backbone.decoder.bias.detach().to(stored_dtype)
        self._head = lexical.VocabularyHead(backbone.transform, weight, bias, self.layout)
        if compiled:
            self._head.compiled = _compiled_head(self._head, backbone, dtype)

    def lexical_part(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """The lexical part: (B, T, H) -> (B, agg_dim), of all tokens but the first, [CLS].

        The [SEP] at the end counts, as in the authors' released code.
        """
        states = hidden[:, 1:]
        mask = batch.attention_mask[:, 1:]
        if self.settings.agg_kind is AggKind.AVERAGE:
            vector = self.pool(states, mask)
        elif self.settings.mlm_head is encoding.MlmHead.NONE:
            vector = self._token_vector(states, mask, batch.input_ids[:, 1:])
        else:
            vector = self._vocabulary_vector(states, mask, backbone)
        return vector if self.agg_proj is None else self.agg_proj(vector)

    def _token_vector(self, states: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        """The tokens' weights, without MLM head: (B, T, H) -> (B, V), or folded (B, agg_dim)."""
        weights = self.term_weights(states, mask)
        vector = lexical.aggregate_tokens(ids, weights, mask, self.vocabulary)
        return vector if self.layout is None else self.layout.fold(vector)

    def _vocabulary_vector(self, states: Tensor, mask: Tensor, backbone: Backbone) -> Tensor:
        """`max_i w_i p_i` by the MLM head: (B, T, H) -> (B, V), or folded (B, agg_dim)."""
        head = self._head
        if head is None:
            head = lexical.VocabularyHead(
                backbone.transform, backbone.decoder.weight, backbone.decoder.bias, self.layout
            )
        weights = self.term_weights(states, mask)
        is_signed = self.settings.term_weight is TermWeight.SIGNED
        # with a layout: a value for each of its columns, which are still to be joined to slices
        vector = lexical.aggregate(states, weights, mask, head, signed=is_signed)
        return vector if self.layout is None else self.layout.join_halves(vector)

    def term_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """`w_i` of the paper, after its rule: (B, T, H) and a mask (B, T) -> (B, T)."""
        rule = lexical.WEIGHT_RULES[self.settings.term_weight]
        if self.tok_proj is None:  # the rule is then that all weights are 1
            return rule(at_least_float32(mask))
        weights = self.tok_proj(at_least_float32(states)).squeeze(-1)
        return rule(at_least_float32(weights))


def _compiled_head(
    head: lexical.VocabularyHead, backbone: Backbone, dtype: torch.dtype
) -> Compiled:
    """Return an MLM head that OpenVINO computes: states (N, H) -> its columns (N, M)."""
    # numbers of any kind: OpenVINO's results on them are compared with torch's
    generator = torch.Generator().manual_seed(1)
    example = torch.randn(7, backbone.config.hidden_size, generator=generator)
    traced = Traced(backbone.model, lambda states: [head(states)])
    return compile_module(traced, (example,), dtype)


class ScalarMix(nn.Module):
    """Learned average of S vectors: softmax(a), a starting at zero (MLR, equation 8).

    Vectors that a passage does not have are left out: the softmax is over those that it has.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scalar_parameters = nn.Parameter(torch.zeros(count))

    def forward(self, vectors: Tensor, mask: Tensor | None = None) -> Tensor:
        """(P, S, H), mask (P, S) or None: all are real -> (P, H)."""
        if mask is None:
            weights = self.scalar_parameters.softmax(0).to(vectors.dtype)
            return torch.einsum("psh,s->ph", vectors, weights)
        logits = self.scalar_parameters.masked_fill(~mask, -torch.inf)
        weights = logits.softmax(1).to(vectors.dtype)
        # a missing vector may hold NaN, which a weight of zero would not remove
        vectors = torch.where(mask.unsqueeze(-1), vectors, 0)
        return torch.einsum("psh,ps->ph", vectors, weights)


def average_vectors(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of a passage's vectors, masked ones left out: (P, S, H) -> (P, H)."""
    return vectors.mean(1) if mask is None else pool_mean(vectors, mask)


def first_tokens(hidden: Tensor, mask: Tensor, count: int, *, by_cls: bool) -> PassageVectors:
    """Return the states of the first `count` positions (ME-BERT); a shorter passage is masked.

    Without a [CLS] the first vector is the mean over real tokens, and `count` - 1 tokens follow.

    hidden: (P, T, H), mask: (P, T) -> (P, count, H).
    """
    if not by_cls:
        mean = pool_mean(hidden, mask).unsqueeze(1)
        hidden = torch.cat([mean, hidden], 1)
        mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
    missing = max(0, count - hidden.shape[1])
    values = F.pad(hidden[:, :count], (0, 0, 0, missing))
    padded_mask = F.pad(mask[:, :count], (0, missing))
    return PassageVectors(values, padded_mask)


class MultiVector(Pooled):
    """MLR, ME-BERT or ColBERT: several vectors of a passage, reduced as the settings say."""

    sides_alike = False

    def __init__(self, settings: RepresentationSettings, backbone: Backbone) -> None:
        by_cls = backbone.architecture.has_cls
        super().__init__(pool_cls if by_cls else pool_mean, backbone.config.hidden_size)
        self.settings = settings
        self.by_cls = by_cls
        vector_count = settings.vectors
        if settings.representation is Representation.MLR:
            self.layers = _layers_last_first(settings, backbone.config.num_hidden_layers)
            vector_count = len(self.layers)
        self.scalar_mix: ScalarMix | None = None
        if settings.reduction is encoding.Reduction.SCALAR_MIX:
            self.scalar_mix = ScalarMix(vector_count)
        if settings.reduction is encoding.Reduction.MULTI_VECTOR:
            self.vectors_per_passage = vector_count

    def passages(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """See `Pooled`."""
        vectors = self._all_vectors(batch, backbone)
        if self.scalar_mix is not None:
            return PassageVectors(self.scalar_mix(*vectors).unsqueeze(1))
        if self.settings.reduction is encoding.Reduction.AVERAGE:
            return PassageVectors(average_vectors(*vectors).unsqueeze(1))
        return vectors

    def _all_vectors(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """Return a passage's vectors before they are reduced: (P, T) ids -> (P, S, D)."""
        mask = batch.attention_mask
        if self.settings.representation is Representation.MLR:
            return PassageVectors(self._layer_vectors(batch, backbone))
        hidden = backbone(batch)
        if self.settings.representation is Representation.ME_BERT:
            return first_tokens(hidden, mask, self.settings.vectors, by_cls=self.by_cls)
        return PassageVectors(hidden, mask)

    def _layer_vectors(self, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """Pool the states of each chosen layer (MLR, equation 1): (P, T) ids -> (P, S, D)."""
        states = backbone.hidden_states(batch)
        norm_path = backbone.architecture.final_norm
        if self.settings.norm_intermediate and norm_path:
            final_norm = backbone.encoder.get_submodule(norm_path)
            # the embeddings take no norm, and the last layer's states have it already
            states[1:-1] = [final_norm(layer_states) for layer_states in states[1:-1]]
        pooled = [self.pool(states[layer], batch.attention_mask) for layer in self.layers]
        return torch.stack(pooled, dim=1)

    def indexed_vectors(self, vectors: PassageVectors) -> Tensor:
        """See `Pooled`; a vector that a short passage lacks is a copy of the first.

        ColBERT's and self-contrastive vectors are for training alone: of them, one is kept.
        """
        values = vectors.values
        if self.vectors_per_passage > 1 and vectors.mask is not None:
            values = torch.where(vectors.mask.unsqueeze(-1), values, values[:, :1])
        return values[:, : self.vectors_per_passage]


def _layers_last_first(settings: RepresentationSettings, last_layer: int) -> list[int]:
    """Return MLR's layers in the order of their vectors, of a backbone of 0 to `last_layer`."""
    layers = settings.layers or (last_layer - 1, last_layer)
    are_distinct = len(set(layers)) == len(layers)
    exist = all(0 <= layer <= last_layer for layer in layers)
    if not (are_distinct and exist and last_layer in layers):
        raise ModelError(
            f"--layers {','.join(map(str, layers))}: the backbone has the layers 0 to "
            f"{last_layer}, and the last must be among those named, each once",
            f"for example --layers {last_layer - 1},{last_layer}",
        )
    return sorted(layers, reverse=True)


def needs_mlm_head(settings: RepresentationSettings) -> bool:
    """Return True if vectors are made through the masked-language-model head."""
    return (
        settings.representation is Representation.AGG
        and settings.agg_kind is not AggKind.AVERAGE
        and (settings.agg_dim > 0 or settings.agg_kind is AggKind.NONE)
        and settings.mlm_head is not encoding.MlmHead.NONE
    )


class Encoder(nn.Module):
    """One side's encoder; most models use the same one for queries and passages.

    `activation` names a class of torch.nn, such as "Tanh": the function after the linear layer of
    `settings.projection`.
    """

    def __init__(
        self, backbone: Backbone, settings: RepresentationSettings, activation: str = "Identity"
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.settings = settings
        self.activation_name = activation if settings.projection else "Identity"
        self.activation: nn.Module = getattr(nn, self.activation_name)()
        self.representation = _representation_of(settings, backbone)
        dimension = self.representation.dimension
        if settings.projection:
            self.representation.projection = nn.Linear(dimension, settings.projection)
            dimension = settings.projection
        self.dimension = settings.truncate_dim or dimension
        if self.dimension > dimension:
            raise UsageError(
                f"--truncate-dim {self.dimension}: the model's vectors have {dimension} dimensions"
            )
        self.vectors_per_passage = self.representation.vectors_per_passage
        self.sides_alike = self.representation.sides_alike

    def with_settings(self, settings: RepresentationSettings) -> "Encoder | None":
        """Return an encoder of the same weights with other settings.

        None if they need other weights. Two changes do not: to cut or normalise vectors otherwise,
        and to replace a simple pooling by another one.
        """
        if _beyond_pooling(settings) == _beyond_pooling(self.settings):
            encoder = copy.copy(self)
            encoder.settings = settings
            return encoder
        is_simple = {settings.representation, self.settings.representation} <= POOLINGS.keys()
        if not is_simple or settings.projection != self.settings.projection:
            return None
        encoder = Encoder(self.backbone, settings, self.activation_name)
        encoder.representation.projection = self.representation.projection
        return encoder

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return one vector per text: (B, T) ids -> (B, D), float32 at least."""
        hidden = self.backbone(batch)
        return self._finish(self.representation(hidden, batch, self.backbone))

    def passage_vectors(self, batch: TokenBatch) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, D)."""
        vectors = self.representation.passages(batch, self.backbone)
        return PassageVectors(self._finish(vectors.values), vectors.mask)

    def stored_vectors(self, batch: TokenBatch) -> Tensor:
        """Return a passage's vectors for an index: (P, T) ids -> (P, S, D)."""
        return self.representation.indexed_vectors(self.passage_vectors(batch))

    def _finish(self, vectors: Tensor) -> Tensor:
        """Project, cut and normalise vectors as the settings say: (..., H) -> (..., D)."""
        vectors = self.representation.projection(at_least_float32(vectors))
        vectors = at_least_float32(self.activation(vectors))
        return truncated(vectors, self.settings.truncate_dim, l2_norm=self.settings.l2_norm)

    def prepare_inference(
        self, dtype: torch.dtype, head_dtype: torch.dtype, *, compiled: bool
    ) -> None:
        """Set the precision for inference; the representation's own weights stay in float32.

        `head_dtype` is that of Aggretriever's projection to the vocabulary. If `compiled`, OpenVINO
        computes the backbone and the MLM head; a ModelError where it cannot.
        """
        if compiled:
            every_layer = self.settings.representation is Representation.MLR
            self.backbone.compile_states(dtype, every_layer=every_layer)
        else:
            self.backbone.compiled = None
            self.backbone.to(dtype)
        self.representation.prepare_inference(self.backbone, head_dtype, compiled=compiled)


def _beyond_pooling(settings: RepresentationSettings) -> RepresentationSettings:
    """Return settings as of a representation that neither cuts nor normalises vectors."""
    return replace(settings, truncate_dim=None, l2_norm=False)


def _representation_of(settings: RepresentationSettings, backbone: Backbone) -> Pooled:
    """Return the module that turns the backbone's states into vectors."""
    if settings.representation in SEVERAL_VECTORS:
        return MultiVector(settings, backbone)
    hidden_size = backbone.config.hidden_size
    if settings.representation is Representation.AGG:
        return Aggretriever(settings, hidden_size, backbone.config.vocab_size)
    return Pooled(POOLINGS[settings.representation], hidden_size)


class Retriever(nn.Module):
    """The encoders of queries and passages; the same object where the sides share weights."""

    def __init__(self, query: Encoder, passage: Encoder) -> None:
        super().__init__()
        self.passage = passage
        self.query = query

    @property
    def shared(self) -> bool:
        """True if both sides share their weights."""
        return self.query is self.passage
