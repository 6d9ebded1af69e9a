"""What stands before requests: names, origins, sizes and internal errors."""

import asyncio

import pytest

from denserk.config.serving import HttpSettings
from denserk.serving.guard import Guard
from denserk.serving.metrics import Metrics
from tests.support.console import warnings_of
from tests.support.serving import client_of

HEALTH = "/health"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("localhost:evil", 421),
        ("localhost@evil.example", 421),
        ("192.168.1.5:8000", 421),
        ("", 421),
    ],
)
def test_only_the_names_of_a_local_server_are_answered(client, host, status):
    assert client.get(HEALTH, headers={"Host": host}).status_code == status


def test_a_server_of_a_network_has_its_addresses_and_the_names_that_are_allowed(service):
    with client_of(service, host="0.0.0.0", allow_host=("Search.example",)) as client:
        statuses = {
            host: client.get(HEALTH, headers={"Host": host}).status_code
            for host in ("192.168.1.5:8000", "[fe80::1]", "search.example", "evil.example")
        }
    assert statuses == {
        "192.168.1.5:8000": 200,
        "[fe80::1]": 200,
        "search.example": 200,
        "evil.example": 421,
    }


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("https://LOCALHOST:8000", 200),
        ("http://localhost:3000", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("file://localhost:8000", 403),
        ("localhost:8000", 403),
    ],
)
def test_pages_of_other_origins_are_rejected(client, origin, status):
    headers = {"Host": "localhost:8000", "Origin": origin}
    assert client.get(HEALTH, headers=headers).status_code == status


def test_another_port_of_the_same_machine_is_another_origin(service):
    headers = {"Host": "192.168.1.5:8000", "Origin": "http://192.168.1.5:3000"}
    with client_of(service, host="192.168.1.5") as client:
        assert client.get(HEALTH, headers=headers).status_code == 403
        own = {**headers, "Origin": "http://192.168.1.5:8000"}
        assert client.get(HEALTH, headers=own).status_code == 200


def test_other_sites_may_link_to_a_page_and_embed_nothing(client):
    from_other_site = {"Sec-Fetch-Site": "cross-site"}
    link = {**from_other_site, "Sec-Fetch-Mode": "navigate"}
    picture = {**from_other_site, "Sec-Fetch-Mode": "no-cors"}
    search = {"q": "moon"}
    assert client.get("/", params=search, headers=link).status_code == 200
    assert client.get("/", params=search, headers=picture).status_code == 403


def test_a_proxy_may_have_another_name_than_the_server(service):
    headers = {"Host": "localhost:8000", "Origin": "https://search.example"}
    with client_of(service, allow_host=("search.example",)) as client:
        assert client.get(HEALTH, headers=headers).status_code == 200


def test_addresses_and_bodies_have_a_largest_size(service):
    with client_of(service, max_body=2000) as client:
        assert client.get("/v1/bm25/search", params={"query": "x" * 40_000}).status_code == 414
        assert client.request("GET", HEALTH, content=b"x" * 2001).status_code == 413
        assert client.request("GET", HEALTH, content=b"x" * 2000).status_code == 200
        for length in (b"-1", b"\xb2", b"many", b"9" * 5000):
            headers = {b"Content-Length": length}
            assert client.get(HEALTH, headers=headers).status_code == 400


def test_every_answer_has_the_headers_of_safety(client):
    for response in (client.get("/"), client.get("/nix"), client.get("/", headers={"Host": "x"})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


def test_an_internal_error_is_one_line_in_the_log(service, monkeypatch, caplog):
    def fail(requests):
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(service, "answer", fail)
    with client_of(service) as client:
        response = client.get("/v1/bm25/search", params={"query": "moon"})
        assert response.status_code == 500
        assert response.json() == {"error": "Internal error; see the server's log"}
        assert 'status="500"} 1' in client.get("/metrics").text
    (message,) = warnings_of(caplog)
    assert message == "internal error: ZeroDivisionError: of the test"


def test_requests_are_logged_without_their_queries_if_asked(service, caplog):
    with client_of(service, access_log=True) as client:
        client.get("/v1/bm25/search", params={"query": "secret"})
    (line,) = [message for message in caplog.messages if message.startswith("GET ")]
    assert line.startswith("GET /v1/bm25/search 200 ")
    assert "secret" not in line


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_a_client_that_goes_away_is_no_error(service, caplog, host):
    metrics = Metrics()

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        return {"type": "http.disconnect"}

    async def fail(message):
        raise RuntimeError("the connection is closed")

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/health",
        "query_string": b"",
        "headers": [(b"host", host.encode())],
    }
    asyncio.run(Guard(answer, HttpSettings(), metrics)(scope, receive, fail))
    assert metrics.requests == {("health", 499): 1}
    assert warnings_of(caplog) == []
