"""The contrastive losses: own hard negatives and everybody else's passages.

"Condenser" (Gao and Callan, 2021), equation 12; "Aggretriever" (Lin et al., 2023), section 4;
"SimLM" (Wang et al., 2023) for the full contrastive loss. Axes: B queries, P passages, D
dimensions. `targets[i]` is the row of query i's positive.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.pooling import PassageVectors, dot, max_similarity, vector_scores
from denserk.objectives.candidates import first_rows


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
