"""Attention within each text of a packed list, by the best kernel that a device has.

Shapes: `N` tokens of all texts, `A` heads, `E` dimensions of a head.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.extras import installed
from denserk.modeling.unpadded_tokens import Packing

try:  # from torch 2.10 on
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None  # type: ignore[assignment]

HALF = (torch.bfloat16, torch.float16)
BOUND = 2e-2
"""Largest relative error of a kernel beside the padded form, in 16 bits."""
Attention = Callable[[Tensor, Tensor, Tensor, Packing, float], Tensor]


def attend(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout: float = 0.0
) -> Tensor:
    """Every token attends to all tokens of its own text: (N, A, E) three times -> (N, A, E).

    Args:
        query: (N, A, E).
        key: (N, A, E).
        value: (N, A, E).
        packing: whose tokens they are.
        dropout: the probability with which a weight is dropped.
    """
    chosen = _kernel(query.device, query.dtype, dropout > 0)
    return chosen(query, key, value, packing, dropout)


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout: float
) -> Tensor:
    """The form for any device: padded for this one step."""
    q, k, v = (packing.unpack(part).transpose(1, 2) for part in (query, key, value))
    mask = None
    if not packing.is_full:
        lengths = packing.starts.diff()[:, None, None, None]
        mask = torch.arange(packing.width, device=query.device) < lengths
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return packing.pack(context.transpose(1, 2))


def torch_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout: float
) -> Tensor:
    """The kernel of torch itself for texts of different lengths."""
    assert varlen_attn is not None
    starts, longest = packing.starts, packing.longest
    context = varlen_attn(query, key, value, starts, starts, longest, longest)
    assert isinstance(context, Tensor)
    return context


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout: float
) -> Tensor:
    """The kernel of the package flash-attn, where it is installed."""
    kernel: Any = importlib.import_module("flash_attn").flash_attn_varlen_func
    starts, longest = packing.starts, packing.longest
    context: Tensor = kernel(query, key, value, starts, starts, longest, longest, dropout_p=dropout)
    return context


@cache
def _kernel(device: torch.device, dtype: torch.dtype, drops: bool) -> Attention:
    """The first kernel that a device has and that agrees with the padded form."""
    if device.type == "cuda" and dtype in HALF:
        if varlen_attn is not None and not drops and _agrees(torch_attention, device, dtype):
            return torch_attention
        if installed("flash_attn") and _agrees(flash_attention, device, dtype):
            return flash_attention
    return padded_attention


@torch.inference_mode(False)
def _agrees(kernel: Attention, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel gives what the padded form gives, forward and back, on random numbers."""
    packing = Packing((7, 1, 33), 33, device)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, packing.total, 2, 64, generator=generator).to(device, dtype)
    found = []
    try:
        for form in (padded_attention, kernel):
            query, key, value = (part.clone().requires_grad_() for part in drawn[:3])
            with torch.enable_grad():
                context = form(query, key, value, packing, 0.0)
            wanted = torch.autograd.grad(context, (query, key, value), drawn[3])
            found.append([context, *wanted])
    except Exception:  # noqa: BLE001  (whatever a kernel on some machine may raise)
        return False
    pairs = [(a.detach().float(), b.detach().float()) for a, b in zip(*found, strict=True)]
    return all(float((a - b).norm()) <= BOUND * float(a.norm()) for a, b in pairs)
