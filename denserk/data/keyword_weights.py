"""Word counts of passages, and keyword weights for MASTER.

A word is the concatenation of its subword tokens, such as "fran##ce". Words are numbered from 1 by
first occurrence; 0 means no word (special tokens).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.pretraining import KeywordWeight, MaskingSettings
from denserk.data.masking import NO_WORD, SubwordTokens, word_starts
from denserk.errors import InputError, UsageError

MISSING = 1.0  # the weight of a word that no table has
WORDS = datasets.Features(
    {
        "word": datasets.Value("string"),
        "count": datasets.Value("int64"),
        "texts": datasets.Value("int64"),
    }
)
Numbers = NDArray[np.int64]


class WordCounter:
    """Numbers and counts the words of texts.

    Args:
        tokens: of the vocabulary.
        names: the vocabulary's entries, by id.
    """

    def __init__(self, tokens: SubwordTokens, names: Sequence[str]) -> None:
        self._tokens, self._names = tokens, names
        self._single = np.zeros(len(tokens.special), dtype=np.int64)
        self._several: dict[bytes, int] = {}
        self._words: list[str] = [""]
        self._counts, self._texts = np.zeros((2, 1024), dtype=np.int64)

    def add(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.uint32]]:
        """Count the words of texts, none of them empty; return the word number of each token."""
        if not texts:
            return []
        lengths = np.array([len(text) for text in texts])
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
        ends = np.cumsum(lengths)
        first = np.zeros(len(ids), dtype=bool)
        first[[0, *ends[:-1]]] = True
        starts = np.flatnonzero(word_starts(ids, first, self._tokens))
        inside = ~self._tokens.special[ids]
        word = np.searchsorted(starts, np.flatnonzero(inside), side="right") - 1
        sizes = np.bincount(word, minlength=len(starts))
        numbers = self._number(ids, starts, sizes)
        own = np.zeros(len(ids), dtype=np.uint32)
        own[inside] = numbers[word]
        self._count(numbers, np.repeat(np.arange(len(lengths)), lengths)[starts])
        return np.split(own, ends[:-1])

    def _number(self, ids: Numbers, starts: Numbers, sizes: Numbers) -> Numbers:
        """Return the number of each word; number new words."""
        alone = sizes == 1  # most words are one token: looked up in an array
        tokens = ids[starts[alone]]
        for token in np.unique(tokens[self._single[tokens] == 0]).tolist():
            self._single[token] = self._new([token])
        numbers = np.zeros(len(starts), dtype=np.int64)
        numbers[alone] = self._single[tokens]
        for place in np.flatnonzero(~alone).tolist():
            word = ids[starts[place] : starts[place] + sizes[place]]
            key = word.tobytes()
            if key not in self._several:
                self._several[key] = self._new(word.tolist())
            numbers[place] = self._several[key]
        return numbers

    def _new(self, tokens: list[int]) -> int:
        self._words.append("".join(self._names[token] for token in tokens))
        return len(self._words) - 1

    def _count(self, numbers: Numbers, texts: Numbers) -> None:
        size = len(self._words)
        if size > len(self._counts):
            room = np.zeros(size, dtype=np.int64)
            self._counts, self._texts = (
                np.concatenate([counts, room]) for counts in (self._counts, self._texts)
            )
        self._counts[:size] += np.bincount(numbers, minlength=size)
        once = np.unique(texts * size + numbers) % size
        self._texts[:size] += np.bincount(once, minlength=size)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the words in the order of their numbers."""
        columns = self._words, self._counts.tolist(), self._texts.tolist()
        for word, count, texts in zip(*columns, strict=False):
            yield {"word": word, "count": count, "texts": texts}


class WordCounts:
    """The words that a `WordCounter` counted.

    Args:
        data: its rows, opened.

    Attributes:
        counts: (W,) occurrences of each word.
        texts: (W,) texts with it.
    """

    def __init__(self, data: datasets.Dataset) -> None:
        self._words = data.data.column("word")
        self.counts: Numbers = data.data.column("count").to_numpy()
        self.texts: Numbers = data.data.column("texts").to_numpy()

    def table(self) -> dict[str, int]:
        """Return the count of every word."""
        return dict(zip(self._words.to_pylist()[1:], self.counts[1:].tolist(), strict=True))

    def given(self, counts: dict[str, int]) -> Numbers:
        """Look the words up in a table of counts, 0 for a word it lacks: (W,)."""
        return np.array([counts.get(word, 0) for word in self._words.to_pylist()])


class KeywordWeights:
    """Keyword weights from the corpus' own counts or from a table.

    Args:
        words: of the prepared passages.
        passages: number of passages.
        settings: the kind of weight, the table, and the weight of fragments.

    Raises:
        UsageError: there is no such table.
    """

    def __init__(self, words: WordCounts, passages: int, settings: MaskingSettings) -> None:
        self._fragments = settings.weigh_fragments
        self._by_passage = settings.keyword_weight is KeywordWeight.TFIDF
        if self._by_passage:
            self._table = np.log(passages / np.maximum(words.texts, 1))
        else:
            given = settings.frequency_dict
            counts = words.counts if given is None else words.given(_read_counts(Path(given)))
            self._table = np.where(counts > 0, 1 / np.maximum(counts, 1), MISSING)

    def __call__(
        self,
        numbers: Numbers,
        words: Numbers,
        starts_inside: NDArray[np.bool_],
        ends_inside: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Return the weight of each word of texts: (B, W); W may be larger than needed.

        Args:
            numbers: (B, T) the number of each token's word.
            words: (B, T) from `masking.words_of`.
            starts_inside: (B,) whether a crop begins within a word.
            ends_inside: (B,) whether it ends within a word.
        """
        by_word = np.zeros((len(words), words.shape[1] + 1), dtype=np.int64)
        np.put_along_axis(by_word, words, numbers, axis=1)
        by_word[:, NO_WORD] = 0  # the column of tokens without a word
        weights = self._table[by_word]
        if self._by_passage:
            weights *= _counts_in_texts(by_word)
        if not self._fragments:  # as in the released code, a cut word has no count
            weights[starts_inside, 0] = MISSING
            weights[ends_inside, words.max(axis=1)[ends_inside]] = MISSING
        return weights


def _counts_in_texts(numbers: Numbers) -> Numbers:
    """Return how often each word occurs in its text: (B, W) -> (B, W)."""
    order = np.argsort(numbers, axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = np.cumsum(first.ravel()) - 1
    counts = np.bincount(run)[run].reshape(numbers.shape)
    found: NDArray[np.int64] = np.empty_like(counts)
    np.put_along_axis(found, order, counts, axis=1)
    return found


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
