"""Floating-point operations of a forward pass, and how many of them a second the machine can do."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from denserk.modeling.encoder import Encoder
from denserk.modeling.packed_linear import pack, unavailable


@dataclass(frozen=True)
class Operations:
    """What a forward pass costs, matrix products alone; a multiplication and an addition are two.

    Attributes:
        per_token: of the layers' weights, 24 H^2 for each layer of BERT's shape.
        per_pair: of attention, for each two tokens of one text, 4 H for each layer.
        head_per_token: of the masked-language-model head, where vectors go through it, for each
            token after position 0.
        hidden: H.
    """

    per_token: int
    per_pair: int
    head_per_token: int
    hidden: int

    @classmethod
    def of(cls, encoder: Encoder) -> "Operations":
        """What an encoder costs, by the shapes of its weights."""
        backbone = encoder.backbone
        inside = {id(module) for module in backbone.encoder.modules()}
        linear = [m for m in backbone.model.modules() if isinstance(m, nn.Linear)]
        layers = sum(2 * m.weight.numel() for m in linear if id(m) in inside)
        whole = sum(2 * m.weight.numel() for m in linear)
        attended = backbone.heads * getattr(backbone.config, "d_kv", 0) or backbone.hidden_size
        return cls(
            per_token=layers,
            per_pair=4 * attended * backbone.last_layer,
            head_per_token=whole - layers,
            hidden=backbone.hidden_size,
        )

    def forward(self, texts: int, tokens: int, pairs: int) -> int:
        """Operations of a forward pass without any padding.

        Args:
            texts: how many.
            tokens: their tokens.
            pairs: the sum of their squared lengths.
        """
        head = self.head_per_token * (tokens - texts)
        return self.per_token * tokens + self.per_pair * pairs + head


@torch.inference_mode()
def matrix_rate(
    hidden: int, dtype: torch.dtype, device: torch.device, seconds: float = 0.5
) -> float:
    """Operations a second of products of a model's shape: (N, H) by (H, 4 H).

    The best of many products; on the CPU, of both ways that denserk multiplies, by torch and with
    packed weights.

    Args:
        hidden: H.
        dtype: the precision.
        device: where.
        seconds: how long to try.
    """
    rows = 2048 if device.type == "cpu" else 16384
    inputs = torch.randn(rows, hidden, device=device).to(dtype)
    weight = torch.randn(4 * hidden, hidden, device=device).to(dtype)
    products: list[Callable[[], object]] = [lambda: F.linear(inputs, weight)]
    if device.type == "cpu" and unavailable(dtype) is None:
        packed = pack(weight, None, dtype)
        products.append(lambda: packed(inputs))
    best = min(_quickest(product, device, seconds / len(products)) for product in products)
    return 2 * inputs.numel() * len(weight) / best


def _quickest(product: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of one product, the least of those tried."""

    def once() -> float:
        begun = time.perf_counter()
        product()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    once()
    best, end = once(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, once())
    return best
