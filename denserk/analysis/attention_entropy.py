"""How widely [CLS] looks: the entropy of its attention, layer by layer (Condenser's Figure 2).

The [CLS] row of a head's attention is a distribution p over the text's tokens, and its entropy
-sum p ln p says over how many of them the head spreads: 0 where it sees one token alone, ln T where
it sees all T alike. As Clark et al. (2019, "What Does BERT Look At?") measure it, in nats.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.data.batches import TokenBatch
from denserk.modeling.backbone import Backbone


def row_entropy(rows: Tensor, mask: Tensor) -> Tensor:
    """The entropy of attention rows, in nats: (B, A, T) -> (B, A) float64.

    Args:
        rows: one token's attention in each head, after the softmax.
        mask: (B, T) bool, True = a real token; what padding receives does not count.

    >>> rows = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    >>> row_entropy(rows, torch.tensor([[True, True, False]]))
    tensor([[0.6931, 0.0000]], dtype=torch.float64)
    """
    seen = rows.double().masked_fill(~mask.unsqueeze(1), 0.0)
    entropies: Tensor = torch.special.entr(seen).sum(-1)
    return entropies


@torch.inference_mode()
def layer_entropies(backbone: Backbone, batch: TokenBatch) -> NDArray[np.float64]:
    """Each layer's [CLS] entropy, the mean over its heads: (B, T) ids -> (B, L)."""
    maps = backbone.attention_maps(batch)
    found = [row_entropy(layer[:, :, 0], batch.attention_mask).mean(1) for layer in maps]
    entropies: NDArray[np.float64] = torch.stack(found, dim=1).cpu().numpy()
    return entropies
