"""Prepared pairs and triplets of sentences -> the batches of a run, each a function of its step."""

from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from denserk.data.batches import TokenBatch, pad
from denserk.data.sampling import Items
from denserk.data.schedule import ScheduledBatches, ScheduleOptions, items_of_run
from denserk.data.training_data import SentenceStore
from denserk.settings.training import SamplingSettings


class SentenceBatch(NamedTuple):
    """Pairs or triplets: a batch, or one rank's part of it, which may be empty.

    `sentences`: B * n texts; those of example i stand at i * n .. i * n + n - 1. `labels`: (B,)
    float32 of pairs; None of triplets. `items`: (B,) int64, the examples' numbers in the prepared
    data.
    """

    sentences: TokenBatch
    labels: Tensor | None
    items: Tensor

    def to(self, device: "torch.device | str") -> "SentenceBatch":
        """The same batch on another device."""
        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        return SentenceBatch(self.sentences.to(device), labels, self.items.to(device))


class SentenceBatches(ScheduledBatches[SentenceBatch]):
    """The batches of a run on pairs or triplets; the last one of an epoch holds what is left.

    Args:
        store: the prepared data.
        sampling: which examples, and the seed of their order.
        batch_size: examples of a step, over all processes.
        options: see `ScheduleOptions`.
    """

    def __init__(
        self,
        store: SentenceStore,
        sampling: SamplingSettings,
        batch_size: int,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.store = store
        items = items_of_run(np.arange(len(store)), sampling)
        options["keep_last"] = True
        super().__init__(items, batch_size, sampling.seed, **options)

    def assemble(self, items: Items, epoch: int) -> SentenceBatch:
        """Return the batch of items, in any epoch."""
        return assemble(self.store, items)


def assemble(store: SentenceStore, items: Items) -> SentenceBatch:
    """Examples by their numbers as one batch."""
    rows = items[:, None] * store.size + np.arange(store.size)
    return SentenceBatch(
        pad(store.sentences.take(rows.ravel()), store.pad_id),
        torch.from_numpy(store.labels[items].copy()) if len(store.labels) else None,
        torch.from_numpy(items.copy()),
    )
