import pytest

from denserk.errors import OutputError
from denserk.formats.csv_rows import read_rows, write_rows
from denserk.formats.files import read_text_lines

ROWS = [["model", "value"], ["a, b", "1"], ['the "old" one', ""], ["two\nlines", "é"]]


def test_round_trip(tmp_path):
    path = tmp_path / "t.csv"
    write_rows(path, ROWS)
    assert [row for _, row in read_rows(read_text_lines(path), path, ",", "columns")] == ROWS
    assert path.read_bytes().startswith(b'model,value\n"a, b",1\n"the ""old"" one",\n')


def test_a_folder_in_the_way(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        write_rows(tmp_path, ROWS)
