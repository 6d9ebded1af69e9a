"""What words weigh, against the formulas written out."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from denserk.config.pretraining import KeywordWeight, MaskingSettings
from denserk.data.keyword_weights import MISSING, KeywordWeights
from denserk.data.masking import words_of
from denserk.data.pretraining_batches import Use, crop
from denserk.errors import InputError, UsageError
from tests.data.prepared_texts import NAMES, PIECES, ids_of, store_of, visit, words_from

TEXTS = [
    "the capital of fran ##ce [SEP] the river of the capital",
    "the guitar ##ist ##s of fran ##ce",
    "the moon",
]
INVERSE = KeywordWeight.INVERSE_FREQUENCY


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path, [{"text": ids_of(text)} for text in TEXTS])


def words_in(text):
    ids = ids_of(text)
    return ["".join(NAMES[ids[place]] for place in word) for word in words_from(ids)]


def weights_of(store, settings, rows=(0, 1, 2), limit=40, epoch=0):
    """Each text's weights by word, as far as it has words, and the pieces that they are of."""
    keys = visit(rows, epoch)
    text = crop(store.texts, keys.items, limit, keys.draws(0, Use.CROP, 1))
    ids = text.ids(PIECES)
    words = words_of(ids, PIECES)
    numbers = text.gather(store.word_numbers.joined(keys.items)[0], 0)
    weigh = KeywordWeights(store.words, len(store), settings)
    found = weigh(numbers, words, *text.fragments(words, PIECES))
    return [
        (pieces[:length].tolist(), row[: numbers.max() + 1].tolist())
        for pieces, length, numbers, row in zip(ids, text.lengths, words, found, strict=True)
    ]


def test_tfidf(store):
    found = weights_of(store, MaskingSettings())
    holding = Counter(word for text in TEXTS for word in set(words_in(text)))
    for text, (_, weights) in zip(TEXTS, found, strict=True):
        counts = Counter(words_in(text))
        expected = [counts[w] * math.log(len(TEXTS) / holding[w]) for w in words_in(text)]
        assert weights == pytest.approx(expected)


def test_inverse_frequency(store):
    found = weights_of(store, MaskingSettings(keyword_weight=INVERSE))
    counts = Counter(word for text in TEXTS for word in words_in(text))
    for text, (_, weights) in zip(TEXTS, found, strict=True):
        assert weights == pytest.approx([1 / counts[w] for w in words_in(text)])


def test_a_table_of_ones_own(store, tmp_path):
    table = tmp_path / "frequencies.json"
    table.write_text(json.dumps({"the": 1000, "fran##ce": 10}))
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    _, weights = weights_of(store, settings)[0]
    expected = {"the": 0.001, "fran##ce": 0.1}
    assert weights == [expected.get(word, MISSING) for word in words_in(TEXTS[0])]


def test_fragments_weigh_what_their_word_weighs_or_one(store):
    """A crop of one piece: a fragment where it is of "fran ##ce" or of "guitar ##ist ##s"."""
    counts = Counter(word for text in TEXTS for word in words_in(text))
    whole = {"fran": "fran##ce", "##ce": "fran##ce"} | dict.fromkeys(
        ("guitar", "##ist", "##s"), "guitar##ist##s"
    )
    met = set()
    for weigh in (True, False):
        settings = MaskingSettings(keyword_weight=INVERSE, weigh_fragments=weigh)
        for epoch in range(60):
            for pieces, weights in weights_of(store, settings, rows=(1,), limit=1, epoch=epoch):
                name = NAMES[pieces[0]]
                met.add(name)
                lone = name in whole and not weigh
                expected = MISSING if lone else 1 / counts[whole.get(name, name)]
                assert weights == [pytest.approx(expected)], name
    assert met == {"the", "of", *whole}


def test_fragments_at_both_ends_of_a_crop(store):
    settings = MaskingSettings(keyword_weight=INVERSE, weigh_fragments=False)
    found = [weights_of(store, settings, (1,), 3, epoch)[0] for epoch in range(60)]
    written = {" ".join(NAMES[i] for i in pieces): weights for pieces, weights in found}
    assert written == {
        "the guitar ##ist": [pytest.approx(1 / 5), MISSING],
        "guitar ##ist ##s": [1.0],
        "##ist ##s of": [MISSING, pytest.approx(1 / 3)],
        "##s of fran": [MISSING, pytest.approx(1 / 3), MISSING],
        "of fran ##ce": [pytest.approx(1 / 3), 0.5],
    }


@pytest.mark.parametrize("text", ["[1]", '{"the": 0}', '{"the": 1.5}', '{"the": true}', "{"])
def test_what_is_no_table(store, tmp_path, text):
    table = tmp_path / "frequencies.json"
    table.write_text(text)
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(table))
    with pytest.raises(InputError, match=r"expected a.* (object|JSON)"):
        KeywordWeights(store.words, len(store), settings)


def test_a_table_that_is_not_there(store, tmp_path):
    settings = MaskingSettings(keyword_weight=INVERSE, frequency_dict=str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match=r"--frequency-dict .*none.json: no such file"):
        KeywordWeights(store.words, len(store), settings)


def test_the_order_of_words_is_no_weight(store):
    """`the` three times weighs alike in each place."""
    _, weights = weights_of(store, MaskingSettings())[0]
    places = [place for place, word in enumerate(words_in(TEXTS[0])) if word == "capital"]
    assert len({weights[place] for place in places}) == 1
    assert np.isfinite(weights).all()
