import pytest

from denserk.errors import OutputError
from denserk.io import file_errors, files, written_files


@pytest.mark.parametrize("name", ["deep/er/f.txt", "f.txt.gz"])
def test_written_text_reads_back_and_is_the_same_twice(tmp_path, name):
    path = tmp_path / name
    written = []
    for _ in range(2):
        assert written_files.write_lines(path, ["\n", "zw\u00f6lf\n"], "one\n") == 2
        written.append(path.read_bytes())
    assert list(files.read_text_lines(path)) == [(1, "one"), (2, ""), (3, "zw\u00f6lf")]
    assert written[0] == written[1]
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "f.txt"
    path.write_text("old")

    def lines():
        yield "new"
        raise error

    with pytest.raises(error):
        written_files.write_lines(path, lines())
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


def test_outputs_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"/dev/full cannot be written: No space left"):
        written_files.write_lines("/dev/full", ["x" * 100_000])
    (tmp_path / "f").write_text("")
    with pytest.raises(OutputError, match=r"f/g cannot be written"):
        written_files.write_lines(tmp_path / "f" / "g", ["x"])
    with pytest.raises(BrokenPipeError), file_errors.write_errors("-"):
        raise BrokenPipeError
