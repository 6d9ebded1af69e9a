"""Losses over pairs and triplets of sentences, as Condenser's Tables 1 and 2 use them.

"Sentence-BERT" (Reimers and Gurevych, 2019), section 3. Axes: B pairs or triplets, D dimensions.
"""

import torch.nn.functional as F
from torch import Tensor


def cosine_mse(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of the cosine against a label in 0..1. (B, D), (B, D), (B,) -> scalar."""
    return F.mse_loss(F.cosine_similarity(first, second), labels)


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 5.0) -> Tensor:
    """Mean of max(0, |a - p| - |a - n| + margin), Euclidean. three (B, D) -> scalar."""
    return F.triplet_margin_loss(anchor, positive, negative, margin=margin, eps=0.0)
