"""Concurrent requests: batches, overload, and indexes that are rebuilt meanwhile."""

import asyncio
import threading
import time
from functools import partial

import pytest

from denserk.commands.app import run
from denserk.config.retrieval import FusionSettings
from denserk.config.serving import HttpSettings
from denserk.errors import BeingWrittenError
from denserk.serving.batching import Batcher
from denserk.serving.metrics import Metrics
from denserk.serving.requests import RequestError, SearchRequest
from tests.support.console import warnings_of
from tests.support.serving import client_of, opened_service

PATIENCE = 60  # seconds


def request_of(query, index="bm25", hits=3):
    return SearchRequest(query, (index,), hits, FusionSettings(), rerank=False, has_excerpts=False)


def answers_of(service, requests, **settings):
    """Return the answers of requests that come at once, errors among them, and the metrics."""
    metrics = Metrics()

    async def ask():
        batcher = Batcher(service, HttpSettings(**settings), metrics)
        async with batcher.running():
            searches = map(batcher.search, requests)
            return await asyncio.gather(*searches, return_exceptions=True)

    return asyncio.run(ask()), metrics


def test_concurrent_requests_are_answered_together_as_they_are_alone(service):
    queries = ["river boat", "moon", "cat in a house", "zebra"]
    requests = [
        request_of(query, index, hits)
        for query in queries
        for index in ("bm25", "dense")
        for hits in (1, 3)
    ]
    together, metrics = answers_of(service, requests, batch_milliseconds=20)
    assert metrics.batches == 1
    assert metrics.batched_queries == len(requests)
    assert metrics.waiting == 0
    for request, answer in zip(requests, together, strict=True):
        ((alone,), _) = answers_of(service, [request])
        assert [hit.docid for hit in answer] == [hit.docid for hit in alone]
        scores = [hit.score for hit in alone]
        assert [hit.score for hit in answer] == pytest.approx(scores, abs=1e-5)


def test_a_batch_has_a_largest_number_of_queries(service):
    requests = [request_of("moon")] * 10
    _, metrics = answers_of(service, requests, batch_queries=4, batch_milliseconds=20)
    assert metrics.batches == 3


def test_requests_above_the_limit_are_rejected_with_a_time_to_retry(service):
    answers, _ = answers_of(service, [request_of("moon")] * 5, max_waiting=3)
    errors = [answer for answer in answers if isinstance(answer, RequestError)]
    assert len(errors) == 2
    assert {(error.status, error.retry_after) for error in errors} == {(503, 1)}


def test_an_overloaded_server_answers_503_with_retry_after(service, monkeypatch):
    is_searching = threading.Event()
    may_end = threading.Event()
    answer = service.answer

    def wait_and_answer(requests):
        is_searching.set()
        may_end.wait(PATIENCE)
        return answer(requests)

    monkeypatch.setattr(service, "answer", wait_and_answer)
    with client_of(service, max_waiting=1) as client:
        search = partial(client.get, "/v1/bm25/search", params={"query": "moon"})
        first_answer = []
        thread = threading.Thread(target=lambda: first_answer.append(search()))
        thread.start()
        assert is_searching.wait(PATIENCE)
        rejected = search()
        assert client.get("/health").status_code == 200
        may_end.set()
        thread.join(PATIENCE)
    assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "1")
    assert first_answer[0].status_code == 200


def test_a_failing_request_does_not_fail_its_neighbours(service, monkeypatch):
    answer = service.answer

    def fail_at_moon(requests):
        if any(request.query == "moon" for request in requests):
            raise ZeroDivisionError
        return answer(requests)

    monkeypatch.setattr(service, "answer", fail_at_moon)
    requests = [request_of("boat"), request_of("moon"), request_of("cat")]
    (boat, moon, cat), _ = answers_of(service, requests, batch_milliseconds=20)
    assert [hit.docid for hit in boat] == ["d5"]
    assert isinstance(moon, ZeroDivisionError)
    assert [hit.docid for hit in cat] == ["d3"]


def test_an_index_that_is_being_replaced_answers_503(service, monkeypatch):
    def fail(requests):
        raise BeingWrittenError("replaced")

    monkeypatch.setattr(service, "answer", fail)
    (error,), _ = answers_of(service, [request_of("moon")])
    assert (error.status, error.retry_after) == (503, 1)


