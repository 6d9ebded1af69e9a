"""Whole-word masking of one text: functions of token ids and a random generator.

Special tokens are never masked and have no label. Uniform masks follow Condenser (Gao and Callan,
2021, with the authors' code), keyword masks MASTER (Zhou et al., 2023). A text is an array (T,) of
tokens without [CLS] and [SEP] around them; its W words are numbered from 0.

Keyword weights come from the words of a corpus. A word there is the concatenation of its tokens,
such as "fran##ce"; words are numbered from 1 by first occurrence, and 0 means no word.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.pretraining import KeywordWeight, MaskingSettings
from denserk.errors import InputError, ModelError, UsageError

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
NO_WORD = -1
MOST = 512  # tokens that a uniform mask covers at most
MASKED, RANDOM = 0.8, 0.1  # shares of masked tokens replaced by [MASK], and by a random token
IGNORED = -100  # the label of a position without one
LIGHTEST = 1e-9  # least weight of a keyword: zero weights are drawn last
MISSING = 1.0  # the weight of a word that no table has
WORDS = datasets.Features(
    {
        "word": datasets.Value("string"),
        "count": datasets.Value("int64"),
        "texts": datasets.Value("int64"),
    }
)


def entries_of(tokenizer: Any) -> list[str]:
    """Return a vocabulary's entries by id; unused ids are empty."""
    entries = tokenizer.get_vocab()
    names = [""] * max(len(tokenizer), max(entries.values()) + 1)
    for name, number in entries.items():
        names[number] = name
    return names


class SubwordTokens(NamedTuple):
    """Properties of a vocabulary's entries, as arrays over ids.

    `continues`: the token continues a word. `special`: it is no part of any word. `size`: number of
    entries, from which random tokens are drawn.
    """

    continues: Mask
    special: Mask
    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    size: int

    @classmethod
    def of(cls, tokenizer: Any) -> "SubwordTokens":
        """Read the vocabulary of a fast tokenizer.

        WordPiece marks tokens that continue a word ("##"); byte-level vocabularies (RoBERTa) mark
        those that begin one. The first token of a text always begins a word.
        """
        roles = ("cls_token_id", "sep_token_id", "mask_token_id", "pad_token_id")
        lacking = [role.removesuffix("_id") for role in roles if getattr(tokenizer, role) is None]
        if lacking:
            raise ModelError(
                f"the tokenizer has no {', '.join(lacking)}, which masking needs",
                "pre-training takes models of BERT's kind: BERT, RoBERTa, DistilBERT",
            )
        tokens = entries_of(tokenizer)
        continues = np.array([token.startswith("##") for token in tokens])
        begins = np.array([token.startswith("\u0120") for token in tokens])
        if begins.any():
            continues = ~begins
        special = np.zeros(len(tokens), dtype=bool)
        special[list(tokenizer.all_special_ids)] = True
        cls_id, sep_id, mask_id, pad_id = (int(getattr(tokenizer, role)) for role in roles)
        inside = continues & ~special
        return cls(inside, special, cls_id, sep_id, mask_id, pad_id, len(tokenizer))

    def singly(self) -> "SubwordTokens":
        """Return the vocabulary with every token a word of its own."""
        return self._replace(continues=np.zeros_like(self.continues))


def words_of(ids: Ids, vocabulary: SubwordTokens) -> Ids:
    """Return the number of each token's word, `NO_WORD` for special tokens: (T,) -> (T,).

    A continuing token at the start of the text, or after a special token, begins a word.
    """
    special = vocabulary.special[ids]
    starts = ~vocabulary.continues[ids]
    starts[:1] = True
    starts[1:] |= special[:-1]
    words: Ids = np.cumsum(starts & ~special) - 1
    words[special] = NO_WORD
    return words


def budget(rate: float, tokens: int) -> int:
    """Return how many tokens to mask: rounded half to even, at least one.

    >>> budget(0.5, 5), budget(0.5, 7), budget(0.15, 3)
    (2, 4, 1)
    """
    return max(1, round(rate * tokens))


def uniform_masks(words: Ids, limit: int, rng: np.random.Generator, count: int = 1) -> Mask:
    """Mask words in random order up to the budget; skip a word that would exceed it.

    Args:
        words: (T,) from `words_of`.
        limit: from `budget`, which counts special tokens inside a text as the released code does.
        rng: the source of randomness.
        count: number of independent masks.

    Returns:
        (count, T).
    """
    sizes = np.bincount(words[words != NO_WORD])
    order = rng.permuted(np.tile(np.arange(len(sizes)), (count, 1)), axis=1)
    chosen = np.zeros((count, len(sizes) + 1), dtype=bool)  # the last column: no word
    np.put_along_axis(chosen, order, fill_budgets(sizes[order], min(limit, MOST)), axis=1)
    masks: Mask = chosen[:, words]
    return masks


def fill_budgets(sizes: Ids, limit: int) -> Mask:
    """Take from the left of each row what still fits: (N, W) sizes of at least 1 -> (N, W).

    >>> fill_budgets(np.array([[2, 3, 1, 1]]), 4)
    array([[ True, False,  True,  True]])
    """
    taken = np.cumsum(sizes, axis=1) <= limit
    left = limit - (sizes * taken).sum(axis=1)
    while True:
        # what was skipped stays too large, since the remaining budget only shrinks
        fits = (sizes <= left[:, None]) & ~taken
        rows = np.flatnonzero(fits.any(axis=1))
        if not len(rows):
            return taken
        places = fits[rows].argmax(axis=1)
        taken[rows, places] = True
        left[rows] -= sizes[rows, places]


def keyword_mask(
    words: Ids, weights: NDArray[np.float64], rate: float, rng: np.random.Generator
) -> Mask:
    """Draw words in proportion to their weights, without replacement, until the budget is met.

    The last word may exceed it. The budget counts tokens that belong to words.

    Args:
        words: (T,) from `words_of`.
        weights: (W,), at least 0.
        rate: share of the tokens.
        rng: the source of randomness.

    Returns:
        (T,).
    """
    sizes = np.bincount(words[words != NO_WORD])
    # sorted exponential variates give weighted sampling without replacement
    order = np.argsort(rng.exponential(size=len(sizes)) / np.maximum(weights, LIGHTEST))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = np.zeros(len(sizes) + 1, dtype=bool)  # the last one: no word
    chosen[order] = before < budget(rate, int(sizes.sum()))
    mask: Mask = chosen[words]
    return mask


def corrupt(
    ids: Ids,
    mask: Mask,
    vocabulary: SubwordTokens,
    rng: np.random.Generator,
    *,
    all_mask: bool = False,
) -> tuple[Ids, Ids]:
    """Return masked ids and labels (T,): 80 % [MASK], 10 % a random token, 10 % unchanged.

    Labels are -100 where nothing is masked. With `all_mask`, all masked tokens are [MASK] (SimLM).
    """
    fate = np.zeros(len(ids)) if all_mask else rng.random(len(ids))
    replaced = np.where(fate < MASKED + RANDOM, rng.integers(vocabulary.size, size=len(ids)), ids)
    seen = np.where(fate < MASKED, vocabulary.mask_id, replaced)
    return np.where(mask, seen, ids), np.where(mask, ids, IGNORED)


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
            words: (T,) from `words_of`.
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
