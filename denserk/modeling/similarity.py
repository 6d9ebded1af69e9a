"""How a query's vector is compared with a passage's vectors.

Axes: B queries, P passages, S vectors of a passage, D dimensions. A passage has one vector in most
representations, and several in those that keep layers or tokens apart.
"""

import torch
from torch import Tensor


def dot(queries: Tensor, passages: Tensor) -> Tensor:
    """Inner products. queries: (B, D), passages: (P, D) -> (B, P).

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0], [0.0, 1.0]])).tolist()
    [[5.0, 2.0]]
    """
    return queries @ passages.transpose(0, 1)


def vector_scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Inner products with every vector of every passage. (B, D), (P, S, D) -> (B, P, S)."""
    return torch.einsum("bd,psd->bps", queries, passages)


def max_similarity(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """A passage's best vector decides (MLR, equation 2). scores: (B, P, S), mask: (P, S) -> (B, P).

    Vectors whose mask is False take no part. The gradient goes to the best vector alone; among
    equals to the first, which in MLR is the last layer's.

    >>> scores, mask = torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([[True, True, False]])
    >>> max_similarity(scores, mask).item()
    2.0
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.gather(2, scores.argmax(dim=2, keepdim=True)).squeeze(2)
