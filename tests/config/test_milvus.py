from typing import Any

import pytest

from denserk.commands.app import run
from denserk.config.milvus import CollectionSettings, MilvusIndexSettings
from denserk.config.retrieval import Engine, IndexSettings, Metric, SearchPaths
from denserk.errors import UsageError


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:secret@host:19530",
        "https://secret@host",
        "http://host:19530?token=secret",
        "http://host#secret",
        "secret@host",
    ],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(uri):
    with pytest.raises(UsageError, match="--uri") as caught:
        CollectionSettings(uri)
    assert "secret" not in caught.value.message
    assert "DENSERK_MILVUS_TOKEN" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "uri", ["./passages.db", "a/b.db", "http://h:19530", "https://h/db", "unix:/tmp/socket"]
)
def test_addresses(uri):
    settings = CollectionSettings(uri, "passages")
    assert settings.place == f"collection passages of {uri}"
    assert settings.is_embedded == uri.endswith(".db")


@pytest.mark.parametrize("uri", ["passages", "host:19530", "ftp://host", "ftp://host/passages.db"])
def test_what_is_no_address(uri):
    with pytest.raises(UsageError, match=r"neither a file ending in \.db nor the address"):
        CollectionSettings(uri)


@pytest.mark.parametrize("name", ["1a", "a-b", "a b", "a" * 256])
def test_names_that_milvus_refuses(name):
    with pytest.raises(UsageError, match="letters, digits and _"):
        CollectionSettings("a.db", name)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (MilvusIndexSettings, {"milvus_params": ("M",)}),
        (MilvusIndexSettings, {"milvus_params": ("=3",)}),
        (MilvusIndexSettings, {"milvus_batch": 0}),
        (CollectionSettings, {"milvus_params": ("ef=",)}),
    ],
)
def test_refusals(kind, given):
    name = next(iter(given))
    with pytest.raises(UsageError, match=f"--set {name.replace('_', '-')}"):
        kind(**given)


def test_what_does_not_go_with_milvus():
    with pytest.raises(UsageError, match="--metric"):
        IndexSettings(engine=Engine.MILVUS, metric=Metric.L2)
    paths: dict[str, Any] = {"topics": "t", "output": "o"}
    assert SearchPaths(engine=Engine.MILVUS, **paths).index == ()
    with pytest.raises(UsageError, match="--index"):
        SearchPaths(engine=Engine.MILVUS, index=("i",), **paths)
    with pytest.raises(UsageError, match="--engine faiss"):
        SearchPaths(engine=Engine.FAISS, index=("i",), **paths)


@pytest.mark.parametrize(
    "line",
    [
        ("index", "--input", "v", "--output", "i", "--uri", "a.db"),
        ("index", "--input", "v", "--output", "i", "--set", "milvus-index=HNSW"),
        ("search", "--index", "i", "--topics", "t", "--output", "o", "--collection", "c"),
    ],
)
def test_options_of_milvus_are_not_ignored(line, capsys):
    assert run(line) == 2
    assert "is for Milvus\n  add --engine milvus" in capsys.readouterr().err
