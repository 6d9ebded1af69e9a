"""Batches cut into groups of texts of similar length, and the gradient cache.

A pass over many texts at once costs less for each of them, and padding costs more: texts are
grouped so that the number of positions, padding included, plus a fixed price per pass is smallest.

"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (Gao et al., 2021): a loss
that compares every text of a batch with every other needs all embeddings at once, but not all
activations.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from denserk.config.training import CacheSettings
from denserk.data.batches import TokenBatch

# The cost of a pass beside its positions, in positions, by device type: gradients of all weights
# that are computed and summed once more, or kernels that are launched.
PRICES = {"cpu": 128}
DEFAULT_PRICE = 8192
# Lengths within a step of this many tokens count as one.
GRAIN = 8
Chunk = TypeVar("Chunk")


class Limits(NamedTuple):
    """The most that passes through the model at once: texts, and tokens with their padding."""

    texts: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, cache: CacheSettings, texts: int) -> "Limits":
        """Return the limits of a gradient cache: its tokens if given, else that many texts."""
        return cls(texts) if cache.chunk_tokens is None else cls(tokens=cache.chunk_tokens)

    def most(self, width: int) -> int | None:
        """Return how many texts of that width fit; None: any number."""
        by_tokens = None if self.tokens is None else max(1, self.tokens // width)
        given = [limit for limit in (self.texts, by_tokens) if limit is not None]
        return min(given) if given else None


UNLIMITED = Limits()


@dataclass
class Work:
    """Counts what passed through a model: `tokens` of texts, and `real` ones among `positions`.

    A text that is read again, by a decoder for example, counts in `real` and not in `tokens`.
    """

    tokens: int = 0
    real: int = 0
    positions: int = 0

    def count(self, lengths: Sequence[int], *, again: bool = False) -> None:
        """Count one pass over texts of these lengths, padded to the longest."""
        real = sum(lengths)
        self.tokens += 0 if again else real
        self.real += real
        self.positions += len(lengths) * max(lengths, default=0)

    @property
    def padding(self) -> float:
        """The share of positions that are padding."""
        return 1 - self.real / self.positions if self.positions else 0.0


def price_on(device: torch.device) -> int:
    """Return the cost of a pass beside its positions, in positions."""
    return PRICES.get(device.type, DEFAULT_PRICE)


def ends_of_groups(lengths: Sequence[int], price: int, limits: Limits = UNLIMITED) -> list[int]:
    """Return where groups of neighbours end, for the fewest positions plus `price` per group.

    Args:
        lengths: of texts, the longest first.
        price: of a group, in positions.
        limits: of a group; one that is too large is cut evenly.

    >>> ends_of_groups([90, 88, 30, 29, 28], price=32)
    [2, 5]
    >>> ends_of_groups([90, 88, 30, 29, 28], price=4096)
    [5]
    >>> ends_of_groups([30] * 5, price=32, limits=Limits(texts=2))
    [2, 4, 5]
    """
    starts = [
        place
        for place, length in enumerate(lengths)
        if not place or -(-length // GRAIN) != -(-lengths[place - 1] // GRAIN)
    ]
    bounds = [*starts, len(lengths)]

    def cost(start: int, end: int) -> int:
        width, count = lengths[start], end - start
        most = limits.most(width)
        return count * width + price * (1 if most is None else -(-count // most))

    best: list[tuple[int, int]] = [(0, 0)]  # up to each bound: the least cost, and the last group
    for end in range(1, len(bounds)):
        costs = ((best[s][0] + cost(bounds[s], bounds[end]), s) for s in range(end))
        best.append(min(costs))
    ends, end = [], len(bounds) - 1
    while end > 0:
        start, last = bounds[best[end][1]], bounds[end]
        most = limits.most(lengths[start]) or last - start
        ends += [last, *reversed(range(start + most, last, most))]
        end = best[end][1]
    return ends[::-1]


def items_at_once(cache: CacheSettings, texts: int, batch: TokenBatch) -> int:
    """Return how many items of `texts` neighbouring texts make a chunk: all without grad cache."""
    most = Limits.of(cache, cache.p_chunk).most(batch.input_ids.shape[1])
    if not cache.grad_cache or most is None:
        return len(batch.input_ids) // texts
    return max(1, most // texts)


class Groups(NamedTuple):
    """A batch in groups of similar length.

    `batches`: no wider than their longest texts. `rows`: of the batch, group after group. `back`:
    (B,) int64, the position of each text of the batch among the groups.
    """

    batches: list[TokenBatch]
    rows: list[Tensor]
    back: Tensor


def group(batch: TokenBatch, limits: Limits = UNLIMITED, work: Work | None = None) -> Groups:
    """Split a batch into groups, the longest texts first; count them in `work`."""
    ids, mask = batch
    work = Work() if work is None else work
    lengths = mask.sum(1)
    order = torch.arange(len(ids), device=ids.device)
    by_length = lengths.argsort(descending=True, stable=True)
    known = lengths[by_length].tolist()  # the one synchronisation with the device
    ends = ends_of_groups(known, price_on(ids.device), limits)
    if len(ends) > 1:  # else nothing is gained by another order
        order = by_length
    batches, rows = [], []
    for start, end in pairwise([0, *ends]):
        rows.append(order[start:end])
        width = max(known[start:end])
        batches.append(TokenBatch(ids[rows[-1], :width], mask[rows[-1], :width]))
        work.count(known[start:end])
    return Groups(batches, rows, order.argsort())


class RandomState:
    """The state of the random generators that a forward pass on a device may use."""

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run the body under this state; leave the generators as they were outside."""
        devices = [self._device] if self._cuda is not None else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            yield


class CachedVectors(Generic[Chunk]):
    """Embeddings of a batch, computed in chunks without a graph; they receive gradients as leaves.

    `backward` runs each chunk again, under the random state of its first run, and passes its
    gradient on: the result is the gradient of the direct step, dropout included.

    Args:
        encode: chunk -> its embeddings, with a graph when gradients are on; called twice per chunk.
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
        """Pass the gradient of `parts` into the encoder, chunk by chunk.

        Args:
            extra: a further loss of each chunk's second run, such as an MLM loss; read after it.
        """
        for chunk, part, state in zip(self._chunks, self.parts, self._states, strict=True):
            with state.restored(), torch.enable_grad():
                vectors = self._encode(chunk)
                gradient = torch.zeros_like(part) if part.grad is None else part.grad
                loss = (vectors * gradient.to(vectors.dtype)).sum()
                own = None if extra is None else extra(chunk)
                torch.autograd.backward(loss if own is None else loss + own)
