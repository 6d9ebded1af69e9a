"""The cross-encoder's losses: listwise cross-entropy, and R-Drop's agreement of two dropout draws.

"MASTER" (Zhou et al., 2023), section 4's reranker; "R-Drop: Regularized Dropout for Neural
Networks" (Liang et al., 2021), equation 3. Axes: B queries, N passages of a query, the positive
first.
"""

import torch
from torch import Tensor

from denserk.objectives.contrastive import contrastive_loss
from denserk.objectives.distillation import kl_divergence


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
