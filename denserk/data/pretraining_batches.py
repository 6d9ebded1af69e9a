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
from torch import Tensor

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
DRAWS_VERSION = 2
SAMPLES = 256  # uniform masks per text, at most, that RetroMAE's decoder rows draw from

# What a text is masked for, a part of the key of its random numbers: the encoder's input, a further
# input of the encoder for one decoder alone (..._PASS), or a decoder's input.
Stage = IntEnum("Stage", "TEXT NPR_PASS CMP_PASS MKP CMP NPR DOR GOR RETROMAE", start=0)
# What a random number then decides, too: where a text is cropped, the order of its words for a
# mask, whether a masked token becomes [MASK], another token or stays (its fate), and which other.
Decision = IntEnum("Decision", "CROP WORD FATE TOKEN", start=0)
# decoders with an encoder's input of their own, by its stage: see `PretrainingBatch.passes`
PASSES = {Stage.CMP_PASS: "cmp", Stage.NPR_PASS: "npr"}
# objectives whose decoder rows see different tokens each
WITH_DECODER_MASK = (PretrainingObjective.RETROMAE, PretrainingObjective.DUPMAE)


class Draws(NamedTuple):
    """The random numbers of rows of prepared text (B,) in an epoch, for a stage; drawn by a call.

    Equal arguments of a call give equal numbers.
    """

    seed: int
    rows: Items
    epoch: int
    stage: Stage = Stage.TEXT

    def at(self, stage: Stage) -> "Draws":
        """Return those of another stage."""
        return self._replace(stage=stage)

    def __call__(self, decision: Decision, count: int) -> Floats:
        """Return random numbers in [0, 1): (B, count)."""
        purpose = Purpose.MASKING + self.stage * len(Decision) + decision
        return keyed_uniform(generator(self.seed, purpose, self.epoch), self.rows, count)


class Texts(NamedTuple):
    """Padded texts without [CLS] and [SEP]."""

    ids: Ids  # (B, T)
    lengths: Ids  # (B,)
    words: Ids  # (B, T), the number of each token's word: see `masking.words_of`


