"""Encoders: a backbone, and the representation that turns its states into the vectors of texts.

Aggretriever: Lin, Li and Lin (TACL 2023), section 3. Several vectors per passage: MLR,
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
sections 3 and 5; ME-BERT, Luan et al. (2021); ColBERT, Khattab and Zaharia (2020). A query has one
vector: the last layer's [CLS] state, or the mean without a [CLS]. MLR's vectors are [CLS] states of
several layers (0: the embeddings), last layer first; the losses rely on that order.

Axes: B texts or queries, P passages, T tokens, S vectors of a passage, H hidden, D dimensions.
`hidden`: (B, T, H). `mask`: (B, T) bool, True = a real token. Padding is at either end of a row;
for `cls` at the right end.
"""

from collections.abc import Callable
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
from denserk.models.devices import Traced, at_least_float32, compile_module


def pool_cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of position 0: (B, T, H) -> (B, H)."""
    return hidden[:, 0]


def pool_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, summed in float32 at least: (B, T, H) -> (B, H)."""
    kept = mask.unsqueeze(-1)
    total = at_least_float32(torch.where(kept, hidden, 0)).sum(dim=1)
    return total / kept.sum(dim=1).clamp(min=1)


def pool_max(hidden: Tensor, mask: Tensor) -> Tensor:
    """The maximum over real tokens, one dimension at a time: (B, T, H) -> (B, H)."""
    return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def pool_last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of the last real token: (B, T, H) -> (B, H)."""
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * places).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def truncated(vectors: Tensor, size: int | None, *, l2_norm: bool) -> Tensor:
    """Keep the first `size` dimensions, or all, and then normalise: (..., D) -> (..., size)."""
    kept = vectors[..., :size]
    return F.normalize(kept, dim=-1) if l2_norm else kept


class PassageVectors(NamedTuple):
    """The vectors of a batch of passages."""

    values: Tensor  # (P, S, D); vector 0 is the one that is kept where a single one is
    mask: Tensor | None = None  # (P, S) bool, True = a real vector; None: all are

    def of(self, rows: Tensor) -> "PassageVectors":
        """The vectors of the passages in these rows; an axis of `rows` stands in place of P."""
        return PassageVectors(self.values[rows], None if self.mask is None else self.mask[rows])


def vector_scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Inner products with every vector of every passage. (B, D), (P, S, D) -> (B, P, S)."""
    return torch.einsum("bd,psd->bps", queries, passages)


