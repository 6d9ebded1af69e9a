import io

import pytest

from denserk.errors import DenserkError, InputError
from denserk.formats.training import FORMATS
from denserk.formats.training_records import Losses
from denserk.records import Candidate, TrainingExample
from denserk.settings.conversion import TrainingFormat

read_inline, write_inline = FORMATS[TrainingFormat.TEVATRON]
read_ids, write_ids = FORMATS[TrainingFormat.TEVATRON_IDS]

EXAMPLE = TrainingExample(
    "7",
    "who",
    (Candidate("d1", "one", "head", 1.5, {"rank": 2}),),
    (Candidate("d2", "two"),),
    extra={"negative_ctxs": [{"text": "far"}], "split": "dev"},
)


def test_inline_lines_are_tevatrons(tmp_path):
    write_inline(tmp_path / "t", [EXAMPLE._replace(extra={"split": "dev"})], Losses())
    assert (tmp_path / "t").read_text() == (
        '{"query_id":"7","query":"who","positive_passages":[{"docid":"d1","title":"head",'
        '"text":"one","score":1.5,"rank":2}],"negative_passages":[{"docid":"d2","title":"",'
        '"text":"two"}],"split":"dev"}\n'
    )


def test_lines_by_id_are_tevatrons_and_leave_out_whole_contexts(tmp_path):
    write_ids(tmp_path / "t", [EXAMPLE], losses := Losses())
    assert (tmp_path / "t").read_text() == (
        '{"query_id":"7","query_text":"who","positive_document_ids":["d1"],'
        '"negative_document_ids":["d2"],"split":"dev"}\n'
    )
    assert +losses == {"texts": 2, "titles": 1, "scores": 1, "rank": 1, "negative_ctxs": 1}


def test_numbers_as_ids_become_strings_and_absent_ids_are_counted():
    lines = b'{"query_id": 12, "positive_document_ids": [34]}\n\n{"negative_document_ids": ["x"]}\n'
    assert list(read_ids(io.BytesIO(lines), "t")) == [
        TrainingExample("12", "", (Candidate("34"),), ()),
        TrainingExample("2", "", (), (Candidate("x"),)),
    ]


@pytest.mark.parametrize(
    ("read", "line", "told"),
    [
        (read_inline, b'{"query_id": "a b"}', "found the query_id id 'a b'"),
        (read_inline, b'{"positive_passages": {}}', "found dict as positive_passages"),
        (read_inline, b'{"negative_passages": ["x"]}', "found str in negative_passages"),
        (read_inline, b'{"negative_passages": [{"text": 3}]}', "found int as text"),
        (read_inline, b'{"answers": [3]}', "found int in answers"),
        (read_ids, b'{"positive_document_ids": [2.5]}', "positive_document_ids"),
    ],
)
def test_refusals_name_the_line(read, line, told):
    with pytest.raises(InputError) as caught:
        list(read(io.BytesIO(b"{}\n" + line), "t"))
    assert told in str(caught.value)
    assert "t, line 2" in str(caught.value)


@pytest.mark.parametrize("write", [write_inline, write_ids])
def test_a_passage_of_which_nothing_is_known_is_refused(write, tmp_path):
    with pytest.raises(DenserkError):
        write(tmp_path / "t", [TrainingExample("1", "", (Candidate(),), ())], Losses())