@pytest.fixture
def own_index(tmp_path, monkeypatch):
    """A function that builds the index `bm25` of some texts in the working folder."""
    monkeypatch.chdir(tmp_path)

    def build(*texts):
        lines = [f'{{"id": "d{n}", "contents": "{text}"}}\n' for n, text in enumerate(texts)]
        (tmp_path / "corpus.jsonl").write_text("".join(lines))
        index = ["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "bm25"]
        assert run([*index, "--overwrite", "--quiet"]) == 0

    return build


def search_until(client, is_expected):
    """Search again and again until the answer is as expected; return the statuses on the way."""
    statuses = set()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        response = client.get("/v1/bm25/search", params={"query": "moon"})
        statuses.add(response.status_code)
        if is_expected(response.json()["candidates"]):
            return statuses
        time.sleep(0.05)
    raise AssertionError(f"the index was not opened again: {response.json()}")


def test_an_index_that_was_rebuilt_is_opened_again(own_index):
    own_index("the moon")
    with opened_service("bm25") as service, client_of(service, reload_seconds=0.05) as client:
        assert search_until(client, lambda candidates: len(candidates) == 1) == {200}
        own_index("the moon", "the moon and the sea")
        statuses = search_until(client, lambda candidates: len(candidates) == 2)
        texts = [client.get(f"/v1/bm25/doc/d{number}").json()["doc"]["text"] for number in (0, 1)]
        assert 'denserk_reloads_total{index="bm25"} 1' in client.get("/metrics").text
    assert statuses == {200}
    assert texts == ["the moon", "the moon and the sea"]


def test_a_request_that_has_begun_ends_on_the_old_version(own_index, monkeypatch):
    own_index("the moon")
    is_searching = threading.Event()
    is_opened_again = threading.Event()
    may_end = threading.Event()
    with opened_service("bm25") as service, client_of(service, reload_seconds=0.05) as client:
        answer = service.answer
        index = service.indexes["bm25"]
        open_index = index.open

        def wait_and_answer(requests):
            is_searching.set()
            may_end.wait(PATIENCE)
            return answer(requests)

        def open_again():
            opened = open_index()
            is_opened_again.set()
            return opened

        monkeypatch.setattr(service, "answer", wait_and_answer)
        monkeypatch.setattr(index, "open", open_again)
        candidates = []
        ask = partial(client.get, "/v1/bm25/search", params={"query": "moon"})
        thread = threading.Thread(target=lambda: candidates.extend(ask().json()["candidates"]))
        thread.start()
        assert is_searching.wait(PATIENCE)
        own_index("the moon", "the moon and the sea")
        assert is_opened_again.wait(PATIENCE)
        may_end.set()
        thread.join(PATIENCE)
        assert len(candidates) == 1
        search_until(client, lambda new_candidates: len(new_candidates) == 2)


def test_the_old_version_answers_while_the_new_one_cannot_be_opened(own_index, tmp_path, caplog):
    own_index("the moon")
    manifest = tmp_path / "bm25" / "manifest.json"
    content = manifest.read_bytes()
    with opened_service("bm25") as service, client_of(service, reload_seconds=0.05) as client:
        manifest.write_bytes(b"{")
        deadline = time.monotonic() + PATIENCE
        while client.get("/health").json()["outdated"] != ["bm25"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert search_until(client, lambda candidates: len(candidates) == 1) == {200}
        manifest.write_bytes(content)
        while client.get("/health").json()["outdated"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("bm25 answers from its old version: ")


def test_a_folder_that_cannot_be_looked_at_for_a_while_is_opened_again_later(
    own_index, monkeypatch, caplog
):
    own_index("the moon")
    with opened_service("bm25") as service, client_of(service, reload_seconds=0.05) as client:
        index = service.indexes["bm25"]

        def fail():
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr(index, "was_rebuilt", fail)
            deadline = time.monotonic() + PATIENCE
            while client.get("/health").json()["outdated"] != ["bm25"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        own_index("the moon", "the moon and the sea")
        search_until(client, lambda candidates: len(candidates) == 2)
        assert client.get("/health").json()["outdated"] == []
    (warning,) = warnings_of(caplog)
    assert warning.startswith("bm25 answers from its old version: ")
