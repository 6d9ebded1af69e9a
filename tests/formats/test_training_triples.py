import io

import pytest

from denserk.errors import DenserkError, InputError
from denserk.formats import training_triples as triples
from denserk.formats.training_records import Losses
from denserk.records import Candidate, TrainingExample


def told(read, data):
    return [
        (
            e.qid,
            e.query,
            [c.docid or c.text for c in e.positives],
            [c.docid or c.text for c in e.negatives],
        )
        for e in read(io.BytesIO(data), "t")
    ]


@pytest.mark.parametrize(
    ("read", "data", "expected"),
    [
        (
            triples.read_id_triples,
            b"007\t1\t2\r\n007\t1\t3\r\n8\t4\t5\r\n",
            [("007", "", ["1"], ["2", "3"]), ("8", "", ["4"], ["5"])],
        ),
        (
            triples.read_text_triples,
            b"q one\ta\tb\nq one\ta\tc\nq two\td\te\n",
            [("0", "q one", ["a"], ["b", "c"]), ("1", "q two", ["d"], ["e"])],
        ),
        (
            triples.read_columns,
            b"anchor\tpositive\tnegative_1\tnegative_2\nq\ta\tb\tc\n",
            [("0", "q", ["a"], ["b", "c"])],
        ),
        (
            triples.read_columns,
            b'{"query": "q", "answer": "a"}\n{"query": "q", "answer": "b"}\n',
            [("0", "q", ["a", "b"], [])],
        ),
        (
            triples.read_negatives,
            b"7\t1,2,3\n8\t\n",
            [("7", "", [], ["1", "2", "3"]), ("8", "", [], [])],
        ),
    ],
)
def test_lines_of_one_query_make_one_example(read, data, expected):
    assert told(read, data) == expected


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (triples.read_id_triples, b"1\t2\t3\n1\t2\n", "t, line 2: found 2 columns; expected 3"),
        (triples.read_id_triples, b"1\t2 3\t4\n", "t, line 1: found the"),
        (triples.read_text_triples, b"a\tb\n", "t, line 1: found 2 columns"),
        (triples.read_text_triples, b"a\tb\t\xff\n", "a byte that is not UTF-8 (0xff)"),
        (triples.read_columns, b"anchor\tpositive\nq\ta\tb\n", "t, line 2: found 3 columns"),
        (triples.read_columns, b"q\tpositive\tlabel\n1\t2\t3\n", "line 1: found the column label"),
        (
            triples.read_columns,
            b'{"a": "q", "b": "p", "score": 1}',
            "line 1: found the column score",
        ),
        (triples.read_columns, b'{"a": "q"}', "found 1 columns"),
        (triples.read_negatives, b"1\t2\t3\n", "found 3 columns; expected 2"),
    ],
)
def test_refusals_name_the_line(read, data, message):
    with pytest.raises(InputError) as caught:
        list(read(io.BytesIO(data), "t"))
    assert message in str(caught.value)


EXAMPLE = TrainingExample(
    "q1",
    "who\truns",
    (Candidate("d1", "a cat"), Candidate("d2", "a\ndog")),
    (Candidate("d3", "a boat", "Boat"),),
)


@pytest.mark.parametrize(
    ("write", "lines", "lost"),
    [
        (
            triples.write_id_triples,
            "q1\td1\td3\nq1\td2\td3\n",
            {"texts": 3, "titles": 1, "query texts": 1},
        ),
        (
            triples.write_text_triples,
            "who runs\ta cat\ta boat\nwho runs\ta dog\ta boat\n",
            {"passage ids": 3, "titles": 1, "tabs and line ends inside texts": 2},
        ),
        (
            triples.write_columns,
            '{"anchor":"who\\truns","positive":"a cat","negative":"a boat"}\n'
            '{"anchor":"who\\truns","positive":"a\\ndog","negative":"a boat"}\n',
            {"passage ids": 3, "titles": 1},
        ),
        (
            triples.write_negatives,
            "q1\td3\n",
            {"texts": 3, "titles": 1, "query texts": 1, "positives": 2},
        ),
    ],
)
def test_every_positive_is_written_with_every_negative(write, lines, lost, tmp_path):
    assert write(tmp_path / "t", [EXAMPLE], losses := Losses()) == 1
    assert (tmp_path / "t").read_bytes().decode() == lines
    assert +losses == lost


def test_an_id_with_a_comma_does_not_go_into_a_comma_list(tmp_path):
    example = TrainingExample("1", "", (), (Candidate("a,b"),))
    with pytest.raises(DenserkError, match="a,b holds a comma"):
        triples.write_negatives(tmp_path / "t", [example], Losses())
