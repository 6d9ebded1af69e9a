"""Batches of pre-training: prepared text, cropped and masked; a function of the step.

The random numbers of a text are keyed by (seed, stage, row, epoch), so they are independent of
other texts, processes and workers. Condenser masks uniformly (Gao and Callan, 2021); MASTER also
masks keywords and complements (Zhou et al., 2023, section 4, and their code); RetroMAE has an
attention mask for each row of its decoder (Xiao et al., 2022, section 3.3, with the authors'
sampling).
"""

import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from denserk.config.encoding import TextSettings
from denserk.config.pretraining import (
    Masking,
    MaskingSettings,
    MasterTask,
    NprKind,
    PretrainingObjective,
)
from denserk.data.batches import MaskedTexts, PretrainingBatch, pad
from denserk.data.masking import (
    IGNORED,
    Ids,
    KeywordWeights,
    Mask,
    SubwordTokens,
    budget,
    corrupt,
    keyword_mask,
    uniform_masks,
    words_of,
)
from denserk.data.pretraining_data import SPECIAL_TOKENS, Layout, PretrainingStore
from denserk.data.sampling import Items, Purpose, generator
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import ScheduledBatches, ScheduleOptions
from denserk.errors import MismatchError, UsageError

logger = logging.getLogger(__name__)

SAMPLES = 256  # uniform masks per text, at most, that RetroMAE's decoder rows draw from
Masked = tuple[Ids, Ids]  # the tokens that are seen, and the labels


class Stage(IntEnum):
    """What a text is masked for; part of the key of its random numbers."""

    TEXT = 0
    NPR_PASS = 1
    CMP_PASS = 2
    MKP = 3
    CMP = 4
    NPR = 5
    DOR = 6
    GOR = 7
    RETROMAE = 8


PASSES = {Stage.CMP_PASS: "cmp", Stage.NPR_PASS: "npr"}


class Visit(NamedTuple):
    """A row of prepared text in an epoch: the key of its random numbers."""

    seed: int
    row: int
    epoch: int

    def rng(self, stage: Stage) -> np.random.Generator:
        """Return the random generator of a stage."""
        return generator(self.seed, Purpose.MASKING + stage, self.row, self.epoch)


class Crop(NamedTuple):
    """The tokens start .. end - 1 of a text."""

    text: Ids
    start: int
    end: int

    @classmethod
    def draw(cls, text: Ids, limit: int, rng: np.random.Generator) -> "Crop":
        """Crop a text to at most `limit` tokens, at a random place."""
        start = int(rng.integers(len(text) - limit + 1)) if len(text) > limit else 0
        return cls(text, start, min(start + limit, len(text)))

    @property
    def ids(self) -> Ids:
        """Return the token ids: (T,)."""
        return self.text[self.start : self.end].astype(np.int64)

    def halves(self) -> tuple["Crop", "Crop"]:
        """Return both halves, the first the smaller; both empty for one token."""
        if self.end - self.start < 2:
            return self._replace(end=self.start), self._replace(end=self.start)
        middle = (self.start + self.end) // 2
        return self._replace(end=middle), self._replace(start=middle)

    def fragments(self, vocabulary: SubwordTokens) -> dict[str, bool]:
        """Return whether the first and the last word are cut, as `KeywordWeights` takes it."""
        continues, special = vocabulary.continues, vocabulary.special
        cut = 0 < self.end < len(self.text) and not special[self.text[self.end - 1]]
        return {
            "starts_inside": self.start > 0 and bool(continues[self.text[self.start]]),
            "ends_inside": bool(cut and continues[self.text[self.end]]),
        }


def visible_tokens(words: Ids, rate: float, rng: np.random.Generator) -> Mask:
    """Return RetroMAE's decoder mask of a text, [CLS] and [SEP] included: (T,) -> (T + 2, T + 2).

    Args:
        words: from `masking.words_of`.
        rate: share of the text, [CLS] and [SEP] counted, that a row does not see.
        rng: the source of randomness.
    """
    length = len(words) + SPECIAL_TOKENS
    samples = uniform_masks(words, budget(rate, length), rng, min(length, SAMPLES))
    visible = np.ones((length, length), dtype=bool)
    visible[:, 1:-1] = ~samples[rng.integers(len(samples), size=length)]
    np.fill_diagonal(visible, val=False)
    visible[:, 0] = True
    return visible


