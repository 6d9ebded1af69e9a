"""The batches of a training run, each a function of its step alone."""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from denserk.config.training import FillNegatives, SamplingSettings
from denserk.data import sampling
from denserk.data.batches import PairBatch, PairJoiner, Positives, SentenceBatch, TrainingBatch, pad
from denserk.data.prepared import Store
from denserk.data.sampling import Items, Purpose, generator
from denserk.data.training_data import SentenceStore, TrainingStore
from denserk.errors import InputError, UsageError

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch", covariant=True)
HASHED_TOGETHER = 4096  # queries whose token ids are in memory at once


def items_of_run(items: Items, settings: SamplingSettings) -> Items:
    """Return the items that --train-queries or --set train-fraction leaves, ascending."""
    count = settings.train_queries
    if settings.train_fraction is not None:
        count = max(1, round(settings.train_fraction * len(items)))
    if count is None:
        return items
    if count > len(items):
        logger.warning(f"--train-queries {count:,}: there are only {len(items):,}")
    return np.array(sampling.choose_records(items.tolist(), count, settings.seed), dtype=np.int64)


def hashes(texts: Iterable[NDArray[Any]]) -> Tensor:
    """Return a number for each text's token ids, in every process the same: (N,) int64."""
    digests = (blake2b(ids.tobytes(), digest_size=8).digest() for ids in texts)
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.int64)


