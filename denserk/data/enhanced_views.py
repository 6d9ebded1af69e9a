"""RetroMAE's enhanced decoding: which tokens each row of the decoder sees.

"RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder" (Xiao et al.,
2022), section 3.3, with the authors' sampling: a row does not see itself, nor what one of up to 256
whole-word samples of its text hides; [CLS] is seen by all.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.data.masked_texts import Cropped, Stage, Use, Visit
from denserk.data.masking import budgets, uniform_samples

SAMPLES = 256
"""Most samples of a text."""


def visible_tokens(text: Cropped, words: NDArray[np.int64], rate: float, visit: Visit) -> Tensor:
    """Who sees whom, with [CLS] at 0 and [SEP] behind the text: (B, T) -> (B, T + 2, T + 2) bool.

    Args:
        text: the texts.
        words: (B, T) from `masking.words_of`.
        rate: share of a text, [CLS] and [SEP] counted, that is hidden from a row.
        visit: the keys of the random words.
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
    """Uniform masks of one text: (T,) -> (S, T)."""
    length = len(words) + 2
    count, width = min(length, SAMPLES), max(1, int(words.max(initial=0)) + 1)
    halves = visit.draws(Stage.RETROMAE, Use.WORDS, -(-count * width // 2)).view(np.uint32)
    draws = halves[0, : count * width].reshape(count, width)
    return uniform_samples(words, int(budgets(rate, np.array([length]))[0]), draws)
