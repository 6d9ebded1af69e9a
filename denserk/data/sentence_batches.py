"""Prepared pairs and triplets of sentences -> the batches of a run, each a function of its step."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from denserk.data.batches import TokenBatch, pad
from denserk.data.sampling import Items
from denserk.data.schedule import Schedule, items_of_run
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


class SentenceBatches(Dataset[SentenceBatch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    The last batch of an epoch holds what is left. What a batch depends on: see `Schedule`.

    Args:
        store: the prepared data.
        sampling: which examples, and the seed of their order.
        batch_size: examples of a step, over all processes.
        epochs: how often the data is gone through.
        max_steps: ends there instead, in as many epochs as it takes.
        rank: this process, from 0.
        world: how many processes there are.

    Raises:
        UsageError: the batch size does not divide among the processes.
    """

    def __init__(
        self,
        store: SentenceStore,
        sampling: SamplingSettings,
        batch_size: int,
        *,
        epochs: float = 1,
        max_steps: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.store = store
        self._schedule = Schedule(
            items_of_run(np.arange(len(store)), sampling),
            batch_size,
            sampling.seed,
            epochs=epochs,
            max_steps=max_steps,
            rank=rank,
            world=world,
            keep_last=True,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._schedule.steps_per_epoch

    def __len__(self) -> int:
        return self._schedule.steps

    def __getitem__(self, step: int) -> SentenceBatch:
        """This process's part of the batch of a step.

        Raises:
            IndexError: the run has no such step.
        """
        return assemble(self.store, self._schedule.part(step))


def assemble(store: SentenceStore, items: Items) -> SentenceBatch:
    """Examples by their numbers as one batch."""
    rows = items[:, None] * store.size + np.arange(store.size)
    return SentenceBatch(
        pad(store.sentences.take(rows.ravel()), store.pad_id),
        torch.from_numpy(store.labels[items].copy()) if len(store.labels) else None,
        torch.from_numpy(items.copy()),
    )
