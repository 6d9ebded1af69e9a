"""Batches of pre-training: prepared text, cropped and masked; a function of the step.

Random choices are drawn by (seed, purpose, row, epoch) and so independent of other texts, processes
and workers. Condenser masks uniformly (Gao and Callan, 2021); MASTER also masks keywords and
complements (Zhou et al., 2023, section 4, and their code); RetroMAE has an attention mask for each
row of its decoder (Xiao et al., 2022, section 3.3, with the authors' sampling).
"""

import logging
from enum import IntEnum
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.encoding import TextSettings
from denserk.config.pretraining import (
    Masking,
    MaskingSettings,
    MasterTask,
    NprKind,
    PretrainingObjective,
)
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.keyword_weights import KeywordWeights
from denserk.data.masking import (
    IGNORED,
    NO_WORD,
    Mask,
    SubwordTokens,
    budgets,
    complements,
    corrupt,
    keyword_masks,
    uniform_masks,
    uniform_samples,
    words_of,
)
from denserk.data.prepared import Lists
from denserk.data.pretraining_data import SPECIAL_TOKENS, Layout, PretrainingStore
from denserk.data.sampling import Items, Purpose, Words, random_words
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import ScheduledBatches, ScheduleOptions
from denserk.errors import MismatchError, UsageError

logger = logging.getLogger(__name__)

NOTHING = -1  # the row of a missing text
SAMPLES = 256  # uniform masks per text, at most, that RetroMAE's decoder rows draw from


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


class Use(IntEnum):
    """What a random number decides within a stage."""

    CROP = 0
    WORDS = 1
    FATES = 2
    VIEWS = 3


class Visit(NamedTuple):
    """Items of a batch in an epoch: the keys of its random numbers."""

    seed: int
    items: Items
    epoch: int

    def draws(self, stage: Stage, use: Use, width: int) -> Words:
        """Return random integers: (B, width)."""
        purpose = Purpose.MASKING + len(Use) * stage + use
        return random_words(self.seed, purpose, self.items, self.epoch, width)


class Cropped(NamedTuple):
    """Cropped texts: text i is `values[starts[i] : starts[i] + lengths[i]]`.

    `before` and `behind`: (B,) whether tokens were removed there.
    """

    values: NDArray[Any]
    starts: Items
    lengths: Items
    before: Mask
    behind: Mask

    def gather(self, values: NDArray[Any], fill: int) -> NDArray[np.int64]:
        """Return the values of an array that is parallel to the tokens: (B, T), T at least 1."""
        columns = np.arange(max(1, int(self.lengths.max(initial=0))))
        if not len(values):
            return np.full((len(self.starts), len(columns)), fill, dtype=np.int64)
        places = np.minimum(self.starts[:, None] + columns, len(values) - 1)
        gathered: NDArray[np.int64] = values[places].astype(np.int64)
        gathered[columns >= self.lengths[:, None]] = fill
        return gathered

    def ids(self, vocabulary: SubwordTokens) -> NDArray[np.int64]:
        """Return the token ids, padded: (B, T)."""
        return self.gather(self.values, vocabulary.pad_id)

    def halves(self) -> tuple["Cropped", "Cropped"]:
        """Return both halves of texts, the first the smaller; both empty for one token."""
        several = self.lengths > 1
        first = np.where(several, self.lengths // 2, 0)
        second = np.where(several, self.lengths - first, 0)
        return (
            self._replace(lengths=first, behind=several),
            self._replace(starts=self.starts + first, lengths=second, before=several),
        )

    def fragments(self, words: NDArray[np.int64], vocabulary: SubwordTokens) -> tuple[Mask, Mask]:
        """Return whether the first, and the last, word is cropped: (B,)."""
        ids = self.ids(vocabulary)
        following = self.values[np.minimum(self.starts + self.lengths, len(self.values) - 1)]
        last = words[np.arange(len(words)), np.maximum(self.lengths - 1, 0)]
        ends_inside = self.behind & vocabulary.continues[following] & (last != NO_WORD)
        return self.before & vocabulary.continues[ids[:, 0]], ends_inside


def crop(texts: Lists, rows: Items, limit: int, draws: Words) -> Cropped:
    """Crop texts to at most `limit` tokens, at a random place.

    Args:
        texts: where the rows are.
        rows: (B,); `NOTHING` gives an empty text.
        limit: most tokens.
        draws: (B, 1).
    """
    some = rows != NOTHING
    values, ends = texts.joined(rows[some])
    lengths = np.zeros(len(rows), dtype=np.int64)
    lengths[some] = np.diff(ends, prepend=0)
    over = np.maximum(lengths - limit, 0)
    offsets = (draws[:, 0] % (over + 1).astype(np.uint64)).astype(np.int64)
    starts = np.cumsum(lengths) - lengths + offsets
    return Cropped(values, starts, np.minimum(lengths, limit), offsets > 0, offsets < over)


class Masker(NamedTuple):
    """Masks texts."""

    vocabulary: SubwordTokens
    all_mask: bool

    def uniform(
        self,
        text: Cropped,
        words: NDArray[np.int64],
        rate: float,
        visit: Visit,
        stage: Stage,
        extra: int = 0,
    ) -> Mask:
        """Return uniform masks (B, T); `extra` tokens are added to the length for the budget."""
        draws = visit.draws(stage, Use.WORDS, words.shape[1])
        return uniform_masks(words, budgets(rate, text.lengths + extra), draws)

    def masked(
        self, text: Cropped, ids: NDArray[np.int64], masks: Mask, visit: Visit, stage: Stage
    ) -> MaskedTexts:
        """Return texts with masked tokens replaced, and their labels."""
        draws = visit.draws(stage, Use.FATES, ids.shape[1])
        seen, labels = corrupt(ids, masks, self.vocabulary, draws, all_mask=self.all_mask)
        return self.framed(seen, labels, text.lengths)

    def framed(
        self, seen: NDArray[np.int64], labels: NDArray[np.int64], lengths: Items
    ) -> MaskedTexts:
        """Add [CLS] before and [SEP] after each text: (B, T) -> (B, T + 2)."""
        count, width = seen.shape
        width = min(width, int(lengths.max(initial=0)))
        tokens = np.full((count, width + 2), self.vocabulary.pad_id, dtype=np.int64)
        asked = np.full((count, width + 2), IGNORED, dtype=np.int64)
        tokens[:, 0] = self.vocabulary.cls_id
        tokens[:, 1:-1] = seen[:, :width]
        asked[:, 1:-1] = labels[:, :width]
        tokens[np.arange(count), lengths + 1] = self.vocabulary.sep_id
        real = np.arange(width + 2) < lengths[:, None] + 2
        batch = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(real))
        return MaskedTexts(batch, torch.from_numpy(asked))


