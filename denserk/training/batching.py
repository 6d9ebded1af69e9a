"""Batches cut into groups of texts of similar length, so that little padding is computed.

A pass over many texts at once costs less for each of them, and padding costs more: texts are
grouped so that the number of positions, padding included, plus a fixed price per pass is smallest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from denserk.config.training import CacheSettings
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch

# The cost of a pass beside its positions, in positions, by device type: gradients of all weights
# that are computed and summed once more, or kernels that are launched.
PRICES = {"cpu": 128}
DEFAULT_PRICE = 8192
# Lengths within a step of this many tokens count as one.
GRAIN = 8
# The price of a chunk where texts are not cut to avoid padding.
ENDLESS = 1 << 60


class Limits(NamedTuple):
    """The most that passes through the model at once: texts, and tokens with their padding."""

    texts: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, cache: CacheSettings, texts: int) -> "Limits":
        """Return the limits of a gradient cache: its tokens if given, else that many texts."""
        if not cache.grad_cache:
            return cls()
        return cls(texts) if cache.chunk_tokens is None else cls(tokens=cache.chunk_tokens)

    def most(self, width: int) -> int | None:
        """Return how many texts of that width fit; None: any number."""
        by_tokens = None if self.tokens is None else max(1, self.tokens // width)
        return min(filter(None, (self.texts, by_tokens)), default=None)


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
    grains = [-(-length // GRAIN) for length in lengths]
    starts = [n for n in range(len(lengths)) if not n or grains[n] != grains[n - 1]]
    bounds = [*starts, len(lengths)]

    def cost(start: int, end: int) -> int:
        width, count = lengths[start], end - start
        most = limits.most(width) or count
        return count * width + price * -(-count // most)

    best: list[tuple[int, int]] = [(0, 0)]  # up to each bound: the least cost, and the last group
    for end in range(1, len(bounds)):
        best.append(min((best[s][0] + cost(bounds[s], bounds[end]), s) for s in range(end)))
    ends, end = [], len(bounds) - 1
    while end > 0:
        start, last = bounds[best[end][1]], bounds[end]
        most = limits.most(lengths[start]) or last - start
        ends += [last, *reversed(range(start + most, last, most))]
        end = best[end][1]
    return ends[::-1]


def _price(device: torch.device) -> int:
    return PRICES.get(device.type, DEFAULT_PRICE)


class Groups(NamedTuple):
    """A batch in groups of similar length.

    `batches`: no wider than their longest texts. `rows`: of the batch, group after group. `back`:
    (B,) int64, the position of each text of the batch among the groups.
    """

    batches: list[TokenBatch]
    rows: list[Tensor]
    back: Tensor


def group(batch: TokenBatch, work: Work, limits: Limits = UNLIMITED) -> Groups:
    """Split a batch into groups, the longest texts first; count them in `work`."""
    ids, mask = batch
    lengths = mask.sum(1)
    order = torch.arange(len(ids), device=ids.device)
    by_length = lengths.argsort(descending=True, stable=True)
    known = lengths[by_length].tolist()  # the one synchronisation with the device
    ends = ends_of_groups(known, _price(ids.device), limits)
    if len(ends) > 1:  # else nothing is gained by another order
        order = by_length
    batches, rows = [], []
    for start, end in pairwise([0, *ends]):
        rows.append(order[start:end])
        width = max(known[start:end])
        batches.append(TokenBatch(ids[rows[-1], :width], mask[rows[-1], :width]))
        work.count(known[start:end])
    return Groups(batches, rows, order.argsort())


def cut(
    batch: PretrainingBatch, work: Work, limits: Limits = UNLIMITED, *, by_length: bool = True
) -> Iterator[PretrainingBatch]:
    """Yield a batch in chunks, each no wider than its longest text; count them in `work`.

    Args:
        batch: its texts ordered by length, as far as that saves padding.
        work: counts what the chunks hold.
        limits: of a chunk.
        by_length: cut too where shorter texts follow, and that saves more than a pass costs.
    """
    parts = [batch.texts, *batch.passes.values(), *batch.decoders.values()]
    # the one synchronisation with the device
    lengths = torch.stack([texts.tokens.attention_mask.sum(1) for texts in parts]).tolist()
    price = _price(batch.texts.labels.device) if by_length else ENDLESS
    for start, end in pairwise([0, *ends_of_groups(lengths[0], price, limits)]):
        found = []
        for number, (texts, own) in enumerate(zip(parts, lengths, strict=True)):
            width = max(own[start:end])
            tokens = TokenBatch(*(field[start:end, :width] for field in texts.tokens))
            found.append(MaskedTexts(tokens, texts.labels[start:end, :width]))
            work.count(own[start:end], again=number > 0)
        first, rest = found[0], iter(found[1:])
        width = first.labels.shape[1]
        yield PretrainingBatch(
            first,
            {name: next(rest) for name in batch.passes},
            {name: next(rest) for name in batch.decoders},
            None if batch.visible is None else batch.visible[start:end, :width, :width],
        )
