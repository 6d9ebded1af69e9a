"""What MASTER's encoder passes and decoders read (Zhou et al., 2023, section 4, and their code)."""

import numpy as np
from numpy.typing import NDArray

from denserk.data.batches import MaskedTexts, PretrainingBatch
from denserk.data.keyword_weights import KeywordWeights
from denserk.data.masked_texts import NOTHING, Cropped, Masker, Stage, Use, Visit, crop
from denserk.data.masking import complements, keyword_masks
from denserk.data.pretraining_store import PretrainingStore
from denserk.data.token_store import Ragged
from denserk.settings.pretraining import MaskingSettings, MasterTask, NprKind


class MasterTexts:
    """Passages -> a batch.

    Args:
        store: prepared passages.
        masker: masks texts.
        settings: rates and weights.
        tasks: what decoders recover.
        npr: what NPR's decoder recovers.
        limit: most pieces of a text.
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
        """The batch of a visit."""
        settings, masker = self.settings, self.masker
        text = self._crop(self.store.texts, visit.items, visit, Stage.TEXT)
        ids = text.ids(masker.pieces)
        words = masker.words(ids)
        masks = masker.uniform(text, words, settings.mlm_probability, visit, Stage.TEXT)
        batch = PretrainingBatch(masker.masked(text, ids, masks, visit, Stage.TEXT), {}, {})
        if MasterTask.MKP in self.tasks:
            batch.decoders["mkp"] = self._keywords(text, visit, Stage.MKP)
        if MasterTask.CMP in self.tasks:
            if settings.cmp_pass:
                masks = masker.uniform(text, words, settings.cmp_rate, visit, Stage.CMP_PASS)
                batch.passes["cmp"] = masker.masked(text, ids, masks, visit, Stage.CMP_PASS)
            rest = complements(masks, words)
            batch.decoders["cmp"] = masker.masked(text, ids, rest, visit, Stage.CMP)
        if MasterTask.NPR in self.tasks:
            self._related(batch, text, visit)
        if MasterTask.DOR in self.tasks:
            queries = self._crop(self.store.queries, self._expansions(visit), visit, Stage.DOR)
            batch.decoders["dor"] = self._uniform(queries, visit, Stage.DOR)
        if MasterTask.GOR in self.tasks:
            batch.decoders["gor"] = self._continuations(visit)
        return batch

    def _crop(self, texts: Ragged, rows: NDArray[np.int64], visit: Visit, stage: Stage) -> Cropped:
        return crop(texts, rows, self.limit, visit.draws(stage, Use.CROP, 1))

    def _expansions(self, visit: Visit) -> NDArray[np.int64]:
        return self.store.expansion_rows[visit.items]

    def _related(self, batch: PretrainingBatch, text: Cropped, visit: Visit) -> None:
        """NPR's decoder, and the encoder's pass over a first half."""
        if self.npr is NprKind.HALF:
            first, second = text.halves()
            rate = self.settings.mlm_probability
            batch.passes["npr"] = self._uniform(first, visit, Stage.NPR_PASS, rate)
        else:
            offsets = self.store.neighbours[visit.items].astype(np.int64)
            rows = np.where(offsets != 0, visit.items + offsets, NOTHING)
            second = self._crop(self.store.texts, rows, visit, Stage.NPR)
        batch.decoders["npr"] = self._keywords(second, visit, Stage.NPR)

    def _continuations(self, visit: Visit) -> MaskedTexts:
        """Generated continuations; the passage itself where there is none."""
        made = self._crop(self.store.next, self._expansions(visit), visit, Stage.GOR)
        lacking = made.lengths == 0
        rows = np.where(lacking, visit.items, NOTHING)
        own = self._crop(self.store.texts, rows, visit, Stage.GOR)
        if not lacking.any():
            return self._uniform(made, visit, Stage.GOR)
        if lacking.all():
            return self._uniform(own, visit, Stage.GOR)
        # both side by side in one array of their own
        pieces = self.masker.pieces
        parts = made.ids(pieces), own.ids(pieces)
        width = max(part.shape[1] for part in parts)
        values = np.full((len(rows), width), pieces.pad_id, dtype=np.int64)
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
        """Texts under a uniform mask, at the decoders' rate unless told otherwise."""
        rate = self.settings.decoder_mlm_probability if rate is None else rate
        ids = text.ids(self.masker.pieces)
        masks = self.masker.uniform(text, self.masker.words(ids), rate, visit, stage)
        return self.masker.masked(text, ids, masks, visit, stage)

    def _keywords(self, text: Cropped, visit: Visit, stage: Stage) -> MaskedTexts:
        """Texts under a mask of keywords."""
        pieces = self.masker.pieces
        ids = text.ids(pieces)
        words = self.masker.words(ids)
        masks = keyword_masks(
            words,
            self.weights(text, ids, words, pieces),
            self.settings.decoder_mlm_probability,
            visit.draws(stage, Use.WORDS, words.shape[1]),
        )
        return self.masker.masked(text, ids, masks, visit, stage)
