"""Whole-word masking: pure functions of token ids and random integers.

Special tokens are never masked and have no label. Uniform masks follow Condenser (Gao and Callan,
2021, with the authors' code), keyword masks and complements MASTER (Zhou et al., 2023). Texts are
arrays (B, T) of tokens without [CLS] and [SEP] around them, padded with a special token. Draws are
random uint64 (see `sampling.random_words`); a text's masks depend on its own row of them only.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import ModelError

Ids = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]
Draws = NDArray[np.uint64]
NO_WORD = -1
MOST = 512  # tokens that a uniform mask covers at most
MASKED, RANDOM = 0.8, 0.1  # shares of masked tokens replaced by [MASK], and by a random token
IGNORED = -100  # the label of a position without one
LIGHTEST = 1e-9  # least weight of a keyword: zero weights are drawn last
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


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

        Raises:
            ModelError: the tokenizer has no [CLS], [SEP], [MASK] or padding.
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


def word_starts(ids: Ids, first: Mask, vocabulary: SubwordTokens) -> Mask:
    """Return where words begin in concatenated texts: (N,) -> (N,).

    A continuing token at the start of its text, or after a special token, begins a word.

    Args:
        ids: (N,).
        first: (N,) True at the first token of each text.
        vocabulary: the tokenizer's entries.
    """
    special = vocabulary.special[ids]
    starts = ~vocabulary.continues[ids] | first
    starts[1:] |= special[:-1]
    starts &= ~special
    return starts


def words_of(ids: Ids, vocabulary: SubwordTokens) -> NDArray[np.int64]:
    """Return the number of each token's word in its text, `NO_WORD` for special tokens: (B, T)."""
    first = np.zeros(ids.shape, dtype=bool)
    first[:, :1] = True
    starts = word_starts(ids.ravel(), first.ravel(), vocabulary).reshape(ids.shape)
    words = np.cumsum(starts, axis=1) - 1
    words[vocabulary.special[ids]] = NO_WORD
    return words


