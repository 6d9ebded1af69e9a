"""Linear layers whose weights are laid out once for the CPU's matrix instructions (oneDNN).

torch's own `linear` hands a weight to the library as it lies in memory, on every call. oneDNN can
lay it out for the processor's kernels beforehand; torch's compiler does so through two operators
that have no public name. They are probed here, and checked against `torch.nn.functional.linear`,
before anything relies on them.
"""

import functools
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.models.devices import has_bfloat16

OPERATORS: Any = torch.ops.mkldnn
NAMES = ("_reorder_linear_weight", "_linear_pointwise")
# Precisions that can be packed, and how far a product may lie from torch's, relative to it
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
USUAL_ROWS = 2048  # Rows for which oneDNN chooses the layout; any number can be multiplied


class PackedLinear:
    """A linear layer for inference; it holds its weight in oneDNN's layout alone.

    Args:
        weight: packed, of the shape (O, I).
        bias: (O,), or None.
        activation: what is applied to the product.
    """

    __slots__ = ("activation", "bias", "dtype", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        self.weight = weight
        self.bias = bias
        self.activation = activation
        self.dtype = weight.dtype

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's product: (..., I) -> (..., O); both of the layer's own dtype."""
        product: Tensor = OPERATORS._linear_pointwise(
            inputs, self.weight, self.bias, self.activation, [], "none"
        )
        return product

    def added(self, inputs: Tensor, other: Tensor) -> Tensor:
        """The product plus another tensor, rounded once: (..., I), (..., O) -> (..., O)."""
        total: Tensor = OPERATORS._linear_pointwise.binary(
            inputs, other, self.weight, self.bias, "add"
        )
        return total


def pack(
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    *,
    activation: Literal["gelu"] | None = None,
) -> PackedLinear:
    """Lays a weight out for the processor; only where `unavailable(dtype)` is None.

    The packed weight is a copy: where the original is not needed for anything else, drop it.

    Args:
        weight: (O, I), on the CPU.
        bias: (O,), or None.
        dtype: the precision to compute in; float32 or bfloat16.
        activation: gelu in its exact form, computed inside the product.
    """
    packed = OPERATORS._reorder_linear_weight(weight.detach().to(dtype).contiguous(), USUAL_ROWS)
    kept = None if bias is None else bias.detach().to(dtype, copy=True)
    return PackedLinear(packed, kept, activation or "none")


@functools.cache
def unavailable(dtype: torch.dtype) -> str | None:
    """Why weights cannot be packed for that precision here, or None where they can."""
    if dtype not in TOLERANCES:
        return f"no packed weights for {str(dtype).removeprefix('torch.')}"
    if not torch._C._has_mkldnn:
        return "torch was built without oneDNN"
    missing = [name for name in NAMES if not hasattr(OPERATORS, name)]
    if missing:
        return f"this torch ({torch.__version__}) has no {' and no '.join(missing)}"
    if dtype is torch.bfloat16 and not has_bfloat16():
        return "the processor has no bfloat16 instructions (float32 is faster on it)"
    return _disagreement(dtype)


@torch.inference_mode()
def _disagreement(dtype: torch.dtype) -> str | None:
    """How packed products differ from torch's on a small example, or None where they agree."""
    drawn = torch.Generator().manual_seed(1)
    shapes = ((33, 64), (96, 64), (96,), (33, 96))
    inputs, weight, bias, other = (torch.randn(*s, generator=drawn).to(dtype) for s in shapes)
    expected = F.linear(inputs.float(), weight.float(), bias.float())
    try:
        found = (
            (pack(weight, bias, dtype)(inputs), expected),
            (pack(weight, bias, dtype, activation="gelu")(inputs), F.gelu(expected)),
            (pack(weight, None, dtype)(inputs), expected - bias.float()),
            (pack(weight, bias, dtype).added(inputs, other), expected + other.float()),
        )
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"oneDNN's linear operator fails: {str(error).splitlines()[0]}"
    worst = max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in found)
    if not worst <= TOLERANCES[dtype]:
        return f"oneDNN's linear operator is off by {worst:.1e}"
    return None