def max_similarity(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """A passage's best vector decides (MLR, equation 2). scores: (B, P, S), mask: (P, S) -> (B, P).

    Masked vectors are ignored. The gradient goes to the best vector only; of equal ones to the
    first, in MLR the last layer's.

    >>> scores, mask = torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([[True, True, False]])
    >>> max_similarity(scores, mask).item()
    2.0
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.gather(2, scores.argmax(dim=2, keepdim=True)).squeeze(2)


SEVERAL_VECTORS = (Representation.MLR, Representation.ME_BERT, Representation.COLBERT)
POOLINGS = {
    Representation.CLS: pool_cls,
    Representation.MEAN: pool_mean,
    Representation.MAX: pool_max,
    Representation.LAST: pool_last,
}


class Pooled(nn.Module):
    """A pooling of token states; base class of the other representations.

    `stored` is the number of vectors that an index keeps of a passage. `sides_alike`: a passage has
    one vector in training, and a text the same one as a query and as a passage.
    """

    stored = 1
    sides_alike = True

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], dimension: int) -> None:
        super().__init__()
        self.pool, self.dimension = pool, dimension
        self.projection: nn.Module = nn.Identity()

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32, the vector of a query."""
        return at_least_float32(self.pool(hidden, batch.attention_mask))

    def passages(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, D)."""
        return PassageVectors(self(backbone(batch), batch, backbone).unsqueeze(1))

    def kept(self, vectors: PassageVectors) -> Tensor:
        """Return the vectors that an index keeps of a passage: (P, S, D) -> (P, `stored`, D)."""
        return vectors.values

    def prepare_inference(self, backbone: Backbone, dtype: torch.dtype, *, compiled: bool) -> None:
        """Prepare the MLM head for `Encoder.prepare_inference`."""


class Aggretriever(Pooled):
    """[CLS] projection beside the folded lexical vector.

    The weights are `tok_proj` (a position's weight, from its last hidden state), `cls_proj` (the
    [CLS] part) and, for the kinds that map linearly, `agg_proj`, where the settings use them.
    """

    def __init__(self, settings: RepresentationSettings, hidden_size: int, vocabulary: int) -> None:
        kind = settings.agg_kind
        sizes = (0, vocabulary) if kind is AggKind.NONE else (settings.cls_dim, settings.agg_dim)
        super().__init__(pool_mean, sum(sizes))
        self.settings, self.vocabulary = settings, vocabulary
        self.cls_dim, self.agg_dim = sizes
        self._head: lexical.VocabularyHead | None = None
        self.layout: lexical.SliceLayout | None = None
        if self.agg_dim and kind in (AggKind.STAR, AggKind.PLUS):
            division = settings.agg_layout, settings.agg_seed
            self.layout = lexical.SliceLayout(vocabulary, self.agg_dim, kind, *division)
        self.cls_proj = nn.Linear(hidden_size, self.cls_dim) if self.cls_dim else None
        weighs = self.agg_dim and kind is not AggKind.AVERAGE
        learned = weighs and settings.term_weight is not TermWeight.ONE
        self.tok_proj = nn.Linear(hidden_size, 1) if learned else None
        inputs = {AggKind.LINEAR: vocabulary, AggKind.AVERAGE: hidden_size}.get(kind)
        self.agg_proj = nn.Linear(inputs, self.agg_dim) if self.agg_dim and inputs else None

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """(B, T, H) -> (B, D) float32."""
        parts = []
        if self.cls_proj is not None:
            parts.append(self.cls_proj(at_least_float32(hidden[:, 0])))
        if self.agg_dim:
            parts.append(self.lexical_part(hidden, batch, backbone))
        if self.settings.agg_order is encoding.AggOrder.AGG_CLS:
            parts.reverse()
        return torch.cat(parts, dim=-1)

    def prepare_inference(self, backbone: Backbone, dtype: torch.dtype, *, compiled: bool) -> None:
        """See `Pooled`."""
        if not needs_mlm_head(self.settings):
            return
        compiled = compiled and self.settings.term_weight is not TermWeight.SIGNED
        kept, decoder = torch.float32 if compiled else dtype, backbone.decoder
        weight, bias = decoder.weight.detach().to(kept), decoder.bias.detach().to(kept)
        self._head = head = lexical.VocabularyHead(backbone.transform, weight, bias, self.layout)
        if compiled:
            seeded = torch.Generator().manual_seed(1)
            example = torch.randn(7, backbone.config.hidden_size, generator=seeded)
            traced = Traced(backbone.model, lambda states: [head(states)])
            head.compiled = compile_module(traced, (example,), dtype)

    def lexical_part(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """The lexical part: (B, T, H) -> (B, agg_dim), without position 0, with [SEP]."""
        states, mask = hidden[:, 1:], batch.attention_mask[:, 1:]
        if self.settings.agg_kind is AggKind.AVERAGE:
            vector = self.pool(states, mask)
        elif self.settings.mlm_head is encoding.MlmHead.NONE:
            ids, weights = batch.input_ids[:, 1:], self.term_weights(states, mask)
            vector = lexical.aggregate_tokens(ids, weights, mask, self.vocabulary)
            vector = vector if self.layout is None else self.layout.fold(vector)
        else:
            decoder = backbone.decoder
            head = self._head or lexical.VocabularyHead(
                backbone.transform, decoder.weight, decoder.bias, self.layout
            )
            signed = self.settings.term_weight is TermWeight.SIGNED
            weights = self.term_weights(states, mask)
            vector = lexical.aggregate(states, weights, mask, head, signed=signed)
            vector = vector if self.layout is None else self.layout.join_halves(vector)
        return vector if self.agg_proj is None else self.agg_proj(vector)

    def term_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """`w_i` of the paper, after its rule: (B, T, H) and a mask (B, T) -> (B, T)."""
        raw = mask if self.tok_proj is None else self.tok_proj(at_least_float32(states)).squeeze(-1)
        return lexical.WEIGHT_RULES[self.settings.term_weight](at_least_float32(raw))


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
        # what stands in place of a missing vector may be any number
        real = torch.where(mask.unsqueeze(-1), vectors, 0)
        return torch.einsum("psh,ps->ph", real, weights)


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
    return PassageVectors(values, F.pad(mask[:, :count], (0, missing)))


class MultiVector(Pooled):
    """MLR, ME-BERT or ColBERT."""

    sides_alike = False

    def __init__(self, settings: RepresentationSettings, backbone: Backbone) -> None:
        by_cls = backbone.architecture.has_cls
        super().__init__(pool_cls if by_cls else pool_mean, backbone.config.hidden_size)
        self.settings, self.by_cls = settings, by_cls
        count = settings.vectors
        if settings.representation is Representation.MLR:
            last = backbone.config.num_hidden_layers
            chosen = settings.layers or (last - 1, last)
            if last not in chosen or sorted(chosen) != sorted(set(chosen) & set(range(last + 1))):
                raise ModelError(
                    f"--layers {','.join(map(str, chosen))}: the backbone has the layers 0 to "
                    f"{last}, and the last must be among those named, each once",
                    f"for example --layers {last - 1},{last}",
                )
            self.layers = sorted(chosen, reverse=True)  # the order of the vectors
            count = len(self.layers)
        mixed = settings.reduction is encoding.Reduction.SCALAR_MIX
        self.scalar_mix = ScalarMix(count) if mixed else None
        self.stored = count if settings.reduction is encoding.Reduction.MULTI_VECTOR else 1

    def passages(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """See `Pooled`."""
        mask, settings = batch.attention_mask, self.settings
        if settings.representation is Representation.MLR:  # equation 1
            states = backbone.hidden_states(batch)
            path = backbone.architecture.final_norm
            if settings.norm_intermediate and path:
                states[1:-1] = map(backbone.encoder.get_submodule(path), states[1:-1])
            pooled = [self.pool(states[layer], mask) for layer in self.layers]
            vectors = PassageVectors(torch.stack(pooled, dim=1))
        elif settings.representation is Representation.ME_BERT:
            hidden = backbone(batch)
            vectors = first_tokens(hidden, mask, settings.vectors, by_cls=self.by_cls)
        else:
            vectors = PassageVectors(backbone(batch), mask)
        if self.scalar_mix is not None:
            return PassageVectors(self.scalar_mix(*vectors).unsqueeze(1))
        if settings.reduction is encoding.Reduction.AVERAGE:
            return PassageVectors(average_vectors(*vectors).unsqueeze(1))
        return vectors

    def kept(self, vectors: PassageVectors) -> Tensor:
        """See `Pooled`; a vector that a short passage lacks is a copy of the first."""
        values = vectors.values
        if self.stored > 1 and vectors.mask is not None:
            values = torch.where(vectors.mask.unsqueeze(-1), values, values[:, :1])
        return values[:, : self.stored]


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

    `activation` is the name of the function, a class of torch.nn, that follows the linear layer of
    `settings.projection`.
    """

    def __init__(
        self, backbone: Backbone, settings: RepresentationSettings, activation: str = "Identity"
    ) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.activation_name = activation if settings.projection else "Identity"
        self.activation: nn.Module = getattr(nn, self.activation_name)()
        hidden, vocabulary = backbone.config.hidden_size, backbone.config.vocab_size
        self.representation: Pooled
        if settings.representation in SEVERAL_VECTORS:
            self.representation = MultiVector(settings, backbone)
        elif settings.representation is Representation.AGG:
            self.representation = Aggretriever(settings, hidden, vocabulary)
        else:
            self.representation = Pooled(POOLINGS[settings.representation], hidden)
        own = self.representation.dimension
        if settings.projection:
            self.representation.projection = nn.Linear(own, settings.projection)
            own = settings.projection
        self.dimension = settings.truncate_dim or own
        if self.dimension > own:
            raise UsageError(
                f"--truncate-dim {self.dimension}: the model's vectors have {own} dimensions"
            )
        self.vectors_per_passage = self.representation.stored
        self.sides_alike = self.representation.sides_alike

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return one vector per text: (B, T) ids -> (B, D), float32 at least."""
        return self._scaled(self.representation(self.backbone(batch), batch, self.backbone))

    def passage_vectors(self, batch: TokenBatch) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, D)."""
        vectors = self.representation.passages(batch, self.backbone)
        return PassageVectors(self._scaled(vectors.values), vectors.mask)

    def stored_vectors(self, batch: TokenBatch) -> Tensor:
        """Return a passage's vectors for an index: (P, T) ids -> (P, S, D)."""
        return self.representation.kept(self.passage_vectors(batch))

    def _scaled(self, vectors: Tensor) -> Tensor:
        settings = self.settings
        vectors = self.activation(self.representation.projection(at_least_float32(vectors)))
        return truncated(at_least_float32(vectors), settings.truncate_dim, l2_norm=settings.l2_norm)

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


class Retriever(nn.Module):
    """The encoders of queries and passages; the same object where the sides share weights."""

    def __init__(self, query: Encoder, passage: Encoder) -> None:
        super().__init__()
        self.passage, self.query = passage, query

    @property
    def shared(self) -> bool:
        """True if both sides share their weights."""
        return self.query is self.passage