def word_sizes(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens per word: (B, T) -> (B, W), 0 past a text's last word; W is at least 1."""
    width = int(words.max(initial=0)) + 1
    rows = np.arange(len(words))[:, None] * width
    flat = (words + rows)[words != NO_WORD]
    sizes: NDArray[np.int64] = np.bincount(flat, minlength=len(words) * width).reshape(-1, width)
    return sizes


def budgets(rate: float, pieces: Ids) -> NDArray[np.int64]:
    """Return how many tokens to mask: rounded half to even, at least one. (B,) -> (B,).

    >>> budgets(0.5, np.array([5, 7])), budgets(0.15, np.array([3]))
    (array([2, 4]), array([1]))
    """
    counts: NDArray[np.int64] = np.maximum(1, np.rint(rate * pieces)).astype(np.int64)
    return counts


def uniform_masks(words: NDArray[np.int64], limits: Ids, draws: Draws) -> Mask:
    """Mask words in random order up to the budget; skip a word that would exceed it.

    Args:
        words: (B, T) from `words_of`.
        limits: (B,) from `budgets`, which counts special tokens inside a text as the released code
            does.
        draws: (B, W or more).

    Returns:
        (B, T).
    """
    sizes = word_sizes(words)
    order = _order(draws[:, : sizes.shape[1]], sizes)
    chosen = fill_budgets(np.take_along_axis(sizes, order, axis=1), np.minimum(limits, MOST))
    return _covering(words, order, chosen)


def fill_budgets(sizes: NDArray[np.int64], limits: Ids) -> Mask:
    """Take from the left what still fits: (N, W) sizes, (N,) limits -> (N, W).

    >>> fill_budgets(np.array([[2, 3, 1, 1]]), np.array([4]))
    array([[ True, False,  True,  True]])
    """
    total = np.cumsum(sizes, axis=1, dtype=sizes.dtype)
    within = total <= limits[:, None]
    taken = within & (sizes > 0)
    last = within.sum(axis=1) - 1
    left = limits - np.where(last >= 0, total[np.arange(len(sizes)), last], 0)
    active = np.flatnonzero(left > 0)
    while len(active):
        # what was skipped stays too large, since the remaining budget only shrinks
        rest = sizes[active]
        fits = (rest <= left[active, None]) & (rest > 0) & ~taken[active]
        found = fits.any(axis=1)
        active, places = active[found], fits[found].argmax(axis=1)
        taken[active, places] = True
        left[active] -= sizes[active, places]
        active = active[left[active] > 0]
    return taken


def uniform_samples(words: NDArray[np.int64], limit: int, draws: NDArray[np.uint32]) -> Mask:
    """Draw many uniform masks of one text, distributed as by `uniform_masks`.

    32-bit draws take a fourth of the time; equal draws, once in millions of pairs, keep the order.

    Args:
        words: (T,) from `words_of`.
        limit: most tokens of a mask.
        draws: (S, W).

    Returns:
        (S, T).
    """
    count, width = draws.shape
    sizes = word_sizes(words[None])[0].astype(np.int32)
    low = np.uint32((1 << width.bit_length()) - 1)
    order = np.sort((draws & ~low) | np.arange(width, dtype=np.uint32), axis=1) & low
    by_word = np.zeros((count, width + 1), dtype=bool)  # the last column: no word
    places = order.astype(np.int64) + np.arange(count)[:, None] * (width + 1)
    chosen = fill_budgets(sizes.take(order), np.full(count, min(limit, MOST)))
    by_word.reshape(-1)[places] = chosen
    covered: Mask = by_word[:, words]
    return covered


def keyword_masks(
    words: NDArray[np.int64], weights: NDArray[np.floating[Any]], rate: float, draws: Draws
) -> Mask:
    """Draw words in proportion to their weights, without replacement, until the budget is met.

    The last word may exceed it. The budget counts tokens that belong to words.

    Args:
        words: (B, T) from `words_of`.
        weights: (B, W), at least 0.
        rate: share of the tokens.
        draws: (B, W or more).

    Returns:
        (B, T).
    """
    sizes = word_sizes(words)
    weights = np.maximum(weights[:, : sizes.shape[1]], LIGHTEST)
    # sorted exponential variates give weighted sampling without replacement
    times = (0.0 - np.log(shares(draws[:, : sizes.shape[1]]))) / weights
    order = _order(times.view(np.uint64), sizes)  # positive floats sort as their bits do
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    limits = budgets(rate, sizes.sum(axis=1))
    return _covering(words, order, (before < limits[:, None]) & (ordered > 0))


def shares(draws: Draws) -> NDArray[np.floating[Any]]:
    """Convert random integers to numbers above 0, at most 1."""
    numbers: NDArray[np.floating[Any]] = ((draws >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    return numbers


def complements(masks: Mask, words: NDArray[np.int64]) -> Mask:
    """Return all unmasked tokens of words (MASTER's contextual prediction)."""
    left: Mask = ~masks & (words != NO_WORD)
    return left


def _order(keys: Draws, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's words by ascending key, absent ones last: (N, W) -> (N, W).

    The word's number replaces the lowest bits of its key: a plain sort is faster than argsort.
    """
    width = sizes.shape[1]
    low = np.uint64((1 << width.bit_length()) - 1)
    keys = np.where(sizes > 0, keys, ALL_BITS) & ~low
    keys |= np.arange(width, dtype=np.uint64)
    keys.sort(axis=1)
    order: NDArray[np.int64] = (keys & low).view(np.int64)
    return order


def _covering(words: NDArray[np.int64], order: NDArray[np.int64], chosen: Mask) -> Mask:
    """Return the tokens of the chosen words, `chosen` being in the given order: (B, T)."""
    by_word = np.zeros((len(order), order.shape[1] + 1), dtype=bool)  # the last column: no word
    np.put_along_axis(by_word, order, chosen, axis=1)
    covered: Mask = np.take_along_axis(by_word, words, axis=1)
    return covered


def corrupt(
    ids: Ids, masks: Mask, vocabulary: SubwordTokens, draws: Draws, *, all_mask: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return masked ids and labels: 80 % [MASK], 10 % a random token, 10 % unchanged.

    Args:
        ids: (B, T).
        masks: (B, T).
        vocabulary: the tokenizer's entries.
        draws: (B, T or more).
        all_mask: replace all masked tokens by [MASK] (SimLM).

    Returns:
        Two (B, T) arrays; labels are -100 where nothing is masked.
    """
    seen = ids.astype(np.int64)
    labels = np.where(masks, seen, IGNORED)
    if all_mask:
        seen[masks] = vocabulary.mask_id
        return seen, labels
    # the upper 32 bits decide the fate, the lower 32 bits the random token
    words = draws[:, : ids.shape[1]][masks]
    fate = (words >> np.uint64(32)) * 2.0**-32
    token = ((words & np.uint64(2**32 - 1)) * np.uint64(vocabulary.size)) >> np.uint64(32)
    kept = np.where(fate < MASKED + RANDOM, token.astype(np.int64), labels[masks])
    seen[masks] = np.where(fate < MASKED, vocabulary.mask_id, kept)
    return seen, labels
