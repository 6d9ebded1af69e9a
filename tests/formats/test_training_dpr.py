import io
import json

import pytest

from denserk.errors import InputError
from denserk.formats.training import FORMATS
from denserk.formats.training_records import Losses
from denserk.records import Candidate, TrainingExample
from denserk.settings.conversion import TrainingFormat

read, write = FORMATS[TrainingFormat.DPR]

CONTEXT = {"title": "head", "text": "one", "score": 1000, "title_score": 1, "passage_id": "12"}
ENTRY = {
    "dataset": "nq",
    "question": "who",
    "answers": ["she"],
    "positive_ctxs": [CONTEXT],
    "negative_ctxs": [{"title": "", "text": "far"}],
    "hard_negative_ctxs": [{"title": "", "text": "near", "psg_id": 13}],
}
EXAMPLE = TrainingExample(
    "0",
    "who",
    (Candidate("12", "one", "head", 1000.0, {"title_score": 1}),),
    (Candidate("13", "near"),),
    ("she",),
    {"dataset": "nq", "negative_ctxs": ENTRY["negative_ctxs"]},
)


@pytest.mark.parametrize(
    "data",
    [json.dumps([ENTRY, ENTRY], indent=4), f"{json.dumps(ENTRY)}\n{json.dumps(ENTRY)}\n"],
    ids=["array", "lines"],
)
def test_both_forms_read_alike_and_questions_count_from_0(data):
    examples = list(read(io.BytesIO(data.encode()), "t"))
    assert examples == [EXAMPLE, EXAMPLE._replace(qid="1")]


@pytest.mark.parametrize(("name", "is_array"), [("t.json", True), ("t.jsonl", False)])
def test_the_name_chooses_array_or_lines(name, is_array, tmp_path):
    other = EXAMPLE._replace(qid="q7", extra={})
    assert write(tmp_path / name, [EXAMPLE, other], Losses()) == 2
    text = (tmp_path / name).read_text()
    entries = json.loads(text) if is_array else [json.loads(line) for line in text.splitlines()]
    assert entries[0] == ENTRY | {
        "hard_negative_ctxs": [{"title": "", "text": "near", "passage_id": "13"}]
    }
    assert entries[1]["query_id"] == "q7"
    assert list(read(io.BytesIO(text.encode()), name)) == [EXAMPLE, other]


def test_an_empty_array_is_written_and_read(tmp_path):
    assert write(tmp_path / "t.json", [], Losses()) == 0
    assert json.loads((tmp_path / "t.json").read_text()) == []
    assert list(read(io.BytesIO((tmp_path / "t.json").read_bytes()), "t")) == []


def test_a_broken_entry_is_named_by_its_line():
    with pytest.raises(InputError, match="t, line 3: found int as question"):
        list(read(io.BytesIO(b'[\n{"question": "a"},\n{"question": 3}]'), "t"))
