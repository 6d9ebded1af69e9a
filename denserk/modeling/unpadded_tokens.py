"""Real tokens without padding between them: a batch's packed into one list, and states put back.

Shapes: `B` texts, `T` tokens of the longest, `N` real tokens of all texts. Padding stands at the
end of a text.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from denserk.data.batches import TokenBatch

KNOWN: MutableMapping[Tensor, "Packing"] = WeakTensorKeyDictionary()
"""The packings of masks, for as long as these live: layers and heads ask again and again."""


@dataclass(frozen=True)
class Packing:
    """Where a batch's real tokens stand when they are packed.

    Attributes:
        lengths: of the B texts; known to the CPU, so that no later step waits for a GPU.
        width: T.
        device: where the batch is.
    """

    lengths: tuple[int, ...]
    width: int
    device: torch.device

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """The packing of a batch with this mask: (B, T) bool.

        On a GPU this waits for it, unless the mask has been asked about before; see `move`.

        >>> Packing.of(torch.tensor([[True, True], [True, False]])).lengths
        (2, 1)
        """
        known = KNOWN.get(mask)
        if known is None:
            known = cls(tuple(mask.sum(1).tolist()), mask.shape[1], mask.device)
            KNOWN[mask] = known
        return known

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each text begins in the list, and the list's end: B + 1 places."""
        return (0, *accumulate(self.lengths))

    @property
    def total(self) -> int:
        """N."""
        return self.offsets[-1]

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(self.lengths, default=0)

    @property
    def is_full(self) -> bool:
        """Whether there is no padding, so that packing is a change of shape alone."""
        return self.total == len(self.lengths) * self.width

    @cached_property
    def starts(self) -> Tensor:
        """`offsets` on the device: (B + 1,) int32."""
        with torch.inference_mode(False):  # training may ask for the same mask
            return self._uploaded(torch.tensor(self.offsets, dtype=torch.int32))

    @cached_property
    def places(self) -> Tensor:
        """Where each packed token stands in the flattened batch: (N,) int64.

        >>> Packing((2, 1), 3, torch.device("cpu")).places
        tensor([0, 1, 3])
        """
        with torch.inference_mode(False):
            lengths = torch.tensor(self.lengths, dtype=torch.int64)
            shifts = torch.arange(len(lengths)) * self.width - torch.tensor(self.offsets[:-1])
            return self._uploaded(torch.arange(self.total) + shifts.repeat_interleave(lengths))

    def _uploaded(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def pack(self, padded: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.is_full else flat.index_select(0, self.places)

    def unpack(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, T, ...), with zeros for padding."""
        shape = (len(self.lengths), self.width, *packed.shape[1:])
        if self.is_full:
            return packed.view(shape)
        empty = packed.new_zeros(shape[0] * shape[1], *shape[2:])
        return empty.index_copy(0, self.places, packed).view(shape)

    @cached_property
    def without_first(self) -> "Packing":
        """The packing of the same texts without their first token."""
        return Packing(tuple(n - 1 for n in self.lengths), self.width - 1, self.device)


def move(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """A batch on a device, its lengths read before, so that nothing has to wait for them there."""
    moved = batch.to(device)
    if moved.attention_mask is not batch.attention_mask:
        KNOWN[moved.attention_mask] = replace(Packing.of(batch.attention_mask), device=device)
    return moved
