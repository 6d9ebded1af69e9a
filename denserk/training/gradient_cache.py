"""Contrastive steps over large batches in the memory of a small one.

"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (Gao et al., 2021). A loss
that compares every text of a batch with every other needs all vectors at once, but not all
activations: vectors are made chunk by chunk without a graph, the loss gives each vector its
gradient, and each chunk is then run again, under the random state of its first run, with that
gradient handed to its vectors. The result is the gradient of the direct step, dropout included.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

Chunk = TypeVar("Chunk")


class RandomState:
    """The state of every random generator that a forward pass on these devices may draw from."""

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Runs its body under this state, and leaves the generators as they were outside."""
        devices = [self._device] if self._cuda is not None else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            yield


class CachedVectors(Generic[Chunk]):
    """Vectors of a batch, made in chunks; they are leaves, and send their gradient back on request.

    Args:
        encode: chunk -> its vectors, with a graph when gradients are on; called twice a chunk.
        chunks: the batch, cut.
        device: where `encode` computes.
    """

    def __init__(
        self, encode: Callable[[Chunk], Tensor], chunks: Sequence[Chunk], device: torch.device
    ) -> None:
        self._encode, self._chunks = encode, chunks
        self._states: list[RandomState] = []
        self.parts: list[Tensor] = []
        for chunk in chunks:
            self._states.append(RandomState(device))
            with torch.no_grad():
                self.parts.append(encode(chunk).detach().requires_grad_())

    def backward(self, extra: Callable[[Chunk], Tensor | None] | None = None) -> None:
        """Sends the gradient that `parts` hold into the encoder, chunk by chunk.

        Args:
            extra: a further loss of each chunk's own second run (an MLM loss, say), read right
            after it.
        """
        for chunk, part, state in zip(self._chunks, self.parts, self._states, strict=True):
            with state.restored(), torch.enable_grad():
                vectors = self._encode(chunk)
                gradient = torch.zeros_like(part) if part.grad is None else part.grad
                loss = (vectors * gradient.to(vectors.dtype)).sum()
                own = None if extra is None else extra(chunk)
                torch.autograd.backward(loss if own is None else loss + own)
