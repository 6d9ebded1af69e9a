"""Whether the Triton kernels can be trusted on a device: tried once, beside the literal form."""

import os
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from denserk.extras import installed
from denserk.modeling.fused_aggregation import fused_aggregate
from denserk.modeling.lexical_aggregation import aggregate
from denserk.modeling.slice_layout import SliceLayout
from denserk.settings.encoding import AggKind, AggLayout

BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest relative error of a vector or a gradient, by the precision of the products."""


@cache
def kernels_problem(device: torch.device) -> str | None:
    """Why the kernels cannot serve on a device, in a few words; None where they can.

    They are tried once, forward and back, on random numbers, in float32 and in bfloat16.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "they are for GPUs"
    if not installed("triton"):
        return "triton is not installed"
    try:
        errors = {kind: _trial_error(device, kind) for kind in BOUNDS}
    except Exception as error:  # noqa: BLE001  (whatever a compiler on some machine may raise)
        return f"they failed on trial: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    wrong = [str(kind) for kind, error in errors.items() if not error <= BOUNDS[kind]]
    return f"on trial they disagreed with the literal form in {', '.join(wrong)}" if wrong else None


@torch.inference_mode(False)
def _trial_error(device: torch.device, precision: torch.dtype) -> float:
    """The largest relative error of a vector and its gradients beside the literal form's."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"states": (12, 16), "weight": (75, 16), "bias": (75,), "term_weights": (12,)}
    tensors = [torch.randn(shape, generator=generator).to(device) for shape in shapes.values()]
    tensors[0], tensors[1] = tensors[0].to(precision), tensors[1].to(precision)
    layout = SliceLayout.build(75, 20, AggKind.STAR, AggLayout.STRIDED, 0)
    offsets, target = (0, 7, 8, 12), torch.randn(3, 20, generator=generator).to(device)

    def literal(states: Tensor, weight: Tensor, bias: Tensor, terms: Tensor) -> Tensor:
        rows = [slice(*ends) for ends in pairwise(offsets)]
        logits = [states[r].float() @ weight.float().t() + bias for r in rows]
        best = [
            aggregate(z[None], terms[r][None], torch.ones_like(terms[r][None], dtype=torch.bool))
            for z, r in zip(logits, rows, strict=True)
        ]
        return layout.fold(torch.cat(best))

    def fused(states: Tensor, weight: Tensor, bias: Tensor, terms: Tensor) -> Tensor:
        return fused_aggregate(states, weight, bias, terms, offsets, layout, rows=8)

    found = []
    for form in (literal, fused):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            vectors = form(*leaves)
            found.append([vectors, *torch.autograd.grad(vectors, leaves, target)])
    pairs = [(a.detach().float(), b.detach().float()) for a, b in zip(*found, strict=True)]
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)
