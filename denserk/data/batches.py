"""The batch types: the contract between tokenisation and models."""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenBatch(NamedTuple):
    """Texts of one batch, padded to its longest.

    `input_ids`: (B, T) int64. `attention_mask`: (B, T) bool, True = a real token. Token types are never given.
    """

    input_ids: Tensor
    attention_mask: Tensor

    def to(self, device: "torch.device | str") -> "TokenBatch":
        """The same batch on another device."""
        return TokenBatch(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
        )
