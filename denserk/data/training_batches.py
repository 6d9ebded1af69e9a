"""The batches of a training run, each a function of its step alone."""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
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
    """Return a number for the token ids of each text, in every process the same: (N,) int64."""
    digests = (blake2b(ids.tobytes(), digest_size=8).digest() for ids in texts)
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.int64)


class ScheduledBatches(Dataset[Batch]):
    """The batches of a run for one process; `batches[step]` is its part of the batch of a step.

    A step here is a batch, of which an update of the weights may add up several. A batch depends
    on the data, the settings and the step, and on nothing else: a run is resumed by starting at its
    next step, loader workers change nothing, and the parts of all ranks, one after another, are the
    batch that a single process gets. Each epoch has its own order of the `items`.

    `batch_size` is that of all processes together. `max_steps` replaces `epochs`, the passes over
    the data; `world` is the number of processes.
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
        if batch_size % world:
            problem = f"--batch-size {batch_size} does not divide among {world} processes"
            raise UsageError(problem, f"give a multiple of {world}")
        self.rank = rank
        self.world = world
        self.items = items
        self.batch_size = batch_size
        self.seed = seed
        self.steps_per_epoch = len(items) // batch_size
        if self.keep_last and len(items) % batch_size > 0:
            self.steps_per_epoch += 1
        if self.steps_per_epoch == 0:
            problem = f"--batch-size {batch_size:,}: the data hold {len(items):,} {store.unit}"
            raise UsageError(problem, f"give --batch-size {len(items)} or less, or more data")
        if max_steps is None:
            max_steps = math.ceil(self.steps_per_epoch * epochs)
        self._steps = max_steps
        # the last epoch of which a batch was taken, and its order of the items
        self._epoch = -1
        self._order = items

    def __len__(self) -> int:
        return self._steps

    @abstractmethod
    def assemble(self, items: Items, epoch: int) -> Batch:
        """Return the batch of items, with the random choices of an epoch."""

    def __getitem__(self, step: int) -> Batch:
        """Return this process's part of the batch of a step."""
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} of {self._steps}")
        epoch, batch_number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = generator(self.seed, Purpose.ORDER, epoch).permutation(self.items)
            self._epoch = epoch
        start = batch_number * self.batch_size
        items = self._order[start : start + self.batch_size]
        local_start = self.rank * len(items) // self.world
        local_end = (self.rank + 1) * len(items) // self.world
        return self.assemble(items[local_start:local_end], epoch)


