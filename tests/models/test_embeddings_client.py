"""Requests to a server of embeddings: order, retries, broken answers, secrets."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from denserk.config.encoding import ServerSettings
from denserk.errors import ServerError, UsageError
from denserk.models import embeddings_client
from denserk.models.embeddings_client import (
    EmbeddingsClient,
    NamedTexts,
    backoff,
    parse_server_url,
    words_of,
)
from tests.support.embeddings_server import Reply

TOO_LONG = {"error": {"message": "This model's maximum context length is 40 characters."}}


def numbered(count, kind="passage"):
    ids = [f"d{number}" for number in range(1, count + 1)]
    return NamedTexts(kind, ids, [f"text number {number}" for number in range(1, count + 1)])


def client_of(server, texts_per_request=None, *, url=None, sends_key=True, **settings):
    values = {"base_url": url or server.url, **settings}
    server_settings = ServerSettings(**values)
    return EmbeddingsClient(
        "m",
        parse_server_url(server_settings.base_url or ""),
        server_settings,
        texts_per_request,
        sends_key=sends_key,
    )


def assert_vectors_of(server, vectors, texts):
    expected = np.stack([server.vector(text) for text in texts.texts])
    np.testing.assert_array_equal(vectors, expected)


def test_vectors_are_in_the_order_of_the_texts_over_several_requests(embeddings):
    texts = numbered(23)
    counts: list[int] = []
    vectors = client_of(embeddings, 4).embed(texts, counts.append)
    assert_vectors_of(embeddings, vectors, texts)
    assert vectors.dtype == np.float32
    assert counts == [4, 4, 4, 4, 4, 3]
    assert sorted(len(request.texts) for request in embeddings.received) == [3, 4, 4, 4, 4, 4]
    assert {request.path for request in embeddings.received} == {"/v1/embeddings"}
    assert {request.model for request in embeddings.received} == {"m"}


def test_no_texts_are_no_request(embeddings):
    assert client_of(embeddings).embed(numbered(0)).shape == (0, 0)
    assert embeddings.received == []


def test_answers_out_of_order_are_put_in_order_by_their_index(embeddings):
    embeddings.change = lambda items: items[::-1]
    texts = numbered(5)
    assert_vectors_of(embeddings, client_of(embeddings).embed(texts), texts)


def test_requests_are_sent_at_the_same_time_up_to_the_limit(embeddings):
    open_requests = []
    most = []
    lock = threading.Lock()

    def slowly(texts):
        with lock:
            open_requests.append(texts)
            most.append(len(open_requests))
        time.sleep(0.02)
        with lock:
            open_requests.remove(texts)

    embeddings.reply_to = slowly
    client_of(embeddings, 1, requests_at_once=3).embed(numbered(12))
    assert 2 <= max(most) <= 3


@pytest.mark.parametrize("failure", [Reply(500, "oops"), Reply(503, ""), Reply(0)])
def test_a_request_that_fails_for_a_while_is_sent_again(embeddings, failure):
    client = client_of(embeddings)
    texts = numbered(2)
    client.embed(texts)
    embeddings.replies += [failure, failure, failure]
    assert_vectors_of(embeddings, client.embed(texts), texts)
    assert len(embeddings.received) == 5


def test_attempts_end_with_an_error_that_names_texts_and_the_servers_words(embeddings):
    embeddings.reply_to = lambda texts: Reply(500, {"error": {"message": "out of memory"}})
    with pytest.raises(ServerError) as caught:
        client_of(embeddings, request_retries=3).embed(numbered(2))
    assert "passages d1 to d2 after 4 attempts: 500: out of memory" in caught.value.message
    assert "--resume" in (caught.value.hint or "")
    assert len(embeddings.received) == 4


def test_a_server_is_waited_for_as_long_as_it_says(embeddings, monkeypatch):
    waited = []

    class NoWait(threading.Event):
        def wait(self, timeout=None):
            waited.append(timeout)
            return False

    monkeypatch.setattr(embeddings_client, "Event", NoWait)
    embeddings.replies += [
        Reply(429, {"error": "slow down"}, {"Retry-After": "17"}),
        Reply(503, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Reply(429, "", {"Retry-After": "soon"}),
    ]
    client_of(embeddings).embed(numbered(1))
    assert waited[:2] == [17, 0]
    assert 0 < waited[2] <= embeddings_client.LONGEST_WAIT


def test_a_server_that_asks_to_wait_too_long_is_an_error(embeddings):
    embeddings.replies.append(Reply(429, {"error": "quota"}, {"Retry-After": "3600"}))
    with pytest.raises(ServerError, match="asks to wait 3,600 s"):
        client_of(embeddings).embed(numbered(1))
    assert len(embeddings.received) == 1


def test_waits_grow_up_to_a_limit_and_are_random():
    waits = [backoff(attempt) for attempt in range(1, 20)]
    assert all(0.25 <= wait <= embeddings_client.LONGEST_WAIT for wait in waits)
    assert waits[3] > waits[0]
    assert backoff(5) != backoff(5)


def test_a_dead_server_is_an_error_after_few_attempts(embeddings, monkeypatch):
    url = embeddings.url
    embeddings.port = 0
    dead = url.replace(url.rpartition(":")[2], "9/v1")  # nothing listens there
    with pytest.raises(ServerError) as caught:
        client_of(embeddings, url=dead).embed(numbered(1))
    assert "after 3 attempts: no answer (" in caught.value.message
    assert caught.value.hint == f"is a server running at {dead}?"


def test_a_server_that_does_not_answer_in_time_is_an_error(embeddings):
    embeddings.reply_to = lambda texts: time.sleep(0.3)
    with pytest.raises(ServerError, match=r"no answer \(none within 0.05 s\)"):
        client_of(embeddings, request_timeout=0.05, request_retries=0).embed(numbered(1))


def test_another_dimension_is_an_error_that_names_the_request(embeddings):
    client = client_of(embeddings, 2, requests_at_once=1)
    client.embed(numbered(1))

    def shorten_second(items):
        is_second = len(embeddings.received) == 3
        for item in items:
            if is_second:
                item["embedding"] = item["embedding"][:5]
        return items

    embeddings.change = shorten_second
    with pytest.raises(ServerError) as caught:
        client.embed(numbered(6))
    assert "passages d3 to d4 with vectors of 5 dimensions" in caught.value.message
    assert "had answered with 32" in caught.value.message


def with_value(value):
    def change(items):
        items[1]["embedding"][3] = value
        return items

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: items[:-1], "passages d1 to d3 with 2 embeddings; expected 3"),
        (lambda items: [*items, items[0]], "with 4 embeddings; expected 3"),
        (lambda items: [items[0], items[1], items[1]], "the `index` 1; expected each number"),
        (lambda items: [{**item, "index": None} for item in items], "the `index` None"),
        (lambda items: [{**item, "index": item["index"] + 1} for item in items], "the `index` 3"),
        (lambda items: {"first": items[0]}, "no list `data`"),
        (lambda items: ["text"] * 3, "the `index` None"),
        (lambda items: [{**item, "embedding": "AAAA"} for item in items], "no list of numbers"),
        (lambda items: [{**item, "embedding": []} for item in items], "no list of numbers"),
        (lambda items: [{**item, "embedding": [[1.0]]} for item in items], "no list of numbers"),
        (with_value(None), "passage d2 with a number that is not finite"),
        (with_value(1e300), "passage d2 with a number that is not finite"),
        (with_value("x"), "passage d2 with an `embedding` that is no list of numbers"),
        (with_value([1.0]), "passage d2 with an `embedding` that is no list of numbers"),
        (
            lambda items: [items[0], items[1], {**items[2], "embedding": [1.0]}],
            "vectors of 1 and 32 dimensions",
        ),
    ],
)
def test_a_wrong_answer_is_an_error_that_names_the_texts(embeddings, change, message):
    embeddings.change = change
    with pytest.raises(ServerError) as caught:
        client_of(embeddings).embed(numbered(3))
    assert message in caught.value.message


@pytest.mark.parametrize("body", ["<html>", "", "[1]", '{"data": {}}', '{"data": [NaN]}'])
def test_an_answer_of_another_service_is_an_error(embeddings, body):
    embeddings.replies.append(Reply(200, body))
    with pytest.raises(ServerError, match="answers the request of passage d1 with"):
        client_of(embeddings).embed(numbered(1))


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_text_that_is_too_long_is_named_with_the_servers_words(embeddings, status):
    def reject_long(texts):
        is_long = any(len(text) > 40 for text in texts)
        return Reply(status, TOO_LONG) if is_long else None

    embeddings.reply_to = reject_long
    texts = numbered(8)
    long_texts = [*texts.texts]
    long_texts[5] = "long " * 20
    with pytest.raises(ServerError) as caught:
        client_of(embeddings).embed(replace(texts, texts=long_texts))
    assert "passage d6 (100 characters)" in caught.value.message
    assert f"({status}): This model's maximum context length is 40" in caught.value.message
    assert len(embeddings.received) < 10  # the request was halved


def test_a_request_of_too_many_texts_is_divided(embeddings, caplog):
    def reject_many(texts):
        if len(texts) > 3:
            return Reply(422, {"error": "batch size > maximum allowed batch size 3"})
        return None

    embeddings.reply_to = reject_many
    texts = numbered(10)
    assert_vectors_of(embeddings, client_of(embeddings).embed(texts), texts)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "maximum allowed batch size 3" in warnings[0]
    assert "--batch-size" in warnings[0]


def test_a_missing_key_is_an_error_that_names_the_variable(embeddings, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    embeddings.reply_to = lambda texts: Reply(401, {"error": {"message": "no key"}})
    with pytest.raises(ServerError) as caught:
        client_of(embeddings).embed(numbered(1))
    assert "(401): no key" in caught.value.message
    assert "export OPENAI_API_KEY" in (caught.value.hint or "")
    assert len(embeddings.received) == 1
    assert embeddings.received[0].authorization is None


def test_the_key_is_that_of_the_named_variable(embeddings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("MY_KEY", " sk-mine\n")
    client_of(embeddings, api_key_variable="MY_KEY").embed(numbered(1))
    assert embeddings.received[0].authorization == "Bearer sk-mine"


@pytest.mark.parametrize("key", ["sk-one\ntwo", "sk-ключ"])
def test_a_key_that_no_header_takes_is_an_error_without_it(embeddings, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError) as caught:
        client_of(embeddings)
    assert "OPENAI_API_KEY" in caught.value.message
    assert "sk-" not in caught.value.message


def test_user_information_and_query_reach_the_server_and_no_message(
    embeddings, monkeypatch, caplog
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    url = embeddings.url.replace("//", "//me:pass%20word@") + "?token=tok123"
    embeddings.reply_to = lambda texts: Reply(
        500, {"error": "me:pass word sk-secret token=tok123 tok123 bWU6cGFzcyB3b3Jk"}
    )
    with pytest.raises(ServerError) as caught:
        client_of(embeddings, url=url, request_retries=1).embed(numbered(1))
    assert embeddings.received[0].path == "/v1/embeddings?token=tok123"
    assert embeddings.received[0].authorization == "Basic bWU6cGFzcyB3b3Jk"
    messages = [caught.value.message, caught.value.hint or "", *caplog.messages]
    for secret in ("pass word", "tok123", "bWU6"):
        assert all(secret not in message for message in messages)


def test_a_key_that_the_server_repeats_is_not_shown(embeddings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    embeddings.reply_to = lambda texts: Reply(401, {"error": "Incorrect API key: sk-secret"})
    with pytest.raises(ServerError) as caught:
        client_of(embeddings).embed(numbered(1))
    assert "Incorrect API key: ***" in caught.value.message


def test_a_key_that_is_held_back_is_explained(embeddings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    embeddings.reply_to = lambda texts: Reply(401, "no key")
    with pytest.raises(ServerError) as caught:
        client_of(embeddings, sends_key=False).embed(numbered(1))
    assert embeddings.received[0].authorization is None
    assert f"give --base-url {embeddings.url}" in (caught.value.hint or "")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(embeddings, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    location = f"{embeddings.url}/elsewhere"
    embeddings.replies.append(Reply(status, "", {"Location": location}))
    with pytest.raises(ServerError) as caught:
        client_of(embeddings).embed(numbered(1))
    assert len(embeddings.received) == 1
    assert f"({status})" in caught.value.message
    assert "give the URL there as --base-url" in (caught.value.hint or "")


def test_an_unknown_model_is_an_error_with_the_servers_words(embeddings):
    embeddings.reply_to = lambda texts: Reply(404, {"message": "The model `m` does not exist."})
    with pytest.raises(ServerError, match=r"\(404\): The model `m` does not exist"):
        client_of(embeddings).embed(numbered(1))
    assert len(embeddings.received) == 1


def test_no_further_request_is_sent_after_an_error(embeddings):
    embeddings.reply_to = lambda texts: Reply(403, "forbidden")
    with pytest.raises(ServerError):
        client_of(embeddings, 1, requests_at_once=2).embed(numbered(200))
    time.sleep(0.05)
    assert len(embeddings.received) < 100


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (b'{"error": "too long", "error_type": "Validation"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"msg": "field required"}]}', '[{"msg":"field required"}]'),
        (b"\xff not text", "� not text"),
        (b"", ""),
    ],
)
def test_errors_of_several_servers_are_read(body, words):
    assert words_of(body) == words


@pytest.mark.parametrize(
    "url",
    ["localhost:8000/v1", "ftp://host/v1", "http://", "http://me:pass@host:port/v1", "http://a b/"],
)
def test_a_url_that_is_none_is_an_error_that_does_not_show_it(url):
    with pytest.raises(UsageError) as caught:
        ServerSettings(base_url=url)
    assert "pass" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "public", "endpoint"),
    [
        ("http://h:1/v1/", "http://h:1/v1", "http://h:1/v1/embeddings"),
        ("http://h:1/v1/embeddings", "http://h:1/v1", "http://h:1/v1/embeddings"),
        ("http://u@[::1]:1/v1?a=b#c", "http://[::1]:1/v1", "http://[::1]:1/v1/embeddings?a=b"),
        ("https://h", "https://h", "https://h/embeddings"),
    ],
)
def test_a_url_is_recorded_without_secrets(url, public, endpoint):
    parsed = parse_server_url(url)
    assert parsed.public == public
    assert parsed.endpoint == endpoint
