"""The contrastive losses: own hard negatives and everybody else's passages.

"Condenser" (Gao and Callan, 2021), equation 12; "Aggretriever" (Lin et al., 2023), section 4;
"SimLM" (Wang et al., 2023) for the full contrastive loss; "coCondenser" (Gao and Callan, 2022),
section 3.2, for spans; MLR (Xie and Lukasiewicz, 2025), equations 5 and 6, for several vectors a
passage, of which vector 0 is kept. Axes: B queries, P passages, S vectors of a passage, D
dimensions. `targets[i]` is the row of query i's positive.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.losses.candidates import first_rows
from denserk.models.pooling import (
    PassageVectors,
    at_least_float32,
    dot,
    max_similarity,
    vector_scores,
)


def contrastive_loss(scores: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax cross-entropy over all passages of the batch.

    Args:
        scores: (B, P); -inf leaves a passage out for a query.
        targets: (B,) int64.
        temperature: divides the scores.

    >>> round(contrastive_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1269
    """
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return F.cross_entropy(wide / temperature, targets)


def full_contrastive_scores(
    scores: Tensor,
    queries: Tensor,
    positives: PassageVectors,
    query_positive: Tensor,
    targets: Tensor,
) -> Tensor:
    """SimLM's four blocks side by side, the diagonals of the last three left out.

    Query i against all passages, its positive against the other queries, query i against the other
    queries, its positive against the other positives, each passage among them once.

    Args:
        scores: (B, P), the first block.
        queries: (B, D).
        positives: (B, S, D), each query's positive; where it asks, it does so by vector 0.
        query_positive: (B, B), the score of query i with the positive of query j.
        targets: (B,) int64, the row of each query's positive; equal for the same passage.

    Returns:
        (B, P + 3 B).
    """
    own = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    among_positives = vector_scores(positives.values[:, 0], positives.values)
    positive_positive = max_similarity(among_positives, positives.mask)
    again = first_rows(targets) != torch.arange(len(targets), device=targets.device)
    same = targets[:, None] == targets
    others = (
        (query_positive.T, own),
        (dot(queries, queries), own),
        (positive_positive, same | again),
    )
    return torch.cat([scores, *(s.masked_fill(mask, -torch.inf) for s, mask in others)], 1)


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


def span_contrast_loss(rows: Tensor) -> Tensor:
    """Mean over spans of the cross-entropy of the partner among all other spans.

    Args:
        rows: (2 N, H), raw [CLS] states; rows 2 i and 2 i + 1 are of one document.

    >>> round(span_contrast_loss(torch.tensor([[1.0], [1.0], [0.0], [0.0]])).item(), 4)
    0.825
    """
    wide = at_least_float32(rows)
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    partners = torch.arange(len(rows), device=rows.device) ^ 1
    return contrastive_loss(dot(wide, wide).masked_fill(itself, -torch.inf), partners)
