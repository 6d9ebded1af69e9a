import gzip

import pytest

from denserk.errors import InputError, OutputError, UsageError
from denserk.io import files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(bytes(range(256)) * 9, mtime=0)[:-100], "a compressed file that breaks off"),
        (gzip.compress(b"one\n", mtime=0)[:-4] + b"junk", "a compressed file that breaks off"),
        (b"one\ntwo\n", "Not a gzipped file"),
    ],
)
def test_broken_gzip(tmp_path, data, message):
    path = tmp_path / "f.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(files.read_text_lines(path))


def test_inputs_that_are_no_text(tmp_path):
    (tmp_path / "f").write_bytes(b"one\n\xff\n")
    with pytest.raises(InputError, match=r"f, line 2: found a byte that is not UTF-8 \(0xff\)"):
        list(files.read_text_lines(tmp_path / "f"))
    with pytest.raises(UsageError, match="no such file"):
        list(files.read_text_lines(tmp_path / "none"))
    with pytest.raises(UsageError, match="is a folder"):
        list(files.read_text_lines(tmp_path))


@pytest.mark.parametrize("name", ["deep/er/f.txt", "f.txt.gz"])
def test_written_text_reads_back_and_is_the_same_twice(tmp_path, name):
    path = tmp_path / name
    written = []
    for _ in range(2):
        assert files.write_lines(path, ["\n", "zw\u00f6lf\n"], "one\n") == 2
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
        files.write_lines(path, lines())
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


def test_outputs_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"/dev/full cannot be written: No space left"):
        files.write_lines("/dev/full", ["x" * 100_000])
    (tmp_path / "f").write_text("")
    with pytest.raises(OutputError, match=r"f/g cannot be written"):
        files.write_lines(tmp_path / "f" / "g", ["x"])
    with pytest.raises(BrokenPipeError), files.write_errors("-"):
        raise BrokenPipeError
