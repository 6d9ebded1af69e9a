"""Masks, word counts and keyword weights, against plain counts and the papers' formulas."""

import json
import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from denserk.config.pretraining import KeywordWeight, Masking, MaskingSettings
from denserk.data.masking import (
    MISSING,
    NO_WORD,
    KeywordWeights,
    SubwordTokens,
    WordCounter,
    budget,
    corrupt,
    uniform_masks,
    words_of,
)
from denserk.data.pretraining_batches import Crops
from denserk.errors import InputError
from tests.support.prepared_texts import ENTRIES, NAMES, TOKENIZER, ids_of, store_of, words_from

TEXTS = st.lists(st.integers(0, len(NAMES) - 1), max_size=40).map(
    lambda ids: np.array(ids, dtype=np.int64)
)


@given(TEXTS)
def test_words_are_runs_of_a_beginning_and_what_continues_it(text):
    [words] = words_of(text[None], ENTRIES)
    word_count = words.max(initial=NO_WORD) + 1
    positions_of_words = [np.flatnonzero(words == word).tolist() for word in range(word_count)]
    assert positions_of_words == words_from(text)


@given(TEXTS)
def test_under_token_masking_each_token_is_a_word(text):
    [words] = words_of(text[None], SubwordTokens.of(TOKENIZER, Masking.TOKEN))
    words_of_tokens = words[words != NO_WORD]
    assert words_of_tokens.tolist() == list(range(len(words_of_tokens)))


def tokenizer_of(model, pre_tokenizer):
    """A tokenizer with BERT's special tokens, which are in the model's vocabulary."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def whole_words(tokenizer, text):
    """The words of a text, each as its tokens."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    [words] = words_of(np.array([ids]), SubwordTokens.of(tokenizer))
    tokens_of_words: list[list[str]] = [[] for _ in range(words.max() + 1)]
    for token, word in zip(tokenizer.convert_ids_to_tokens(ids), words, strict=True):
        tokens_of_words[word].append(token)
    return tokens_of_words


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_sentencepiece_marks_the_beginning_of_a_word():
    pieces = ["\u2581the", "\u2581gui", "tar", "ist", "\u2581\u6771", "\u4eac", "\u306f", "\u2581"]
    scores = [(piece, -1.0 - number) for number, piece in enumerate([*SPECIAL, *pieces])]
    model = models.Unigram(scores, unk_id=1, byte_fallback=False)
    tokenizer = tokenizer_of(model, pre_tokenizers.Metaspace())
    assert whole_words(tokenizer, "the guitarist the \u6771\u4eac\u306f") == [
        ["\u2581the"],
        ["\u2581gui", "tar", "ist"],
        ["\u2581the"],
        ["\u2581\u6771"],  # a character each, where no spaces part words
        ["\u4eac"],
        ["\u306f"],
    ]


def test_a_letter_of_wordpiece_is_no_mark_of_another_model():
    """The letter that marks a space in RoBERTa's vocabulary is one of Maltese."""
    names = [*SPECIAL, "the", "gui", "##tar", "##ist", "\u0120", "\u0120ust"]
    ids = {name: number for number, name in enumerate(names)}
    model = models.WordPiece(ids, unk_token="[UNK]")
    tokenizer = tokenizer_of(model, pre_tokenizers.BertPreTokenizer())
    assert whole_words(tokenizer, "the guitarist the \u0120ust") == [
        ["the"],
        ["gui", "##tar", "##ist"],
        ["the"],
        ["\u0120ust"],
    ]


def test_eight_in_ten_are_masks_one_in_ten_is_random_and_one_in_ten_stays():
    token = 20
    ids = np.full(100_000, token)
    mask = np.arange(len(ids)) % 2 == 0
    fate, random_token = np.random.default_rng(0).random((2, len(ids)))
    corrupted = corrupt(ids, mask, ENTRIES, fate, random_token)
    assert (corrupted[~mask] == token).all()
    size = ENTRIES.size  # a random token may be the token itself, or [MASK]
    shares = {ENTRIES.mask_id: 0.8 + 0.1 / size, token: 0.1 + 0.1 / size}
    for replacement, expected_share in shares.items():
        share = (corrupted[mask] == replacement).mean()
        deviation = math.sqrt(expected_share * (1 - expected_share) / mask.sum())
        assert abs(share - expected_share) < 5 * deviation
    random_tokens = np.setdiff1d(corrupted[mask], [ENTRIES.mask_id, token])
    assert len(random_tokens) == size - 2


def test_a_uniform_mask_covers_at_most_512_tokens():
    words = np.arange(1200)[None]
    mask = uniform_masks(
        words, budget(0.5, np.array([1200])), np.random.default_rng(0).random((1, 1200))
    )
    assert mask.sum() == 512


def names_of_words(ids):
    """The words of a text, with the marks of their tokens."""
    return ["".join(NAMES[ids[position]] for position in word) for word in words_from(ids)]


