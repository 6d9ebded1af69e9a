"""Which pieces of texts are masked: pure functions of their ids and of random words.

Whole words are chosen, never single pieces of one; special tokens are never masked and never
labelled. The laws are Condenser's (Gao and Callan, 2021, with the authors' code) for the uniform
choice, and MASTER's (Zhou et al., 2023) for keywords and complements. Texts here are their pieces
alone, without the added [CLS] and [SEP], as one array (B, T) whose padding is a special token. The
random words are arrays of uint64 (see `sampling.random_words`): what becomes of a text depends on
its own row of them, and not on the texts beside it.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import ModelError

Ids = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]
Draws = NDArray[np.uint64]
NO_WORD = -1
MOST = 512
"""A uniform mask covers no more pieces than this."""
MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen pieces that become [MASK], and a random token; the rest stays as it is."""
IGNORED = -100
"""The label of a position without one."""
LIGHTEST = 1e-9
"""The least weight of a keyword: one that weighs nothing is drawn after all others."""
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


def entries_of(tokenizer: Any) -> list[str]:
    """A vocabulary's entries by id; an id that stands for nothing is empty."""
    entries = tokenizer.get_vocab()
    names = [""] * max(len(tokenizer), max(entries.values()) + 1)
    for name, number in entries.items():
        names[number] = name
    return names


