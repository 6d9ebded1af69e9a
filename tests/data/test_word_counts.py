"""Words counted as they are tokenised, against a plain count of joined pieces."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.word_counts import WordCounter, WordCounts
from tests.data.prepared_texts import NAMES, PIECES, ids_of, words_from

TEXTS = st.lists(
    st.lists(st.sampled_from(ids_of("moon fran ##ce ##ist [SEP] [UNK] a")), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
)


def counted(folder, blocks):
    """The tables of blocks of texts, and the texts."""
    counter = WordCounter(folder, PIECES, NAMES)
    for texts in blocks:
        ids = np.array([i for text in texts for i in text])
        counter.add(ids, np.array([len(text) for text in texts]))
    counter.close()
    return WordCounts(folder), [text for texts in blocks for text in texts]


def words_of_text(text):
    """A text's words, their pieces' marks kept."""
    return ["".join(NAMES[text[place]] for place in word) for word in words_from(text)]


@given(blocks=st.lists(TEXTS, min_size=1, max_size=3))
def test_counts_are_those_of_a_plain_count(tmp_path_factory, blocks):
    tables, texts = counted(tmp_path_factory.mktemp("words"), blocks)
    words = [words_of_text(text) for text in texts]
    occurrences = Counter(word for text in words for word in text)
    holding = Counter(word for text in words for word in set(text))
    names = [tables.word(number) for number in range(1, len(tables))]
    assert {w: tables.counts[i] for i, w in enumerate(names, start=1)} == occurrences
    assert {w: tables.texts[i] for i, w in enumerate(names, start=1)} == holding
    own = [tables.word(number) for number in tables.numbers]
    place = 0
    for text, inside in zip(texts, words, strict=True):
        expected = [""] * len(text)
        for word, places in zip(inside, words_from(text), strict=True):
            for piece in places:
                expected[piece] = word
        assert own[place : place + len(text)] == expected
        place += len(text)


def test_words_keep_the_marks_of_their_pieces(tmp_path):
    tables, _ = counted(tmp_path, [[ids_of("fran ##ce fran ##ce [SEP] ##ce")], [ids_of("fran")]])
    found = {tables.word(i): (tables.counts[i], tables.texts[i]) for i in range(1, 4)}
    assert found == {"fran##ce": (2, 1), "##ce": (1, 1), "fran": (1, 1)}
    assert tables.numbers[4] == 0
    assert tables.word(0) == ""


@pytest.mark.parametrize("words", [1023, 1500])
def test_tables_grow(tmp_path, words):
    letters = [i for i, name in enumerate(NAMES) if len(name) == 3 and name.startswith("##")]
    texts = [[NAMES.index("a"), first, second] for first in letters for second in letters]
    tables, _ = counted(tmp_path, [texts[:700], texts[700:words], texts[:5]])
    assert len(tables) == min(words, len(texts)) + 1
    assert tables.counts[1:6].tolist() == [2] * 5
    assert tables.counts[6:].sum() == len(tables) - 6
