"""Which pieces of a text are masked: pure functions of its ids and a random generator.

Whole words are chosen, never single pieces of one; special tokens are never masked and never
labelled. The laws are Condenser's (Gao and Callan, 2021, with the authors' code) for the uniform
choice, and MASTER's (Zhou et al., 2023) for keywords and complements. A text here is its pieces
alone, without the added [CLS] and [SEP].
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]
NO_WORD = -1
MOST = 512
"""A uniform mask covers no more pieces than this."""
MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen pieces that become [MASK], and a random token; the rest stays as it is."""
IGNORED = -100
"""The label of a position without one."""


class Pieces(NamedTuple):
    """What a vocabulary says of its entries, as arrays over ids.

    `continues`: the entry continues the word before it. `special`: it is no part of any word.
    `mask_id` is [MASK].
    """

    continues: Mask
    special: Mask
    mask_id: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Pieces":
        """Reads a fast tokenizer: WordPiece's "##" continues, and what lacks the mark of a space.

        Byte-level vocabularies (RoBERTa's) mark a word's beginning in place of its continuation;
        the first piece of a text begins a word either way.
        """
        names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        tokens = [name or "" for name in names]  # an id may stand for nothing
        marks_beginnings = any(token.startswith("\u0120") for token in tokens)
        if marks_beginnings:
            continues = np.array([not token.startswith("\u0120") for token in tokens])
        else:
            continues = np.array([token.startswith("##") for token in tokens])
        special = np.zeros(len(tokens), dtype=bool)
        special[list(tokenizer.all_special_ids)] = True
        return cls(continues & ~special, special, int(tokenizer.mask_token_id))


def words_of(ids: Ids, pieces: Pieces) -> NDArray[np.int64]:
    """The number of each piece's word, from 0; `NO_WORD` for special tokens. (T,) -> (T,).

    A piece that continues a word but stands first, or behind a special token, begins one.
    """
    special = pieces.special[ids]
    begins = ~pieces.continues[ids] | np.concatenate([[True], special[:-1]])
    words = np.cumsum(begins & ~special) - 1
    return np.where(special, NO_WORD, words)


def _sizes(words: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(words[words != NO_WORD])


def budget(rate: float, pieces: int) -> int:
    """How many pieces to mask: the rate's share, rounded half to even, at least one.

    >>> budget(0.5, 5), budget(0.15, 3)
    (2, 1)
    """
    return max(1, round(rate * pieces))


def uniform_mask(words: NDArray[np.int64], rate: float, rng: np.random.Generator) -> Mask:
    """Whole words in random order until the budget is met; one that would exceed it is skipped.

    The budget counts special tokens that stand inside the text, as the released code does.
    """
    limit = min(MOST, budget(rate, len(words)))
    sizes = _sizes(words)
    chosen = np.zeros(len(sizes), dtype=bool)
    covered = 0
    for word in rng.permutation(len(sizes)):
        if covered == limit:
            break
        if covered + sizes[word] <= limit:
            chosen[word] = True
            covered += int(sizes[word])
    return _covering(words, chosen)


def keyword_mask(
    words: NDArray[np.int64], weights: Sequence[float], rate: float, rng: np.random.Generator
) -> Mask:
    """Words drawn in proportion to their weights, without replacement, until the budget is met.

    The last word may overshoot; nothing is skipped. The budget counts pieces that belong to words.

    Args:
        words: from `words_of`.
        weights: of each word, positive.
        rate: share of the pieces.
        rng: where the draws come from.
    """
    sizes = _sizes(words)
    if not len(sizes):
        return np.zeros(len(words), dtype=bool)
    limit = budget(rate, int(sizes.sum()))
    # exponential clocks ring in the order of weighted draws without replacement
    order = np.argsort(rng.exponential(size=len(sizes)) / np.asarray(weights, dtype=np.float64))
    last = int(np.searchsorted(np.cumsum(sizes[order]), limit))
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[order[: last + 1]] = True
    return _covering(words, chosen)


def complement(mask: Mask, words: NDArray[np.int64]) -> Mask:
    """All pieces of words that a mask leaves (MASTER's contextual prediction)."""
    left: Mask = ~mask & (words != NO_WORD)
    return left


def _covering(words: NDArray[np.int64], chosen: Mask) -> Mask:
    covered: Mask = np.concatenate([chosen, [False]])[words]
    return covered


def corrupt(
    ids: Ids, mask: Mask, pieces: Pieces, rng: np.random.Generator, *, all_mask: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(what the model sees, what it must say): 80 % [MASK], 10 % a random token, 10 % as they are.

    Args:
        ids: (T,).
        mask: (T,).
        pieces: of the vocabulary.
        rng: where the draws come from.
        all_mask: every masked piece becomes [MASK] (SimLM).

    Returns:
        Two (T,) arrays; labels are -100 where nothing is asked.
    """
    seen = ids.astype(np.int64)
    labels = np.where(mask, seen, IGNORED)
    draw = rng.random(len(ids))
    hidden = mask if all_mask else mask & (draw < MASKED)
    seen[hidden] = pieces.mask_id
    swapped = mask & ~hidden & (draw < MASKED + RANDOM)
    seen[swapped] = rng.integers(len(pieces.special), size=int(swapped.sum()))
    return seen, labels
