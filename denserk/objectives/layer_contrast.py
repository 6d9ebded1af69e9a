"""MLR's self-contrastive loss: the last layer learns to win against the others.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
equations 5 to 7. Axes: B queries, P passages, S vectors of a passage, of which vector 0 is the one
that is kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.pooling import max_similarity
from denserk.objectives.contrastive import contrastive_loss


def self_contrastive_scores(scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Equation 5's scores: the own positive by the kept vector, any other passage by its best.

    scores: (B, P, S), targets: (B,), mask: (P, S) -> (B, P).
    """
    own = F.one_hot(targets, scores.shape[1]).bool()
    return torch.where(own, scores[..., 0], max_similarity(scores, mask))


def layer_regulariser(
    scores: Tensor, targets: Tensor, mask: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Equation 6: a softmax over the own positive's vectors, the kept one the label -> scalar.

    The paper's temperature is 1, whatever divides the scores of equation 5.
    """
    rows = torch.arange(len(targets), device=scores.device)
    positive = scores[rows, targets]
    if mask is not None:
        positive = positive.masked_fill(~mask[targets], -torch.inf)
    return contrastive_loss(positive, torch.zeros_like(targets), temperature)


def self_contrastive_loss(
    scores: Tensor,
    targets: Tensor,
    weight: float = 1.0,
    mask: Tensor | None = None,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Equation 7: the terms by name; their sum is the loss. `weight` is the paper's lambda."""
    main = contrastive_loss(self_contrastive_scores(scores, targets, mask), targets, temperature)
    return {
        "contrastive": main,
        "layers": weight * layer_regulariser(scores, targets, mask),
    }