class Masker(NamedTuple):
    """Crops and masks single texts."""

    vocabulary: SubwordTokens
    settings: MaskingSettings
    limit: int  # most tokens of a text, without special tokens

    def crop(self, text: Ids, rng: np.random.Generator) -> Crop:
        """Crop a text at a random place."""
        return Crop.draw(text, self.limit, rng)

    def choose(self, ids: Ids, rate: float, rng: np.random.Generator, extra: int = 0) -> Mask:
        """Return a uniform mask; `extra` tokens are added to the length for the budget."""
        words = words_of(ids, self.vocabulary)
        mask: Mask = uniform_masks(words, budget(rate, len(ids) + extra), rng)[0]
        return mask

    def corrupt(self, ids: Ids, mask: Mask, rng: np.random.Generator) -> Masked:
        """Replace masked tokens."""
        return corrupt(ids, mask, self.vocabulary, rng, all_mask=self.settings.all_mask)

    def uniform(self, ids: Ids, rate: float, rng: np.random.Generator) -> Masked:
        """Mask a text uniformly."""
        return self.corrupt(ids, self.choose(ids, rate, rng), rng)

    def frame(self, texts: Sequence[Masked]) -> MaskedTexts:
        """Add [CLS] before and [SEP] after each text, and pad."""
        cls_id, sep_id = [self.vocabulary.cls_id], [self.vocabulary.sep_id]
        tokens = [np.concatenate([cls_id, seen, sep_id]) for seen, _ in texts]
        labels = [np.concatenate([[IGNORED], asked, [IGNORED]]) for _, asked in texts]
        return MaskedTexts(pad(tokens, self.vocabulary.pad_id), pad(labels, IGNORED).input_ids)


class MasterRow(NamedTuple):
    """What MASTER reads of a passage: token ids, and the number of each token's word."""

    text: Ids
    words: Ids
    neighbour: Ids
    neighbour_words: Ids
    queries: Ids
    next: Ids


