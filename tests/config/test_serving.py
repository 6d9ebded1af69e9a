"""The names of served indexes."""

import pytest

from denserk.config.serving import ServedSettings, named_index
from denserk.errors import UsageError


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_index("k1=0.9") == ("k1", "0.9")
    (tmp_path / "k1=0.9").mkdir()
    with pytest.raises(UsageError, match="a request cannot name it"):
        named_index("k1=0.9")
    assert named_index("bm25=k1=0.9") == ("bm25", "k1=0.9")


def test_the_default_name_of_an_index_is_that_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_index(".").name == tmp_path.name
    for folder in ("indexes/a b", "shards/*"):
        with pytest.raises(UsageError, match="letters, digits") as caught:
            named_index(folder)
        assert caught.value.hint == f"name it: --index NAME={folder}"
    assert named_index("all=shards/*") == ("all", "shards/*")


def test_two_indexes_of_one_name_are_an_error():
    with pytest.raises(UsageError, match="two indexes are named bm25"):
        ServedSettings(index=("a/bm25", "b/bm25"))
    assert [index.name for index in ServedSettings(index=("x=a/bm25", "b/bm25")).indexes] == [
        "x",
        "bm25",
    ]
