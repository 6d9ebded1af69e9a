"""Dropout, and attention with dropout, for training in bfloat16 on a CPU.

On a CPU torch draws dropout's random numbers one by one from a slow generator, and has no fused
attention with dropout: both cost a step as much as half of its matrix products. Here four random
numbers come of one draw of a fast generator, and attention keeps two matrices for its backward
pass in place of four.

The numbers depend on torch's random state alone, of which every call draws one seed: a step that is
repeated, by activation checkpointing or by a resumed run, drops the same elements.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

RANDOM_BITS = 15  # of an element: a probability is rounded to 1 / 2**15
ELEMENTS_PER_DRAW = 4  # of 64 bits


@contextmanager
def cpu_bfloat16_autocast() -> Iterator[None]:
    """Context manager for forward passes in bfloat16 on a CPU, with the dropout of this module."""
    with torch.autocast("cpu", torch.bfloat16), _FastDropout():
        yield


class _FastDropout(TorchFunctionMode):
    """Replaces torch's dropout and attention on bfloat16 tensors, as any model calls them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or what replaces it."""
        options = dict(kwargs or {})
        if func is F.dropout:
            return _dropout_or_torch(*args, **options)
        if func is F.scaled_dot_product_attention:
            return _attention_or_torch(*args, **options)
        return func(*args, **options)


def _dropout_or_torch(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Return dropout of a tensor, by torch where it is not one of bfloat16 or nothing is drawn."""
    is_drawn = training and 0 < p < 1
    if not is_drawn or inplace or input.dtype is not torch.bfloat16:
        return F.dropout(input, p, training, inplace)
    dropped: Tensor = Dropout.apply(input, p)  # type: ignore[no-untyped-call]
    return dropped


def _attention_or_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return scaled dot-product attention, by torch where `AttentionWithDropout` is not for it."""
    is_bfloat16 = all(states.dtype is torch.bfloat16 for states in (query, key, value))
    is_plain = not is_causal and not enable_gqa and query.dim() == 4
    has_known_mask = attn_mask is None or attn_mask.dtype is torch.bool
    if not (0 < dropout_p < 1 and is_bfloat16 and is_plain and has_known_mask):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if scale is None:
        scale = query.shape[-1] ** -0.5
    attended: Tensor = AttentionWithDropout.apply(  # type: ignore[no-untyped-call]
        query, key, value, attn_mask, dropout_p, scale
    )
    return attended


def random_keep_bits(shape: Sequence[int], probability: float) -> Tensor:
    """Return int16, in which all bits are 0 with a probability and otherwise 1.

    Its bits and those of a bfloat16 number are that number or 0.
    """
    count = int(np.prod(shape))
    seed = int(torch.randint(2**62, ()))
    generator = np.random.Generator(np.random.SFC64(seed))
    draws = generator.integers(
        0, 2**64 - 1, -(-count // ELEMENTS_PER_DRAW), dtype=np.uint64, endpoint=True
    )
    bits = torch.from_numpy(draws.view(np.int16)[:count])
    # of the draws 0 to 2**RANDOM_BITS - 1, those below it are kept; int16 has no 2**RANDOM_BITS
    kept_draws = min(round((1 - probability) * 2**RANDOM_BITS), 2**RANDOM_BITS - 1)
    # a draw below `kept_draws` is negative after the subtraction; its sign fills all bits
    bits.bitwise_and_(2**RANDOM_BITS - 1).sub_(kept_draws).bitwise_right_shift_(RANDOM_BITS)
    return bits.view(*shape)


def keep(tensor: Tensor, keep_bits: Tensor, probability: float) -> Tensor:
    """Return the elements of a bfloat16 tensor that are kept, scaled, and 0 for the others."""
    kept_elements = (tensor.view(torch.int16) & keep_bits).view(torch.bfloat16)
    return kept_elements.mul_(1 / (1 - probability))


class Dropout(torch.autograd.Function):
    """Dropout of a bfloat16 tensor on a CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, probability: float) -> Tensor:
        """Set elements to 0 with a probability, and scale the others."""
        keep_bits = random_keep_bits(tensor.shape, probability)
        ctx.save_for_backward(keep_bits)
        ctx.probability = probability
        return keep(tensor, keep_bits, probability)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient of the elements that were kept on."""
        (keep_bits,) = ctx.saved_tensors
        return keep(gradient, keep_bits, ctx.probability), None


class AttentionWithDropout(torch.autograd.Function):
    """Attention of bfloat16 states on a CPU, with dropout of its weights.

    With P the softmax and D what dropout leaves of it, scaled, the output is O = D V. Of a gradient
    G of the output, that of the scores is D * (G V^T) - P * rowsum(G * O), as in "FlashAttention"
    (Dao et al., 2022), Appendix B.4: the dropped elements need not be known.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        probability: float,
        scale: float,
    ) -> Tensor:
        """Return the states that each query sees, (B, A, T, D); mask: bool, True where it does.

        query: (B, A, T, D), key and value: (B, A, S, D), mask: broadcast to (B, A, T, S).
        """
        with torch.autocast("cpu", enabled=False):
            scores = (query * scale) @ key.transpose(-1, -2)
            if mask is None:
                weights = scores.softmax(-1)
            else:
                # no infinity, of which a query that sees nothing would make NaN; it returns 0
                lowest = torch.finfo(torch.bfloat16).min
                weights = scores.masked_fill_(~mask, lowest).softmax(-1).masked_fill_(~mask, 0)
            kept_weights = keep(weights, random_keep_bits(weights.shape, probability), probability)
            attended = kept_weights @ value
        ctx.save_for_backward(query, key, value, weights, kept_weights, attended)
        ctx.scale = scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """Return the gradients of query, key and value."""
        query, key, value, weights, kept_weights, attended = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            value_gradient = kept_weights.transpose(-1, -2) @ gradient
            row_sums = (gradient.float() * attended).sum(-1, keepdim=True).bfloat16()
            score_gradient = gradient @ value.transpose(-1, -2)
            score_gradient.mul_(kept_weights).addcmul_(weights, row_sums, value=-1)
            query_gradient = (score_gradient @ key).mul_(ctx.scale)
            key_gradient = (score_gradient.transpose(-1, -2) @ query).mul_(ctx.scale)
        return query_gradient, key_gradient, value_gradient, None, None, None