class MasterMasker:
    """Masks passages for MASTER's encoder and decoders."""

    def __init__(
        self, store: PretrainingStore, masker: Masker, tasks: frozenset[MasterTask], npr: NprKind
    ) -> None:
        self.store, self.masker, self.tasks, self.npr = store, masker, tasks, npr
        self.settings = masker.settings
        self.weights = KeywordWeights(store.words, len(store), masker.settings)

    def read(self, rows: Items) -> list[MasterRow]:
        """Return what is read of passages; without a neighbour that part is empty."""
        store, offsets = self.store, self.store.neighbours[rows]
        columns = (
            store.texts.take(rows),
            store.word_numbers.take(rows),
            store.texts.take(rows + offsets),
            store.word_numbers.take(rows + offsets),
            store.queries.take(rows),
            store.next.take(rows),
        )
        found = [MasterRow(*row) for row in zip(*columns, strict=True)]
        return [
            row if offset else row._replace(neighbour=row.neighbour[:0])
            for row, offset in zip(found, offsets.tolist(), strict=True)
        ]

    def __call__(self, row: MasterRow, visit: Visit) -> dict[Stage, Masked]:
        """Return the masked texts of a passage."""
        settings, masker, rng = self.settings, self.masker, visit.rng(Stage.TEXT)
        text = masker.crop(row.text, rng)
        mask = masker.choose(text.ids, settings.mlm_probability, rng)
        made = {Stage.TEXT: masker.corrupt(text.ids, mask, rng)}
        if MasterTask.MKP in self.tasks:
            made[Stage.MKP] = self._keywords(text, row.words, visit.rng(Stage.MKP))
        if MasterTask.CMP in self.tasks:
            if settings.cmp_pass:
                rng = visit.rng(Stage.CMP_PASS)
                mask = masker.choose(text.ids, settings.cmp_rate, rng)
                made[Stage.CMP_PASS] = masker.corrupt(text.ids, mask, rng)
            complement = ~mask & ~masker.vocabulary.special[text.ids]
            made[Stage.CMP] = masker.corrupt(text.ids, complement, visit.rng(Stage.CMP))
        if MasterTask.NPR in self.tasks:
            made |= self._related(row, text, visit)
        if MasterTask.DOR in self.tasks:
            made[Stage.DOR] = self._generated(row.queries, visit.rng(Stage.DOR))
        if MasterTask.GOR in self.tasks:
            following = row.next if len(row.next) else row.text
            made[Stage.GOR] = self._generated(following, visit.rng(Stage.GOR))
        return made

    def _related(self, row: MasterRow, text: Crop, visit: Visit) -> dict[Stage, Masked]:
        """Return NPR's decoder input, and the encoder's pass over the first half."""
        rng = visit.rng(Stage.NPR)
        if self.npr is NprKind.NEIGHBOUR:
            other = self.masker.crop(row.neighbour, rng)
            return {Stage.NPR: self._keywords(other, row.neighbour_words, rng)}
        first, second = text.halves()
        rate, own = self.settings.mlm_probability, visit.rng(Stage.NPR_PASS)
        return {
            Stage.NPR_PASS: self.masker.uniform(first.ids, rate, own),
            Stage.NPR: self._keywords(second, row.words, rng),
        }

    def _generated(self, text: Ids, rng: np.random.Generator) -> Masked:
        rate = self.settings.decoder_mlm_probability
        return self.masker.uniform(self.masker.crop(text, rng).ids, rate, rng)

    def _keywords(self, text: Crop, numbers: Ids, rng: np.random.Generator) -> Masked:
        """Mask the keywords of a passage, `numbers` being those of its words."""
        ids = text.ids
        if not len(ids):
            return ids, ids
        words = words_of(ids, self.masker.vocabulary)
        cut = text.fragments(self.masker.vocabulary)
        weights = self.weights(numbers[text.start : text.end], words, **cut)
        mask = keyword_mask(words, weights, self.settings.decoder_mlm_probability, rng)
        return self.masker.corrupt(ids, mask, rng)


def refuse_generated(tasks: frozenset[MasterTask]) -> None:
    """Raise an error for tasks on generated text."""
    generated = sorted(tasks & {MasterTask.DOR, MasterTask.GOR})
    if generated:
        rest = ",".join(task for task in MasterTask if task in tasks and task not in generated)
        raise UsageError(
            f"{' and '.join(generated)}: the corpus has no generated queries or continuations",
            "make them with denserk generate and give them as --expansions"
            + (f", or leave them out: --set tasks={rest}" if rest else ""),
        )


