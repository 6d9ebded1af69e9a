"""Rows of prepared text -> masked texts: cropped, masked, framed, all rows of a batch at once.

Every random choice is a hash of (seed, what it is for, row, epoch), so that what becomes of a text
depends on no other text, process or worker.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.data.batches import MaskedTexts, TokenBatch
from denserk.data.masking import (
    IGNORED,
    Mask,
    Pieces,
    budgets,
    corrupt,
    uniform_masks,
    words_of,
)
from denserk.data.sampling import Items, Purpose, Words, random_words
from denserk.data.token_store import Ragged

NOTHING = -1
"""The row of a text that there is not."""


class Stage(IntEnum):
    """What a text is masked for; different stages never share a random word."""

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
    """What a random word decides within a stage."""

    CROP = 0
    WORDS = 1
    FATES = 2
    VIEWS = 3


class Visit(NamedTuple):
    """Items of a batch in an epoch: the keys of its random words."""

    seed: int
    items: Items
    epoch: int

    def draws(self, stage: Stage, use: Use, width: int) -> Words:
        """(B, width) random words."""
        purpose = Purpose.MASKING + len(Use) * stage + use
        return random_words(self.seed, purpose, self.items, self.epoch, width)


class Cropped(NamedTuple):
    """Texts cut to length, as the pieces at `starts[i] .. starts[i] + lengths[i] - 1` of `values`.

    `before` and `behind`: (B,) whether the crop left something there.
    """

    values: NDArray[Any]
    starts: Items
    lengths: Items
    before: Mask
    behind: Mask

    def gather(self, values: NDArray[Any], fill: int) -> NDArray[np.int64]:
        """(B, T) values of another array that stands beside the pieces; T is at least 1."""
        columns = np.arange(max(1, int(self.lengths.max(initial=0))))
        if not len(values):
            return np.full((len(self.starts), len(columns)), fill, dtype=np.int64)
        places = np.minimum(self.starts[:, None] + columns, len(values) - 1)
        gathered: NDArray[np.int64] = values[places].astype(np.int64)
        gathered[columns >= self.lengths[:, None]] = fill
        return gathered

    def ids(self, pieces: Pieces) -> NDArray[np.int64]:
        """(B, T) the pieces, padded."""
        return self.gather(self.values, pieces.pad_id)

    def halves(self) -> tuple["Cropped", "Cropped"]:
        """Both halves of texts, the first the smaller; neither of a text of one piece."""
        several = self.lengths > 1
        first = np.where(several, self.lengths // 2, 0)
        second = np.where(several, self.lengths - first, 0)
        return (
            self._replace(lengths=first, behind=several),
            self._replace(starts=self.starts + first, lengths=second, before=several),
        )


def crop(texts: Ragged, rows: Items, limit: int, draws: Words) -> Cropped:
    """Texts of at most `limit` pieces: a longer one keeps a window from a random place on.

    Args:
        texts: where the rows are.
        rows: (B,); `NOTHING` gives a text without pieces.
        limit: most pieces.
        draws: (B, 1).
    """
    some = rows != NOTHING
    safe = np.where(some, rows, 0)
    ends = texts.ends
    if not len(texts):
        zeros = np.zeros(len(rows), dtype=np.int64)
        return Cropped(texts.values, zeros, zeros, zeros > 0, zeros > 0)
    lengths = np.where(some, ends[safe + 1] - ends[safe], 0)
    over = np.maximum(lengths - limit, 0)
    offsets = (draws[:, 0] % (over + 1).astype(np.uint64)).astype(np.int64)
    starts = ends[safe] + offsets
    kept = np.minimum(lengths, limit)
    return Cropped(texts.values, starts, kept, offsets > 0, offsets < over)


class Masker(NamedTuple):
    """What turns texts into masked ones.

    `rates`: the stages differ in their rates alone, which are given with each call.
    """

    pieces: Pieces
    all_mask: bool

    def words(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `masking.words_of`."""
        return words_of(ids, self.pieces)

    def uniform(
        self,
        text: Cropped,
        words: NDArray[np.int64],
        rate: float,
        visit: Visit,
        stage: Stage,
        extra: int = 0,
    ) -> Mask:
        """Uniform masks (B, T); `extra` pieces count in the budget beside the text's own."""
        draws = visit.draws(stage, Use.WORDS, words.shape[1])
        return uniform_masks(words, budgets(rate, text.lengths + extra), draws)

    def masked(
        self, text: Cropped, ids: NDArray[np.int64], masks: Mask, visit: Visit, stage: Stage
    ) -> MaskedTexts:
        """Texts with what a mask covers hidden or swapped, and asked for."""
        draws = visit.draws(stage, Use.FATES, ids.shape[1])
        seen, labels = corrupt(ids, masks, self.pieces, draws, all_mask=self.all_mask)
        return self.framed(seen, labels, text.lengths)

    def framed(
        self, seen: NDArray[np.int64], labels: NDArray[np.int64], lengths: Items
    ) -> MaskedTexts:
        """[CLS] before and [SEP] behind each text: (B, T) -> (B, T + 2)."""
        count, width = seen.shape
        width = min(width, int(lengths.max(initial=0)))
        tokens = np.full((count, width + 2), self.pieces.pad_id, dtype=np.int64)
        asked = np.full((count, width + 2), IGNORED, dtype=np.int64)
        tokens[:, 0] = self.pieces.cls_id
        tokens[:, 1:-1] = seen[:, :width]
        asked[:, 1:-1] = labels[:, :width]
        tokens[np.arange(count), lengths + 1] = self.pieces.sep_id
        real = np.arange(width + 2) < lengths[:, None] + 2
        batch = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(real))
        return MaskedTexts(batch, torch.from_numpy(asked))
