import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError, OutputError
from denserk.formats import tsv
from denserk.formats.files import read_text_lines
from denserk.formats.tsv import read_rows, write_rows
from denserk.records import Passage, Query
from denserk.settings.formats import CorpusFormat


def passages(text, form):
    lines = enumerate(text.split("\n"), start=1)
    return list(tsv.read_passages(lines, form, "c.tsv"))


@pytest.mark.parametrize(
    ("form", "text", "read"),
    [
        (CorpusFormat.MARCO, "007\tone\n\n8\t", [Passage("007", "one"), Passage("8", "")]),
        (CorpusFormat.MARCO, '1\t"half', [Passage("1", '"half')]),
        (CorpusFormat.MARCO_TITLES, "1\thead\tone", [Passage("1", "one", "head")]),
        (
            CorpusFormat.DPR,
            'id\ttext\ttitle\n1\t"a ""b"" c"\thead\n2\t"two\nlines"\t""',
            [Passage("1", 'a "b" c', "head"), Passage("2", "two\nlines", "")],
        ),
        (CorpusFormat.DPR, "id\ttitle\ttext\n1\thead\tone", [Passage("1", "one", "head")]),
        (CorpusFormat.DPR, "1\tone\thead", [Passage("1", "one", "head")]),
    ],
)
def test_passages(form, text, read):
    assert passages(text, form) == read


@pytest.mark.parametrize(
    ("form", "text", "told"),
    [
        (CorpusFormat.MARCO, "1\ta\n2\ta\tb", "line 2: found 3 columns between tabs; expected 2"),
        (CorpusFormat.MARCO, "1 a", "line 1: found 1 column between tabs; expected 2: id, text"),
        (CorpusFormat.MARCO_TITLES, "1\ta", "line 1: found 2 columns between tabs; expected 3: id"),
        (CorpusFormat.MARCO, "a b\tt", "line 1: found the passage id 'a b'"),
        (CorpusFormat.MARCO, "\tt", "line 1: found an empty passage id"),
        (CorpusFormat.DPR, 'id\ttext\ttitle\n1\t"never closed\thead\n2\tx\ty', "line 2: found 2"),
        (CorpusFormat.DPR, '1\t"' + "x" * 200_000, "line 1: found a row that is not quoted as CSV"),
        (CorpusFormat.DPR, "id\ttext\ttitle\n1\tt", "line 2: found 2 columns between tabs"),
    ],
)
def test_broken_passages_are_told_with_their_line(form, text, told):
    with pytest.raises(InputError, match=f"c.tsv, {told}"):
        passages(text, form)


def test_queries_keep_further_tabs():
    lines = [(1, "q1\ta\tb"), (2, " "), (3, "q2\t")]
    assert list(tsv.read_queries(lines, "q.tsv")) == [Query("q1", "a\tb"), Query("q2", "")]


def test_a_query_without_a_tab_is_told():
    with pytest.raises(InputError, match=r"q.tsv, line 1: found a line without a tab"):
        list(tsv.read_queries([(1, "q1 text")], "q.tsv"))


@given(st.text(st.sampled_from("ab\" \t\n\r'")))
def test_a_quoted_column_is_read_alike_by_a_csv_reader_and_by_unquote(text):
    field = tsv.one_line(text)
    quoted = tsv.quote(field)
    assert tsv.unquote(quoted) == field
    assert next(csv.reader(io.StringIO(f"{quoted}\tx"), delimiter="\t"))[0] == field


def test_a_title_goes_before_a_text_without_room_for_it(tmp_path):
    tsv.write_passages(
        tmp_path / "c.tsv",
        [Passage("1", "a\tb", "head"), Passage("2", "c\r\nd")],
        CorpusFormat.MARCO,
    )
    assert (tmp_path / "c.tsv").read_text() == "1\thead a b\n2\tc d\n"


ROWS = [["model", "value"], ["a, b", "1"], ['the "old" one', ""], ["two\nlines", "é"]]


def test_round_trip(tmp_path):
    path = tmp_path / "t.csv"
    write_rows(path, ROWS)
    assert [row for _, row in read_rows(read_text_lines(path), path, ",", "columns")] == ROWS
    assert path.read_bytes().startswith(b'model,value\n"a, b",1\n"the ""old"" one",\n')


def test_a_folder_in_the_way(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        write_rows(tmp_path, ROWS)
