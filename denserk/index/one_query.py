"""Many vectors times one query: faiss's kernel, where it is installed, keeps pace with the memory.

torch leaves this product to a library that takes twice the time on some processors.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from denserk.extras import installed
from denserk.index.faiss_library import load_faiss

KERNEL = "fvec_inner_products_ny"


def product_with_one(block: Tensor, query: Tensor) -> Tensor:
    """Inner products with one query, by faiss where it is installed.

    Args:
        block: (n, D) float32, row behind row.
        query: (D,) float32.

    Returns:
        (n,) float32.
    """
    faiss = _faiss()
    if faiss is None:
        return torch.mv(block, query)
    found = torch.empty(len(block))
    pointers = (faiss.swig_ptr(part.numpy()) for part in (found, query, block))
    getattr(faiss, KERNEL)(*pointers, block.shape[1], len(block))
    return found


@cache
def _faiss() -> Any:
    """The faiss package, or None where it is not there or has no such kernel."""
    if not installed("faiss"):
        return None
    faiss = load_faiss()
    return faiss if hasattr(faiss, KERNEL) else None
