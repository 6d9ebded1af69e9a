import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.masking import (
    IGNORED,
    NO_WORD,
    Pieces,
    budget,
    complement,
    corrupt,
    keyword_mask,
    uniform_mask,
    words_of,
)
from tests.conftest import VOCABULARY
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer("bert", VOCABULARY)
TOKENS = [t or "?" for t in TOKENIZER.convert_ids_to_tokens(list(range(len(TOKENIZER))))]
PIECES = Pieces.of(TOKENIZER)
DRAWS = 4000


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


def frequencies(draw):
    """How often each mask comes out."""
    found: dict[tuple[int, ...], int] = {}
    for seed in range(DRAWS):
        mask = tuple(draw(np.random.default_rng(seed)).astype(int).tolist())
        found[mask] = found.get(mask, 0) + 1
    return found


def matches(found, distribution):
    """Every frequency is within five standard deviations of its probability."""
    expected = {tuple(case["mask"]): case["probability"] for case in distribution}
    assert found.keys() <= expected.keys()
    for mask, probability in expected.items():
        deviation = math.sqrt(probability * (1 - probability) * DRAWS)
        assert abs(found.get(mask, 0) - probability * DRAWS) <= 5 * deviation + 1


def test_uniform_masks_of_the_example(specs):
    for case in json.loads((specs / "condenser_example.json").read_text())["whole_word_mask"]:
        words = words_from(case["tokens"])
        assert budget(case["mask_rate"], len(words)) == case["budget"]
        found = frequencies(lambda rng, w=words, c=case: uniform_mask(w, c["mask_rate"], rng))
        matches(found, case["distribution"])


def test_keyword_masks_of_the_example(specs):
    for case in json.loads((specs / "master_example.json").read_text())["keyword_masking"]:
        words = words_from(case["tokens"])
        found = frequencies(
            lambda rng, w=words, c=case: keyword_mask(w, c["weights"], c["mask_rate"], rng)
        )
        matches(found, case["distribution"])


def test_complement_of_the_example(specs):
    case = json.loads((specs / "master_example.json").read_text())["complementary_masking"]
    words = words_from(case["tokens"])
    found = complement(np.array(case["encoder_mask_example"], dtype=bool), words)
    expected = case["decoder_mask_after_removing_special_tokens"]
    assert found.astype(int).tolist() == expected


TEXTS = st.lists(st.integers(0, len(PIECES.special) - 1), min_size=1, max_size=40).map(np.array)
RATES = st.sampled_from([0.15, 0.3, 0.5, 0.9])


@given(TEXTS)
def test_words_are_runs_of_a_beginning_and_what_continues_it(ids):
    words = words_of(ids, PIECES)
    tokens = [TOKENS[i] for i in ids]
    assert words.tolist() == words_from(tokens).tolist()


@given(TEXTS, RATES, st.integers(0, 2**32))
def test_uniform_masks_keep_the_law(ids, rate, seed):
    words = words_of(ids, PIECES)
    mask = uniform_mask(words, rate, np.random.default_rng(seed))
    limit = budget(rate, len(ids))
    assert mask.sum() <= limit
    assert not mask[words == NO_WORD].any()
    left = [int((words == w).sum()) for w in range(words.max() + 1) if not mask[words == w].any()]
    assert all(size > limit - mask.sum() for size in left)
    for word in range(words.max() + 1):
        assert mask[words == word].all() or not mask[words == word].any()


@given(TEXTS, RATES, st.integers(0, 2**32))
def test_keyword_masks_cover_the_budget(ids, rate, seed):
    words = words_of(ids, PIECES)
    count = words.max() + 1
    weights = [1 + word / count for word in range(count)]
    mask = keyword_mask(words, weights, rate, np.random.default_rng(seed))
    real = int((words != NO_WORD).sum())
    assert not mask[words == NO_WORD].any()
    if real:
        assert mask.sum() >= budget(rate, real)
        masked = [int((words == w).sum()) for w in range(count) if mask[words == w].any()]
        assert mask.sum() - max(masked) < budget(rate, real)


@given(TEXTS, st.integers(0, 2**32))
def test_a_mask_and_its_complement_are_all_words(ids, seed):
    words = words_of(ids, PIECES)
    mask = uniform_mask(words, 0.3, np.random.default_rng(seed))
    other = complement(mask, words)
    assert not (mask & other).any()
    assert ((mask | other) == (words != NO_WORD)).all()


def test_eight_in_ten_one_in_ten_one_in_ten():
    ids = np.full(100_000, 20)
    mask = np.arange(len(ids)) % 2 == 0
    seen, labels = corrupt(ids, mask, PIECES, np.random.default_rng(0))
    assert (labels[mask] == 20).all()
    assert (labels[~mask] == IGNORED).all()
    assert (seen[~mask] == 20).all()
    count = mask.sum()
    shares = (seen[mask] == PIECES.mask_id).mean(), (seen[mask] == 20).mean()
    size = len(PIECES.special)
    for share, expected in zip(shares, (0.8 + 0.1 / size, 0.1 + 0.1 / size), strict=True):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / count)
    rest = seen[mask & (seen != PIECES.mask_id) & (seen != 20)]
    assert len(set(rest.tolist())) == size - 2


def test_all_mask_hides_every_one():
    ids, mask = np.array([20, 21, 22]), np.array([True, False, True])
    seen, labels = corrupt(ids, mask, PIECES, np.random.default_rng(0), all_mask=True)
    assert seen.tolist() == [PIECES.mask_id, 21, PIECES.mask_id]
    assert labels.tolist() == [20, IGNORED, 22]


def test_the_same_seed_gives_the_same_mask():
    words = np.arange(50)
    first, second, other = (
        uniform_mask(words, 0.3, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_byte_level_pieces_begin_words_with_the_mark_of_a_space():
    class ByteLevel:
        all_special_ids = (0, 1)
        mask_token_id = 1
        tokens = ("<s>", "<mask>", "\u0120river", "bank", "\u0120old")

        def __len__(self):
            return len(self.tokens)

        def convert_ids_to_tokens(self, ids):
            return [self.tokens[i] for i in ids]

    pieces = Pieces.of(ByteLevel())
    assert words_of(np.array([3, 2, 3, 0, 3, 4]), pieces).tolist() == [0, 1, 1, NO_WORD, 2, 3]
