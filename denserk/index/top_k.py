"""The best K of many scores, one block at a time, with one order: score descending, then row."""

import torch
from torch import Tensor

Hits = tuple[Tensor, Tensor]
"""(B, K) float32 scores and the (B, K) int64 rows that have them."""


def top_k(scores: Tensor, rows: Tensor, depth: int) -> Hits:
    """The `depth` best of each line, in no order; `ordered` brings them into theirs.

    Where equal scores straddle the cut, the lowest rows stay, whatever `torch.topk` would pick.

    Args:
        scores: (B, N) float32.
        rows: (B, N) int64, or (N,) where they are alike for all.
        depth: K; fewer come back where N is smaller.

    >>> scores = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]])
    >>> [part.tolist() for part in top_k(scores, torch.tensor([9, 8, 7, 6, 5]), 3)]
    [[[3.0, 2.0, 1.0]], [[8, 6, 5]]]
    """
    rows = rows.expand(scores.shape)
    if scores.shape[1] <= depth:
        return scores, rows
    best, columns = scores.topk(depth + 1, dim=1)  # one more shows whether a tie straddles the cut
    cut = best[:, depth - 1]
    straddling = (best[:, depth] == cut).nonzero().flatten()
    best, columns = best[:, :depth], columns[:, :depth]
    for line in straddling.tolist():
        above = (best[line] > cut[line]).sum()
        equal = (scores[line] == cut[line]).nonzero().flatten()
        columns[line, above:] = equal[rows[line, equal].argsort()[: depth - above]]
    return best, rows.gather(1, columns)


def merge_top_k(held: Hits, new: Hits, depth: int) -> Hits:
    """The `depth` best of two results, in no order.

    >>> held = torch.tensor([[3.0, 1.0]]), torch.tensor([[4, 0]])
    >>> new = torch.tensor([[2.0, 1.0]]), torch.tensor([[9, 7]])
    >>> [part.tolist() for part in merge_top_k(held, new, 3)]
    [[[3.0, 2.0, 1.0]], [[4, 9, 0]]]
    """
    scores, rows = (torch.cat(parts, dim=1) for parts in zip(held, new, strict=True))
    return top_k(scores, rows, depth)


def ordered(scores: Tensor, rows: Tensor) -> Hits:
    """Hits in the order of a result: score descending, row ascending."""
    by_row = rows.argsort(dim=1)
    scores, rows = scores.gather(1, by_row), rows.gather(1, by_row)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    return scores.gather(1, by_score), rows.gather(1, by_score)


def best_of_each(scores: Tensor, size: int) -> Hits:
    """The best vector of each passage, where `size` neighbouring columns are one passage's.

    Args:
        scores: (B, P * size).
        size: vectors of a passage.

    Returns:
        (B, P) scores and the (B, P) columns that have them, the first of equals.
    """
    passages = scores.reshape(len(scores), -1, size)
    best = passages.amax(dim=2)
    places = torch.arange(size, device=scores.device)
    within = torch.where(passages == best[..., None], places, size).amin(dim=2)
    first = torch.arange(0, scores.shape[1], size, device=scores.device)
    return best, first + within
