import io

import pytest

from denserk.errors import InputError
from denserk.formats.training import FORMATS
from denserk.formats.training_records import Losses
from denserk.records import Candidate, TrainingExample
from denserk.settings.conversion import TrainingFormat

read, write = FORMATS[TrainingFormat.FLAG]

LINE = (
    b'{"query":"q","pos":["a"],"pos_scores":[2.5],'
    b'"neg":["b","c"],"neg_scores":[1.0,0.0],"type":"x"}\n'
)
EXAMPLE = TrainingExample(
    "0",
    "q",
    (Candidate(text="a", score=2.5),),
    (Candidate(text="b", score=1.0), Candidate(text="c", score=0.0)),
    extra={"type": "x"},
)


def test_a_line_and_back(tmp_path):
    assert list(read(io.BytesIO(LINE), "t")) == [EXAMPLE]
    assert write(tmp_path / "t", [EXAMPLE], losses := Losses()) == 1
    assert (tmp_path / "t").read_bytes() == LINE
    assert not +losses


def test_scores_are_written_where_every_passage_has_one(tmp_path):
    partly = EXAMPLE._replace(positives=(Candidate(text="a"),))
    write(tmp_path / "t", [partly], losses := Losses())
    assert (
        tmp_path / "t"
    ).read_bytes() == b'{"query":"q","pos":["a"],"neg":["b","c"],"type":"x"}\n'
    assert +losses == {"scores": 2}


def test_null_scores_are_no_scores():
    (example,) = read(io.BytesIO(b'{"query": "q", "pos": ["a"], "pos_scores": null}'), "t")
    assert example.positives == (Candidate(text="a"),)


def test_a_score_for_each_text_or_none():
    with pytest.raises(InputError, match="line 1: found 1 neg_scores for 2 neg"):
        list(read(io.BytesIO(b'{"query": "q", "neg": ["a", "b"], "neg_scores": [1]}'), "t"))