class SubwordTokens(NamedTuple):
    """What a vocabulary says of its entries, as arrays over ids.

    `continues`: the entry continues the word before it. `special`: it is no part of any word.
    `size`: how many entries there are, from which random tokens are drawn.
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
        """Reads a fast tokenizer: WordPiece's "##" continues, and what lacks the mark of a space.

        Byte-level vocabularies (RoBERTa's) mark a word's beginning in place of its continuation;
        the first piece of a text begins a word either way.

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
        marks_beginnings = any(token.startswith("\u0120") for token in tokens)
        if marks_beginnings:
            continues = np.array([not token.startswith("\u0120") for token in tokens])
        else:
            continues = np.array([token.startswith("##") for token in tokens])
        special = np.zeros(len(tokens), dtype=bool)
        special[list(tokenizer.all_special_ids)] = True
        cls_id, sep_id, mask_id, pad_id = (int(getattr(tokenizer, role)) for role in roles)
        inside = continues & ~special
        return cls(inside, special, cls_id, sep_id, mask_id, pad_id, len(tokenizer))

    def singly(self) -> "SubwordTokens":
        """The same vocabulary with every piece a word of its own."""
        return self._replace(continues=np.zeros_like(self.continues))


def word_starts(ids: Ids, first: Mask, vocabulary: SubwordTokens) -> Mask:
    """Where words begin: (N,) ids of texts one after another -> (N,).

    A piece that continues a word but stands first in its text, or behind a special token, begins
    one. A special token is no word.

    Args:
        ids: (N,).
        first: (N,) whether an id is the first of its text.
        vocabulary: the tokenizer's entries.
    """
    special = vocabulary.special[ids]
    starts = ~vocabulary.continues[ids] | first
    starts[1:] |= special[:-1]
    starts &= ~special
    return starts


def words_of(ids: Ids, vocabulary: SubwordTokens) -> NDArray[np.int64]:
    """The number of each piece's word in its text, from 0; `NO_WORD` for special tokens.

    (B, T) -> (B, T).
    """
    first = np.zeros(ids.shape, dtype=bool)
    first[:, :1] = True
    starts = word_starts(ids.ravel(), first.ravel(), vocabulary).reshape(ids.shape)
    words = np.cumsum(starts, axis=1) - 1
    words[vocabulary.special[ids]] = NO_WORD
    return words


def word_sizes(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """SubwordTokens of each word: (B, T) -> (B, W), 0 past a text's last word; W is at least 1."""
    width = int(words.max(initial=0)) + 1
    rows = np.arange(len(words))[:, None] * width
    flat = (words + rows)[words != NO_WORD]
    sizes: NDArray[np.int64] = np.bincount(flat, minlength=len(words) * width).reshape(-1, width)
    return sizes


def budgets(rate: float, pieces: Ids) -> NDArray[np.int64]:
    """How many pieces to mask: the rate's share, rounded half to even, at least one. (B,) -> (B,).

    >>> budgets(0.5, np.array([5, 7])), budgets(0.15, np.array([3]))
    (array([2, 4]), array([1]))
    """
    counts: NDArray[np.int64] = np.maximum(1, np.rint(rate * pieces)).astype(np.int64)
    return counts


def uniform_masks(words: NDArray[np.int64], limits: Ids, draws: Draws) -> Mask:
    """Whole words in random order until the budget is met; one that would exceed it is skipped.

    Args:
        words: (B, T) from `words_of`.
        limits: (B,) from `budgets`, which counts special tokens that stand inside a text, as the
            released code does.
        draws: (B, W or more).

    Returns:
        (B, T).
    """
    sizes = word_sizes(words)
    order = _order(draws[:, : sizes.shape[1]], sizes)
    chosen = fill_budgets(np.take_along_axis(sizes, order, axis=1), np.minimum(limits, MOST))
    return _covering(words, order, chosen)


def fill_budgets(sizes: NDArray[np.int64], limits: Ids) -> Mask:
    """Takes from the left what still fits, until nothing does: (N, W) sizes, (N,) limits -> (N, W).

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
        # what is skipped once stays too large, as the room only shrinks
        rest = sizes[active]
        fits = (rest <= left[active, None]) & (rest > 0) & ~taken[active]
        found = fits.any(axis=1)
        active, places = active[found], fits[found].argmax(axis=1)
        taken[active, places] = True
        left[active] -= sizes[active, places]
        active = active[left[active] > 0]
    return taken


def uniform_samples(words: NDArray[np.int64], limit: int, draws: NDArray[np.uint32]) -> Mask:
    """Many uniform masks of one text, by the law of `uniform_masks`.

    Half a random word orders a word of the text, which is a fourth of the work; that two halves
    are alike, once in millions of pairs, leaves the words in their order.

    Args:
        words: (T,) from `words_of`.
        limit: most pieces of a mask.
        draws: (S, W) for each mask and word.

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
    """Words drawn in proportion to their weights, without replacement, until the budget is met.

    The last word may overshoot; nothing is skipped. The budget counts pieces that belong to words.

    Args:
        words: (B, T) from `words_of`.
        weights: (B, W) of each word, at least 0.
        rate: share of the pieces.
        draws: (B, W or more).

    Returns:
        (B, T).
    """
    sizes = word_sizes(words)
    weights = np.maximum(weights[:, : sizes.shape[1]], LIGHTEST)
    # exponential clocks ring in the order of weighted draws without replacement
    clocks = (0.0 - np.log(shares(draws[:, : sizes.shape[1]]))) / weights
    order = _order(clocks.view(np.uint64), sizes)  # positive floats sort as their bits do
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    limits = budgets(rate, sizes.sum(axis=1))
    return _covering(words, order, (before < limits[:, None]) & (ordered > 0))


def shares(draws: Draws) -> NDArray[np.floating[Any]]:
    """Random words as numbers above 0, at most 1."""
    numbers: NDArray[np.floating[Any]] = ((draws >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    return numbers


def complements(masks: Mask, words: NDArray[np.int64]) -> Mask:
    """All pieces of words that masks leave (MASTER's contextual prediction)."""
    left: Mask = ~masks & (words != NO_WORD)
    return left


def _order(keys: Draws, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row's words by ascending key, absent ones last: (N, W) -> (N, W).

    A word's number takes the place of its key's lowest bits, so that one plain sort, which is far
    faster than an indirect one, orders both.
    """
    width = sizes.shape[1]
    low = np.uint64((1 << width.bit_length()) - 1)
    keys = np.where(sizes > 0, keys, ALL_BITS) & ~low
    keys |= np.arange(width, dtype=np.uint64)
    keys.sort(axis=1)
    order: NDArray[np.int64] = (keys & low).view(np.int64)
    return order


def _covering(words: NDArray[np.int64], order: NDArray[np.int64], chosen: Mask) -> Mask:
    """The pieces of words that were chosen in an order: (B, T)."""
    by_word = np.zeros((len(order), order.shape[1] + 1), dtype=bool)  # the last column: no word
    np.put_along_axis(by_word, order, chosen, axis=1)
    covered: Mask = np.take_along_axis(by_word, words, axis=1)
    return covered


def corrupt(
    ids: Ids, masks: Mask, vocabulary: SubwordTokens, draws: Draws, *, all_mask: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(what the model sees, what it must say): 80 % [MASK], 10 % a random token, 10 % as they are.

    Args:
        ids: (B, T).
        masks: (B, T).
        vocabulary: the tokenizer's entries.
        draws: (B, T or more).
        all_mask: every masked piece becomes [MASK] (SimLM).

    Returns:
        Two (B, T) arrays; labels are -100 where nothing is asked.
    """
    seen = ids.astype(np.int64)
    labels = np.where(masks, seen, IGNORED)
    if all_mask:
        seen[masks] = vocabulary.mask_id
        return seen, labels
    # the upper half of a word decides what happens, the lower half which token comes in
    words = draws[:, : ids.shape[1]][masks]
    fate = (words >> np.uint64(32)) * 2.0**-32
    token = ((words & np.uint64(2**32 - 1)) * np.uint64(vocabulary.size)) >> np.uint64(32)
    kept = np.where(fate < MASKED + RANDOM, token.astype(np.int64), labels[masks])
    seen[masks] = np.where(fate < MASKED, vocabulary.mask_id, kept)
    return seen, labels
