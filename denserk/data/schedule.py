"""The schedule of a run: which items it takes, and which of them make the batch of each step."""

import logging
import math
from typing import TypedDict, TypeVar, Unpack

from torch.utils.data import Dataset

from denserk.data.sampling import Items, choose_items, order_items
from denserk.errors import UsageError
from denserk.settings.training import SamplingSettings

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch", covariant=True)


def items_of_run(items: Items, sampling: SamplingSettings) -> Items:
    """Return the items that --train-queries or --set train-fraction leaves, ascending."""
    count = sampling.train_queries
    if sampling.train_fraction is not None:
        count = max(1, round(sampling.train_fraction * len(items)))
    if count is None:
        return items
    if count > len(items):
        logger.warning(f"--train-queries {count:,}: there are only {len(items):,}")
    return choose_items(items, count, sampling.seed)


class ScheduleOptions(TypedDict, total=False):
    """How long a run is, and which part of each batch a process gets.

    `epochs`: passes over the data; `max_steps` ends there instead. `rank` of `world`: this process.
    `shuffle`: a new order each epoch, else that of the files. `keep_last`: the last batch of an
    epoch may be smaller, else what does not fill it is dropped.
    """

    epochs: float
    max_steps: int | None
    rank: int
    world: int
    shuffle: bool
    keep_last: bool


class ScheduledBatches(Dataset[Batch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    A batch depends on the data, the settings and the step, and on nothing else: a run is resumed
    by starting at its next step, loader workers change nothing, and the parts of all ranks, one
    after another, are the batch that a single process gets.

    Args:
        items: of the run.
        batch_size: items of a step, over all processes.
        seed: of the run.
        options: see `ScheduleOptions`.

    Attributes:
        steps_per_epoch: 0 where the items make no batch.

    Raises:
        UsageError: the batch size does not divide among the processes.
    """

    def __init__(
        self, items: Items, batch_size: int, seed: int, **options: Unpack[ScheduleOptions]
    ) -> None:
        self.rank, self.world = options.get("rank", 0), options.get("world", 1)
        if batch_size % self.world:
            raise UsageError(
                f"--batch-size {batch_size} does not divide among {self.world} processes",
                f"give a multiple of {self.world}",
            )
        self.items, self.batch_size, self.seed = items, batch_size, seed
        self.shuffle = options.get("shuffle", True)
        whole, rest = divmod(len(items), batch_size)
        self.steps_per_epoch = whole + bool(rest and options.get("keep_last", False))
        max_steps = options.get("max_steps")
        epochs = options.get("epochs", 1)
        self._steps = math.ceil(self.steps_per_epoch * epochs) if max_steps is None else max_steps
        self._epoch = -1
        self._order = items

    def __len__(self) -> int:
        return self._steps

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, that a step belongs to."""
        return step // self.steps_per_epoch

    def part(self, step: int) -> Items:
        """Return this process's part of the items of a step.

        Raises:
            IndexError: the run has no such step.
        """
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} of {self._steps}")
        epoch = self.epoch_of(step)
        start = (step - epoch * self.steps_per_epoch) * self.batch_size
        batch = self._ordered(epoch)[start : start + self.batch_size]
        first, last = ((self.rank + i) * len(batch) // self.world for i in (0, 1))
        return batch[first:last]

    def _ordered(self, epoch: int) -> Items:
        if self.shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, order_items(self.items, self.seed, epoch)
        return self._order

    def assemble(self, items: Items, epoch: int) -> Batch:
        """Return the batch of items at their visit in an epoch."""
        raise TypeError(f"{type(self).__name__} assembles no batches")

    def __getitem__(self, step: int) -> Batch:
        """Return this process's part of the batch of a step.

        Raises:
            IndexError: the run has no such step.
        """
        return self.assemble(self.part(step), self.epoch_of(step))
