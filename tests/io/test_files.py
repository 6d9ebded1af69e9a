import gzip

import pytest

from denserk.errors import InputError, UsageError
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