def visible_tokens(text: Cropped, words: NDArray[np.int64], rate: float, visit: Visit) -> Tensor:
    """Return RetroMAE's decoder mask, [CLS] and [SEP] included: (B, T) -> (B, T + 2, T + 2) bool.

    Args:
        text: the texts.
        words: (B, T) from `masking.words_of`.
        rate: share of a text, [CLS] and [SEP] counted, that a row does not see.
        visit: the keys of the random numbers.
    """
    longest = int(text.lengths.max(initial=0))
    visible = np.zeros((len(words), longest + 2, longest + 2), dtype=bool)
    visible[:, :, 0] = True
    for row, length in enumerate(text.lengths.tolist()):
        own = visit._replace(items=visit.items[row : row + 1])
        hidden = _samples(words[row, :length], rate, own)
        chosen = own.draws(Stage.RETROMAE, Use.VIEWS, length + 2)[0] % np.uint64(len(hidden))
        part = visible[row, : length + 2, : length + 2]
        np.logical_not(hidden[chosen.astype(np.int64)], out=part[:, 1:-1])
        part[:, -1] = True
        places = np.arange(1, length + 2)
        part[places, places] = False
    return torch.from_numpy(visible)


def _samples(words: NDArray[np.int64], rate: float, visit: Visit) -> NDArray[np.bool_]:
    """Return uniform masks of one text: (T,) -> (S, T)."""
    length = len(words) + 2
    count, width = min(length, SAMPLES), max(1, int(words.max(initial=0)) + 1)
    halves = visit.draws(Stage.RETROMAE, Use.WORDS, -(-count * width // 2)).view(np.uint32)
    draws = halves[0, : count * width].reshape(count, width)
    return uniform_samples(words, int(budgets(rate, np.array([length]))[0]), draws)


class MasterTexts:
    """Makes MASTER's batches.

    Args:
        store: prepared passages.
        masker: masks texts.
        settings: rates and weights.
        tasks: the decoders' tasks.
        npr: what NPR's decoder recovers.
        limit: most tokens of a text.
    """

    def __init__(
        self,
        store: PretrainingStore,
        masker: Masker,
        settings: MaskingSettings,
        tasks: frozenset[MasterTask],
        npr: NprKind,
        limit: int,
    ) -> None:
        self.store, self.masker, self.settings = store, masker, settings
        self.tasks, self.npr, self.limit = tasks, npr, limit
        self.weights = KeywordWeights(store.words, len(store), settings)

    def __call__(self, visit: Visit) -> PretrainingBatch:
        """Return the batch of a visit."""
        settings, masker = self.settings, self.masker
        text = self._crop(self.store.texts, visit.items, visit, Stage.TEXT)
        ids = text.ids(masker.vocabulary)
        words = words_of(ids, masker.vocabulary)
        masks = masker.uniform(text, words, settings.mlm_probability, visit, Stage.TEXT)
        batch = PretrainingBatch(masker.masked(text, ids, masks, visit, Stage.TEXT), {}, {})
        if MasterTask.MKP in self.tasks:
            batch.decoders["mkp"] = self._keywords(text, visit.items, visit, Stage.MKP)
        if MasterTask.CMP in self.tasks:
            if settings.cmp_pass:
                masks = masker.uniform(text, words, settings.cmp_rate, visit, Stage.CMP_PASS)
                batch.passes["cmp"] = masker.masked(text, ids, masks, visit, Stage.CMP_PASS)
            rest = complements(masks, words)
            batch.decoders["cmp"] = masker.masked(text, ids, rest, visit, Stage.CMP)
        if MasterTask.NPR in self.tasks:
            self._related(batch, text, visit)
        if MasterTask.DOR in self.tasks:
            queries = self._crop(self.store.queries, self._expanded(visit), visit, Stage.DOR)
            batch.decoders["dor"] = self._uniform(queries, visit, Stage.DOR)
        if MasterTask.GOR in self.tasks:
            batch.decoders["gor"] = self._continuations(visit)
        return batch

    def _crop(self, texts: Lists, rows: NDArray[np.int64], visit: Visit, stage: Stage) -> Cropped:
        return crop(texts, rows, self.limit, visit.draws(stage, Use.CROP, 1))

    def _expanded(self, visit: Visit) -> Items:
        return np.where(self.store.expanded[visit.items], visit.items, NOTHING)

    def _related(self, batch: PretrainingBatch, text: Cropped, visit: Visit) -> None:
        """Add NPR's decoder, and the encoder's pass over the first half."""
        rows = visit.items
        if self.npr is NprKind.HALF:
            first, second = text.halves()
            rate = self.settings.mlm_probability
            batch.passes["npr"] = self._uniform(first, visit, Stage.NPR_PASS, rate)
        else:
            offsets = self.store.neighbours[visit.items].astype(np.int64)
            rows = np.where(offsets != 0, visit.items + offsets, NOTHING)
            second = self._crop(self.store.texts, rows, visit, Stage.NPR)
        batch.decoders["npr"] = self._keywords(second, rows, visit, Stage.NPR)

    def _continuations(self, visit: Visit) -> MaskedTexts:
        """Return masked continuations; the passage itself where there is none."""
        made = self._crop(self.store.next, self._expanded(visit), visit, Stage.GOR)
        lacking = made.lengths == 0
        rows = np.where(lacking, visit.items, NOTHING)
        own = self._crop(self.store.texts, rows, visit, Stage.GOR)
        if not lacking.any():
            return self._uniform(made, visit, Stage.GOR)
        if lacking.all():
            return self._uniform(own, visit, Stage.GOR)
        vocabulary = self.masker.vocabulary
        parts = made.ids(vocabulary), own.ids(vocabulary)
        width = max(part.shape[1] for part in parts)
        values = np.full((len(rows), width), vocabulary.pad_id, dtype=np.int64)
        for part, chosen in zip(parts, (~lacking, lacking), strict=True):
            values[chosen, : part.shape[1]] = part[chosen]
        both = Cropped(
            values.ravel(),
            np.arange(len(rows)) * width,
            np.where(lacking, own.lengths, made.lengths),
            made.before | own.before,
            made.behind | own.behind,
        )
        return self._uniform(both, visit, Stage.GOR)

    def _uniform(
        self, text: Cropped, visit: Visit, stage: Stage, rate: float | None = None
    ) -> MaskedTexts:
        """Mask texts uniformly, by default at the decoders' rate."""
        rate = self.settings.decoder_mlm_probability if rate is None else rate
        ids = text.ids(self.masker.vocabulary)
        masks = self.masker.uniform(text, words_of(ids, self.masker.vocabulary), rate, visit, stage)
        return self.masker.masked(text, ids, masks, visit, stage)

    def _keywords(self, text: Cropped, rows: Items, visit: Visit, stage: Stage) -> MaskedTexts:
        """Mask keywords of texts that are rows of passages."""
        ids = text.ids(self.masker.vocabulary)
        words = words_of(ids, self.masker.vocabulary)
        numbers = text.gather(self.store.word_numbers.joined(rows[rows != NOTHING])[0], 0)
        fragments = text.fragments(words, self.masker.vocabulary)
        masks = keyword_masks(
            words,
            self.weights(numbers, words, *fragments),
            self.settings.decoder_mlm_probability,
            visit.draws(stage, Use.WORDS, words.shape[1]),
        )
        return self.masker.masked(text, ids, masks, visit, stage)


def refuse_generated(tasks: frozenset[MasterTask]) -> None:
    """Raise an error for tasks on generated text.

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

    Attributes:
        npr: what NPR's decoder recovers, given the documents of the text.

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
        tasks: frozenset[MasterTask] = frozenset(MasterTask),
        **options: Unpack[ScheduleOptions],
    ) -> None:
        store.refuse_other(TextTokenizer(tokenizer, TextSettings()).fingerprint())
        if store.layout is not Layout.of(objective):
            raise MismatchError(
                f"{store.folder} holds {store.layout}; {objective} needs {Layout.of(objective)}"
            )
        self.store, self.objective, self.settings = store, objective, masking
        self.limit = max_length - SPECIAL_TOKENS
        vocabulary = SubwordTokens.of(tokenizer)
        if masking.masking is Masking.TOKEN:
            vocabulary = vocabulary.singly()
        self.masker = Masker(vocabulary, masking.all_mask)
        self.npr = masking.npr
        if objective is PretrainingObjective.MASTER:
            self._look_at_passages(tasks)
            self._master = MasterTexts(store, self.masker, masking, tasks, self.npr, self.limit)
        super().__init__(np.arange(len(store)), batch_size, masking.seed, **options)
        self.refuse_no_batch(store.folder, store.items)

    def _look_at_passages(self, tasks: frozenset[MasterTask]) -> None:
        """Raise an error for tasks without their text; adapt NPR to the documents."""
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

    def assemble(self, items: Items, epoch: int) -> PretrainingBatch:
        """Return the batch of items at their visit in an epoch."""
        if self.store.layout is Layout.SPANS:
            return self._masked(Visit(self.settings.seed, self._spans(items, epoch), epoch))
        visit = self._visit(items, epoch)
        if self.objective is PretrainingObjective.MASTER:
            return self._master(visit)
        return self._masked(visit)

    def _visit(self, rows: Items, epoch: int) -> Visit:
        """Return rows of texts, the longest first."""
        lengths = np.minimum(np.diff(self.store.texts.joined(rows)[1], prepend=0), self.limit)
        return Visit(self.settings.seed, rows[np.argsort(-lengths, kind="stable")], epoch)

    def _spans(self, items: Items, epoch: int) -> Items:
        """Draw two different spans of each document: (B,) -> (2 B,) rows."""
        ends = self.store.document_ends
        counts = (ends[items + 1] - ends[items]).astype(np.uint64)
        draws = random_words(self.settings.seed, Purpose.SPANS, items, epoch, 2)
        first, second = draws[:, 0] % counts, draws[:, 1] % (counts - np.uint64(1))
        second += second >= first
        chosen = np.stack([first, second], axis=1).astype(np.int64)
        rows: Items = (ends[items][:, None] + chosen).ravel()
        return rows

    def _masked(self, visit: Visit) -> PretrainingBatch:
        """Mask texts uniformly; for RetroMAE, add the unmasked texts and the decoder mask."""
        masker, retromae = self.masker, self.objective is PretrainingObjective.RETROMAE
        draws = visit.draws(Stage.TEXT, Use.CROP, 1)
        text = crop(self.store.texts, visit.items, self.limit, draws)
        ids = text.ids(masker.vocabulary)
        words = words_of(ids, masker.vocabulary)
        rate, counted = self.settings.mlm_probability, SPECIAL_TOKENS if retromae else 0
        masks = masker.uniform(text, words, rate, visit, Stage.TEXT, counted)
        texts = masker.masked(text, ids, masks, visit, Stage.TEXT)
        if not retromae:
            return PretrainingBatch(texts, {}, {})
        real = np.arange(ids.shape[1]) < text.lengths[:, None]
        whole = masker.framed(ids, np.where(real, ids, IGNORED), text.lengths)
        views = visible_tokens(text, words, self.settings.decoder_mlm_probability, visit)
        return PretrainingBatch(texts, {}, {"retromae": whole}, views)
