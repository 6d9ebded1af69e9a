"""Prepared training data -> the batches of a run, each a function of its step."""

import logging
from typing import Unpack

import numpy as np
import torch

from denserk.data.batches import TrainingBatch, pad
from denserk.data.sampling import (
    Items,
    choose_negatives,
    choose_positive,
    choose_random_passages,
)
from denserk.data.schedule import ScheduledBatches, ScheduleOptions, items_of_run
from denserk.data.training_data import TrainingStore
from denserk.errors import InputError
from denserk.settings.training import FillNegatives, SamplingSettings

logger = logging.getLogger(__name__)


class TrainingBatches(ScheduledBatches[TrainingBatch]):
    """The batches of a run on queries with passages.

    Args:
        store: the prepared data.
        sampling: which queries, positives and negatives.
        batch_size: queries of a step, over all processes.
        with_scores: batches carry the teacher's scores. Queries without negatives, whose random
            passages no teacher has seen, are left out then.
        options: see `ScheduleOptions`.

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
        with_scores: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.store, self.sampling, self.with_scores = store, sampling, with_scores
        if with_scores:
            store.refuse_unscored()
        super().__init__(self._choose(), batch_size, sampling.seed, **options)
        self._warn_of_short_lists()
        if not self.steps_per_epoch:
            raise InputError(
                store.folder,
                None,
                f"{len(self.items):,} queries",
                f"at least one batch of {batch_size}",
                "give a smaller --batch-size",
            )

    def _choose(self) -> Items:
        """The items of the run, ascending."""
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

    def groups(self, items: Items, epoch: int) -> Items:
        """Return the passages of a visit of each item, as rows of the store: (B, n).

        The positive comes first. A missing negative is -1; so is one that stands in the group
        already, unless negatives are repeated.
        """
        return self._groups(items, epoch)[0]

    def _groups(self, items: Items, epoch: int) -> tuple[Items, Items]:
        """Return rows of passages and, as places among an item's candidates, of scores."""
        store, sampling = self.store, self.sampling
        wanted, seed = sampling.group_size - 1, sampling.seed
        rows = np.full((len(items), wanted + 1), -1, dtype=np.int64)
        places = np.zeros_like(rows)
        positives, negatives = store.positive_rows.take(items), store.negative_rows.take(items)
        for number, item in enumerate(items.tolist()):
            own, others = positives[number], negatives[number][: sampling.negative_pool]
            place = choose_positive(sampling.positive, len(own), item, seed, epoch)
            rows[number, 0], places[number, 0] = own[place], place
            if len(others):
                chosen = choose_negatives(
                    *(sampling.negative, len(others), item, seed, epoch, wanted),
                    sampling.fill_negatives,
                )
                rows[number, 1:] = np.where(chosen < 0, -1, others[chosen])
                places[number, 1:] = len(own) + chosen
            elif wanted:
                population = len(store.passages)
                rows[number, 1:] = choose_random_passages(
                    population, own, item, seed, epoch, wanted
                )
        if not self._repeats:
            equal = np.tril(rows[:, :, None] == rows[:, None, :], -1)
            rows[equal.any(axis=2)] = -1
        return rows, places

    @property
    def _repeats(self) -> bool:
        return self.sampling.fill_negatives is FillNegatives.REPEAT

    def assemble(self, items: Items, epoch: int) -> TrainingBatch:
        """Return the batch of items at their visit in an epoch."""
        store = self.store
        rows, places = self._groups(items, epoch)
        keys = rows
        if self._repeats:  # every occurrence is a passage of its own
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

    def _negatives(self, items: Items) -> Items:
        """Return how many negatives each item may choose from: (B,)."""
        counts = self.store.negative_counts[items]
        pool = self.sampling.negative_pool
        return counts if pool is None else np.minimum(counts, pool)
