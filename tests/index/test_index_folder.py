import pytest

from denserk.errors import MismatchError, UsageError
from denserk.formats.manifest import Kind, Manifest, write_manifest
from denserk.index.index_folder import (
    PassageIds,
    check_count,
    read_index_manifest,
    refuse_input_as_output,
)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("", []),
        ("d1\nd2\n", ["d1", "d2"]),
        ("d1\nä d\u2028x", ["d1", "ä d\u2028x"]),
        ("d1\r\nd2 \n", ["d1", "d2"]),
    ],
)
def test_passage_ids(tmp_path, content, ids):
    (tmp_path / "docid").write_bytes(content.encode())
    found = PassageIds(tmp_path / "docid")
    assert list(found) == ids
    assert len(found) == len(ids)


def test_an_index_of_another_tool_has_no_manifest(tmp_path):
    (tmp_path / "index").touch()
    (tmp_path / "docid").touch()
    assert read_index_manifest(tmp_path) is None
    write_manifest(tmp_path, Manifest(Kind.VECTORS, True))
    with pytest.raises(MismatchError, match="holds vectors, not index"):
        read_index_manifest(tmp_path)
    write_manifest(tmp_path, Manifest(Kind.INDEX, False))
    with pytest.raises(MismatchError, match="unfinished"):
        read_index_manifest(tmp_path)


def test_what_is_no_index(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        read_index_manifest(tmp_path / "absent")
    with pytest.raises(UsageError, match="no file docid"):
        PassageIds(tmp_path / "docid")
    with pytest.raises(MismatchError, match="3 vectors but 2 ids"):
        check_count(tmp_path, 3, 2)


def test_the_output_may_not_lie_in_an_input(tmp_path):
    for output in (tmp_path, tmp_path / "inside"):
        with pytest.raises(UsageError, match="lies in the input"):
            refuse_input_as_output(str(output), ["-", str(tmp_path)])
    refuse_input_as_output(str(tmp_path / "a"), [str(tmp_path / "b")])
