"""A server that gets what no client should send answers all of it, and keeps answering."""

import json
from urllib.request import urlopen

import pytest

from tests.support.mangled_requests import Mangler, send_all
from tests.support.serving import running_server

REQUESTS = 1000


def test_requests_are_mangled_in_many_ways():
    requests = list(Mangler(1).requests(200))
    assert requests == list(Mangler(1).requests(200))
    assert len(set(requests)) > 150
    methods = {request.content.split(b" ")[0] for request in requests}
    assert {b"GET", b"POST", b"BREW"} <= methods


@pytest.mark.slow
def test_no_request_is_an_internal_error(served):
    with running_server(served, "--index", "bm25", "--index", "dense") as server:
        statuses = send_all(server.address, REQUESTS, seed=7)
        with urlopen(f"{server.address}/health") as response:
            assert json.load(response)["status"] == "ok"
        assert server.process.poll() is None
    log = server.log.read_text("utf-8")
    failures = {status for status in statuses if status is not None and status >= 500}
    assert not failures, (statuses, log)
    assert {200, 400, 404, 405, 421} <= set(statuses)
    assert "Traceback" not in log
    assert "internal error" not in log
