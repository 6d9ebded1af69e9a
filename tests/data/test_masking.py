"""Masks of a text against the papers' laws and numbers."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.masking import (
    IGNORED,
    NO_WORD,
    SubwordTokens,
    budget,
    corrupt,
    entries_of,
    fill_budgets,
    keyword_mask,
    uniform_masks,
    words_of,
)
from denserk.errors import ModelError
from tests.conftest import VOCABULARY
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert", VOCABULARY)
NAMES = entries_of(TOKENIZER)
ENTRIES = SubwordTokens.of(TOKENIZER)
DRAWS = 4000


def words_from(tokens):
    """Word numbers of written-out tokens."""
    words, number, inside = [], -1, False
    for token in tokens:
        special = token.startswith("[")
        if not special and not (token.startswith("##") and inside):
            number += 1
        inside = not special
        words.append(NO_WORD if special else number)
    return np.array(words)


def matches(masks, distribution):
    """Every frequency is within five standard deviations of its probability."""
    found, counts = np.unique(masks.astype(int), axis=0, return_counts=True)
    drawn = {tuple(mask.tolist()): count for mask, count in zip(found, counts, strict=True)}
    expected = {tuple(case["mask"]): case["probability"] for case in distribution}
    assert drawn.keys() <= expected.keys()
    for mask, probability in expected.items():
        deviation = math.sqrt(probability * (1 - probability) * DRAWS)
        assert abs(drawn.get(mask, 0) - probability * DRAWS) <= 5 * deviation + 1


def test_uniform_masks_of_the_example(specs):
    for case in json.loads((specs / "condenser_example.json").read_text())["whole_word_mask"]:
        words = words_from(case["tokens"])
        limit = budget(case["mask_rate"], len(words))
        assert limit == case["budget"]
        rng = np.random.default_rng(1)
        matches(uniform_masks(words, limit, rng, DRAWS), case["distribution"])


def test_keyword_masks_of_the_example(specs):
    for case in json.loads((specs / "master_example.json").read_text())["keyword_masking"]:
        words, weights = words_from(case["tokens"]), np.array(case["weights"], dtype=float)
        rng = np.random.default_rng(2)
        masks = [keyword_mask(words, weights, case["mask_rate"], rng) for _ in range(DRAWS)]
        matches(np.array(masks), case["distribution"])


TEXTS = st.lists(st.integers(0, len(NAMES) - 1), max_size=40).map(
    lambda ids: np.array(ids, dtype=np.int64)
)
RATES = st.sampled_from([0.15, 0.3, 0.5, 0.9])
SEEDS = st.integers(0, 2**32)


@given(TEXTS)
def test_words_are_runs_of_a_beginning_and_what_continues_it(text):
    assert words_of(text, ENTRIES).tolist() == words_from([NAMES[i] for i in text]).tolist()
    alone = words_of(text, ENTRIES.singly())
    assert alone[alone != NO_WORD].tolist() == list(range((alone != NO_WORD).sum()))


def walked(sizes, limit):
    """The budget's law, word by word."""
    taken, covered = [], 0
    for size in sizes:
        fits = covered + size <= limit
        covered += size * fits
        taken.append(fits)
    return taken


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=5, max_size=5), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_budgets_are_filled_as_by_a_walk(sizes, limit):
    found = fill_budgets(np.array(sizes), limit)
    assert found.tolist() == [walked(row, limit) for row in sizes]


def by_word(mask, words):
    """Whether each word is masked; no word is masked in part, and no special token."""
    assert not mask[words == NO_WORD].any()
    parts = [mask[words == number] for number in range(words.max(initial=-1) + 1)]
    assert all(len(set(part.tolist())) == 1 for part in parts)
    return [(bool(part[0]), len(part)) for part in parts]


@given(TEXTS, RATES, SEEDS)
def test_uniform_masks_keep_the_law(text, rate, seed):
    words, limit = words_of(text, ENTRIES), budget(rate, len(text))
    for mask in uniform_masks(words, limit, np.random.default_rng(seed), 3):
        left = limit - mask.sum()
        assert left >= 0
        assert all(size > left for masked, size in by_word(mask, words) if not masked)


@given(TEXTS, RATES, SEEDS)
def test_keyword_masks_cover_the_budget(text, rate, seed):
    words = words_of(text, ENTRIES)
    weights = 1 / np.arange(1.0, words.max(initial=-1) + 2)
    mask = keyword_mask(words, weights, rate, np.random.default_rng(seed))
    found = by_word(mask, words)
    if found:
        limit = budget(rate, int((words != NO_WORD).sum()))
        assert mask.sum() >= limit > mask.sum() - max(size for masked, size in found if masked)


def test_keywords_without_weight_come_last():
    rng, weights = np.random.default_rng(0), np.array([0.0, 1.0, 0.0, 2.0])
    masks = np.array([keyword_mask(np.arange(4), weights, 0.75, rng) for _ in range(200)])
    assert masks[:, [1, 3]].all()
    assert 50 < masks[:, 0].sum() < 150


def test_masks_stop_at_512_tokens():
    assert uniform_masks(np.arange(2000), 1000, np.random.default_rng(0)).sum() == 512


def test_eight_in_ten_one_in_ten_one_in_ten():
    ids = np.full(100_000, 20)
    mask = np.arange(len(ids)) % 2 == 0
    seen, labels = corrupt(ids, mask, ENTRIES, np.random.default_rng(0))
    assert (labels == np.where(mask, 20, IGNORED)).all()
    assert (seen[~mask] == 20).all()
    size = ENTRIES.size
    found = (seen[mask] == ENTRIES.mask_id).mean(), (seen[mask] == 20).mean()
    for share, expected in zip(found, (0.8 + 0.1 / size, 0.1 + 0.1 / size), strict=True):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / mask.sum())
    rest = np.setdiff1d(seen[mask], [ENTRIES.mask_id, 20])
    assert len(rest) == size - 2


def test_all_mask_hides_every_one():
    ids, mask = np.array([20, 21, 22]), np.array([True, False, True])
    seen, labels = corrupt(ids, mask, ENTRIES, np.random.default_rng(0), all_mask=True)
    assert seen.tolist() == [ENTRIES.mask_id, 21, ENTRIES.mask_id]
    assert labels.tolist() == [20, IGNORED, 22]


class ByteLevel:
    """A vocabulary that marks beginnings."""

    all_special_ids = (0, 1)
    cls_token_id = sep_token_id = pad_token_id = 0
    mask_token_id: int | None = 1
    tokens = ("<s>", "<mask>", "\u0120river", "bank", "\u0120old")

    def __len__(self):
        return len(self.tokens)

    def get_vocab(self):
        return {token: number for number, token in enumerate(self.tokens)}


def test_byte_level_tokens_begin_words_with_the_mark_of_a_space():
    words = words_of(np.array([3, 2, 3, 0, 3, 4]), SubwordTokens.of(ByteLevel()))
    assert words.tolist() == [0, 1, 1, NO_WORD, 2, 3]


def test_a_vocabulary_without_a_mask_is_rejected():
    tokenizer = ByteLevel()
    tokenizer.mask_token_id = None
    with pytest.raises(ModelError, match="the tokenizer has no mask_token, which masking needs"):
        SubwordTokens.of(tokenizer)
