"""coCondenser's contrast of spans: two spans of a document find each other in the batch.

"Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval" (Gao and Callan,
2022), section 3.2.
"""

import torch
from torch import Tensor

from denserk.modeling.pooling import at_least_float32, dot
from denserk.objectives.contrastive import contrastive_loss


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
