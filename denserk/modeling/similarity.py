"""How a query's vector is compared with a passage's vectors.

Axes: B queries, P passages, S vectors of a passage, D dimensions. A passage has one vector in most
representations, and several in those that keep layers or tokens apart.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class PassageVectors(NamedTuple):
    """The vectors of a batch of passages.

    `values`: (P, S, D); vector 0 is the one that is kept where a single one is. `mask`: (P, S)
    bool, True = a real vector, or None where all are.
    """

    values: Tensor
    mask: Tensor | None = None

    def of(self, rows: Tensor) -> "PassageVectors":
        """The vectors of the passages in these rows; an axis of `rows` stands in place of P."""
        return PassageVectors(self.values[rows], None if self.mask is None else self.mask[rows])


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
