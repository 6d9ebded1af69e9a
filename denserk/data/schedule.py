"""Which items a run takes, and which of them make the batch of each step."""

import logging
import math

from denserk.data.sampling import Items, choose_items, order_items
from denserk.errors import UsageError
from denserk.settings.training import SamplingSettings

logger = logging.getLogger(__name__)


def items_of_run(items: Items, sampling: SamplingSettings) -> Items:
    """The items that --train-queries or --set train-fraction leaves, ascending."""
    count = sampling.train_queries
    if sampling.train_fraction is not None:
        count = max(1, round(sampling.train_fraction * len(items)))
    if count is None:
        return items
    if count > len(items):
        logger.warning(f"--train-queries {count:,}: there are only {len(items):,}")
    return choose_items(items, count, sampling.seed)


class Schedule:
    """The items of every step: a function of items, seed and step, and of nothing else.

    Args:
        items: of the run.
        batch_size: items of a step, over all processes.
        seed: of the run.
        epochs: how often the items are gone through.
        max_steps: ends there instead, in as many epochs as it takes.
        rank: this process, from 0.
        world: how many processes there are.
        shuffle: a new order each epoch; else the given one.
        keep_last: the last batch of an epoch may be smaller; else what does not fill it is dropped.

    Attributes:
        steps_per_epoch: 0 where the items make no batch.
        steps: of the run.

    Raises:
        UsageError: the batch size does not divide among the processes.
    """

    def __init__(
        self,
        items: Items,
        batch_size: int,
        seed: int,
        *,
        epochs: float = 1,
        max_steps: int | None = None,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        keep_last: bool = False,
    ) -> None:
        if batch_size % world:
            raise UsageError(
                f"--batch-size {batch_size} does not divide among {world} processes",
                f"give a multiple of {world}",
            )
        self.items, self.batch_size, self.seed = items, batch_size, seed
        self.rank, self.world, self.shuffle = rank, world, shuffle
        whole, rest = divmod(len(items), batch_size)
        self.steps_per_epoch = whole + bool(rest and keep_last)
        self.steps = math.ceil(self.steps_per_epoch * epochs) if max_steps is None else max_steps
        self._epoch = -1
        self._order = items

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that a step belongs to."""
        return step // self.steps_per_epoch

    def part(self, step: int) -> Items:
        """This process's part of the items of a step.

        Raises:
            IndexError: the run has no such step.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        epoch = self.epoch_of(step)
        start = (step - epoch * self.steps_per_epoch) * self.batch_size
        batch = self._ordered(epoch)[start : start + self.batch_size]
        first, last = ((self.rank + i) * len(batch) // self.world for i in (0, 1))
        return batch[first:last]

    def _ordered(self, epoch: int) -> Items:
        if self.shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, order_items(self.items, self.seed, epoch)
        return self._order
