"""Word counts and weights, against plain counts and the formulas written out."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.pretraining import KeywordWeight, MaskingSettings
from denserk.data.keyword_weights import MISSING, KeywordWeights, WordCounter
from denserk.data.masking import words_of
from denserk.data.pretraining_batches import Crop
from denserk.errors import InputError, UsageError
from tests.data.prepared_texts import ENTRIES, NAMES, ids_of, names_of_words, store_of, words_from

TEXTS = [
    "the capital of fran ##ce [SEP] the river of the capital",
    "the guitar ##ist ##s of fran ##ce",
    "the moon",
]
WORDS = [names_of_words(ids_of(text)) for text in TEXTS]
INVERSE = KeywordWeight.INVERSE_FREQUENCY


@given(
    st.lists(
        st.lists(st.sampled_from(ids_of("moon fran ##ce ##ist [SEP] [UNK] a")), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_counts_are_those_of_a_plain_count(texts):
    counter = WordCounter(ENTRIES, NAMES)
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
    return store_of(tmp_path, [{"text": ids_of(text)} for text in TEXTS])


def weights_of(store, settings, row, start=0, end=None):
    """The weights of the words of a text's part."""
    text, numbers = store.texts[row], store.word_numbers[row]
    crop = Crop(text, start, len(text) if end is None else end)
    weigh = KeywordWeights(store.words, len(store), settings)
    words = words_of(crop.ids, ENTRIES)
    return weigh(numbers[crop.start : crop.end], words, **crop.fragments(ENTRIES)).tolist()


def test_tfidf(store):
    holding = Counter(word for text in WORDS for word in set(text))
    for row, words in enumerate(WORDS):
        expected = [words.count(w) * math.log(len(TEXTS) / holding[w]) for w in words]
        assert weights_of(store, MaskingSettings(), row) == pytest.approx(expected)


def test_inverse_frequency(store):
    counts = Counter(word for text in WORDS for word in text)
    for row, words in enumerate(WORDS):
        found = weights_of(store, MaskingSettings(keyword_weight=INVERSE), row)
        assert found == pytest.approx([1 / counts[w] for w in words])


def test_a_table_of_ones_own(store, tmp_path):
    table = tmp_path / "frequencies.json"
    table.write_text(json.dumps({"the": 1000, "fran##ce": 10}))
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    expected = {"the": 0.001, "fran##ce": 0.1}
    assert weights_of(store, settings, 0) == [expected.get(word, MISSING) for word in WORDS[0]]


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


@pytest.mark.parametrize("text", ["[1]", '{"the": 0}', '{"the": 1.5}', '{"the": true}', "{"])
def test_what_is_no_table(store, tmp_path, text):
    table = tmp_path / "frequencies.json"
    table.write_text(text)
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    with pytest.raises(InputError, match=r"expected a.* (object|JSON)"):
        KeywordWeights(store.words, len(store), settings)
    table.unlink()
    with pytest.raises(UsageError, match=r"--frequency-dict .*frequencies.json: no such file"):
        KeywordWeights(store.words, len(store), settings)


def test_crops_are_windows_from_a_uniform_place():
    text, rng = np.arange(10), np.random.default_rng(0)
    crops = [Crop.draw(text, 7, rng) for _ in range(4000)]
    starts, counts = np.unique([crop.start for crop in crops], return_counts=True)
    assert starts.tolist() == [0, 1, 2, 3]
    assert (abs(counts - 1000) < 5 * math.sqrt(4000 * 3 / 16)).all()
    assert all(crop.ids.tolist() == list(range(crop.start, crop.start + 7)) for crop in crops)
    assert Crop.draw(text, 12, rng).ids.tolist() == text.tolist()
