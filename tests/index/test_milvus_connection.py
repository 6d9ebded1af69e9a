import fcntl
import sys
import time
from typing import Any

import pytest

from denserk.errors import MissingExtraError, OutputError, ServerError, UsageError
from denserk.index.milvus_connection import Connection, credentials
from denserk.settings.milvus import CollectionSettings
from tests.milvus import require_milvus
from tests.reporters import Heard

require_milvus()
grpc: Any = pytest.importorskip("grpc")
pymilvus: Any = pytest.importorskip("pymilvus")
MilvusException = pymilvus.MilvusException

SECRETS = {"DENSERK_MILVUS_TOKEN": "s3cret", "DENSERK_MILVUS_CA": "/ca.pem"}


@pytest.fixture
def waited(monkeypatch):
    """The seconds that were waited, none of which pass."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def connection(tmp_path, heard):
    settings = CollectionSettings(str(tmp_path / "a.db"))
    with Connection(settings, create=True) as opened:
        yield opened


def away():
    """A server that is not there."""
    error = grpc.RpcError()
    error.code = lambda: grpc.StatusCode.UNAVAILABLE
    return error


def failing(*errors):
    """A request that fails with each error in turn, then succeeds."""
    left = list(errors)

    def ask(**named):
        if left:
            raise left.pop(0)
        return "done"

    return ask


def test_nobody_answers():
    start = time.perf_counter()
    with pytest.raises(ServerError, match=r"no Milvus answers at http://127\.0\.0\.1:9"):
        Connection(CollectionSettings("http://127.0.0.1:9", milvus_timeout=0.5))
    assert time.perf_counter() - start < 8


def test_what_is_busy_or_away_is_asked_again_ever_later(connection, heard, waited):
    busy = MilvusException(8, "rate limit exceeded")
    assert connection.call("x", failing(busy, away(), busy), tries=4) == "done"
    assert waited == [1, 2, 4]
    assert len(heard.warnings) == 3
    assert "rate limit exceeded; trying again in 1 s" in heard.warnings[0]
    with pytest.raises(ServerError, match="cannot be done: rate limit"):
        connection.call("cannot be done", failing(busy, busy), tries=2)


@pytest.mark.parametrize(
    ("message", "kind", "hint"),
    [
        ("no such field", ServerError, None),
        ("[Errno 28] No space left on device", OutputError, "--resume"),
        ("disk quota exceeded, please allocate more resources", OutputError, "--resume"),
        ("auth check failure, please check username", ServerError, "DENSERK_MILVUS_TOKEN"),
    ],
)
def test_what_is_refused_is_not_asked_again(connection, waited, message, kind, hint):
    with pytest.raises(kind, match="cannot be done: ") as caught:
        connection.call("cannot be done", failing(MilvusException(1, f"{message}\nmore")), tries=4)
    assert caught.value.message == f"cannot be done: {message}"
    assert (hint is None) == (caught.value.hint is None)
    assert hint is None or hint in caught.value.hint
    assert not waited


def test_secrets_come_from_the_environment_and_are_not_told(connection, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    assert credentials() == {"token": "s3cret", "ca_pem_path": "/ca.pem"}
    with pytest.raises(ServerError) as caught:
        connection.call("x", failing(MilvusException(1, "token s3cret is unknown")))
    assert caught.value.message == "x: token *** is unknown"
    monkeypatch.delenv("DENSERK_MILVUS_TOKEN")
    monkeypatch.setenv("DENSERK_MILVUS_USER", "me")
    with pytest.raises(UsageError, match="DENSERK_MILVUS_PASSWORD is not"):
        credentials()
    monkeypatch.setenv("DENSERK_MILVUS_PASSWORD", "pass")
    assert credentials()["token"] == "me:pass"


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        Connection(CollectionSettings(str(tmp_path / "none.db")))
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.db").write_bytes(b"milvus-lite 2")
    with pytest.raises(UsageError, match="is a file"):
        Connection(CollectionSettings(str(tmp_path / "old.db")), create=True)


def test_a_file_that_is_open_elsewhere(tmp_path):
    settings = CollectionSettings(str(tmp_path / "b.db"))
    Connection(settings, create=True).close()
    with (tmp_path / "b.db" / "LOCK").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerError, match=r"b\.db is in use by another process"):
            Connection(settings)
    Connection(settings).close()


def test_connections_of_one_file_share_its_server(tmp_path, connection):
    settings = CollectionSettings(str(tmp_path / "a.db"))
    Connection(settings).close()
    assert connection.client.list_collections() == []


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match="--engine milvus needs the package pymilvus"):
        Connection(CollectionSettings("http://127.0.0.1:9"))
