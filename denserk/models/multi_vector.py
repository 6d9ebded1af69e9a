"""Representations that give a passage several vectors: MLR, ME-BERT and ColBERT.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
sections 3 and 5; ME-BERT after "Sparse, Dense, and Attentional Representations for Text Retrieval"
(Luan et al., 2021), ColBERT after Khattab and Zaharia (2020). A query keeps one vector: the last
layer's [CLS] state, or the mean where there is no [CLS]. MLR's vectors are [CLS] states of several
layers (0 is the output of the embeddings, L the last), last layer first; the losses rely on that
order. Axes: P passages, T tokens, S vectors, H hidden.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.config.encoding import Reduction, Representation, RepresentationSettings
from denserk.data.batches import TokenBatch
from denserk.errors import ModelError
from denserk.models.backbone import Backbone
from denserk.models.pooling import PassageVectors, pool_cls, pool_mean


def storage_order(layers: Sequence[int], last: int) -> tuple[int, ...]:
    """A model's layers in the order in which their vectors stand; by default the last two.

    Raises:
        ModelError: a layer the model does not have, one named twice, or a set without the last.

    >>> storage_order([10, 12], 12)
    (12, 10)
    """
    chosen = tuple(layers) or (last - 1, last)
    outside = [layer for layer in chosen if not 0 <= layer <= last]
    if outside:
        raise ModelError(
            f"--layers {','.join(map(str, chosen))}: the backbone has the layers 0 to {last}, "
            f"not {', '.join(map(str, outside))}"
        )
    if last not in chosen or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"--layers {','.join(map(str, chosen))}: the last layer, {last}, must be among them, "
            "and each only once",
            f"for example --layers {last - 1},{last}",
        )
    return tuple(sorted(chosen, reverse=True))


def pool_layers(
    states: Sequence[Tensor], mask: Tensor, layers: Sequence[int], *, by_cls: bool
) -> Tensor:
    """The vectors of chosen layers (equation 1).

    Args:
        states: of every layer, (P, T, H); item 0 is the embeddings' output.
        mask: (P, T) bool.
        layers: in storage order.
        by_cls: take position 0; otherwise the mean over real tokens, for a backbone without [CLS].

    Returns:
        (P, S, H).
    """
    pool = pool_cls if by_cls else pool_mean
    return torch.stack([pool(states[layer], mask) for layer in layers], dim=1)


class ScalarMix(nn.Module):
    """Several vectors -> their learned average: softmax(a), a starting at zero (equation 8).

    Args:
        count: S.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scalar_parameters = nn.Parameter(torch.zeros(count))

    def forward(self, vectors: Tensor) -> Tensor:
        """(P, S, H) -> (P, H)."""
        weights = self.scalar_parameters.softmax(0).to(vectors.dtype)
        return torch.einsum("psh,s->ph", vectors, weights)


def average_vectors(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain mean of a passage's vectors; masked ones take no part. (P, S, H) -> (P, H)."""
    if mask is None:
        return vectors.mean(1)
    return pool_mean(vectors, mask)


def first_tokens(hidden: Tensor, mask: Tensor, count: int, *, by_cls: bool) -> PassageVectors:
    """The states of the first `count` positions (ME-BERT); a passage that has fewer is masked.

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


def all_tokens(hidden: Tensor, mask: Tensor) -> PassageVectors:
    """The states of all real tokens (ColBERT). (P, T, H), (P, T) -> (P, T, H)."""
    return PassageVectors(hidden, mask)


class MultiVector(nn.Module):
    """MLR, ME-BERT or ColBERT over one backbone.

    Args:
        settings: which of them, with which layers or how many tokens, and how it is reduced.
        backbone: read for its number of layers, its hidden size and whether it has a [CLS].

    Raises:
        ModelError: layers that the backbone does not have.
    """

    def __init__(self, settings: RepresentationSettings, backbone: Backbone) -> None:
        super().__init__()
        self.settings = settings
        self.by_cls = backbone.architecture.has_cls
        self.dimension = backbone.hidden_size
        count = settings.vectors
        if settings.representation is Representation.MLR:
            self.layers = storage_order(settings.layers, backbone.last_layer)
            count = len(self.layers)
        mixed = settings.reduction is Reduction.SCALAR_MIX
        self.scalar_mix = ScalarMix(count) if mixed else None
        self.stored = count if settings.reduction is Reduction.MULTI_VECTOR else 1

    def forward(self, hidden: Tensor, batch: TokenBatch, backbone: Backbone) -> Tensor:
        """A query's vector: (B, T, H) -> (B, H)."""
        pool = pool_cls if self.by_cls else pool_mean
        return pool(hidden, batch.attention_mask)

    def passages(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, H)."""
        vectors = self._all(batch, backbone)
        if self.scalar_mix is not None:
            mixed: Tensor = self.scalar_mix(vectors.values)
            return PassageVectors(mixed.unsqueeze(1))
        if self.settings.reduction is Reduction.AVERAGE:
            return PassageVectors(average_vectors(*vectors).unsqueeze(1))
        return vectors

    def _all(self, batch: TokenBatch, backbone: Backbone) -> PassageVectors:
        mask = batch.attention_mask
        if self.settings.representation is Representation.MLR:
            states = backbone.hidden_states(
                batch, norm_intermediate=self.settings.norm_intermediate
            )
            return PassageVectors(pool_layers(states, mask, self.layers, by_cls=self.by_cls))
        hidden = backbone(batch)
        if self.settings.representation is Representation.ME_BERT:
            return first_tokens(hidden, mask, self.settings.vectors, by_cls=self.by_cls)
        return all_tokens(hidden, mask)

    def kept(self, vectors: PassageVectors) -> Tensor:
        """Return the vectors that an index keeps of a passage: (P, S, H) -> (P, `stored`, H).

        A vector that a short passage lacks is a copy of the first: its best score stays as it is.
        """
        values = vectors.values
        if self.stored > 1 and vectors.mask is not None:
            values = torch.where(vectors.mask.unsqueeze(-1), values, values[:, :1])
        return values[:, : self.stored]
