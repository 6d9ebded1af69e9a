import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.sentences import sentence_spans, split_sentences

# what the rules look at, line breaks of several kinds among it
CHARACTERS = " \n\r\t\u2028.!?…。」'\"([)aBc3é"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Dr. Smith met J. Doe at 3.5 . the end", ["Dr. Smith met J. Doe at 3.5 .", "the end"]),
        ("He said no. then nothing\nanother", ["He said no. then nothing", "another"]),
        ('"Go." She saw fig. 3 there. Done.', ['"Go."', "She saw fig. 3 there.", "Done."]),
        ("一つ。「二つ！」三つ", ["一つ。", "「二つ！」", "三つ"]),
        ("  \n ", []),
    ],
)
def test_where_sentences_end(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(CHARACTERS, max_size=40))
def test_spans_are_stripped_sentences_in_order_and_hold_every_word(text):
    ends = [0]
    between = []
    for start, end in sentence_spans(text):
        assert text[start:end] == text[start:end].strip() != ""
        between.append(text[ends[-1] : start])
        ends.append(end)
    between.append(text[ends[-1] :])
    assert not "".join(between).strip()


def test_a_long_row_of_marks_is_passed_over_once():
    row = "A" + "." * 100_000
    assert split_sentences(f"{row}b. {row} C") == [f"{row}b.", row, "C"]
