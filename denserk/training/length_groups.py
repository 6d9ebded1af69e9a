"""Texts of like length pass through the model together, so that little of it is padding.

A pass over many texts at once costs less for each of them, and wide padding costs more: what is
made smallest is the number of positions, padding included, plus a fixed price for each pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from denserk.data.batches import TokenBatch
from denserk.settings.training import CacheSettings

PRICES = {"cpu": 128}
"""What a pass costs beside its positions, in positions, by kind of device: gradients of all weights
that are made and added up once more, or kernels that are launched."""
DEFAULT_PRICE = 8192
GRAIN = 8
"""Lengths within a step of this many tokens count as one."""


class Limits(NamedTuple):
    """What passes through the model at once, at most: texts, and tokens with their padding."""

    texts: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, cache: CacheSettings, texts: int) -> "Limits":
        """A gradient cache's: its tokens where they are given, else that number of texts."""
        return cls(texts) if cache.chunk_tokens is None else cls(tokens=cache.chunk_tokens)

    def most(self, width: int) -> int | None:
        """Texts of that width; None: any number."""
        by_tokens = None if self.tokens is None else max(1, self.tokens // width)
        given = [limit for limit in (self.texts, by_tokens) if limit is not None]
        return min(given) if given else None


UNLIMITED = Limits()


@dataclass
class Work:
    """What passed through a model: `tokens` of texts, and `real` ones among `positions` in all.

    A text that is read again, by a decoder say, counts in `real` and not in `tokens`.
    """

    tokens: int = 0
    real: int = 0
    positions: int = 0

    def count(self, lengths: Sequence[int], *, again: bool = False) -> None:
        """Counts one pass over texts of these lengths, padded to the longest."""
        real = sum(lengths)
        self.tokens += 0 if again else real
        self.real += real
        self.positions += len(lengths) * max(lengths, default=0)

    @staticmethod
    def price_on(device: torch.device) -> int:
        """What a pass costs beside its positions, in positions."""
        return PRICES.get(device.type, DEFAULT_PRICE)

    @property
    def padding(self) -> float:
        """The share of the positions that held no token."""
        return 1 - self.real / self.positions if self.positions else 0.0


def ends_of_groups(lengths: Sequence[int], price: int, limits: Limits = UNLIMITED) -> list[int]:
    """Where groups of neighbours end, for the fewest positions plus `price` a group.

    Args:
        lengths: tokens of each text, the longest first.
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
    best: list[tuple[int, int]] = [(0, 0)]  # up to each bound: the least cost, and the last group
    for end in range(1, len(bounds)):
        best.append(
            min(
                (best[start][0] + _cost(lengths, bounds[start], bounds[end], price, limits), start)
                for start in range(end)
            )
        )
    groups, end = [], len(bounds) - 1
    while end > 0:
        start = best[end][1]
        groups.append((bounds[start], bounds[end]))
        end = start
    return [last for group in reversed(groups) for last in _pieces(lengths, *group, limits)]


def _cost(lengths: Sequence[int], start: int, end: int, price: int, limits: Limits) -> int:
    width, count = lengths[start], end - start
    most = limits.most(width)
    return count * width + price * (1 if most is None else -(-count // most))


def _pieces(lengths: Sequence[int], start: int, end: int, limits: Limits) -> list[int]:
    """The ends of a group's parts."""
    most = limits.most(lengths[start])
    return [*range(start + most, end, most), end] if most else [end]


def items_at_once(cache: CacheSettings, texts: int, batch: TokenBatch) -> int:
    """How many items of some neighbouring texts each make a chunk: all where nothing is cut.

    Args:
        cache: with `grad_cache`, its limits of passages.
        texts: of an item.
        batch: all texts.
    """
    most = Limits.of(cache, cache.p_chunk).most(batch.input_ids.shape[1])
    if not cache.grad_cache or most is None:
        return len(batch.input_ids) // texts
    return max(1, most // texts)


class Groups(NamedTuple):
    """A batch in groups of like length.

    `batches`: no wider than their longest texts. `rows`: of the batch, group after group. `back`:
    (B,) int64, where each text of the batch stands among the groups.
    """

    batches: list[TokenBatch]
    rows: list[Tensor]
    back: Tensor


def group(
    batch: TokenBatch,
    limits: Limits = UNLIMITED,
    work: Work | None = None,
) -> Groups:
    """A batch in groups, the longest texts first.

    Args:
        batch: B texts.
        limits: of a group.
        work: what the groups hold is counted here.
    """
    ids, mask = batch
    work = Work() if work is None else work
    lengths = mask.sum(1)
    order = torch.arange(len(ids), device=ids.device)
    by_length = lengths.argsort(descending=True, stable=True)
    known = lengths[by_length].tolist()  # the one wait for the device
    ends = ends_of_groups(known, work.price_on(ids.device), limits)
    if len(ends) > 1:  # else nothing is gained by another order
        order = by_length
    batches, rows = [], []
    for start, end in pairwise([0, *ends]):
        rows.append(order[start:end])
        width = max(known[start:end])
        batches.append(TokenBatch(ids[rows[-1], :width], mask[rows[-1], :width]))
        work.count(known[start:end])
    return Groups(batches, rows, order.argsort())
