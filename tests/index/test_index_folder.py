import numpy as np
import pytest

from denserk.errors import MismatchError, UsageError
from denserk.index import index_folder
from denserk.index.index_folder import PassageIds, check_count, read_index_manifest
from denserk.io.manifest import Kind, Manifest, write_manifest


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


def test_a_large_file_of_ids_is_looked_at_when_an_id_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(index_folder, "AT_ONCE", 8)
    names = [f"d{n}" for n in range(40)]
    (tmp_path / "docid").write_text("".join(f"{name}\n" for name in names))
    found = PassageIds(tmp_path / "docid", 40)
    assert "_ends" not in vars(found)
    assert found.passages(np.array([39, 0, 7])) == ["d39", "d0", "d7"]
    assert list(found) == names
    other = PassageIds(tmp_path / "docid", 41)
    with pytest.raises(MismatchError, match="41 vectors but 40 ids"):
        other[0]
    monkeypatch.setattr(index_folder, "AT_ONCE", 1000)
    with pytest.raises(MismatchError, match="41 vectors but 40 ids"):
        PassageIds(tmp_path / "docid", 41)


def test_an_index_of_another_tool_has_no_manifest(tmp_path):
    (tmp_path / "index").touch()
    (tmp_path / "docid").touch()
    assert read_index_manifest(tmp_path) is None
    write_manifest(tmp_path, Manifest(Kind.VECTORS, False))
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