class TrainingBatches(ScheduledBatches[Any]):
    """The batches of a run on queries with passages; `batch_size` queries over all processes.

    Under `with_scores` they have the teacher's scores, and queries without negatives, whose random
    passages no teacher has seen, are left out. Under `masks` they have the known positives, to mask
    false negatives. With `guide`, the same data tokenised for a guide, they have its token ids.
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
        self.store = store
        self.sampling = settings
        self.with_scores = with_scores
        self.masks = masks
        self.guide = guide
        self.repeats = settings.fill_negatives is FillNegatives.REPEAT
        items = np.arange(len(store))
        if with_scores:
            self._reject_unscored()
            items = self._with_negatives(items)
        items = items_of_run(items, settings)
        super().__init__(store, items, batch_size, settings.seed, **options)
        self._warn_of_few_negatives(items)
        # rows that are not drawn as random passages, by item, where they are more than its own
        # positives: see `_positives_of_equal_queries`
        self._shared_positives: dict[int, Items] = {}
        needs_negatives = settings.group_size > 1
        count_without = int((self._negative_counts(items) == 0).sum())
        if needs_negatives and count_without:
            logger.warning(f"queries without a negative get random passages: {count_without:,}")
            self._shared_positives = self._positives_of_equal_queries(items)
            self._reject_positives_alone(items)

    def _reject_unscored(self) -> None:
        """Raise an InputError if a passage has no teacher's score."""
        store = self.store
        if not store.contents["unscored"]:
            return
        unscored_qids = (
            qid
            for qid, scores in zip(store.qids, store.scores, strict=True)
            if np.isnan(scores).any()
        )
        raise InputError(
            store.folder,
            None,
            f"no teacher's score of a passage of query {next(unscored_qids)}",
            "a score for every positive and negative, which distillation learns from",
            "write them: denserk convert FILE scored.jsonl --teacher MODEL",
        )

    def _with_negatives(self, items: Items) -> Items:
        """Return the items that have a negative; all items where groups have no negatives."""
        if self.sampling.group_size == 1:
            return items
        items_with_negatives = items[self.store.negative_counts[items] > 0]
        left_out = len(items) - len(items_with_negatives)
        if left_out:
            message = "queries without a negative have nothing to distil, left out"
            logger.warning(f"{message}: {left_out:,}")
        return items_with_negatives

    def _negative_counts(self, items: Items) -> Items:
        """Return how many negatives of each item may be drawn: all, or the first of each list."""
        counts = self.store.negative_counts[items]
        if self.sampling.negative_pool is None:
            return counts
        return np.minimum(counts, self.sampling.negative_pool)

    def _warn_of_few_negatives(self, items: Items) -> None:
        """Warn of queries with negatives, but fewer than a group needs."""
        group_size = self.sampling.group_size
        counts = self._negative_counts(items)
        short_count = int(((counts > 0) & (counts < group_size - 1)).sum())
        if short_count:
            instead = "drawn with replacement" if self.repeats else "the missing ones masked"
            logger.warning(
                f"queries with fewer than the {group_size - 1} negatives of --group-size "
                f"{group_size}, {instead}: {short_count:,} of {len(counts):,}; the longest list "
                f"has {counts.max():,}: --group-size {counts.max() + 1} uses it whole"
            )

    def _positives_of_equal_queries(self, items: Items) -> dict[int, Items]:
        """Return the positives of all examples of a query, as rows, by item.

        Only items without a negative are in it, and only those whose query has several examples.
        """
        store = self.store
        without_negatives = set(items[store.negative_counts[items] == 0].tolist())
        shared_positives: dict[int, Items] = {}
        for items_of_query in self._items_by_query():
            if len(items_of_query) > 1 and not without_negatives.isdisjoint(items_of_query):
                positives_of_items = [store.positives[item] for item in items_of_query]
                positives = np.unique(np.concatenate(positives_of_items))
                for item in without_negatives.intersection(items_of_query):
                    shared_positives[item] = positives
        return shared_positives

    def _items_by_query(self) -> Iterable[list[int]]:
        """Return the items of each distinct query, by its token ids."""
        items_by_hash: dict[int, list[int]] = {}
        for start in range(0, len(self.store), HASHED_TOGETHER):
            queries = self.store.queries[start : start + HASHED_TOGETHER]
            for item, query_hash in enumerate(hashes(queries).tolist(), start):
                items_by_hash.setdefault(query_hash, []).append(item)
        return items_by_hash.values()

    def _reject_positives_alone(self, items: Items) -> None:
        """Raise an InputError if a query without negatives has all passages as positives."""
        store = self.store
        passage_count = len(store.passages)
        for item in items[store.negative_counts[items] == 0].tolist():
            positives = self._shared_positives.get(item)
            if positives is None:
                positives = store.positives[item]
            # a positive may be listed twice: the distinct ones are counted where they may be all
            if len(positives) >= passage_count and len(np.unique(positives)) == passage_count:
                raise InputError(
                    store.folder,
                    None,
                    f"no negative of query {store.qids[item]}, and no passage but its positives",
                    "other passages, of which random negatives are drawn",
                    "give negatives (denserk mine-negatives finds some), or --group-size 1",
                )

    def groups(self, items: Items, epoch: int) -> tuple[Items, NDArray[np.float32]]:
        """Return the passages of each item in an epoch, and their teacher's scores: (B, n) each.

        Passages are rows of the store's, the positive first. A missing negative is -1, with a score
        of minus infinity; so is a repeated one, unless negatives are repeated on purpose.
        """
        store = self.store
        rows = np.full((len(items), self.sampling.group_size), -1, dtype=np.int64)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        examples = zip(
            items.tolist(),
            store.positives[items],
            store.negatives[items],
            store.scores[items],
            strict=True,
        )
        for number, (item, positives, negatives, item_scores) in enumerate(examples):
            position = sampling.choose_positive(self.sampling, len(positives), item, epoch)
            rows[number, 0] = positives[position]
            scores[number, 0] = item_scores[position]
            pool = negatives[: self.sampling.negative_pool]
            if len(pool):
                # -1 for a missing one: its score, of another passage, is replaced below
                positions = sampling.choose_negatives(self.sampling, len(pool), item, epoch)
                rows[number, 1:] = np.where(positions < 0, -1, pool[positions])
                scores[number, 1:] = item_scores[len(positives) + positions]
            elif self.sampling.group_size > 1:
                excluded_positives = self._shared_positives.get(item, positives)
                rows[number, 1:] = sampling.choose_random_passages(
                    self.sampling, len(store.passages), excluded_positives, item, epoch
                )
        if not self.repeats:
            # each passage against those before it in its group
            equals_earlier = np.tril(rows[:, :, None] == rows[:, None, :], -1).any(axis=2)
            rows[equals_earlier] = -1
        scores[rows < 0] = -np.inf
        return rows, scores

    def assemble(self, items: Items, epoch: int) -> Any:
        """Return the `TrainingBatch` of items, with the passages that an epoch draws for them."""
        store = self.store
        rows, scores = self.groups(items, epoch)
        distinct = self._distinct_passages(rows, items)
        queries = store.queries[items]
        passages = store.passages[distinct.rows]
        known_positives = None
        if self.masks:
            known_positives = self._hashes_of_positives(items, queries, passages)
        guide_tokens = None
        if self.guide is not None:
            guide_tokens = {
                "query": self.guide.queries[items],
                "passage": self.guide.passages[distinct.rows],
            }
        return TrainingBatch(
            queries=pad(queries, store.query_pad_id),
            passages=pad(passages, store.passage_pad_id),
            groups=torch.from_numpy(distinct.groups),
            keys=torch.from_numpy(distinct.keys),
            teacher=torch.from_numpy(scores) if self.with_scores else None,
            items=torch.from_numpy(items.copy()),  # which is a view of the epoch's order
            known_positives=known_positives,
            guide_tokens=guide_tokens,
        )

    def _distinct_passages(self, rows: Items, items: Items) -> "DistinctPassages":
        """Return the passages of groups (B, n), each once, in the order of their first places."""
        keys = rows
        if self.repeats:  # every occurrence is a passage of its own
            keys = items[:, None] * rows.shape[1] + np.arange(rows.shape[1])
        present = rows >= 0
        sorted_keys, first_positions, key_numbers = np.unique(
            keys[present], return_index=True, return_inverse=True
        )
        order = np.argsort(first_positions)
        number_in_order = np.argsort(order)  # by the number of a key among the sorted ones
        groups = np.full_like(rows, -1)
        groups[present] = number_in_order[key_numbers]
        return DistinctPassages(
            rows=rows[present][first_positions[order]], keys=sorted_keys[order], groups=groups
        )

    def _hashes_of_positives(
        self, items: Items, queries: Sequence[Any], passages: Sequence[Any]
    ) -> Positives:
        """Return the hashes by which known positives are recognised in a batch.

        `queries` and `passages` are the token ids of those in the batch; the positives are all that
        the prepared data has of each query.
        """
        positives_of_items = [
            hashes(self.store.passages[rows]) for rows in self.store.positives[items]
        ]
        positives = pad_sequence(positives_of_items, batch_first=True, padding_value=-1)
        return Positives(hashes(queries), hashes(passages), positives)


