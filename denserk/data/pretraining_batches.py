"""Prepared text -> the batches of a pre-training run, each a function of its step."""

import logging
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from denserk.data.batches import PretrainingBatch
from denserk.data.enhanced_views import visible_tokens
from denserk.data.masked_texts import Masker, Stage, Use, Visit, crop
from denserk.data.masking import IGNORED, Pieces
from denserk.data.master_texts import MasterTexts
from denserk.data.pretraining_store import Layout, PretrainingStore
from denserk.data.sampling import Items, Purpose, random_words
from denserk.data.schedule import Schedule
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError, UsageError
from denserk.settings.encoding import TextSettings
from denserk.settings.pretraining import (
    ALL_TASKS,
    Masking,
    MaskingSettings,
    MasterTask,
    NprKind,
    PretrainingObjective,
)

logger = logging.getLogger(__name__)

FRAME = 2
"""[CLS] and [SEP]."""


def refuse_generated(tasks: frozenset[MasterTask]) -> None:
    """Refuses tasks that recover what other models made, where nothing was made.

    Raises:
        UsageError: there are such tasks.
    """
    generated = sorted(tasks & {MasterTask.DOR, MasterTask.GOR})
    if generated:
        rest = ",".join(task for task in MasterTask if task in tasks and task not in generated)
        raise UsageError(
            f"{' and '.join(generated)}: the corpus has no generated queries or continuations",
            "make them with denserk generate and give them as --expansions"
            + (f", or leave them out: --set tasks={rest}" if rest else ""),
        )


class PretrainingBatches(Dataset[PretrainingBatch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    What does not fill the last batch of an epoch waits for another one. What a batch depends on:
    see `Schedule`. Within a process's part texts are ordered by length, the longest first, so that
    chunks of it need little padding; the two spans of a document stand side by side.

    Args:
        store: the prepared text.
        tokenizer: the fast tokenizer of transformers that made its ids.
        objective: what is masked how.
        masking: rates, weights and the seed.
        max_length: tokens of a sequence.
        batch_size: texts of a step, over all processes; documents, of two spans each, for
            cocondenser.
        tasks: of master.
        epochs: how often the text is gone through.
        max_steps: ends there instead, in as many epochs as it takes.
        rank: this process, from 0.
        world: how many processes there are.

    Attributes:
        npr: what NPR's decoder recovers, once the text has been looked at.

    Raises:
        MismatchError: the text was prepared for another objective, or by another tokenizer.
        UsageError: the batch size does not divide among the processes; tasks need expansions.
        InputError: the text makes no batch.
    """

    def __init__(
        self,
        store: PretrainingStore,
        tokenizer: Any,
        objective: PretrainingObjective,
        masking: MaskingSettings,
        max_length: int,
        batch_size: int,
        *,
        tasks: frozenset[MasterTask] = frozenset(ALL_TASKS),
        epochs: float = 1,
        max_steps: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        store.refuse_other(TextTokenizer(tokenizer, TextSettings()).fingerprint())
        if store.layout is not Layout.of(objective):
            raise MismatchError(
                f"{store.folder} holds {store.layout}; {objective} needs {Layout.of(objective)}"
            )
        self.store, self.objective, self.settings = store, objective, masking
        self.limit = max_length - FRAME
        pieces = Pieces.of(tokenizer)
        if masking.masking is Masking.TOKEN:
            pieces = pieces.singly()
        self.masker = Masker(pieces, masking.all_mask)
        self.npr = masking.npr
        if objective is PretrainingObjective.MASTER:
            self._look_at_passages(tasks)
            self._master = MasterTexts(store, self.masker, masking, tasks, self.npr, self.limit)
        self._schedule = Schedule(
            np.arange(len(store)),
            batch_size,
            masking.seed,
            epochs=epochs,
            max_steps=max_steps,
            rank=rank,
            world=world,
        )
        if not self.steps_per_epoch:
            raise InputError(
                store.folder,
                None,
                f"{len(store):,} {store.items}",
                f"at least one batch of {batch_size:,}",
                "give a smaller --batch-size",
            )

    def _look_at_passages(self, tasks: frozenset[MasterTask]) -> None:
        """Refuses tasks without their text; tells where NPR goes another way."""
        counts = self.store.contents
        if not counts["expanded"]:
            refuse_generated(tasks)
        if MasterTask.NPR not in tasks or self.npr is NprKind.HALF:
            return
        if not counts["with_neighbour"]:
            self.npr = NprKind.HALF
            logger.info("no documents are known: npr recovers the second half of each passage")
        elif alone := len(self.store) - counts["with_neighbour"]:
            logger.info(f"passages without a neighbour take no part in npr: {alone:,}")

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._schedule.steps_per_epoch

    def __len__(self) -> int:
        return self._schedule.steps

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that a step belongs to."""
        return self._schedule.epoch_of(step)

    def __getitem__(self, step: int) -> PretrainingBatch:
        """This process's part of the batch of a step.

        Raises:
            IndexError: the run has no such step.
        """
        return self.assemble(self._schedule.part(step), self.epoch_of(step))

    def assemble(self, items: Items, epoch: int) -> PretrainingBatch:
        """The batch of items of the store at their visit in an epoch."""
        if self.store.layout is Layout.SPANS:
            return self._masked(Visit(self.settings.seed, self._spans(items, epoch), epoch))
        visit = self._visit(items, epoch)
        if self.objective is PretrainingObjective.MASTER:
            return self._master(visit)
        return self._masked(visit)

    def _visit(self, rows: Items, epoch: int) -> Visit:
        """Rows of texts, the longest first."""
        ends = self.store.texts.ends
        lengths = np.minimum(ends[rows + 1] - ends[rows], self.limit)
        return Visit(self.settings.seed, rows[np.argsort(-lengths, kind="stable")], epoch)

    def _spans(self, items: Items, epoch: int) -> Items:
        """Two different spans of each document, drawn at each visit: (B,) -> (2 B,) rows."""
        ends = self.store.document_ends
        counts = (ends[items + 1] - ends[items]).astype(np.uint64)
        draws = random_words(self.settings.seed, Purpose.SPANS, items, epoch, 2)
        first, second = draws[:, 0] % counts, draws[:, 1] % (counts - np.uint64(1))
        second += second >= first
        chosen = np.stack([first, second], axis=1).astype(np.int64)
        rows: Items = (ends[items][:, None] + chosen).ravel()
        return rows

    def _masked(self, visit: Visit) -> PretrainingBatch:
        """Texts under a uniform mask, and for RetroMAE the same texts whole, with their views."""
        masker, retromae = self.masker, self.objective is PretrainingObjective.RETROMAE
        draws = visit.draws(Stage.TEXT, Use.CROP, 1)
        text = crop(self.store.texts, visit.items, self.limit, draws)
        ids = text.ids(masker.pieces)
        words = masker.words(ids)
        rate, counted = self.settings.mlm_probability, FRAME if retromae else 0
        masks = masker.uniform(text, words, rate, visit, Stage.TEXT, counted)
        texts = masker.masked(text, ids, masks, visit, Stage.TEXT)
        if not retromae:
            return PretrainingBatch(texts, {}, {})
        real = np.arange(ids.shape[1]) < text.lengths[:, None]
        whole = masker.framed(ids, np.where(real, ids, IGNORED), text.lengths)
        views = visible_tokens(text, words, self.settings.decoder_mlm_probability, visit)
        return PretrainingBatch(texts, {}, {"retromae": whole}, views)
