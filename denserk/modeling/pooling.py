"""Token states -> one vector a text: pure functions of hidden states and a mask.

Shapes: `B` texts, `T` tokens, `H` hidden size. `hidden`: (B, T, H). `mask`: (B, T) bool, True = a
real token. Padding may stand at either end of a row, but for `cls` at the end.
"""

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
