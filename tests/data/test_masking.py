"""Masks against the papers' laws and numbers; a text's mask depends on no other text."""

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
    budgets,
    complements,
    corrupt,
    entries_of,
    fill_budgets,
    keyword_masks,
    shares,
    uniform_masks,
    words_of,
)
from denserk.errors import ModelError
from tests.conftest import VOCABULARY
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert", VOCABULARY)
TOKENS = entries_of(TOKENIZER)
PIECES = SubwordTokens.of(TOKENIZER)
DRAWS = 4000


def draws(seed, rows, width):
    """Random words as good as any."""
    return np.random.default_rng(seed).integers(2**64, size=(rows, width), dtype=np.uint64)


def words_from(tokens):
    """Word numbers of written-out pieces."""
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
        words = np.tile(words_from(case["tokens"]), (DRAWS, 1))
        limits = budgets(case["mask_rate"], np.full(DRAWS, words.shape[1]))
        assert set(limits.tolist()) == {case["budget"]}
        matches(uniform_masks(words, limits, draws(1, *words.shape)), case["distribution"])


def test_keyword_masks_of_the_example(specs):
    for case in json.loads((specs / "master_example.json").read_text())["keyword_masking"]:
        words = np.tile(words_from(case["tokens"]), (DRAWS, 1))
        weights = np.tile(np.array(case["weights"]), (DRAWS, 1))
        masks = keyword_masks(words, weights, case["mask_rate"], draws(2, *words.shape))
        matches(masks, case["distribution"])


def test_complement_of_the_example(specs):
    case = json.loads((specs / "master_example.json").read_text())["complementary_masking"]
    words = words_from(case["tokens"])[None]
    found = complements(np.array([case["encoder_mask_example"]], dtype=bool), words)
    expected = case["decoder_mask_after_removing_special_tokens"]
    assert found.astype(int).tolist() == [expected]


TEXTS = st.lists(
    st.lists(st.integers(0, len(PIECES.special) - 1), max_size=40), min_size=1, max_size=4
)
RATES = st.sampled_from([0.15, 0.3, 0.5, 0.9])
SEEDS = st.integers(0, 2**32)


def padded(texts):
    """(B, T) ids, at least one column wide."""
    ids = np.full((len(texts), max(1, *map(len, texts), 1)), PIECES.pad_id)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids


def lengths(texts):
    return np.array([len(text) for text in texts])


@given(TEXTS)
def test_words_are_runs_of_a_beginning_and_what_continues_it(texts):
    found = words_of(padded(texts), PIECES)
    for text, words in zip(texts, found, strict=True):
        assert words[: len(text)].tolist() == words_from([TOKENS[i] for i in text]).tolist()
        assert (words[len(text) :] == NO_WORD).all()


@given(TEXTS)
def test_pieces_as_words_of_their_own(texts):
    words = words_of(padded(texts), PIECES.singly())
    for row in words:
        assert row[row != NO_WORD].tolist() == list(range((row != NO_WORD).sum()))


def walked(sizes, limit):
    """The budget's law, word by word."""
    taken, covered = [], 0
    for size in sizes:
        fits = size > 0 and covered + size <= limit
        covered += size * fits
        taken.append(bool(fits))
    return taken


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_budgets_are_filled_as_by_a_walk(sizes, limit):
    found = fill_budgets(np.array(sizes), np.full(len(sizes), limit))
    assert found.tolist() == [walked(row, limit) for row in sizes]


@given(TEXTS, RATES, SEEDS)
def test_uniform_masks_keep_the_law(texts, rate, seed):
    all_words = words_of(padded(texts), PIECES)
    limits = budgets(rate, lengths(texts))
    masks = uniform_masks(all_words, limits, draws(seed, *all_words.shape))
    for words, mask, limit in zip(all_words, masks, limits, strict=True):
        assert mask.sum() <= limit
        assert not mask[words == NO_WORD].any()
        whole = [mask[words == w] for w in range(words.max() + 1)]
        assert all(len(set(word.tolist())) == 1 for word in whole)
        assert all(len(word) > limit - mask.sum() for word in whole if not word.any())


