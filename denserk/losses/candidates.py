"""Which passages of a batch each query is compared with.

Axes: B queries, P passages, N passages of a query's group, the positive first.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """The passages that stand in the losses of a batch.

    `groups`: (B, N) int64, each query's own passages as rows of the passages, -1 where there is
    none. `counted`: (B, P) bool, whether a passage stands in a query's softmax.
    """

    groups: Tensor
    counted: Tensor

    @property
    def targets(self) -> Tensor:
        """(B,) the row of each query's positive."""
        return self.groups[:, 0]

    @property
    def present(self) -> Tensor:
        """(B, N) bool, False where a group has no passage."""
        return self.groups >= 0


def find_candidates(groups: Tensor, keys: Tensor) -> Candidates:
    """Count every passage once for every query, whatever number of rows it has.

    Args:
        groups: (B, N), see `Candidates`.
        keys: (P,) int64, equal where two rows are the same passage, negative for padding.

    >>> groups, counted = find_candidates(torch.tensor([[0, 1], [2, -1]]), torch.tensor([7, 8, 7]))
    >>> groups.tolist(), counted.tolist()
    ([[0, 1], [0, -1]], [[True, True, False], [True, True, False]])
    """
    first = first_rows(keys)
    own = torch.where(groups < 0, groups, first[groups])
    counted = (first == torch.arange(len(keys), device=keys.device)) & (keys >= 0)
    return Candidates(own, counted.expand(len(groups), -1))


def first_rows(keys: Tensor) -> Tensor:
    """The first row of the same key, for each row. (P,) -> (P,).

    >>> first_rows(torch.tensor([5, 3, 5, 5])).tolist()
    [0, 1, 0, 0]
    """
    found, inverse = keys.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    rows = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(found, len(keys)).scatter_reduce(0, inverse, rows, "amin")
    return first[inverse]
