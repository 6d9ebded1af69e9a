"""Representations that give a passage several vectors, and what becomes of them.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025).
A query keeps one vector: the last layer's [CLS] state, or its mean without a [CLS].
"""

import torch
from torch import Tensor, nn

from denserk.data.batches import TokenBatch
from denserk.modeling.backbone import Backbone
from denserk.modeling.layer_pooling import ScalarMix, average_vectors, pool_layers, storage_order
from denserk.modeling.pooling import pool_cls, pool_mean
from denserk.modeling.similarity import PassageVectors
from denserk.modeling.token_vectors import all_tokens, first_tokens
from denserk.settings.encoding import Reduction, Representation, RepresentationSettings


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
        """A passage's vectors as training compares them: (P, T) ids -> (P, S, H)."""
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
        """What an index keeps of a passage's vectors: (P, S, H) -> (P, `stored`, H).

        A vector that a short passage lacks is the first again, which leaves its best score alone.
        """
        values = vectors.values
        if self.stored > 1 and vectors.mask is not None:
            values = torch.where(vectors.mask.unsqueeze(-1), values, values[:, :1])
        return values[:, : self.stored]