class Crops(NamedTuple):
    """The tokens start .. end - 1 of each text."""

    texts: Sequence[Ids]  # whole
    starts: Ids
    ends: Ids

    @classmethod
    def draw(cls, texts: Sequence[Ids], draws: Draws, limit: int) -> "Crops":
        """Crop texts to at most `limit` tokens, from random positions on."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        shares = draws(Decision.CROP, 1)[:, 0]
        starts = (shares * (np.maximum(lengths - limit, 0) + 1)).astype(np.int64)
        return cls(texts, starts, np.minimum(starts + limit, lengths))

    def of(self, columns: Sequence[Ids]) -> list[Ids]:
        """Return the cropped part of texts, or of other values by token."""
        bounds = zip(columns, self.starts.tolist(), self.ends.tolist(), strict=True)
        return [column[start:end] for column, start, end in bounds]

    def cut_words(self, vocabulary: SubwordTokens) -> Mask:
        """Return whether the first and the last word of each text are incomplete: (B, 2)."""
        cut = np.zeros((len(self.texts), 2), dtype=bool)
        bounds = np.stack([self.starts, self.ends], axis=1).tolist()
        for row, (text, bounds_of_text) in enumerate(zip(self.texts, bounds, strict=True)):
            [words] = masking.words_of(np.asarray(text, dtype=np.int64)[None], vocabulary)
            for side, bound in enumerate(bounds_of_text):
                if 0 < bound < len(text):
                    is_in_word = words[bound] != NO_WORD
                    cut[row, side] = is_in_word and words[bound - 1] == words[bound]
        return cut


def visible_tokens(words: Ids, rate: float, draws: Draws) -> Mask:
    """Return RetroMAE's decoder mask of a text, [CLS] and [SEP] included: (T,) -> (T + 2, T + 2).

    `rate` is the share of the text, [CLS] and [SEP] counted, that a row does not see. Each row has
    one of at most `SAMPLES` uniform masks of the text. `draws` is of this text alone.
    """
    length = len(words) + SPECIAL_TOKENS
    sample_count = min(length, SAMPLES)
    limits = np.repeat(masking.budget(rate, np.array([length])), sample_count)
    word_count = words.max(initial=NO_WORD) + 1
    order = draws(Decision.WORD, sample_count * word_count).reshape(sample_count, -1)
    samples = masking.uniform_masks(words[None], limits, order)
    sample_of_row = (draws(Decision.FATE, length)[0] * sample_count).astype(np.int64)
    visible = np.ones((length, length), dtype=bool)
    visible[:, 1:-1] = ~samples[sample_of_row]
    np.fill_diagonal(visible, val=False)  # a row does not see the token that it predicts
    visible[:, 0] = True  # but all see the encoder's state
    return visible


def reject_generated(tasks: frozenset[MasterTask]) -> None:
    """Raise a UsageError if any task is on generated text, of which the corpus has none."""
    generated = sorted(tasks & {MasterTask.DOR, MasterTask.GOR})
    if not generated:
        return
    message = f"{' and '.join(generated)}: the corpus has no generated queries or continuations"
    hint = "make them with denserk generate and give them as --expansions"
    remaining = [task for task in MasterTask if task in tasks and task not in generated]
    if remaining:
        hint += f", or leave them out: --set tasks={','.join(remaining)}"
    raise UsageError(message, hint)


class PretrainingBatches(ScheduledBatches[PretrainingBatch]):
    """The batches of a run over text prepared for its objective, with the same tokenizer.

    Within a process's part, texts are ordered by length, the longest first. For coCondenser an item
    is a document, of which a batch has two spans, one after the other, in the order of the items.
    """

    def __init__(
        self, run: PretrainRun, store: PretrainingStore, tokenizer: Any, **options: Any
    ) -> None:
        masking_settings = run.masking
        batch_size = run.optimizer.batch_size
        items = np.arange(len(store))
        super().__init__(store, items, batch_size, masking_settings.seed, **options)
        self.store = store
        self.objective = run.pretrain.objective
        self.settings = masking_settings
        self.tasks = frozenset(run.objective.tasks)
        self.limit = run.units.max_length - SPECIAL_TOKENS
        self.vocabulary = SubwordTokens.of(tokenizer, masking_settings.masking)
        decoder_rate = masking_settings.decoder_mlm_probability
        # shares of tokens that are masked uniformly, by stage; elsewhere `mlm_probability`
        self.rates = {
            Stage.DOR: decoder_rate,
            Stage.GOR: decoder_rate,
            Stage.CMP_PASS: masking_settings.cmp_encoder_rate or masking_settings.mlm_probability,
        }
        if self.objective is PretrainingObjective.MASTER:
            if not store.contents["expanded"]:
                reject_generated(self.tasks)
            self.npr = self._npr_kind()
            self.weights = KeywordWeights(store.words, len(store), masking_settings)

    def _npr_kind(self) -> NprKind:
        """Return what MASTER's task npr recovers, and log what the corpus lacks for it.

        Where no passage has a neighbour, it is the second half of each passage.
        """
        kind = self.settings.npr
        if MasterTask.NPR not in self.tasks or kind is not NprKind.NEIGHBOUR:
            return kind
        with_neighbour = self.store.contents["with_neighbour"]
        if not with_neighbour:
            logger.info("no documents are known: npr recovers the second half of each passage")
            return NprKind.HALF
        if with_neighbour < len(self.store):
            alone = len(self.store) - with_neighbour
            logger.info(f"passages without a neighbour take no part in npr: {alone:,}")
        return kind

    def assemble(self, items: Items, epoch: int) -> PretrainingBatch:
        """Return the batch of items, cropped and masked as an epoch draws it."""
        rows, texts = self._texts_of(items, epoch)
        draws = Draws(self.settings.seed, rows, epoch)
        crops = Crops.draw(texts, draws, self.limit)
        if self.objective in WITH_DECODER_MASK:
            return self._retromae_batch(self._padded(crops.of(texts)), draws)
        if self.objective is PretrainingObjective.MASTER:
            return self._master_batch(crops, draws)
        return PretrainingBatch(self._uniformly_masked(crops, draws), {}, {})

    def _retromae_batch(self, texts: Texts, draws: Draws) -> PretrainingBatch:
        """Return texts masked for the encoder, and whole for RetroMAE's decoder with its mask.

        DupMAE's batches are the same.
        """
        # as the authors do, RetroMAE's budget counts [CLS] and [SEP]
        mask = self._uniform_mask(texts, draws, SPECIAL_TOKENS)
        encoder_input = self._masked(texts, mask, draws)
        decoders = {Stage.RETROMAE.name.lower(): self._unmasked(texts)}
        visible = self._visible(texts, draws.at(Stage.RETROMAE))
        return PretrainingBatch(encoder_input, {}, decoders, visible)

    def _master_batch(self, crops: Crops, draws: Draws) -> PretrainingBatch:
        """Return texts masked for the encoder, and the inputs of each of MASTER's tasks."""
        texts = self._padded(crops.of(crops.texts))
        mask = self._uniform_mask(texts, draws)
        encoder_input = self._masked(texts, mask, draws)
        passes = {}
        decoders = {}
        for stage, masked_texts in self._master_inputs(crops, texts, mask, draws).items():
            if stage in PASSES:
                passes[PASSES[stage]] = masked_texts
            else:
                decoders[stage.name.lower()] = masked_texts
        return PretrainingBatch(encoder_input, passes, decoders)

    def _texts_of(self, items: Items, epoch: int) -> tuple[Items, Sequence[Ids]]:
        """Return the rows of the batch's texts in the store, and the whole texts, in its order."""
        if self.store.layout is Layout.SPANS:
            rows = np.concatenate([self._two_spans(item, epoch) for item in items.tolist()])
            return rows, self.store.texts[rows]
        texts = self.store.texts[items]
        lengths = [min(len(text), self.limit) for text in texts]
        longest_first = np.argsort(np.negative(lengths), kind="stable")
        return items[longest_first], [texts[position] for position in longest_first]

    def _two_spans(self, item: int, epoch: int) -> Items:
        """Return the rows of two different spans of a document."""
        start = self.store.document_ends[item]
        end = self.store.document_ends[item + 1]
        random = generator(self.settings.seed, Purpose.SPANS, item, epoch)
        rows: Items = start + random.choice(end - start, 2, replace=False)
        return rows

    def _visible(self, texts: Texts, draws: Draws) -> Tensor:
        """Return RetroMAE's decoder masks of B padded texts of T tokens: (B, T + 2, T + 2)."""
        text_count, text_width = texts.ids.shape
        width = text_width + SPECIAL_TOKENS
        rate = self.settings.decoder_mlm_probability
        visible = np.zeros((text_count, width, width), dtype=bool)
        visible[:, :, 0] = True  # also in the rows of padding, which must see something
        for row, length in enumerate(texts.lengths.tolist()):
            draws_of_text = draws._replace(rows=draws.rows[row : row + 1])
            text_visible = visible_tokens(texts.words[row, :length], rate, draws_of_text)
            framed_length = len(text_visible)
            visible[row, :framed_length, :framed_length] = text_visible
        return torch.from_numpy(visible)

    def _padded(self, texts: Sequence[Ids]) -> Texts:
        """Return texts as one batch, with the words of their tokens."""
        padded = pad(texts, self.vocabulary.pad_id)
        ids = padded.input_ids.numpy()
        lengths = padded.attention_mask.numpy().sum(axis=1)
        return Texts(ids, lengths, masking.words_of(ids, self.vocabulary))

    def _uniform_mask(self, texts: Texts, draws: Draws, counted_special: int = 0) -> Mask:
        """Return which tokens to mask, by words drawn uniformly, at the stage's rate: (B, T).

        `counted_special` are the special tokens around a text that its budget counts.
        """
        rate = self.rates.get(draws.stage, self.settings.mlm_probability)
        limits = masking.budget(rate, texts.lengths + counted_special)
        word_count = texts.words.max(initial=NO_WORD) + 1
        order = draws(Decision.WORD, word_count)
        return masking.uniform_masks(texts.words, limits, order)

    def _masked(self, texts: Texts, mask: Mask, draws: Draws) -> MaskedTexts:
        """Return the input of texts whose masked tokens are replaced, and are the labels."""
        width = texts.ids.shape[1]
        fate = draws(Decision.FATE, width)
        if self.settings.all_mask:
            fate = np.zeros_like(fate)  # every masked token becomes [MASK]
        token = draws(Decision.TOKEN, width)
        input_ids = masking.corrupt(texts.ids, mask, self.vocabulary, fate, token)
        return self._framed(texts, input_ids, mask)

    def _unmasked(self, texts: Texts) -> MaskedTexts:
        """Return the input of texts as they are, every token a label."""
        is_token = np.arange(texts.ids.shape[1]) < texts.lengths[:, None]
        return self._framed(texts, texts.ids, is_token)

    def _framed(self, texts: Texts, input_ids: Ids, is_label: Mask) -> MaskedTexts:
        """Return the input of texts, with [CLS] before and [SEP] after, and the labels.

        `input_ids` (B, T) are the texts' tokens, some replaced; `is_label` (B, T) which of the
        texts' tokens are labels.
        """
        count, width = input_ids.shape
        tokens = np.full((count, width + SPECIAL_TOKENS), self.vocabulary.pad_id, dtype=np.int64)
        labels = np.full_like(tokens, IGNORED)
        tokens[:, 0] = self.vocabulary.cls_id
        tokens[:, 1:-1] = input_ids
        tokens[np.arange(count), texts.lengths + 1] = self.vocabulary.sep_id
        labels[:, 1:-1] = np.where(is_label, texts.ids, IGNORED)
        is_token = np.arange(width + SPECIAL_TOKENS) < texts.lengths[:, None] + SPECIAL_TOKENS
        framed_texts = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(is_token))
        return MaskedTexts(framed_texts, torch.from_numpy(labels))

    def _master_inputs(
        self, crops: Crops, cropped: Texts, mask: Mask, draws: Draws
    ) -> dict[Stage, MaskedTexts]:
        """Mask passages for MASTER's decoders, and for their passes of the encoder, by stage.

        `crops` are the passages of the batch, `cropped` the same as padded texts, and `mask` that
        of the encoder's input.
        """
        masked_texts: dict[Stage, MaskedTexts] = {}
        if MasterTask.MKP in self.tasks:
            masked_texts[Stage.MKP] = self._masked_keywords(crops, draws.rows, draws.at(Stage.MKP))
        if MasterTask.CMP in self.tasks:
            masked_texts |= self._complements(cropped, mask, draws)
        if MasterTask.NPR in self.tasks:
            if self.npr is NprKind.NEIGHBOUR:
                masked_texts[Stage.NPR] = self._neighbours(draws.at(Stage.NPR))
            else:
                masked_texts |= self._halves(crops, draws)
        if MasterTask.DOR in self.tasks:
            masked_texts[Stage.DOR] = self._queries(draws.at(Stage.DOR))
        if MasterTask.GOR in self.tasks:
            masked_texts[Stage.GOR] = self._continuations(crops.texts, draws.at(Stage.GOR))
        return masked_texts

    def _complements(self, texts: Texts, mask: Mask, draws: Draws) -> dict[Stage, MaskedTexts]:
        """Mask what the encoder sees unmasked: of its input, or of one for this decoder alone."""
        masked_texts = {}
        if self.settings.cmp_pass:
            draws_of_pass = draws.at(Stage.CMP_PASS)
            mask = self._uniform_mask(texts, draws_of_pass)
            masked_texts[Stage.CMP_PASS] = self._masked(texts, mask, draws_of_pass)
        complement = ~mask & ~self.vocabulary.special[texts.ids]
        masked_texts[Stage.CMP] = self._masked(texts, complement, draws.at(Stage.CMP))
        return masked_texts

    def _neighbours(self, draws: Draws) -> MaskedTexts:
        """Mask the keywords of each passage's neighbour; a passage without one gets no text."""
        # an offset of 0 stands for no neighbour
        neighbour_rows = draws.rows + self.store.neighbours[draws.rows]
        has_neighbour = neighbour_rows != draws.rows
        texts = []
        for text, is_neighbour in zip(self.store.texts[neighbour_rows], has_neighbour, strict=True):
            texts.append(text if is_neighbour else text[:0])
        return self._masked_keywords(Crops.draw(texts, draws, self.limit), neighbour_rows, draws)

    def _halves(self, crops: Crops, draws: Draws) -> dict[Stage, MaskedTexts]:
        """Mask the first half of passages uniformly, and the keywords of the second.

        The first half is the smaller; both are empty for one token.
        """
        lengths = crops.ends - crops.starts
        ends = np.where(lengths < 2, crops.starts, crops.ends)
        middles = (crops.starts + ends) // 2
        first_halves = crops._replace(ends=middles)
        second_halves = crops._replace(starts=middles, ends=ends)
        return {
            Stage.NPR_PASS: self._uniformly_masked(first_halves, draws.at(Stage.NPR_PASS)),
            Stage.NPR: self._masked_keywords(second_halves, draws.rows, draws.at(Stage.NPR)),
        }

    def _queries(self, draws: Draws) -> MaskedTexts:
        """Mask the generated queries of passages uniformly."""
        queries = self.store.queries[draws.rows]
        return self._uniformly_masked(Crops.draw(queries, draws, self.limit), draws)

    def _continuations(self, passages: Sequence[Ids], draws: Draws) -> MaskedTexts:
        """Mask the continuations of passages uniformly; one without takes part itself."""
        texts = []
        for continuation, passage in zip(self.store.next[draws.rows], passages, strict=True):
            texts.append(continuation if len(continuation) > 0 else passage)
        return self._uniformly_masked(Crops.draw(texts, draws, self.limit), draws)

    def _uniformly_masked(self, crops: Crops, draws: Draws) -> MaskedTexts:
        """Mask words of cropped texts, drawn uniformly."""
        texts = self._padded(crops.of(crops.texts))
        return self._masked(texts, self._uniform_mask(texts, draws), draws)

    def _masked_keywords(self, crops: Crops, rows: Items, draws: Draws) -> MaskedTexts:
        """Mask words of cropped passages, drawn by weight; `rows` are theirs in the store."""
        texts = self._padded(crops.of(crops.texts))
        # of each token, its word's number in the corpus: (B, T)
        word_numbers = pad(crops.of(self.store.word_numbers[rows]), 0).input_ids.numpy()
        weights = self.weights(word_numbers, texts.words, crops.cut_words(self.vocabulary))
        order = draws(Decision.WORD, weights.shape[1])
        rate = self.settings.decoder_mlm_probability
        mask = masking.keyword_masks(texts.words, weights, rate, order)
        return self._masked(texts, mask, draws)