class DistinctPassages(NamedTuple):
    """The passages of a batch: P, each of which may be in several of its B groups."""

    rows: Items  # (P,), of the store's passages
    keys: Items  # (P,), see `TrainingBatch`
    groups: Items  # (B, n), which of the P passages, -1 where there is none


class PairTrainingBatch(NamedTuple):
    """Queries with their groups of passages: a batch, or one rank's part of it."""

    pairs: PairBatch  # P inputs, those of one query after those of another
    # (B, n) int64, rows of each query's pairs, the positive first, -1 where a negative is missing
    groups: Tensor
    items: Tensor  # (B,) int64, the queries' numbers in the prepared data


class PairTrainingBatches(TrainingBatches):
    """`TrainingBatches` with each query joined with each of its passages: `PairTrainingBatch`es."""

    def __init__(self, joiner: PairJoiner, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._joiner = joiner

    def assemble(self, items: Items, epoch: int) -> PairTrainingBatch:
        """Return the batch of items, with the passages that an epoch draws for them."""
        rows, _ = self.groups(items, epoch)
        present = rows >= 0
        queries = self.store.queries[items]
        passages = self.store.passages[rows[present]]
        query_numbers, _ = present.nonzero()  # of each passage, as they are in `passages`
        pairs = []
        for query_number, passage in zip(query_numbers.tolist(), passages, strict=True):
            pairs.append(self._joiner.join(queries[query_number], passage))
        groups = np.full_like(rows, -1)
        groups[present] = np.arange(len(pairs))
        return PairTrainingBatch(
            self._joiner.batch(pairs), torch.from_numpy(groups), torch.from_numpy(items.copy())
        )


class SentenceBatches(ScheduledBatches[SentenceBatch]):
    """The batches of a run on sentence pairs, triplets, or queries to align."""

    keep_last = True

    def __init__(
        self, store: SentenceStore, settings: SamplingSettings, batch_size: int, **options: Any
    ) -> None:
        self.store = store
        items = items_of_run(np.arange(len(store)), settings)
        super().__init__(store, items, batch_size, settings.seed, **options)

    def assemble(self, items: Items, epoch: int) -> SentenceBatch:
        """Return the batch of items, the same in each epoch."""
        return sentence_batch(self.store, items)


def sentence_batch(store: SentenceStore, items: Items) -> SentenceBatch:
    """Return examples by their numbers (B,) as one batch."""
    rows = items[:, None] * store.size + np.arange(store.size)
    labels = None
    if len(store.labels):
        labels = torch.from_numpy(store.labels[items].copy())
    return SentenceBatch(
        pad(store.sentences[rows.ravel()], store.pad_id), labels, torch.from_numpy(items.copy())
    )
