"""Whole-word masking of a batch of texts: functions of token ids and of random numbers in [0, 1).

Special tokens are never masked and have no label. Uniform masks follow Condenser (Gao and Callan,
2021, with the authors' code), keyword masks MASTER (Zhou et al., 2023). Texts are an array (B, T)
of tokens without [CLS] and [SEP] around them, padded with [PAD]; the words of each are numbered
from 0, and W is the largest number of words.

Keyword weights come from the words of a corpus. A word there is the concatenation of its tokens,
such as "fran##ce"; words are numbered from 1 by first occurrence, and 0 means no word.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import regex
from datasets import Dataset, Features, Value
from numpy.typing import NDArray

from denserk.config.pretraining import KeywordWeight, Masking, MaskingSettings
from denserk.errors import InputError, ModelError
from denserk.io.files import read_file
from denserk.io.manifest import SIZE, check

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
NO_WORD = -1
MOST = 512  # tokens that a uniform mask covers at most
MASKED, RANDOM = 0.8, 0.1  # shares of masked tokens replaced by [MASK], and by a random token
IGNORED = -100  # the label of a position without one
# first letters of tokens that follow a space: of byte-level vocabularies (RoBERTa: "Ġ") and of
# SentencePiece's (XLM-R: "▁")
SPACE_MARKS = ("\u0120", "\u2581")
# letters of scripts without spaces between words
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
LIGHTEST = 1e-9  # least weight of a keyword: zero weights are drawn last
MISSING = 1.0  # the weight of a word that no table has
WORDS = Features({"word": Value("string"), "count": Value("int64"), "texts": Value("int64")})


class SubwordTokens(NamedTuple):
    """Properties of a vocabulary's entries, as arrays over ids.

    `continues`: the token continues a word. `special`: it is no part of any word. `size`: number of
    entries, from which random tokens are drawn. `names`: the entries by id, empty if unused.
    """

    continues: Mask
    special: Mask
    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    size: int
    names: Sequence[str]

    @classmethod
    def of(cls, tokenizer: Any, masking: Masking = Masking.WORD) -> "SubwordTokens":
        """Read a fast tokenizer's vocabulary; under `Masking.TOKEN` each token is a word.

        The first token of a text always begins a word.
        """
        roles = ("cls_token_id", "sep_token_id", "mask_token_id", "pad_token_id")
        absent = [role.removesuffix("_id") for role in roles if getattr(tokenizer, role) is None]
        if absent:
            raise ModelError(
                f"the tokenizer has no {', '.join(absent)}, which masking needs",
                "pre-training takes models of BERT's kind: BERT, RoBERTa, DistilBERT",
            )
        count = max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1)
        tokens = [name or "" for name in tokenizer.convert_ids_to_tokens(range(count))]
        special = np.zeros(len(tokens), dtype=bool)
        special[list(tokenizer.all_special_ids)] = True
        continues = np.zeros(len(tokens), dtype=bool)
        if masking is Masking.WORD:
            continues = continues_word(tokens, tokenizer.backend_tokenizer.model) & ~special
        return cls(
            continues=continues,
            special=special,
            cls_id=int(tokenizer.cls_token_id),
            sep_id=int(tokenizer.sep_token_id),
            mask_id=int(tokenizer.mask_token_id),
            pad_id=int(tokenizer.pad_token_id),
            size=len(tokenizer),
            names=tokens,
        )


def continues_word(tokens: Sequence[str], model: Any) -> Mask:
    """Return which tokens of a vocabulary continue a word, by the marks of the tokenizer's model.

    WordPiece marks the tokens that continue a word ("##"). Other models mark those that follow a
    space, and so begin a word; where none is marked, each token is a word. Marks are the model's:
    an entry of WordPiece may begin with the letter that marks a space elsewhere.
    """
    prefix = getattr(model, "continuing_subword_prefix", None)
    if prefix:
        return np.array([token.startswith(prefix) for token in tokens])
    follows_space = np.array([token.startswith(SPACE_MARKS) for token in tokens])
    if not follows_space.any():
        return np.zeros(len(tokens), dtype=bool)
    # a sentence of a script without spaces would be one word
    is_unspaced = np.array([UNSPACED.match(token) is not None for token in tokens])
    continues: Mask = ~(follows_space | is_unspaced)
    return continues


def words_of(ids: Ids, vocabulary: SubwordTokens) -> Ids:
    """Return the number of each token's word, `NO_WORD` for special tokens: (B, T) -> (B, T).

    A continuing token at the start of the text, or after a special token, begins a word.
    """
    special = vocabulary.special[ids]
    starts = ~vocabulary.continues[ids]
    starts[:, :1] = True
    starts[:, 1:] |= special[:, :-1]
    words: Ids = np.cumsum(starts & ~special, axis=1) - 1
    words[special] = NO_WORD
    return words


def sizes_of(words: Ids) -> Ids:
    """Return how many tokens each word has: (B, T) -> (B, W), 0 where a text has fewer words."""
    width = int(words.max(initial=NO_WORD)) + 1
    rows, columns = np.nonzero(words != NO_WORD)
    flat = rows * width + words[rows, columns]
    return np.bincount(flat, minlength=len(words) * width).reshape(len(words), width)


def budget(rate: float, tokens: Ids) -> Ids:
    """Return how many tokens to mask: rounded half to even, at least one.

    >>> budget(0.5, np.array([5, 7, 1])).tolist()
    [2, 4, 1]
    """
    limits: Ids = np.maximum(1, np.rint(rate * tokens)).astype(np.int64)
    return limits


def _mask_words(words: Ids, keys: Floats, take: Callable[[Ids], Mask]) -> Mask:
    """Mask the words that `take` chooses by their sizes, in ascending order of keys (B, W)."""
    sizes = np.broadcast_to(sizes_of(words), keys.shape)
    order = np.argsort(np.where(sizes > 0, keys, np.inf), axis=1)
    taken = take(np.take_along_axis(sizes, order, axis=1))
    chosen = np.zeros((len(order), order.shape[1] + 1), dtype=bool)  # the last column: no word
    np.put_along_axis(chosen, order, taken, axis=1)
    return np.take_along_axis(chosen, words, axis=1)


def uniform_masks(words: Ids, limits: Ids, draws: Floats) -> Mask:
    """Mask words in random order up to the budget; skip a word that would exceed it: (B, T).

    `words` (B, T) are from `words_of`, or (1, T) for several masks of one text; `limits` (B,) from
    `budget`, which counts special tokens inside a text as the released code does; `draws` (B, W).
    """
    limits = np.minimum(limits, MOST)

    def fill(sizes: Ids) -> Mask:
        """Take from the left of each row what still fits: (B, W) -> (B, W)."""
        is_masked: Mask = np.cumsum(sizes, axis=1) <= limits[:, None]
        remaining_tokens = limits - (sizes * is_masked).sum(axis=1)
        while True:
            # what was skipped stays too large, since the remaining budget only shrinks
            fits = (sizes > 0) & (sizes <= remaining_tokens[:, None]) & ~is_masked
            rows = np.flatnonzero(fits.any(axis=1))
            if not len(rows):
                return is_masked
            columns = fits[rows].argmax(axis=1)  # the first word of each row that fits
            is_masked[rows, columns] = True
            remaining_tokens[rows] -= sizes[rows, columns]

    return _mask_words(words, draws, fill)


def keyword_masks(words: Ids, weights: Floats, rate: float, draws: Floats) -> Mask:
    """Draw words in proportion to their weights, without replacement, until the budget is met.

    The last word may exceed it. The budget is the share `rate` of the tokens that belong to words;
    `words` (B, T) are from `words_of`; `weights`, at least 0, and `draws` are (B, W).
    """
    limits = budget(rate, sizes_of(words).sum(axis=1))[:, None]
    # sorted exponential variates give weighted sampling without replacement
    times = -np.log1p(-draws) / np.maximum(weights, LIGHTEST)
    return _mask_words(words, times, lambda sizes: np.cumsum(sizes, axis=1) - sizes < limits)


def corrupt(ids: Ids, mask: Mask, vocabulary: SubwordTokens, fate: Floats, token: Floats) -> Ids:
    """Replace masked tokens: 80 % by [MASK], 10 % by a random token, 10 % stay; (B, T) each.

    Under `fate` 0 all masked tokens are [MASK] (SimLM).
    """
    random = (token * vocabulary.size).astype(np.int64)
    replaced = np.where(fate < MASKED + RANDOM, random, ids)
    return np.where(mask, np.where(fate < MASKED, vocabulary.mask_id, replaced), ids)


class WordCounter:
    """Numbers and counts the words of texts."""

    def __init__(self, vocabulary: SubwordTokens) -> None:
        self._vocabulary = vocabulary
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._counts: Counter[int] = Counter()
        self._texts: Counter[int] = Counter()

    def add(self, text: Sequence[int]) -> NDArray[np.uint32]:
        """Count the words of a text; return the word number of each token."""
        [positions] = words_of(np.array([text], dtype=np.int64), self._vocabulary).tolist()
        numbers = {NO_WORD: 0}  # by position of the word in the text
        for position, group in groupby(zip(positions, text, strict=True), itemgetter(0)):
            if position != NO_WORD:
                word = tuple(token for _, token in group)
                numbers[position] = self._numbers.setdefault(word, len(self._numbers))
        numbers_by_token = [numbers[position] for position in positions]
        del numbers[NO_WORD]
        self._counts.update(numbers.values())
        self._texts.update(set(numbers.values()))
        return np.array(numbers_by_token, dtype=np.uint32)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each word with its counts, by number; the first is no word."""
        for tokens, number in self._numbers.items():
            word = "".join(self._vocabulary.names[token] for token in tokens)
            yield {"word": word, "count": self._counts[number], "texts": self._texts[number]}


