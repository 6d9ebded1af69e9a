"""Words counted as they are tokenised, against a plain count of joined pieces."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.keyword_weights import WordCounter
from tests.data.prepared_texts import NAMES, PIECES, ids_of, words_from

TEXTS = st.lists(
    st.lists(st.sampled_from(ids_of("moon fran ##ce ##ist [SEP] [UNK] a")), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
)


def counted(blocks):
    """The words of blocks of texts, (count, texts) by word, and the words of each text's tokens."""
    counter = WordCounter(PIECES, NAMES)
    numbers = [own for texts in blocks for own in counter.add(texts)]
    rows = list(counter.rows())
    own = [[rows[number]["word"] for number in text] for text in numbers]
    assert rows[0] == {"word": "", "count": 0, "texts": 0}
    return {row["word"]: (row["count"], row["texts"]) for row in rows[1:]}, own


def words_of_text(text):
    """A text's words, their pieces' marks kept."""
    return ["".join(NAMES[text[place]] for place in word) for word in words_from(text)]


@given(blocks=st.lists(TEXTS, min_size=1, max_size=3))
def test_counts_are_those_of_a_plain_count(blocks):
    table, own = counted(blocks)
    texts = [text for texts in blocks for text in texts]
    words = [words_of_text(text) for text in texts]
    occurrences = Counter(word for text in words for word in text)
    holding = Counter(word for text in words for word in set(text))
    assert table == {word: (occurrences[word], holding[word]) for word in occurrences}
    for text, inside, found in zip(texts, words, own, strict=True):
        expected = [""] * len(text)
        for word, places in zip(inside, words_from(text), strict=True):
            for place in places:
                expected[place] = word
        assert found == expected


def test_words_keep_the_marks_of_their_tokens():
    table, own = counted([[ids_of("fran ##ce fran ##ce [SEP] ##ce")], [ids_of("fran")]])
    assert table == {"fran##ce": (2, 1), "##ce": (1, 1), "fran": (1, 1)}
    assert own[0][4] == ""


@pytest.mark.parametrize("words", [1023, 1500])
def test_tables_grow(words):
    letters = [i for i, name in enumerate(NAMES) if len(name) == 3 and name.startswith("##")]
    texts = [[NAMES.index("a"), first, second] for first in letters for second in letters]
    counts, _ = counted([texts[:700], texts[700:words], texts[:5]])
    assert len(counts) == min(words, len(texts))
    assert sorted(count for count, _ in counts.values())[-6:] == [1, 2, 2, 2, 2, 2]
