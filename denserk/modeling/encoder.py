"""Backbone and representation together: a batch of tokens -> vectors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.data.batches import TokenBatch
from denserk.modeling.backbone import Backbone
from denserk.modeling.representation import build_representation
from denserk.settings.encoding import RepresentationSettings


class Encoder(nn.Module):
    """One side's encoder; most models use the same one for queries and passages.

    Args:
        backbone: the transformer.
        settings: how token states become a vector.
    """

    def __init__(self, backbone: Backbone, settings: RepresentationSettings) -> None:
        super().__init__()
        self.backbone = backbone
        self.settings = settings
        self.representation = build_representation(settings, backbone)

    @property
    def dimension(self) -> int:
        """D."""
        return self.representation.dimension

    def forward(self, batch: TokenBatch) -> Tensor:
        """(B, T) ids -> (B, D) float32."""
        vectors: Tensor = self.representation(self.backbone(batch), batch, self.backbone)
        return F.normalize(vectors, dim=-1) if self.settings.l2_norm else vectors

    def compute_in(self, dtype: torch.dtype) -> "Encoder":
        """Sets the backbone's precision; the representation's own weights stay in float32."""
        self.backbone.to(dtype)
        return self
