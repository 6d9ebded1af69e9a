"""Pooling of token states into vectors, and the similarity of query and passage vectors.

Shapes: `B` texts or queries, `T` tokens, `H` hidden size; `P` passages, `S` vectors of a passage,
`D` dimensions. `hidden`: (B, T, H). `mask`: (B, T) bool, True = a real token. Padding may stand at
either end of a row, but for `cls` at the end.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """The same numbers, 16-bit ones widened to 32; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def pool_cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of position 0: (B, T, H) -> (B, H)."""
    return hidden[:, 0]


def pool_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, summed in float32 at least: (B, T, H) -> (B, H).

    >>> hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    >>> pool_mean(hidden, torch.tensor([[True, True, False]])).tolist()
    [[2.0, 4.0]]
    """
    kept = mask.unsqueeze(-1)
    total = at_least_float32(torch.where(kept, hidden, 0)).sum(dim=1)
    return total / kept.sum(dim=1).clamp(min=1)


def pool_max(hidden: Tensor, mask: Tensor) -> Tensor:
    """The maximum over real tokens, one dimension at a time: (B, T, H) -> (B, H)."""
    return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def pool_last(hidden: Tensor, mask: Tensor) -> Tensor:
    """The state of the last real token: (B, T, H) -> (B, H)."""
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * places).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


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