class ScheduledBatches(Dataset[Batch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    A batch depends on the data, the settings and the step, and on nothing else: a run is resumed
    by starting at its next step, loader workers change nothing, and the parts of all ranks, one
    after another, are the batch that a single process gets. Each epoch has its own order.
    `max_steps` replaces `epochs`, the passes over the data; `world` is the number of processes.
    """

    # the last batch of an epoch may be smaller, else what does not fill is dropped
    keep_last = False

    def __init__(
        self,
        store: Store,
        items: Items,
        batch_size: int,
        seed: int,
        *,
        epochs: float = 1,
        max_steps: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.rank, self.world = rank, world
        if batch_size % world:
            problem = f"--batch-size {batch_size} does not divide among {world} processes"
            raise UsageError(problem, f"give a multiple of {world}")
        self.items, self.batch_size, self.seed = items, batch_size, seed
        whole, rest = divmod(len(items), batch_size)
        self.steps_per_epoch = whole + bool(rest and self.keep_last)
        if not self.steps_per_epoch:
            found = f"{len(items):,} {store.unit}"
            expected = f"at least one batch of {batch_size:,}"
            raise InputError(store.folder, None, found, expected, "give a smaller --batch-size")
        self._steps = math.ceil(self.steps_per_epoch * epochs) if max_steps is None else max_steps
        self._epoch, self._order = -1, items

    def __len__(self) -> int:
        return self._steps

    @abstractmethod
    def assemble(self, items: Items, epoch: int) -> Batch:
        """Return the batch of items at their visit in an epoch."""

    def __getitem__(self, step: int) -> Batch:
        """Return this process's part of the batch of a step."""
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} of {self._steps}")
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            order = generator(self.seed, Purpose.ORDER, epoch).permutation(self.items)
            self._epoch, self._order = epoch, order
        batch = self._order[place * self.batch_size : (place + 1) * self.batch_size]
        first, last = ((self.rank + i) * len(batch) // self.world for i in (0, 1))
        return self.assemble(batch[first:last], epoch)


class TrainingBatches(ScheduledBatches[Any]):
    """The batches of a run on queries with passages; `batch_size` queries over all processes.

    Under `with_scores` they have the teacher's scores, and queries without negatives, whose random
    passages no teacher has seen, are left out. Under `masks` they have the known positives, and the
    token ids of `guide`, the same data as a guide reads it.
    """

    def __init__(
        self,
        store: TrainingStore,
        settings: SamplingSettings,
        batch_size: int,
        *,
        with_scores: bool = False,
        masks: bool = False,
        guide: TrainingStore | None = None,
        **options: Any,
    ) -> None:
        self.store, self.sampling, self.with_scores = store, settings, with_scores
        self.masks, self.guide = masks, guide
        self.repeats = settings.fill_negatives is FillNegatives.REPEAT
        items = np.arange(len(store))
        wanted = settings.group_size - 1
        if with_scores and store.contents["unscored"]:
            scores = zip(store.qids, store.scores, strict=True)
            qid = next(qid for qid, own in scores if np.isnan(own).any())
            found = f"no teacher's score of a passage of query {qid}"
            expected = "a score for every positive and negative, which distillation learns from"
            hint = "write them: denserk convert FILE scored.jsonl --teacher MODEL"
            raise InputError(store.folder, None, found, expected, hint)
        if with_scores and wanted:
            items = items[store.negative_counts > 0]
            if lost := len(store) - len(items):
                lacking = "queries without a negative have nothing to distil, left out"
                logger.warning(f"{lacking}: {lost:,}")
        items = items_of_run(items, settings)
        super().__init__(store, items, batch_size, settings.seed, **options)
        pool = settings.negative_pool or store.negative_counts.max(initial=0)
        counts = np.minimum(store.negative_counts[items], pool)
        instead = "drawn with replacement" if self.repeats else "the missing ones masked"
        if short := int(((counts > 0) & (counts < wanted)).sum()):
            logger.warning(
                f"queries with fewer than the {wanted} negatives of --group-size {wanted + 1}, "
                f"{instead}: {short:,} of {len(counts):,}; the longest list has {counts.max():,}: "
                f"--group-size {counts.max() + 1} uses it whole"
            )
        self._known: dict[int, Items] = {}
        if wanted and (bare := int((counts == 0).sum())):
            logger.warning(f"queries without a negative get random passages: {bare:,}")
            self._known = self._known_positives(items)
            self._refuse_positives_alone(items)

    def _known_positives(self, items: Items) -> dict[int, Items]:
        """Return the positives of queries without a negative, those of equal queries among them.

        They are by item, where an equal query has an example of its own.
        """
        store = self.store
        items_of_query: dict[int, list[int]] = {}
        for start in range(0, len(store), HASHED_TOGETHER):
            queries = store.queries[start : start + HASHED_TOGETHER]
            for item, query in enumerate(hashes(queries).tolist(), start):
                items_of_query.setdefault(query, []).append(item)
        bare = set(items[store.negative_counts[items] == 0].tolist())
        known: dict[int, Items] = {}
        for same_query in items_of_query.values():
            if len(same_query) > 1 and not bare.isdisjoint(same_query):
                positives = np.unique(np.concatenate([store.positives[i] for i in same_query]))
                known.update(dict.fromkeys(bare.intersection(same_query), positives))
        return known

    def _refuse_positives_alone(self, items: Items) -> None:
        """Raise an InputError if all passages are positives of a query without negatives."""
        store = self.store
        for item in items[store.negative_counts[items] == 0].tolist():
            positives = self._known.get(item)
            if positives is None:
                positives = store.positives[item]
            if len(positives) < len(store.passages):
                continue
            if len(np.unique(positives)) == len(store.passages):
                found = f"no negative of query {store.qids[item]}, and no passage but its positives"
                expected = "other passages, of which random negatives are drawn"
                hint = "give negatives (denserk mine-negatives finds some), or --group-size 1"
                raise InputError(store.folder, None, found, expected, hint)

    def groups(self, items: Items, epoch: int) -> tuple[Items, NDArray[np.float32]]:
        """Return the passages of a visit of each item, and their scores: (B, n) each.

        Passages are rows of the store's, the positive first. A missing negative is -1, with a score
        of minus infinity; so is a repeated one, unless negatives are repeated on purpose.
        """
        store, settings = self.store, self.sampling
        rows = np.full((len(items), settings.group_size), -1, dtype=np.int64)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        columns = store.positives[items], store.negatives[items], store.scores[items]
        visits = enumerate(zip(items.tolist(), *columns, strict=True))
        for number, (item, own, others, given) in visits:
            others = others[: settings.negative_pool]
            place = sampling.choose_positive(settings, len(own), item, epoch)
            rows[number, 0], scores[number, 0] = own[place], given[place]
            if len(others):
                chosen = sampling.choose_negatives(settings, len(others), item, epoch)
                rows[number, 1:] = np.where(chosen < 0, -1, others[chosen])
                scores[number, 1:] = given[len(own) + chosen]
            elif settings.group_size > 1:
                known, size = self._known.get(item, own), len(store.passages)
                rows[number, 1:] = sampling.choose_random_passages(
                    settings, size, known, item, epoch
                )
        if not self.repeats:
            equal = np.tril(rows[:, :, None] == rows[:, None, :], -1)
            rows[equal.any(axis=2)] = -1
        scores[rows < 0] = -np.inf
        return rows, scores

    def assemble(self, items: Items, epoch: int) -> Any:
        """Return the batch of items at their visit in an epoch."""
        store = self.store
        rows, scores = self.groups(items, epoch)
        keys = rows
        if self.repeats:  # every occurrence is a passage of its own
            keys = items[:, None] * rows.shape[1] + np.arange(rows.shape[1])
        present = rows >= 0
        distinct, first, number = np.unique(keys[present], return_index=True, return_inverse=True)
        order = np.argsort(first)  # passages stand in the order of the groups
        groups = np.full_like(rows, -1)
        groups[present] = np.argsort(order)[number]
        members = rows[present][first[order]]
        queries, passages, known, guide = store.queries[items], store.passages[members], None, None
        if self.masks:
            positives = [hashes(store.passages[own]) for own in store.positives[items]]
            padded = pad_sequence(positives, batch_first=True, padding_value=-1)
            known = Positives(hashes(queries), hashes(passages), padded)
        if self.guide is not None:
            guide = {"query": self.guide.queries[items], "passage": self.guide.passages[members]}
        return TrainingBatch(
            pad(queries, store.query_pad_id),
            pad(passages, store.passage_pad_id),
            torch.from_numpy(groups),
            torch.from_numpy(distinct[order]),
            torch.from_numpy(scores) if self.with_scores else None,
            torch.from_numpy(items.copy()),
            known,
            guide,
        )


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
        queries, passages = self.store.queries[items], self.store.passages[rows[present]]
        owners = zip(present.nonzero()[0].tolist(), passages, strict=True)
        pairs = [self._joiner.join(queries[query], passage) for query, passage in owners]
        groups = np.full_like(rows, -1)
        groups[present] = np.arange(len(pairs))
        joined, numbers = self._joiner.batch(pairs), torch.from_numpy(items.copy())
        return PairTrainingBatch(joined, torch.from_numpy(groups), numbers)


class SentenceBatches(ScheduledBatches[SentenceBatch]):
    """The batches of a run on pairs or triplets."""

    keep_last = True

    def __init__(
        self, store: SentenceStore, settings: SamplingSettings, batch_size: int, **options: Any
    ) -> None:
        self.store = store
        items = items_of_run(np.arange(len(store)), settings)
        super().__init__(store, items, batch_size, settings.seed, **options)

    def assemble(self, items: Items, epoch: int) -> SentenceBatch:
        """Return the batch of items, in any epoch."""
        return assemble(self.store, items)


def assemble(store: SentenceStore, items: Items) -> SentenceBatch:
    """Return examples by their numbers as one batch."""
    rows = items[:, None] * store.size + np.arange(store.size)
    return SentenceBatch(
        pad(store.sentences[rows.ravel()], store.pad_id),
        torch.from_numpy(store.labels[items].copy()) if len(store.labels) else None,
        torch.from_numpy(items.copy()),
    )
