"""What the words of passages weigh when MASTER draws keywords."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.data.masked_texts import Cropped
from denserk.data.masking import NO_WORD, Pieces
from denserk.data.word_counts import WordCounts
from denserk.errors import InputError, UsageError
from denserk.settings.pretraining import KeywordWeight, MaskingSettings

MISSING = 1.0
"""The weight of a word that no table has."""


class KeywordWeights:
    """Weights by word, from a corpus' own counts or from a given table.

    Args:
        words: of the prepared passages.
        passages: how many there are.
        settings: the kind of weight, the table, and what fragments weigh.

    Raises:
        UsageError: there is no such table.
        InputError: it is none.
    """

    def __init__(self, words: WordCounts, passages: int, settings: MaskingSettings) -> None:
        self._numbers = words.numbers
        self._fragments = settings.weigh_fragments
        self._by_passage = settings.keyword_weight is KeywordWeight.TFIDF
        if self._by_passage:
            self._table = np.log(passages / np.maximum(words.texts, 1))
        else:
            given = settings.frequency_dict
            counts = words.counts if given is None else _read_counts(Path(given), words)
            self._table = np.where(counts > 0, 1 / np.maximum(counts, 1), MISSING)

    def __call__(
        self, text: Cropped, ids: NDArray[np.int64], words: NDArray[np.int64], pieces: Pieces
    ) -> NDArray[np.float64]:
        """The weight of each word of texts: (B, T) -> (B, W); W may be larger than needed.

        Args:
            text: passages, cropped.
            ids: (B, T) their pieces.
            words: (B, T) from `masking.words_of`.
            pieces: of the vocabulary.
        """
        numbers = np.zeros((len(ids), words.shape[1] + 1), dtype=np.int64)
        np.put_along_axis(numbers, words, text.gather(self._numbers, 0), axis=1)
        numbers[:, NO_WORD] = 0  # where pieces without a word have landed
        weights = self._table[numbers]
        if self._by_passage:
            weights *= _counts_in_texts(numbers)
        if not self._fragments:
            self._weigh_fragments(text, ids, words, pieces, weights)
        return weights

    def _weigh_fragments(
        self,
        text: Cropped,
        ids: NDArray[np.int64],
        words: NDArray[np.int64],
        pieces: Pieces,
        weights: NDArray[np.float64],
    ) -> None:
        """The released code's: what a crop leaves of a word is in no table."""
        starts_inside = text.before & pieces.continues[ids[:, 0]]
        weights[starts_inside, 0] = MISSING
        following = text.values[np.minimum(text.starts + text.lengths, len(text.values) - 1)]
        last = words[np.arange(len(ids)), np.maximum(text.lengths - 1, 0)]
        ends_inside = text.behind & pieces.continues[following] & (last != NO_WORD)
        weights[ends_inside, last[ends_inside]] = MISSING


def _counts_in_texts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each word occurs in its own text: (B, W) -> (B, W)."""
    order = np.argsort(numbers, axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = np.cumsum(first.ravel()) - 1
    counts = np.bincount(run)[run].reshape(numbers.shape)
    found: NDArray[np.int64] = np.empty_like(counts)
    np.put_along_axis(found, order, counts, axis=1)
    return found


def _read_counts(path: Path, words: WordCounts) -> NDArray[np.int64]:
    """The counts of the words in a table of them: one JSON object, word -> count."""
    try:
        table: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"--frequency-dict {path}: no such file") from None
    except ValueError as error:
        raise InputError(path, None, f"broken JSON ({error})", "an object: word -> count") from None
    if not isinstance(table, dict) or not all(
        type(count) is int and count > 0 for count in table.values()
    ):
        raise InputError(path, None, "something else", "a JSON object: word -> count above 0")
    return np.array([table.get(words.word(number), 0) for number in range(len(words))])
