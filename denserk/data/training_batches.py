"""The batches of a training run, each a function of its step alone."""

import logging
import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from denserk.config.training import FillNegatives, SamplingSettings
from denserk.data.batches import PairBatch, PairJoiner, SentenceBatch, TrainingBatch, pad
from denserk.data.sampling import (
    Items,
    choose_items,
    choose_negatives,
    choose_positive,
    choose_random_passages,
    order_items,
)
from denserk.data.training_data import SentenceStore, TrainingStore
from denserk.errors import InputError, UsageError

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
    """How long a run is, and which part of each batch a process gets."""

    epochs: float  # passes over the data
    max_steps: int | None  # in place of epochs
    rank: int  # of this process
    world: int  # number of processes


class ScheduledBatches(Dataset[Batch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    A batch depends on the data, the settings and the step, and on nothing else: a run is resumed
    by starting at its next step, loader workers change nothing, and the parts of all ranks, one
    after another, are the batch that a single process gets. Each epoch has its own order.
    """

    # the last batch of an epoch may be smaller, else what does not fill is dropped
    keep_last = False

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
        whole, rest = divmod(len(items), batch_size)
        self.steps_per_epoch = whole + bool(rest and self.keep_last)
        max_steps = options.get("max_steps")
        epochs = options.get("epochs", 1)
        self._steps = math.ceil(self.steps_per_epoch * epochs) if max_steps is None else max_steps
        self._epoch = -1
        self._order = items

    def refuse_no_batch(self, folder: Path, what: str) -> None:
        """Raise an error where the items make no batch."""
        if not self.steps_per_epoch:
            raise InputError(
                folder,
                None,
                f"{len(self.items):,} {what}",
                f"at least one batch of {self.batch_size:,}",
                "give a smaller --batch-size",
            )

    def __len__(self) -> int:
        return self._steps

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, that a step belongs to."""
        return step // self.steps_per_epoch

    def part(self, step: int) -> Items:
        """Return this process's part of the items of a step."""
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} of {self._steps}")
        epoch = self.epoch_of(step)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, order_items(self.items, self.seed, epoch)
        start = (step - epoch * self.steps_per_epoch) * self.batch_size
        batch = self._order[start : start + self.batch_size]
        first, last = ((self.rank + i) * len(batch) // self.world for i in (0, 1))
        return batch[first:last]

    @abstractmethod
    def assemble(self, items: Items, epoch: int) -> Batch:
        """Return the batch of items at their visit in an epoch."""

    def __getitem__(self, step: int) -> Batch:
        """Return this process's part of the batch of a step."""
        return self.assemble(self.part(step), self.epoch_of(step))


class TrainingBatches(ScheduledBatches[Any]):
    """The batches of a run on queries with passages; `batch_size` queries over all processes.

    Under `with_scores` they have the teacher's scores, and queries without negatives, whose random
    passages no teacher has seen, are left out.
    """

    def __init__(
        self,
        store: TrainingStore,
        sampling: SamplingSettings,
        batch_size: int,
        *,
        with_scores: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.store, self.sampling, self.with_scores = store, sampling, with_scores
        self.repeats = sampling.fill_negatives is FillNegatives.REPEAT
        if with_scores:
            store.refuse_unscored()
        super().__init__(self._choose(), batch_size, sampling.seed, **options)
        self._warn_of_short_lists()
        self.refuse_no_batch(store.folder, "queries")

    def _choose(self) -> Items:
        """Return the items of the run, ascending."""
        settings, items = self.sampling, np.arange(len(self.store))
        if self.with_scores and settings.group_size > 1:
            items = items[self.store.negative_counts > 0]
            if lost := len(self.store) - len(items):
                logger.warning(
                    f"queries without a negative have nothing to distil, left out: {lost:,}"
                )
        return items_of_run(items, settings)

    def _warn_of_short_lists(self) -> None:
        wanted = self.sampling.group_size - 1
        pool = self.sampling.negative_pool or self.store.negative_counts.max(initial=0)
        counts = np.minimum(self.store.negative_counts[self.items], pool)
        instead = "drawn with replacement" if self.repeats else "the missing ones masked"
        if short := int(((counts > 0) & (counts < wanted)).sum()):
            logger.warning(
                f"queries with fewer than the {wanted} negatives of --group-size {wanted + 1}, "
                f"{instead}: {short:,} of {len(counts):,} (the longest list has {counts.max():,})"
            )
        lacking = self.items[counts == 0] if wanted else self.items[:0]
        if len(lacking):
            logger.warning(f"queries without a negative get random passages: {len(lacking):,}")
        if np.any(self.store.positive_counts[lacking] >= len(self.store.passages)):
            raise InputError(
                self.store.folder,
                None,
                "queries without negatives, and no passage but their positives",
                "another passage to tell the positive from",
            )

    def groups(self, items: Items, epoch: int) -> tuple[Items, Items]:
        """Return the passages of a visit of each item.

        The positive comes first. A missing negative is -1; so is a repeated one, unless negatives
        are repeated on purpose.

        Returns:
            (B, n) rows of the store's passages, and (B, n) places among the item's scores.
        """
        store, sampling = self.store, self.sampling
        rows = np.full((len(items), sampling.group_size), -1, dtype=np.int64)
        places = np.zeros_like(rows)
        positives, negatives = store.positives.take(items), store.negatives.take(items)
        for number, item in enumerate(items.tolist()):
            own, others = positives[number], negatives[number][: sampling.negative_pool]
            place = choose_positive(sampling, len(own), item, epoch)
            rows[number, 0], places[number, 0] = own[place], place
            if len(others):
                chosen = choose_negatives(sampling, len(others), item, epoch)
                rows[number, 1:] = np.where(chosen < 0, -1, others[chosen])
                places[number, 1:] = len(own) + chosen
            elif sampling.group_size > 1:
                passages = len(store.passages)
                rows[number, 1:] = choose_random_passages(sampling, passages, own, item, epoch)
        if not self.repeats:
            equal = np.tril(rows[:, :, None] == rows[:, None, :], -1)
            rows[equal.any(axis=2)] = -1
        return rows, places

    def assemble(self, items: Items, epoch: int) -> Any:
        """Return the batch of items at their visit in an epoch."""
        store = self.store
        rows, places = self.groups(items, epoch)
        keys = rows
        if self.repeats:  # every occurrence is a passage of its own
            keys = items[:, None] * rows.shape[1] + np.arange(rows.shape[1])
        present = rows >= 0
        distinct, first, number = np.unique(keys[present], return_index=True, return_inverse=True)
        order = np.argsort(first)  # passages stand in the order of the groups
        groups = np.full_like(rows, -1)
        groups[present] = np.argsort(order)[number]
        return TrainingBatch(
            pad(store.queries.take(items), store.query_pad_id),
            pad(store.passages.take(rows[present][first[order]]), store.passage_pad_id),
            torch.from_numpy(groups),
            torch.from_numpy(distinct[order]),
            self._scores(items, places, groups) if self.with_scores else None,
            torch.from_numpy(items.copy()),
        )

    def _scores(self, items: Items, places: Items, groups: Items) -> torch.Tensor:
        found = np.full(groups.shape, -np.inf, dtype=np.float32)
        for number, scores in enumerate(self.store.scores.take(items)):
            present = groups[number] >= 0
            found[number, present] = scores[places[number, present]]
        return torch.from_numpy(found)


class PairTrainingBatch(NamedTuple):
    """Queries with their groups of passages: a batch, or one rank's part of it."""

    pairs: PairBatch  # P inputs, those of one query after those of another
    # (B, n) int64, rows of each query's pairs, the positive first, -1 where a negative is missing
    groups: Tensor
    items: Tensor  # (B,) int64, the queries' numbers in the prepared data


class PairTrainingBatches(TrainingBatches):
    """`TrainingBatches` with each query joined with each of its passages."""

    def __init__(self, joiner: PairJoiner, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._joiner = joiner

    def assemble(self, items: Items, epoch: int) -> PairTrainingBatch:
        """Return the batch of items at their visit in an epoch."""
        rows, _ = self.groups(items, epoch)
        present = rows >= 0
        queries, passages = self.store.queries.take(items), self.store.passages.take(rows[present])
        owners = zip(present.nonzero()[0].tolist(), passages, strict=True)
        pairs = [self._joiner.join(queries[query], passage) for query, passage in owners]
        groups = np.full_like(rows, -1)
        groups[present] = np.arange(len(pairs))
        return PairTrainingBatch(
            self._joiner.batch(pairs), torch.from_numpy(groups), torch.from_numpy(items.copy())
        )


class SentenceBatches(ScheduledBatches[SentenceBatch]):
    """The batches of a run on pairs or triplets."""

    keep_last = True

    def __init__(
        self,
        store: SentenceStore,
        sampling: SamplingSettings,
        batch_size: int,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.store = store
        items = items_of_run(np.arange(len(store)), sampling)
        super().__init__(items, batch_size, sampling.seed, **options)

    def assemble(self, items: Items, epoch: int) -> SentenceBatch:
        """Return the batch of items, in any epoch."""
        return assemble(self.store, items)


def assemble(store: SentenceStore, items: Items) -> SentenceBatch:
    """Return examples by their numbers as one batch."""
    rows = items[:, None] * store.size + np.arange(store.size)
    return SentenceBatch(
        pad(store.sentences.take(rows.ravel()), store.pad_id),
        torch.from_numpy(store.labels[items].copy()) if len(store.labels) else None,
        torch.from_numpy(items.copy()),
    )
