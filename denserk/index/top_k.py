"""The best K of many scores, one block at a time, with one order: score descending, then row."""

import torch
from torch import Tensor


def top_k(scores: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The `depth` best columns of each row, ordered by (score descending, column ascending).

    Where equal scores straddle the cut, the lowest columns stay, whatever `torch.topk` would pick.

    Args:
        scores: (B, N) float32.
        depth: K; fewer come back where N is smaller.

    Returns:
        (B, K) scores and (B, K) int64 columns.

    >>> best, columns = top_k(torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]]), 3)
    >>> best.tolist(), columns.tolist()
    ([[3.0, 2.0, 1.0]], [[1, 3, 0]])
    """
    count = scores.shape[1]
    if count <= depth:
        columns = torch.arange(count, device=scores.device).expand(scores.shape)
        return ordered(scores, columns)
    best, columns = scores.topk(depth + 1, dim=1)  # one more shows whether a tie straddles the cut
    cut = best[:, depth - 1]
    straddling = (best[:, depth] == cut).nonzero().flatten()
    best, columns = best[:, :depth].clone(), columns[:, :depth].clone()
    for row in straddling.tolist():
        above = (best[row] > cut[row]).sum()
        columns[row, above:] = (scores[row] == cut[row]).nonzero().flatten()[: depth - above]
    return ordered(best, columns)


def ordered(scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Hits of (B, K) in the order of a result: score descending, row ascending."""
    by_row = rows.argsort(dim=1)
    scores, rows = scores.gather(1, by_row), rows.gather(1, by_row)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    return scores.gather(1, by_score), rows.gather(1, by_score)


def merge_top_k(
    held: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], depth: int
) -> tuple[Tensor, Tensor]:
    """The `depth` best of two results, each (scores, rows), ordered; all rows of `new` come later.

    >>> held = torch.tensor([[3.0, 1.0]]), torch.tensor([[4, 0]])
    >>> new = torch.tensor([[2.0, 1.0]]), torch.tensor([[9, 7]])
    >>> [part.tolist() for part in merge_top_k(held, new, 3)]
    [[[3.0, 2.0, 1.0]], [[4, 9, 0]]]
    """
    scores, rows = torch.cat([held[0], new[0]], dim=1), torch.cat([held[1], new[1]], dim=1)
    best, columns = top_k(scores, depth)
    return best, rows.gather(1, columns)


def best_of_each(scores: Tensor, size: int) -> tuple[Tensor, Tensor]:
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