CORPUS = [
    "the capital of fran ##ce [SEP] the river of the capital",
    "the guitar ##ist ##s of fran ##ce",
    "the moon",
]
WORDS = [names_of_words(ids_of(text)) for text in CORPUS]
INVERSE = KeywordWeight.INVERSE_FREQUENCY


@given(
    st.lists(
        st.lists(st.sampled_from(ids_of("moon fran ##ce ##ist [SEP] [UNK] a")), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_counts_are_those_of_a_plain_count(texts):
    counter = WordCounter(ENTRIES)
    numbers_by_token = [counter.add(text) for text in texts]
    no_word, *rows = counter.rows()
    assert no_word == {"word": "", "count": 0, "texts": 0}
    counts: Counter[str] = Counter()
    text_counts: Counter[str] = Counter()
    for text in texts:
        counts.update(names_of_words(text))
        text_counts.update(set(names_of_words(text)))
    assert {row["word"]: row["count"] for row in rows} == counts
    assert {row["word"]: row["texts"] for row in rows} == text_counts
    for text, numbers in zip(texts, numbers_by_token, strict=True):
        words_by_token = [""] * len(text)
        for positions, word in zip(words_from(text), names_of_words(text), strict=True):
            for position in positions:
                words_by_token[position] = word
        names = ["", *(row["word"] for row in rows)]
        assert [names[number] for number in numbers] == words_by_token


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path, [{"text": ids_of(text)} for text in CORPUS])


def weights_of(store, settings, row, start=0, end=None):
    """The weights of the words of a text, or of its tokens start .. end - 1."""
    text = store.texts[row]
    if end is None:
        end = len(text)
    crop = Crops([text], np.array([start]), np.array([end]))
    words = words_of(np.array(crop.of([text])), ENTRIES)
    numbers_in_corpus = np.array(crop.of([store.word_numbers[row]]))
    keyword_weights = KeywordWeights(store.words, len(store), settings)
    [weights] = keyword_weights(numbers_in_corpus, words, crop.cut_words(ENTRIES))
    return weights.tolist()


def test_a_tfidf_weight_is_the_count_in_the_text_by_the_rarity_among_texts(store):
    texts_with_word = Counter(chain.from_iterable(map(set, WORDS)))
    for row, words in enumerate(WORDS):
        tfidf = [words.count(w) * math.log(len(CORPUS) / texts_with_word[w]) for w in words]
        assert weights_of(store, MaskingSettings(), row) == pytest.approx(tfidf)


def test_an_inverse_frequency_is_that_of_the_corpus(store):
    counts = Counter(chain.from_iterable(WORDS))
    settings = MaskingSettings(keyword_weight=INVERSE)
    for row, words in enumerate(WORDS):
        expected = [1 / counts[word] for word in words]
        assert weights_of(store, settings, row) == pytest.approx(expected)


def test_an_inverse_frequency_is_that_of_a_table(store, tmp_path):
    table = tmp_path / "frequencies.json"
    table.write_text(json.dumps({"the": 1000, "fran##ce": 10}))
    weight_by_word = {"the": 0.001, "fran##ce": 0.1}
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    for row, words in enumerate(WORDS):
        expected = [weight_by_word.get(word, MISSING) for word in words]
        assert weights_of(store, settings, row) == expected


@pytest.mark.parametrize(
    ("start", "end", "weights_of_words", "weights_of_fragments"),
    [
        (0, 3, [1 / 5, 1.0], [1 / 5, MISSING]),  # the guitar ##ist
        (2, 5, [1.0, 1 / 3], [MISSING, 1 / 3]),  # ##ist ##s of
        (3, 6, [1.0, 1 / 3, 1 / 2], [MISSING, 1 / 3, MISSING]),  # ##s of fran
        (4, 7, [1 / 3, 1 / 2], [1 / 3, 1 / 2]),  # of fran ##ce
        (6, 7, [1 / 2], [MISSING]),  # ##ce
    ],
)
def test_fragments_weigh_what_their_word_weighs_or_one(
    store, start, end, weights_of_words, weights_of_fragments
):
    settings = MaskingSettings(keyword_weight=INVERSE, weigh_fragments=True)
    assert weights_of(store, settings, 1, start, end) == pytest.approx(weights_of_words)
    settings = MaskingSettings(keyword_weight=INVERSE, weigh_fragments=False)
    assert weights_of(store, settings, 1, start, end) == pytest.approx(weights_of_fragments)


@pytest.mark.parametrize("text", ["[1]", '{"the": 0}', '{"the": true}', "{"])
def test_a_file_that_is_no_table_of_counts_is_rejected(store, tmp_path, text):
    table = tmp_path / "frequencies.json"
    table.write_text(text)
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    with pytest.raises(InputError, match=r"frequencies\.json"):
        KeywordWeights(store.words, len(store), settings)