class PretrainingBatches(ScheduledBatches[PretrainingBatch]):
    """The batches of a run for one process; `batches[step]` is the batch of a global step.

    An incomplete last batch of an epoch is dropped. Within a process's part, texts are ordered by
    length, the longest first; the two spans of a document stay together.

    Args:
        store: the prepared text.
        tokenizer: the fast tokenizer of transformers that made its ids.
        objective: decides how texts are masked.
        masking: rates, weights and the seed.
        max_length: tokens of a sequence.
        batch_size: texts of a step, over all processes; documents, of two spans each, for
            cocondenser.
        tasks: of master.
        options: see `ScheduleOptions`.
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
        tasks: frozenset[MasterTask] = frozenset(MasterTask),
        **options: Unpack[ScheduleOptions],
    ) -> None:
        if store.tokenizer != TextTokenizer(tokenizer, TextSettings()).fingerprint():
            raise MismatchError(
                f"{store.folder} was tokenised by another tokenizer than the model's",
                "prepare the text again, with the model's own tokenizer",
            )
        if store.layout is not Layout.of(objective):
            raise MismatchError(
                f"{store.folder} holds {store.layout}; {objective} needs {Layout.of(objective)}"
            )
        self.store, self.objective, self.settings = store, objective, masking
        vocabulary = SubwordTokens.of(tokenizer)
        if masking.masking is Masking.TOKEN:
            vocabulary = vocabulary.singly()
        self.masker = Masker(vocabulary, masking, max_length - SPECIAL_TOKENS)
        if objective is PretrainingObjective.MASTER:
            self._master = MasterMasker(store, self.masker, tasks, self._npr(tasks))
        super().__init__(np.arange(len(store)), batch_size, masking.seed, **options)
        self.refuse_no_batch(store.folder, store.items)

    def _npr(self, tasks: frozenset[MasterTask]) -> NprKind:
        """Return what NPR recovers, given the documents of the text; refuse tasks without text."""
        counts, npr = self.store.contents, self.settings.npr
        if not counts["expanded"]:
            refuse_generated(tasks)
        if MasterTask.NPR not in tasks or npr is NprKind.HALF:
            return npr
        if not counts["with_neighbour"]:
            logger.info("no documents are known: npr recovers the second half of each passage")
            return NprKind.HALF
        if alone := len(self.store) - counts["with_neighbour"]:
            logger.info(f"passages without a neighbour take no part in npr: {alone:,}")
        return npr

    def assemble(self, items: Items, epoch: int) -> PretrainingBatch:
        """Return the batch of items at their visit in an epoch."""
        if self.store.layout is Layout.SPANS:
            rows = self._spans(items, epoch)
            texts = self.store.texts.take(rows)
        else:
            texts = self.store.texts.take(items)
            lengths = [min(len(text), self.masker.limit) for text in texts]
            order = np.argsort(np.negative(lengths), kind="stable")
            rows, texts = items[order], [texts[place] for place in order]
        visits = [Visit(self.settings.seed, row, epoch) for row in rows.tolist()]
        if self.objective is PretrainingObjective.MASTER:
            made = list(map(self._master, self._master.read(rows), visits))
        else:
            made = list(map(self._masked, texts, visits))
        parts = {stage: self.masker.frame([each[stage] for each in made]) for stage in made[0]}
        return PretrainingBatch(
            parts[Stage.TEXT],
            {name: parts[stage] for stage, name in PASSES.items() if stage in parts},
            {stage.name.lower(): parts[stage] for stage in parts if stage >= Stage.MKP},
            self._visible(made, visits) if Stage.RETROMAE in parts else None,
        )

    def _spans(self, items: Items, epoch: int) -> Items:
        """Draw two different spans of each document: (B,) -> (2 B,) rows."""
        ends, rows = self.store.document_ends, []
        for item in items.tolist():
            rng = generator(self.settings.seed, Purpose.SPANS, item, epoch)
            rows.append(ends[item] + rng.choice(ends[item + 1] - ends[item], 2, replace=False))
        return np.concatenate(rows)

    def _masked(self, text: Ids, visit: Visit) -> dict[Stage, Masked]:
        """Mask a text uniformly; RetroMAE's decoder has the unmasked text."""
        masker, rng = self.masker, visit.rng(Stage.TEXT)
        retromae = self.objective is PretrainingObjective.RETROMAE
        ids = masker.crop(text, rng).ids
        extra = SPECIAL_TOKENS if retromae else 0
        mask = masker.choose(ids, self.settings.mlm_probability, rng, extra)
        made = {Stage.TEXT: masker.corrupt(ids, mask, rng)}
        return made | ({Stage.RETROMAE: (ids, ids)} if retromae else {})

    def _visible(self, made: Sequence[Mapping[Stage, Masked]], visits: Sequence[Visit]) -> Tensor:
        """Return RetroMAE's decoder masks: (B, T, T) bool."""
        texts = [each[Stage.RETROMAE][0] for each in made]
        longest = max(map(len, texts)) + SPECIAL_TOKENS
        visible = np.zeros((len(texts), longest, longest), dtype=bool)
        visible[:, :, 0] = True
        for ids, visit, out in zip(texts, visits, visible, strict=True):
            words, rng = words_of(ids, self.masker.vocabulary), visit.rng(Stage.RETROMAE)
            own = visible_tokens(words, self.settings.decoder_mlm_probability, rng)
            out[: len(own), : len(own)] = own
        return torch.from_numpy(visible)
