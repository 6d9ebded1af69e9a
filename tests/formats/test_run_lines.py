import pytest

from denserk.errors import InputError
from denserk.formats.run_lines import LOOK, detect, look, parse_lines
from denserk.settings.formats import RunFormat
from tests.reporters import Heard

LINES = {
    RunFormat.TREC: b"q1 Q0 d7 3 2.5 tag",
    RunFormat.MSMARCO: b"q1\td7\t1",
    RunFormat.TEVATRON: b"q1\td7\t2.5",
    RunFormat.JSONL: b'{"qid": "q1", "docid": "d7", "score": 2.5, "rank": 3}',
}


@pytest.mark.parametrize("form", RunFormat)
def test_a_line_of_every_shape(form):
    score = -1.0 if form is RunFormat.MSMARCO else 2.5
    place = {RunFormat.MSMARCO: "1", RunFormat.TEVATRON: ""}.get(form, "3")
    lines = [(4, LINES[form])] if form is RunFormat.JSONL else [(4, LINES[form]), (5, b" ")]
    assert list(parse_lines(lines, form, "r")) == [(4, "q1", "d7", score, place)]
    assert detect(lines, "r") is form


def test_looking_takes_no_line_away():
    told = []

    class Told(Heard):
        def note(self, text):
            told.append(text)

    numbered = [(number, LINES[RunFormat.TREC]) for number in range(1, LOOK + 3)]
    Told()
    detected, lines = look(iter(numbered), "r")
    assert detected is RunFormat.TREC
    assert list(lines) == numbered
    assert told == ["r: trec run (6 columns: qid Q0 docid rank score tag)"]


def test_a_shape_that_is_named_is_not_told():
    detected, lines = look(iter([(1, b"q d 1")]), "r", form=RunFormat.TEVATRON)
    assert (detected, list(lines)) == (RunFormat.TEVATRON, [(1, b"q d 1")])


def test_no_line_has_no_shape():
    assert look(iter([(1, b" ")]), "r")[0] is None


def test_a_line_of_no_shape():
    with pytest.raises(InputError, match="r, line 2: found 5 columns; expected 6 columns"):
        detect([(2, b"q Q0 d 1 2")], "r")
