"""Aggretriever's maximum with its gradient written out.

One array of positions x vocabulary is kept, where the literal form keeps half a dozen.
"""

from typing import Any

import torch
from torch import Tensor

from denserk.modeling.pooling import at_least_float32


def aggregate_packed(logits: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    """`max_i w_i softmax(z_i)` over each text's positions, to train through (equations 3 and 4).

    A maximum that several positions share sends its gradient to the first of them.

    Args:
        logits: (N, V), of the positions of all texts, one text after the other.
        weights: (N,), after their rule.
        counts: the number of positions of each text, at least 1.

    Returns:
        (B, V) float32 at least.

    >>> logits = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    >>> aggregate_packed(logits, torch.tensor([1.0, 0.8]), [2])
    tensor([[0.4000, 0.7500]])
    """
    maxima: Tensor = _Maxima.apply(  # type: ignore[no-untyped-call]
        logits, at_least_float32(weights), counts
    )
    return maxima


class _Maxima(torch.autograd.Function):
    """The maximum, and what its gradient needs: the probabilities and who won."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
        """The maxima of all texts, text by text so that a text's products stay in the cache."""
        probabilities = at_least_float32(logits).softmax(dim=-1)
        maxima, winners = [], []
        parts = (torch.split(probabilities, counts), torch.split(weights, counts))
        for rows, weight in zip(*parts, strict=True):
            value, winner = (rows * weight.unsqueeze(-1)).max(dim=0)
            maxima.append(value)
            winners.append(winner)
        ctx.save_for_backward(probabilities, weights, *winners)
        ctx.counts, ctx.dtype = counts, logits.dtype
        return torch.stack(maxima)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Through maximum, weight and softmax: `p_iv (w_i g_v [i wins v] - sum_u w_i g_u p_iu)`."""
        probabilities, weights, *winners = ctx.saved_tensors
        to_logits, to_weights = torch.empty_like(probabilities, dtype=ctx.dtype), []
        parts = (torch.split(probabilities, ctx.counts), torch.split(weights, ctx.counts))
        places = torch.split(to_logits, ctx.counts)
        for rows, weight, winner, gradient, place in zip(
            *parts, winners, gradients[0], places, strict=True
        ):
            won = rows.gather(0, winner.unsqueeze(0)).squeeze(0) * gradient
            to_weight = torch.zeros_like(weight).index_add_(0, winner, won)
            spread = rows * (-weight * to_weight).unsqueeze(-1)
            spread.scatter_add_(0, winner.unsqueeze(0), (won * weight[winner]).unsqueeze(0))
            place.copy_(spread)
            to_weights.append(to_weight)
        return to_logits, torch.cat(to_weights), None
