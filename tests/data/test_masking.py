"""Masks, word counts and keyword weights, against plain counts and the papers' formulas."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.pretraining import KeywordWeight, Masking, MaskingSettings
from denserk.data.masking import (
    MISSING,
    NO_WORD,
    KeywordWeights,
    SubwordTokens,
    WordCounter,
    corrupt,
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
    places = [
        np.flatnonzero(words == number).tolist() for number in range(words.max(initial=-1) + 1)
    ]
    assert places == words_from(text)
    [alone] = words_of(text[None], SubwordTokens.of(TOKENIZER, Masking.TOKEN))
    assert alone[alone != NO_WORD].tolist() == list(range((alone != NO_WORD).sum()))


def test_eight_in_ten_one_in_ten_one_in_ten():
    ids = np.full(100_000, 20)
    mask = np.arange(len(ids)) % 2 == 0
    seen = corrupt(ids, mask, ENTRIES, *np.random.default_rng(0).random((2, len(ids))))
    assert (seen[~mask] == 20).all()
    size = ENTRIES.size
    found = (seen[mask] == ENTRIES.mask_id).mean(), (seen[mask] == 20).mean()
    for share, expected in zip(found, (0.8 + 0.1 / size, 0.1 + 0.1 / size), strict=True):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / mask.sum())
    rest = np.setdiff1d(seen[mask], [ENTRIES.mask_id, 20])
    assert len(rest) == size - 2


def names_of_words(ids):
    """The words of a text, the marks of their tokens kept."""
    return ["".join(NAMES[ids[place]] for place in word) for word in words_from(ids)]


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
    numbers = [counter.add(text) for text in texts]
    rows = list(counter.rows())
    words = list(map(names_of_words, texts))
    occurrences = Counter(word for text in words for word in text)
    holding = Counter(word for text in words for word in set(text))
    expected = {word: (occurrences[word], holding[word]) for word in occurrences}
    assert rows[0] == {"word": "", "count": 0, "texts": 0}
    assert {row["word"]: (row["count"], row["texts"]) for row in rows[1:]} == expected
    for text, own, found in zip(texts, words, numbers, strict=True):
        by_place = [""] * len(text)
        for word, places in zip(own, words_from(text), strict=True):
            for place in places:
                by_place[place] = word
        assert [rows[number]["word"] for number in found] == by_place


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path, [{"text": ids_of(text)} for text in CORPUS])


def weights_of(store, settings, row, start=0, end=None):
    text, numbers = store.texts[row], store.word_numbers[row]
    crop = Crops([text], np.array([start]), np.array([len(text) if end is None else end]))
    weigh = KeywordWeights(store.words, len(store), settings)
    words = words_of(np.array(crop.of([text])), ENTRIES)
    in_corpus = np.array(crop.of([numbers]))
    return weigh(in_corpus, words, crop.cut_words(ENTRIES))[0].tolist()


def test_weights(store, tmp_path):
    counts = Counter(word for text in WORDS for word in text)
    holding = Counter(word for text in WORDS for word in set(text))
    table = tmp_path / "frequencies.json"
    table.write_text(json.dumps({"the": 1000, "fran##ce": 10}))
    given = {"the": 0.001, "fran##ce": 0.1}
    inverse = MaskingSettings(keyword_weight=INVERSE)
    of_table = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    for row, words in enumerate(WORDS):
        tfidf = [words.count(w) * math.log(len(CORPUS) / holding[w]) for w in words]
        assert weights_of(store, MaskingSettings(), row) == pytest.approx(tfidf)
        assert weights_of(store, inverse, row) == pytest.approx([1 / counts[w] for w in words])
        assert weights_of(store, of_table, row) == [given.get(w, MISSING) for w in words]


@pytest.mark.parametrize(
    ("start", "end", "whole", "cut"),
    [
        (0, 3, [1 / 5, 1.0], [1 / 5, MISSING]),  # the guitar ##ist
        (2, 5, [1.0, 1 / 3], [MISSING, 1 / 3]),  # ##ist ##s of
        (3, 6, [1.0, 1 / 3, 1 / 2], [MISSING, 1 / 3, MISSING]),  # ##s of fran
        (4, 7, [1 / 3, 1 / 2], [1 / 3, 1 / 2]),  # of fran ##ce
        (6, 7, [1 / 2], [MISSING]),  # ##ce
    ],
)
def test_fragments_weigh_what_their_word_weighs_or_one(store, start, end, whole, cut):
    for weigh, expected in ((True, whole), (False, cut)):
        settings = MaskingSettings(keyword_weight=INVERSE, weigh_fragments=weigh)
        assert weights_of(store, settings, 1, start, end) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["[1]", '{"the": 0}', '{"the": true}', "{"])
def test_what_is_no_table(store, tmp_path, text):
    table = tmp_path / "frequencies.json"
    table.write_text(text)
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    with pytest.raises(InputError, match=r"frequencies.json: found"):
        KeywordWeights(store.words, len(store), settings)
