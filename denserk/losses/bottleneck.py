"""A few layers that must recover a text through one vector: the head of all these objectives."""

import torch
from torch import Tensor, nn

from denserk.models.backbone import Backbone

STANDARD_DEVIATION = 0.02  # Of new weights, as BERT draws them


def draw_as_bert(module: nn.Module) -> None:
    """Weights from N(0, 0.02), biases 0; norms start as the identity by themselves."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=STANDARD_DEVIATION)
            if part.bias is not None:  # ModernBERT has none
                nn.init.zeros_(part.bias)


def behind(cls: Tensor, stream: Tensor) -> Tensor:
    """A [CLS] state in the place of a stream's first: (B, H), (B, T, H) -> (B, T, H)."""
    return torch.cat([cls.unsqueeze(1).to(stream.dtype), stream[:, 1:]], 1)


class Bottleneck(nn.ModuleList):
    """A shallow stack of layers of the backbone's own kind.

    Args:
        backbone: whose kind of layers it takes; it is not part of the stack.
        count: how many layers.
        library_init: leave the weights as torch draws them, in place of BERT's N(0, 0.02).
    """

    def __init__(self, backbone: Backbone, count: int, *, library_init: bool = False) -> None:
        super().__init__(backbone.new_layers(count))
        if not library_init:
            draw_as_bert(self)

    def forward(self, backbone: Backbone, cls: Tensor, stream: Tensor, mask: Tensor) -> Tensor:
        """Full self-attention over a [CLS] state and the stream behind it.

        Args:
            backbone: the same as at the beginning.
            cls: (B, H).
            stream: (B, T, H); what stands at position 0 is replaced.
            mask: (B, T) bool, True = a real token.

        Returns:
            (B, T, H).
        """
        return backbone.run_layers(self, behind(cls, stream), mask)
