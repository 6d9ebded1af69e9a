"""Losses over pairs: a cross-encoder's queries and passages, and sentences.

"MASTER" (Zhou et al., 2023), section 4's reranker; "R-Drop" (Liang et al., 2021), equation 3;
"Sentence-BERT" (Reimers and Gurevych, 2019), section 3. Axes: B queries, pairs or triplets, N
passages of a query, the positive first, D dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.losses.contrastive import contrastive_loss
from denserk.losses.distillation import kl_divergence


def listwise_loss(scores: Tensor) -> Tensor:
    """Cross-entropy of the positive among a query's own passages. (B, N) -> scalar."""
    targets = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return contrastive_loss(scores, targets)


def r_drop_loss(first: Tensor, second: Tensor, weight: float = 1.0) -> dict[str, Tensor]:
    """Two passes of one batch under different dropout: both are right, and they agree.

    first, second: (B, N) -> the terms by name; their sum is the loss.
    """
    agreement = kl_divergence(first, second) + kl_divergence(second, first)
    return {
        "listwise": (listwise_loss(first) + listwise_loss(second)) / 2,
        "agreement": weight * agreement / 2,
    }


def cosine_mse(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of the cosine against a label in 0..1. (B, D), (B, D), (B,) -> scalar."""
    return F.mse_loss(F.cosine_similarity(first, second), labels)


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 5.0) -> Tensor:
    """Mean of max(0, |a - p| - |a - n| + margin), Euclidean. three (B, D) -> scalar."""
    return F.triplet_margin_loss(anchor, positive, negative, margin=margin, eps=0.0)
