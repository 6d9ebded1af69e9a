"""Batches of pre-training: prepared text, cropped and masked; a function of the step.

The random numbers of a text are keyed by (seed, stage, row, epoch), so they are independent of
other texts, processes and workers. Condenser masks uniformly (Gao and Callan, 2021); MASTER also
masks keywords and complements (Zhou et al., 2023, section 4, and their code); RetroMAE has an
attention mask for each row of its decoder (Xiao et al., 2022, section 3.3, with the authors'
sampling).
"""

import logging
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch

from denserk.config.pretraining import MasterTask, NprKind, PretrainingObjective, PretrainRun
from denserk.data import masking
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch, pad
from denserk.data.masking import IGNORED, NO_WORD, Floats, Ids, KeywordWeights, Mask, SubwordTokens
from denserk.data.pretraining_data import SPECIAL_TOKENS, Layout, PretrainingStore
from denserk.data.sampling import Items, Purpose, generator, keyed_uniform
from denserk.data.training_batches import ScheduledBatches
from denserk.errors import UsageError

logger = logging.getLogger(__name__)

# Version of the random numbers behind crops and masks: a run is resumed with the same ones only.
DRAWS = 2
SAMPLES = 256  # uniform masks per text, at most, that RetroMAE's decoder rows draw from

# What a text is masked for, and what a random number then decides: parts of the number's key.
Stage = IntEnum("Stage", "TEXT NPR_PASS CMP_PASS MKP CMP NPR DOR GOR RETROMAE", start=0)
Use = IntEnum("Use", "CROP WORD FATE TOKEN", start=0)
PASSES = {Stage.CMP_PASS: "cmp", Stage.NPR_PASS: "npr"}


class Draws(NamedTuple):
    """Random numbers for rows of prepared text (B,) in an epoch, for a stage."""

    seed: int
    rows: Items
    epoch: int
    stage: Stage = Stage.TEXT

    def at(self, stage: Stage) -> "Draws":
        """Return those of another stage."""
        return self._replace(stage=stage)

    def __call__(self, use: Use, count: int) -> Floats:
        """Return random numbers in [0, 1): (B, count)."""
        purpose = Purpose.MASKING + self.stage * len(Use) + use
        return keyed_uniform(generator(self.seed, purpose, self.epoch), self.rows, count)


class Texts(NamedTuple):
    """Padded texts without [CLS] and [SEP]: (B, T) ids, (B,) lengths, (B, T) `words_of`."""

    ids: Ids
    lengths: Ids
    words: Ids


