"""Word counts of passages, and keyword weights for MASTER.

A word is the concatenation of its subword tokens, such as "fran##ce". Words are numbered from 1 by
first occurrence; 0 means no word (special tokens).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.pretraining import KeywordWeight, MaskingSettings
from denserk.data.masking import NO_WORD, Ids, SubwordTokens, words_of
from denserk.errors import InputError, UsageError

MISSING = 1.0  # the weight of a word that no table has
WORDS = datasets.Features(
    {
        "word": datasets.Value("string"),
        "count": datasets.Value("int64"),
        "texts": datasets.Value("int64"),
    }
)


class WordCounter:
    """Numbers and counts the words of texts."""

    def __init__(self, vocabulary: SubwordTokens, names: Sequence[str]) -> None:
        self._vocabulary, self._names = vocabulary, names
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._counts: Counter[int] = Counter()
        self._texts: Counter[int] = Counter()

    def add(self, text: Sequence[int]) -> NDArray[np.uint32]:
        """Count the words of a text; return the word number of each token."""
        words: list[list[int]] = []
        places = words_of(np.array(text, dtype=np.int64), self._vocabulary)
        for token, place in zip(text, places.tolist(), strict=True):
            if place == len(words):
                words.append([token])
            elif place != NO_WORD:
                words[place].append(token)
        numbers = [self._numbers.setdefault(tuple(w), len(self._numbers)) for w in words]
        self._counts.update(numbers)
        self._texts.update(set(numbers))
        return np.array([*numbers, 0], dtype=np.uint32)[places]  # NO_WORD is the last place

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each word with its counts, by number; the first is no word."""
        for tokens, number in self._numbers.items():
            word = "".join(self._names[token] for token in tokens)
            yield {"word": word, "count": self._counts[number], "texts": self._texts[number]}


class KeywordWeights:
    """Keyword weights from the corpus' own counts or from a table."""

    def __init__(self, words: datasets.Dataset, passages: int, settings: MaskingSettings) -> None:
        self._fragments = settings.weigh_fragments
        self._tfidf = settings.keyword_weight is KeywordWeight.TFIDF
        if self._tfidf:
            texts = words.data.column("texts").to_numpy()
            self._table = np.log(passages / np.maximum(texts, 1))
            return
        counts = words.data.column("count").to_numpy()
        if settings.frequency_dict is not None:
            given = _read_counts(Path(settings.frequency_dict))
            names = words.data.column("word").to_pylist()
            counts = np.array([given.get(name, 0) for name in names])
        self._table = np.where(counts > 0, 1 / np.maximum(counts, 1), MISSING)

    def __call__(
        self, numbers: Ids, words: Ids, *, starts_inside: bool, ends_inside: bool
    ) -> NDArray[np.float64]:
        """Return the weight of each word of a text: (W,).

        Args:
            numbers: (T,) the number of each token's word.
            words: (T,) from `masking.words_of`.
            starts_inside: the text begins within a word.
            ends_inside: it ends within a word.
        """
        by_word = np.zeros(words.max(initial=NO_WORD) + 1, dtype=np.int64)
        by_word[words[words != NO_WORD]] = numbers[words != NO_WORD]
        weights: NDArray[np.float64] = self._table[by_word]
        if self._tfidf:
            _, places, counts = np.unique(by_word, return_inverse=True, return_counts=True)
            weights *= counts[places]
        if not self._fragments:  # as in the released code, a cut word has no count
            if starts_inside:
                weights[0] = MISSING
            if ends_inside:
                weights[-1] = MISSING
        return weights


def _read_counts(path: Path) -> dict[str, int]:
    """Read a table of word counts: one JSON object, word -> count."""
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
    return table