@given(TEXTS, RATES, SEEDS)
def test_keyword_masks_cover_the_budget(texts, rate, seed):
    all_words = words_of(padded(texts), PIECES)
    weights = 1 / (1 + np.arange(all_words.shape[1])) * np.ones((len(texts), 1))
    masks = keyword_masks(all_words, weights, rate, draws(seed, *all_words.shape))
    for words, mask in zip(all_words, masks, strict=True):
        assert not mask[words == NO_WORD].any()
        whole = [mask[words == w] for w in range(words.max() + 1)]
        assert all(len(set(word.tolist())) == 1 for word in whole)
        if whole:
            limit = budgets(rate, np.array([(words != NO_WORD).sum()]))[0]
            assert mask.sum() >= limit
            assert mask.sum() - max(len(word) for word in whole if word.all()) < limit


@given(TEXTS, TEXTS, RATES, SEEDS)
def test_a_text_is_masked_alike_in_any_company(texts, others, rate, seed):
    together = words_of(padded(texts + others), PIECES)
    numbers = draws(seed, *together.shape)
    weights = shares(numbers)
    limits = budgets(rate, lengths(texts + others))
    for row, text in enumerate(texts):
        alone, cut, own = words_of(padded([text]), PIECES), slice(row, row + 1), slice(len(text))
        pairs = (
            (
                uniform_masks(together, limits, numbers),
                uniform_masks(alone, limits[cut], numbers[cut]),
            ),
            (
                keyword_masks(together, weights, rate, numbers),
                keyword_masks(alone, weights[cut], rate, numbers[cut]),
            ),
        )
        for whole, part in pairs:
            assert whole[row, own].tolist() == part[0, own].tolist()


@given(TEXTS, SEEDS)
def test_a_mask_and_its_complement_are_all_words(texts, seed):
    words = words_of(padded(texts), PIECES)
    masks = uniform_masks(words, budgets(0.3, lengths(texts)), draws(seed, *words.shape))
    others = complements(masks, words)
    assert not (masks & others).any()
    assert ((masks | others) == (words != NO_WORD)).all()


def test_keywords_without_weight_come_last():
    words = np.tile(np.arange(4), (200, 1))
    weights = np.tile([0.0, 1.0, 0.0, 2.0], (200, 1))
    masks = keyword_masks(words, weights, 0.75, draws(0, 200, 4))
    assert masks[:, [1, 3]].all()
    assert 50 < masks[:, 0].sum() < 150


def test_masks_stop_at_512_pieces():
    words = np.arange(2000)[None]
    assert uniform_masks(words, np.array([1000]), draws(0, 1, 2000)).sum() == 512


def test_eight_in_ten_one_in_ten_one_in_ten():
    ids = np.full((100, 1000), 20)
    masks = np.arange(ids.size).reshape(ids.shape) % 2 == 0
    seen, labels = corrupt(ids, masks, PIECES, draws(0, *ids.shape))
    assert (labels[masks] == 20).all()
    assert (labels[~masks] == IGNORED).all()
    assert (seen[~masks] == 20).all()
    count = masks.sum()
    found = (seen[masks] == PIECES.mask_id).mean(), (seen[masks] == 20).mean()
    size = PIECES.size
    for share, expected in zip(found, (0.8 + 0.1 / size, 0.1 + 0.1 / size), strict=True):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / count)
    rest = seen[masks & (seen != PIECES.mask_id) & (seen != 20)]
    assert len(set(rest.tolist())) == size - 2


def test_all_mask_hides_every_one():
    ids, masks = np.array([[20, 21, 22]]), np.array([[True, False, True]])
    seen, labels = corrupt(ids, masks, PIECES, draws(0, 1, 3), all_mask=True)
    assert seen.tolist() == [[PIECES.mask_id, 21, PIECES.mask_id]]
    assert labels.tolist() == [[20, IGNORED, 22]]


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


def test_byte_level_pieces_begin_words_with_the_mark_of_a_space():
    pieces = SubwordTokens.of(ByteLevel())
    words = words_of(np.array([[3, 2, 3, 0, 3, 4]]), pieces)
    assert words.tolist() == [[0, 1, 1, NO_WORD, 2, 3]]


def test_a_vocabulary_without_a_mask_is_refused():
    tokenizer = ByteLevel()
    tokenizer.mask_token_id = None
    with pytest.raises(ModelError, match="the tokenizer has no mask_token, which masking needs"):
        SubwordTokens.of(tokenizer)