class Crops(NamedTuple):
    """The tokens start .. end - 1 of each text."""

    texts: Sequence[Ids]
    starts: Ids
    ends: Ids

    @classmethod
    def draw(cls, texts: Sequence[Ids], draws: Draws, limit: int) -> "Crops":
        """Crop texts to at most `limit` tokens, at random places."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        shares = draws(Use.CROP, 1)[:, 0]
        starts = (shares * (np.maximum(lengths - limit, 0) + 1)).astype(np.int64)
        return cls(texts, starts, np.minimum(starts + limit, lengths))

    def of(self, columns: Sequence[Ids]) -> list[Ids]:
        """Return the cropped part of texts, or of other values by token."""
        bounds = zip(columns, self.starts.tolist(), self.ends.tolist(), strict=True)
        return [column[start:end] for column, start, end in bounds]

    def cut_words(self, vocabulary: SubwordTokens) -> Mask:
        """Return whether the first and the last word of each text are incomplete: (B, 2)."""
        cut = np.zeros((len(self.texts), 2), dtype=bool)
        for row, (text, *bounds) in enumerate(zip(*self, strict=True)):
            [words] = masking.words_of(np.asarray(text, dtype=np.int64)[None], vocabulary)
            for side, bound in enumerate(bounds):
                inside = 0 < bound < len(text)
                cut[row, side] = inside and words[bound - 1] == words[bound] != NO_WORD
        return cut


def visible_tokens(words: Ids, rate: float, draws: Draws) -> Mask:
    """Return RetroMAE's decoder mask of a text, [CLS] and [SEP] included: (T,) -> (T + 2, T + 2).

    `rate` is the share of the text, [CLS] and [SEP] counted, that a row does not see.
    """
    length = len(words) + SPECIAL_TOKENS
    count = min(length, SAMPLES)
    limits = np.repeat(masking.budget(rate, np.array([length])), count)
    order = draws(Use.WORD, count * (words.max(initial=NO_WORD) + 1)).reshape(count, -1)
    samples = masking.uniform_masks(words[None], limits, order)
    visible = np.ones((length, length), dtype=bool)
    visible[:, 1:-1] = ~samples[(draws(Use.FATE, length)[0] * count).astype(np.int64)]
    np.fill_diagonal(visible, val=False)
    visible[:, 0] = True
    return visible


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
    """The batches of a run over text prepared for its objective, with the same tokenizer.

    Within a process's part, texts are ordered by length, the longest first; the two spans of a
    document stay together.
    """

    def __init__(
        self, run: PretrainRun, store: PretrainingStore, tokenizer: Any, **options: Any
    ) -> None:
        items, masking, size = np.arange(len(store)), run.masking, run.optimizer.batch_size
        super().__init__(store, items, size, masking.seed, **options)
        self.store, self.objective, self.settings = store, run.pretrain.objective, masking
        self.tasks = frozenset(run.objective.tasks)
        self.limit = run.units.max_length - SPECIAL_TOKENS
        self.vocabulary = SubwordTokens.of(tokenizer, masking.masking)
        self.rates = dict.fromkeys((Stage.DOR, Stage.GOR), masking.decoder_mlm_probability)
        self.rates[Stage.CMP_PASS] = masking.cmp_encoder_rate or masking.mlm_probability
        if self.objective is not PretrainingObjective.MASTER:
            return
        if not store.contents["expanded"]:
            refuse_generated(self.tasks)
        self.npr, beside = masking.npr, store.contents["with_neighbour"]
        if MasterTask.NPR in self.tasks and self.npr is NprKind.NEIGHBOUR:
            if not beside:
                self.npr = NprKind.HALF
                logger.info("no documents are known: npr recovers the second half of each passage")
            elif beside < len(store):
                alone = len(store) - beside
                logger.info(f"passages without a neighbour take no part in npr: {alone:,}")
        self.weights = KeywordWeights(store.words, len(store), masking)

    def assemble(self, items: Items, epoch: int) -> PretrainingBatch:
        """Return the batch of items at their visit in an epoch."""
        if self.store.layout is Layout.SPANS:
            ends, drawn = self.store.document_ends, []
            for item in items.tolist():  # two different spans of each document
                rng = generator(self.settings.seed, Purpose.SPANS, item, epoch)
                drawn.append(ends[item] + rng.choice(ends[item + 1] - ends[item], 2, replace=False))
            rows = np.concatenate(drawn)
            texts = self.store.texts[rows]
        else:
            texts = self.store.texts[items]
            lengths = [min(len(text), self.limit) for text in texts]
            order = np.argsort(np.negative(lengths), kind="stable")
            rows, texts = items[order], [texts[place] for place in order]
        draws = Draws(self.settings.seed, rows, epoch)
        visible = None
        crops = Crops.draw(texts, draws, self.limit)
        cropped = self._padded(crops.of(texts))
        whole = self.objective in (PretrainingObjective.RETROMAE, PretrainingObjective.DUPMAE)
        extra = SPECIAL_TOKENS * whole  # as the authors
        mask = self._choose(cropped, draws, extra)
        made = {Stage.TEXT: self._masked(cropped, mask, draws)}
        if self.objective is PretrainingObjective.MASTER:
            made |= self._master(crops, cropped, mask, draws)
        elif whole:
            everything = np.arange(cropped.ids.shape[1]) < cropped.lengths[:, None]
            made[Stage.RETROMAE] = self._framed(cropped, cropped.ids, everything)
            size = cropped.ids.shape[1] + SPECIAL_TOKENS
            rate = self.settings.decoder_mlm_probability
            masks = np.zeros((len(rows), size, size), dtype=bool)
            masks[:, :, 0] = True
            for row, length in enumerate(cropped.lengths.tolist()):
                alone = Draws(draws.seed, rows[row : row + 1], epoch, Stage.RETROMAE)
                own = visible_tokens(cropped.words[row, :length], rate, alone)
                masks[row, : len(own), : len(own)] = own
            visible = torch.from_numpy(masks)
        return PretrainingBatch(
            made[Stage.TEXT],
            {name: made[stage] for stage, name in PASSES.items() if stage in made},
            {stage.name.lower(): made[stage] for stage in made if stage >= Stage.MKP},
            visible,
        )

    def _padded(self, texts: Sequence[Ids]) -> Texts:
        ids, mask = (tensor.numpy() for tensor in pad(texts, self.vocabulary.pad_id))
        return Texts(ids, mask.sum(axis=1), masking.words_of(ids, self.vocabulary))

    def _choose(self, texts: Texts, draws: Draws, extra: int = 0) -> Mask:
        """Return uniform masks; `extra` tokens are added to the lengths for the budget."""
        rate = self.rates.get(draws.stage, self.settings.mlm_probability)
        limits = masking.budget(rate, texts.lengths + extra)
        order = draws(Use.WORD, texts.words.max(initial=NO_WORD) + 1)
        return masking.uniform_masks(texts.words, limits, order)

    def _masked(self, texts: Texts, mask: Mask, draws: Draws) -> MaskedTexts:
        """Replace masked tokens, which are the labels."""
        width = texts.ids.shape[1]
        fate = draws(Use.FATE, width) * (not self.settings.all_mask)
        seen = masking.corrupt(texts.ids, mask, self.vocabulary, fate, draws(Use.TOKEN, width))
        return self._framed(texts, seen, mask)

    def _framed(self, texts: Texts, seen: Ids, labelled: Mask) -> MaskedTexts:
        """Return what is seen of texts, with [CLS] before and [SEP] after, and the labels."""
        count, width = seen.shape
        tokens = np.full((count, width + SPECIAL_TOKENS), self.vocabulary.pad_id, dtype=np.int64)
        labels = np.full_like(tokens, IGNORED)
        tokens[:, 0] = self.vocabulary.cls_id
        tokens[:, 1:-1] = seen
        tokens[np.arange(count), texts.lengths + 1] = self.vocabulary.sep_id
        labels[:, 1:-1] = np.where(labelled, texts.ids, IGNORED)
        real = np.arange(width + SPECIAL_TOKENS) < texts.lengths[:, None] + SPECIAL_TOKENS
        framed = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(real))
        return MaskedTexts(framed, torch.from_numpy(labels))

    def _master(
        self, crops: Crops, cropped: Texts, mask: Mask, draws: Draws
    ) -> dict[Stage, MaskedTexts]:
        """Mask passages for MASTER's decoders; `mask` is that of the encoder's input."""
        store, rows, tasks = self.store, draws.rows, self.tasks
        made = {}
        if MasterTask.MKP in tasks:
            made[Stage.MKP] = self._keywords(crops, rows, draws.at(Stage.MKP))
        if MasterTask.CMP in tasks:
            if self.settings.cmp_pass:
                own = draws.at(Stage.CMP_PASS)
                mask = self._choose(cropped, own)
                made[Stage.CMP_PASS] = self._masked(cropped, mask, own)
            complement = ~mask & ~self.vocabulary.special[cropped.ids]
            made[Stage.CMP] = self._masked(cropped, complement, draws.at(Stage.CMP))
        if MasterTask.NPR in tasks and self.npr is NprKind.NEIGHBOUR:
            beside, own = rows + store.neighbours[rows], draws.at(Stage.NPR)
            found = zip(store.texts[beside], beside != rows, strict=True)
            others = [text if other else text[:0] for text, other in found]
            made[Stage.NPR] = self._keywords(Crops.draw(others, own, self.limit), beside, own)
        elif MasterTask.NPR in tasks:
            # the first half is the smaller; both are empty for one token
            ends = np.where(crops.ends - crops.starts < 2, crops.starts, crops.ends)
            middles, own = (crops.starts + ends) // 2, draws.at(Stage.NPR_PASS)
            second = crops._replace(starts=middles, ends=ends)
            made[Stage.NPR_PASS] = self._uniform(crops._replace(ends=middles), own)
            made[Stage.NPR] = self._keywords(second, rows, draws.at(Stage.NPR))
        if MasterTask.DOR in tasks:
            own = draws.at(Stage.DOR)
            made[Stage.DOR] = self._uniform(Crops.draw(store.queries[rows], own, self.limit), own)
        if MasterTask.GOR in tasks:
            own, following = draws.at(Stage.GOR), zip(store.next[rows], crops.texts, strict=True)
            continuations = [n if len(n) else text for n, text in following]
            made[Stage.GOR] = self._uniform(Crops.draw(continuations, own, self.limit), own)
        return made

    def _uniform(self, crops: Crops, draws: Draws) -> MaskedTexts:
        texts = self._padded(crops.of(crops.texts))
        return self._masked(texts, self._choose(texts, draws), draws)

    def _keywords(self, crops: Crops, rows: Items, draws: Draws) -> MaskedTexts:
        """Mask the keywords of passages, which are these rows of the store."""
        texts = self._padded(crops.of(crops.texts))
        in_corpus = pad(crops.of(self.store.word_numbers[rows]), 0).input_ids.numpy()
        weights = self.weights(in_corpus, texts.words, crops.cut_words(self.vocabulary))
        order, rate = draws(Use.WORD, weights.shape[1]), self.settings.decoder_mlm_probability
        return self._masked(texts, masking.keyword_masks(texts.words, weights, rate, order), draws)