class KeywordWeights:
    """Keyword weights from the corpus' own counts or from a table."""

    def __init__(self, words: Dataset, passages: int, settings: MaskingSettings) -> None:
        self._fragments = settings.weigh_fragments
        self._tfidf = settings.keyword_weight is KeywordWeight.TFIDF
        if self._tfidf:
            self._table = np.log(passages / np.maximum(words["texts"][:], 1))
            return
        counts = words["count"][:]
        if settings.frequency_dict is not None:
            path = Path(settings.frequency_dict)  # one JSON object: word -> count
            try:
                table: dict[str, int] = orjson.loads(read_file(path))
            except ValueError as error:
                raise InputError(path, None, f"broken JSON ({error})", "a JSON object") from None
            check(table, {...: SIZE}, path)
            names = words.data.column("word").to_pylist()
            counts = np.array([table.get(name, 0) for name in names])
        self._table = np.where(counts > 0, 1 / np.maximum(counts, 1), MISSING)

    def __call__(self, numbers: Ids, words: Ids, cut: Mask) -> Floats:
        """Return the weight of each word of each text: (B, W).

        `numbers` (B, T) are those of each token's word in the corpus, `words` (B, T) are from
        `words_of`; `cut` (B, 2) says whether the first and the last word are incomplete.
        """
        numbers_by_word = np.zeros_like(sizes_of(words))
        rows, columns = np.nonzero(words != NO_WORD)
        numbers_by_word[rows, words[rows, columns]] = numbers[rows, columns]
        weights: Floats = self._table[numbers_by_word]
        if self._tfidf:
            keys = numbers_by_word + len(self._table) * np.arange(len(words))[:, None]
            _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
            weights *= counts[inverse].reshape(weights.shape)
        if not self._fragments:  # as in the released code, a cut word has no count
            last_words = words.max(axis=1, initial=NO_WORD)
            first_words = np.zeros_like(last_words)
            for side, cut_words in enumerate((first_words, last_words)):
                rows = np.flatnonzero(cut[:, side] & (last_words >= 0))
                weights[rows, cut_words[rows]] = MISSING
        return weights
