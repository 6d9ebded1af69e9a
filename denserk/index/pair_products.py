"""Inner products of chosen pairs of rows, without a copy of the rows."""

import warnings
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Places = NDArray[np.int64]
AT_ONCE = 8192
"""Pairs whose rows are copied together, where they must be."""
TOLERANCE = 1e-5


def pair_products(
    block: Tensor, queries: Tensor, rows: Places | Tensor, columns: Places | Tensor
) -> Tensor:
    """The inner product of each pair, in float32; on the CPU it reads the rows where they are.

    Args:
        block: (n, D) float32.
        queries: (B, D) float32.
        rows: (P,) rows of the block, ascending.
        columns: (P,) queries.

    Returns:
        (P,) float32.

    >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> pair_products(vectors, vectors, np.array([0, 1, 1]), np.array([0, 0, 1])).tolist()
    [1.0, 0.0, 4.0]
    """
    row, column = (torch.as_tensor(places, device=block.device) for places in (rows, columns))
    if block.device.type == "cpu" and has_sampled_products():
        return _sampled(block, queries, row, column)
    return _gathered(block, queries, row, column)


def _sampled(block: Tensor, queries: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    begins = torch.searchsorted(rows.contiguous(), torch.arange(len(block) + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse tensors unfinished
        pairs = torch.sparse_csr_tensor(
            begins,
            columns,
            torch.zeros(len(rows)),
            (len(block), len(queries)),
            check_invariants=False,
        )
        found: Tensor = torch.sparse.sampled_addmm(pairs, block, queries.T, beta=0.0)
    return found.values()


def _gathered(block: Tensor, queries: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    found = block.new_empty(len(rows))
    for first in range(0, len(rows), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        found[some] = (block[rows[some]] * queries[columns[some]]).sum(1)
    return found


@cache
def has_sampled_products() -> bool:
    """Whether torch's product of chosen pairs is there and right; looked at once."""
    draw = torch.Generator().manual_seed(1)
    block, queries = (torch.randn(n, 48, generator=draw) for n in (9, 5))
    rows, columns = torch.tensor([0, 0, 3, 8, 8]), torch.tensor([4, 1, 0, 2, 3])
    try:
        found = _sampled(block, queries, rows, columns)
    except RuntimeError:
        found = torch.full((len(rows),), torch.nan)
    return bool((found - _gathered(block, queries, rows, columns)).abs().max() < TOLERANCE)
