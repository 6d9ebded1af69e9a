"""Prepared training data -> the batches of a run, each a function of its step."""

import logging

import numpy as np
import torch
from torch.utils.data import Dataset

from denserk.data.batches import TrainingBatch, pad
from denserk.data.sampling import (
    Items,
    choose_negatives,
    choose_positives,
    choose_strangers,
)
from denserk.data.schedule import Schedule, items_of_run
from denserk.data.training_store import TrainingStore
from denserk.errors import InputError
from denserk.settings.training import FillNegatives, SamplingSettings

logger = logging.getLogger(__name__)


class TrainingBatches(Dataset[TrainingBatch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    A batch depends on the data, the settings and the step, and on nothing else: a run is continued
    by starting at its next step, loader workers change nothing, and the parts of all ranks, one
    after another, are the batch that a single process gets.

    Args:
        store: the prepared data.
        sampling: which queries, positives and negatives.
        batch_size: queries of a step, over all processes.
        epochs: how often the data is gone through.
        max_steps: ends there instead, in as many epochs as it takes.
        rank: this process, from 0.
        world: how many processes there are.
        shuffle: a new order each epoch; else that of the files.
        keep_last: the last batch of an epoch may be smaller; else what does not fill it is dropped.
        with_scores: batches carry the teacher's scores. Queries without negatives, whose random
            passages no teacher has seen, are left out then.

    Raises:
        UsageError: the batch size does not divide among the processes.
        InputError: the data makes no batch, or lacks scores.
    """

    def __init__(
        self,
        store: TrainingStore,
        sampling: SamplingSettings,
        batch_size: int,
        *,
        epochs: float = 1,
        max_steps: int | None = None,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        keep_last: bool = False,
        with_scores: bool = False,
    ) -> None:
        self.store, self.sampling, self.with_scores = store, sampling, with_scores
        if with_scores:
            store.refuse_unscored()
        self.items = self._choose()
        self._schedule = Schedule(
            self.items,
            batch_size,
            sampling.seed,
            epochs=epochs,
            max_steps=max_steps,
            rank=rank,
            world=world,
            shuffle=shuffle,
            keep_last=keep_last,
        )
        self._tell_short_lists()
        if not self.steps_per_epoch:
            raise InputError(
                store.folder,
                None,
                f"{len(self.items):,} queries",
                f"at least one batch of {batch_size}",
                "give a smaller --batch-size",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._schedule.steps_per_epoch

    def _choose(self) -> Items:
        """The items of the run, ascending."""
        settings, items = self.sampling, np.arange(len(self.store))
        if self.with_scores and settings.group_size > 1:
            items = items[self.store.negative_counts() > 0]
            if lost := len(self.store) - len(items):
                logger.warning(
                    f"queries without a negative have nothing to distil, left out: {lost:,}"
                )
        return items_of_run(items, settings)

    def _tell_short_lists(self) -> None:
        wanted = self.sampling.group_size - 1
        counts = self._negatives(self.items)
        if short := int(((counts > 0) & (counts < wanted)).sum()):
            repeated = self.sampling.fill_negatives is FillNegatives.REPEAT
            logger.warning(
                f"queries with fewer than the {wanted} negatives of --group-size {wanted + 1}, "
                f"{'drawn with replacement' if repeated else 'the missing ones masked'}: {short:,} "
                f"of {len(counts):,} (the longest list has {counts.max():,})"
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

    def __len__(self) -> int:
        return self._schedule.steps

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that a step belongs to."""
        return self._schedule.epoch_of(step)

    def __getitem__(self, step: int) -> TrainingBatch:
        """This process's part of the batch of a step.

        Raises:
            IndexError: the run has no such step.
        """
        return self._assemble(self._schedule.part(step), self.epoch_of(step))

    def groups(self, items: Items, epoch: int) -> Items:
        """(B, n) the passages of a visit of each item, as rows of the store; the positive first.

        Unless negatives are repeated, a missing or repeated one is -1.
        """
        store = self.store
        places = self._places(items, epoch)
        rows = np.where(places < 0, -1, store.candidates.values[places])
        lacking = np.flatnonzero(self._negatives(items) == 0)
        for number in lacking if places.shape[1] > 1 else ():
            item = int(items[number])
            rows[number, 1:] = choose_strangers(
                len(store.passages),
                store.positives(item),
                item,
                self.sampling.seed,
                epoch,
                places.shape[1] - 1,
            )
        if not self._repeats:
            keys = self._keys(rows)
            equal = np.tril(keys[:, :, None] == keys[:, None, :], -1)
            rows[equal.any(axis=2)] = -1
        return rows

    @property
    def _repeats(self) -> bool:
        return self.sampling.fill_negatives is FillNegatives.REPEAT

    def _keys(self, rows: Items) -> Items:
        keys: Items = np.where(rows < 0, -1, self.store.passage_keys[rows])
        return keys

    def _assemble(self, items: Items, epoch: int) -> TrainingBatch:
        store, rows = self.store, self.groups(items, epoch)
        queries = store.query_rows[items]
        if self._repeats:  # every occurrence is a passage of its own
            keys = items[:, None] * rows.shape[1] + np.arange(rows.shape[1])
        else:
            keys = self._keys(rows)
        taken: list[int] = []
        first: dict[int, int] = {}
        for row, key in zip(rows.ravel().tolist(), keys.ravel().tolist(), strict=True):
            if row >= 0 and key not in first:
                first[key] = len(taken)
                taken.append(row)
        own = [first[key] if key >= 0 else -1 for key in keys.ravel().tolist()]
        groups = np.array(own, dtype=np.int64).reshape(rows.shape)
        return TrainingBatch(
            pad([store.queries[row] for row in queries], store.query_pad_id),
            pad([store.passages[row] for row in taken], store.passage_pad_id),
            torch.from_numpy(groups),
            torch.tensor(list(first), dtype=torch.int64),
            self._scores(items, epoch, groups) if self.with_scores else None,
            torch.from_numpy(items.copy()),
        )

    def _scores(self, items: Items, epoch: int, groups: Items) -> torch.Tensor:
        scores = self.store.scores[self._places(items, epoch)]
        return torch.from_numpy(np.where(groups < 0, np.float32(-np.inf), scores))

    def _negatives(self, items: Items) -> Items:
        """(B,) how many negatives each item may choose from."""
        ends = self.store.candidates.ends
        counts: Items = ends[items + 1] - ends[items] - self.store.positive_counts[items]
        pool = self.sampling.negative_pool
        return counts if pool is None else np.minimum(counts, pool)

    def _places(self, items: Items, epoch: int) -> Items:
        """(B, n) where groups stand among the candidates, -1 for a missing negative.

        An item without negatives repeats its first candidate.
        """
        settings = self.sampling
        positives = self.store.positive_counts[items]
        first = choose_positives(settings.positive, positives, items, settings.seed, epoch)
        others = choose_negatives(
            settings.negative,
            np.maximum(self._negatives(items), 1),
            items,
            settings.seed,
            epoch,
            settings.group_size - 1,
            settings.fill_negatives,
        )
        missing = others < 0
        others = np.where(self._negatives(items)[:, None] > 0, others + positives[:, None], 0)
        starts = self.store.candidates.ends[items]
        places: Items = starts[:, None] + np.concatenate([first[:, None], others], axis=1)
        places[:, 1:][missing] = -1
        return places
