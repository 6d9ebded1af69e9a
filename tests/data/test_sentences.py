import pytest

from denserk.data.pretraining_data import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Dr. Smith met J. Doe. They left.", ["Dr. Smith met J. Doe.", "They left."]),
        ("It cost 3.5 dollars. Cheap.", ["It cost 3.5 dollars.", "Cheap."]),
        ("He said no. then nothing", ["He said no. then nothing"]),
        ("a line\nanother", ["a line", "another"]),
        ('"Go." She went.', ['"Go."', "She went."]),
        ("See fig. 3 there. Done.", ["See fig. 3 there.", "Done."]),
        ("  \n ", []),
    ],
)
def test_where_sentences_end(text, sentences):
    assert split_sentences(text) == sentences
