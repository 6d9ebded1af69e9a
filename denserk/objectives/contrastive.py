"""The contrastive losses: own hard negatives and everybody else's passages.

"Condenser" (Gao and Callan, 2021), equation 12; "Aggretriever" (Lin et al., 2023), section 4;
"SimLM" (Wang et al., 2023) for the full contrastive loss. Axes: B queries, P passages, D
dimensions. `targets[i]` is the row of query i's positive.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.similarity import dot


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


def full_contrastive_scores(queries: Tensor, passages: Tensor, targets: Tensor) -> Tensor:
    """SimLM's four blocks side by side: (B, P + 3 B), the diagonals of the last three left out.

    Query i against all passages, its positive against the other queries, query i against the other
    queries, its positive against the other positives. queries: (B, D), passages: (P, D), targets:
    (B,).
    """
    positives = passages[targets]
    own = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    others = [dot(positives, queries), dot(queries, queries), dot(positives, positives)]
    return torch.cat([dot(queries, passages), *(s.masked_fill(own, -torch.inf) for s in others)], 1)


def parts_loss(
    cls_scores: Tensor,
    agg_scores: Tensor,
    targets: Tensor,
    weights: tuple[float, float] = (0.5, 0.5),
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Aggretriever's loss (section 4): the whole vector, and each of its parts alone.

    Args:
        cls_scores: (B, P) inner products of the [CLS] parts.
        agg_scores: (B, P) inner products of the lexical parts.
        targets: (B,) int64.
        weights: of the [CLS] part's loss and of the lexical part's.
        temperature: divides all scores.

    Returns:
        The weighted terms by name; their sum is the loss.
    """
    whole = contrastive_loss(cls_scores + agg_scores, targets, temperature)
    return {
        "contrastive": whole,
        "cls": weights[0] * contrastive_loss(cls_scores, targets, temperature),
        "agg": weights[1] * contrastive_loss(agg_scores, targets, temperature),
    }
