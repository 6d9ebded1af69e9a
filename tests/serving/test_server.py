"""The server as a process: what it says before it listens, its answers, and its end."""

import http.client
import json
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from functools import partial
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest

from denserk.commands.app import run
from denserk.config.encoding import ServerSettings
from tests.support.serving import client_of, opened_service, running_server

SERVE = ("serve", "--port", "0", "--device", "cpu")


def errors_of(capsys, *words, status):
    """Run a command that fails before it listens; return its messages."""
    assert run([*SERVE, *words]) == status
    return capsys.readouterr().err


def fetch(address, path, **parameters):
    """Return the JSON that a server answers with."""
    query = f"?{urlencode(parameters)}" if parameters else ""
    with urlopen(f"{address}{path}{query}") as response:
        return json.load(response)


@pytest.fixture(autouse=True)
def _in_the_folder(served, monkeypatch):
    monkeypatch.chdir(served)


@pytest.mark.parametrize(
    ("words", "status", "expected_messages"),
    [
        (["--index", "nothing"], 2, ["nothing"]),
        (["--index", "corpus.jsonl"], 2, ["is a file; expected the folder of an index"]),
        (["--index", "bm25", "--model", "minilm"], 2, ["bm25 is a BM25 index"]),
        (["--index", "dense", "--model", "no/such/folder"], 2, ["no/such/folder"]),
        (["--index", "bm25", "--rerank", "./no-reranker"], 2, ["no-reranker"]),
        (["--index", "bm25", "--corpus", "nowhere.jsonl"], 2, ["nowhere.jsonl"]),
        (["--index", "a=bm25", "--index", "a=dense"], 2, ["two indexes are named a"]),
        (["--index", "bm25", "--hits", "2000"], 2, ["--hits 2000 is above --max-hits 1000"]),
        (["--index", "bm25", "--mcp"], 2, ["exclude each other"]),
        (["--index", "bm25", "--host", "no.such.host.invalid"], 1, ["--host no.such.host.invalid"]),
        ([], 2, ["--index must be given"]),
    ],
)
def test_what_is_missing_is_said_before_the_server_listens(
    words, status, expected_messages, capsys, monkeypatch
):
    def listen(*arguments):
        raise AssertionError("the server listened")

    monkeypatch.setattr("denserk.serving.server.serve_http", listen)
    messages = errors_of(capsys, *words, status=status)
    assert messages.splitlines()[-1].strip()  # a hint, or the error alone
    for expected_message in expected_messages:
        assert expected_message in messages
    assert "Traceback" not in messages


def test_a_port_in_use_is_one_error(capsys):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert run(["serve", "--index", "bm25", "--port", str(port)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: --host 127.0.0.1 --port {port}: another program uses the port"
    assert hint.strip() == "give another --port, or 0 for a free one"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_process_answers_until_a_signal_ends_it(served, signum):
    with running_server(served, "--index", "bm25", "--index", "dense") as server:
        assert fetch(server.address, "/health")["status"] == "ok"
        for index in ("bm25", "dense", "bm25%2Bdense"):
            answer = fetch(server.address, f"/v1/{index}/search", query="river boat", hits=2)
            assert len(answer["candidates"]) == 2
        assert server.stop(signum) == 128 + signum
    log = server.log.read_text("utf-8")
    assert log.splitlines()[-1] == f"stopped by {signal.Signals(signum).name}"
    assert "Traceback" not in log


@pytest.mark.slow
def test_requests_that_were_sent_before_the_signal_are_answered(served):
    options = ("--index", "bm25", "--set", "batch-milliseconds=1000")
    with running_server(served, *options) as server:
        answers: list[dict] = []
        ask = partial(fetch, server.address, "/v1/bm25/search", query="moon")
        thread = threading.Thread(target=lambda: answers.append(ask()))
        thread.start()
        time.sleep(0.5)  # within the second that the batch waits
        assert server.stop() == 128 + signal.SIGTERM
        thread.join()
    assert [hit["docid"] for hit in answers[0]["candidates"]] == ["d4"]


@pytest.mark.slow
def test_the_server_listens_on_this_machine_alone(served):
    with running_server(served, "--index", "bm25") as server:
        address = urlsplit(server.address)
        assert address.hostname == "127.0.0.1"
        connection = http.client.HTTPConnection("127.0.0.2", address.port or 0)
        with closing(connection), pytest.raises(OSError, match="refused"):
            connection.request("GET", "/health")


@pytest.mark.parametrize("module", ["starlette", "uvicorn", "mcp"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    messages = errors_of(capsys, "--index", "bm25", status=2)
    assert f"denserk serve needs the package {module}" in messages
    assert "pip install mcp starlette uvicorn" in messages


def test_queries_are_encoded_by_a_model_behind_a_url(served, embeddings, tmp_path):
    url = ["--base-url", embeddings.url]
    corpus = ["--corpus", str(served / "corpus.jsonl")]
    vectors = ["--output", str(tmp_path / "served-vectors")]
    assert run(["encode", "--model", "openai:m", *url, *corpus, *vectors]) == 0
    indexes = (str(tmp_path / "served-vectors"),)
    with opened_service(*indexes) as service, client_of(service) as client:
        answer = client.get("/v1/served-vectors/search", params={"query": "moon and star"}).json()
    assert len(answer["candidates"]) == 6
    other = ServerSettings(base_url=embeddings.url.replace("127.0.0.1", "localhost"))
    with opened_service(*indexes, model="openai:m", model_server=other) as service:
        (index,) = service.indexes.values()
        assert index.current.description()["model"] == "openai:m"
