"""ME-BERT and ColBERT as MLR's paper compares them: a passage's vectors are token states.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025),
section 5, after "Sparse, Dense, and Attentional Representations for Text Retrieval" (Luan et al.,
2021) and "ColBERT" (Khattab and Zaharia, 2020). The states are the last layer's; the query keeps
its single vector. Axes: P passages, T tokens, S vectors, H hidden.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.pooling import pool_mean
from denserk.modeling.similarity import PassageVectors


def first_tokens(hidden: Tensor, mask: Tensor, count: int, *, by_cls: bool) -> PassageVectors:
    """The states of the first `count` positions (ME-BERT); a passage that has fewer is masked.

    Without a [CLS] the first vector is the mean over real tokens, and `count` - 1 tokens follow.

    hidden: (P, T, H), mask: (P, T) -> (P, count, H).
    """
    if not by_cls:
        mean = pool_mean(hidden, mask).unsqueeze(1)
        hidden = torch.cat([mean, hidden], 1)
        mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
    missing = max(0, count - hidden.shape[1])
    values = F.pad(hidden[:, :count], (0, 0, 0, missing))
    return PassageVectors(values, F.pad(mask[:, :count], (0, missing)))


def all_tokens(hidden: Tensor, mask: Tensor) -> PassageVectors:
    """The states of all real tokens (ColBERT). (P, T, H), (P, T) -> (P, T, H)."""
    return PassageVectors(hidden, mask)
