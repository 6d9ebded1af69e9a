import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from denserk.io.files import read_text_lines
from denserk.io.text_files import one_line, quote, read_rows, unquote, write_rows


@given(st.text(st.sampled_from("ab\" \t\n\r'")))
def test_a_quoted_column_is_read_alike_by_a_csv_reader_and_by_unquote(text):
    field = one_line(text)
    quoted = quote(field)
    assert unquote(quoted) == field
    assert next(csv.reader(io.StringIO(f"{quoted}\tx"), delimiter="\t"))[0] == field


ROWS = [["model", "value"], ["a, b", "1"], ['the "old" one', ""], ["two\nlines", "é"]]


def test_round_trip(tmp_path):
    path = tmp_path / "t.csv"
    write_rows(path, ROWS)
    assert [row for _, row in read_rows(read_text_lines(path), path, ",", "columns")] == ROWS
    assert path.read_bytes().startswith(b'model,value\n"a, b",1\n"the ""old"" one",\n')
