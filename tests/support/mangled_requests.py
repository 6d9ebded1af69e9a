"""Requests that no client should send: random bytes, wrong types, huge parameters, odd methods."""

import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, quote_from_bytes, urlsplit

SECONDS = 60  # a request may take; a busy machine is no failure
METHODS = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "BREW",
    "get",
    "G\t",
)
PATHS = (
    "/",
    "/v1/bm25/search",
    "/v1/bm25+dense/search",
    "/v1/nothing/search",
    "/v1/bm25/doc/d1",
    "/v1/bm25/doc/",
    "/v1/indexes",
    "/passage",
    "/docs",
    "/health",
    "/metrics",
    "/mcp",
    "/style.css",
    "//",
    "/v1/../../etc/passwd",
    "/%2e%2e/%00",
    "*",
)
PARAMETERS = (
    *("query", "q", "hits", "parse", "max_doc_length", "k1", "b", "weights", "method"),
    *("rerank", "highlight", "index", "id", "nothing", ""),
)
VALUES = (
    *("moon", "", " ", "0", "-1", "1e999", "nan", "inf", "true", "null", "10", "１０", "0x10"),
    *("9" * 400, "1,2", "1,,", ",", "rrf", "linear", "bm25", "dense", "\x00", "\ud7ff", "🌙"),
)
HOSTS = ("localhost", "127.0.0.1", "evil.example", "", "localhost:x", "a b", "[::1", "\xff")
TOOL_VALUES: tuple[Any, ...] = (
    None,
    True,
    3,
    -1,
    1.5,
    "moon",
    "",
    [],
    {},
    [["moon"]],
    {"query": "moon"},
    "x" * 3000,
)


class Mangled(NamedTuple):
    """The bytes of a request, and whether the client hangs up before it reads the answer."""

    content: bytes
    hangs_up: bool


class Mangler:
    """Makes requests; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._whole_requests: list[Callable[[], bytes]] = [
            self._query,
            self._query,
            self._any_method,
            self._any_host,
            self._huge_parameter,
            self._tool_call,
            self._tool_call,
            self._broken_json,
        ]
        self._parts: list[Callable[[], bytes]] = [
            self._wrong_length,
            self._random_bytes,
            self._cut,
        ]

    def requests(self, count: int) -> Iterator[Mangled]:
        """Yield requests; to a part of one, the server would wait for the rest."""
        for _ in range(count):
            make = self._random.choice((*self._whole_requests, *self._parts))
            yield Mangled(make(), hangs_up=make in self._parts)

    def _request(
        self,
        method: str = "GET",
        target: str | None = None,
        host: str = "localhost",
        body: bytes = b"",
        **headers: str,
    ) -> bytes:
        """Return a request that is as it should be but for what is given."""
        lines = [f"{method} {self._target() if target is None else target} HTTP/1.1"]
        lines += [f"Host: {host}", "Connection: close"]
        if body and "Content_Length" not in headers:
            headers["Content_Length"] = str(len(body))
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body

    def _target(self) -> str:
        """Return a path with parameters of any values."""
        path = self._random.choice(PATHS)
        parameters = []
        for _ in range(self._random.randrange(5)):
            name = self._random.choice(PARAMETERS)
            parameters.append(f"{name}={self._value()}")
        return f"{path}?{'&'.join(parameters)}" if parameters else path

    def _value(self) -> str:
        """Return a value of a parameter, quoted or as it is."""
        choice = self._random.random()
        if choice < 0.15:
            return quote_from_bytes(self._random.randbytes(self._random.randrange(1, 40)))
        value = self._random.choice(VALUES)
        return quote(value.encode("utf-8", "surrogatepass"))

    def _query(self) -> bytes:
        """A search with parameters of wrong types."""
        index = self._random.choice(("bm25", "dense", "bm25+dense", "dense+bm25", "bm25+", "+"))
        parameters = [f"query={self._value()}"]
        for _ in range(self._random.randrange(4)):
            parameters.append(f"{self._random.choice(PARAMETERS)}={self._value()}")
        return self._request(target=f"/v1/{index}/search?{'&'.join(parameters)}")

    def _any_method(self) -> bytes:
        """A method that is not there."""
        return self._request(method=self._random.choice(METHODS))

    def _any_host(self) -> bytes:
        """A wrong Host, or a wrong Origin."""
        if self._random.random() < 0.5:
            return self._request(host=self._random.choice(HOSTS))
        return self._request(Origin=self._random.choice(HOSTS))

    def _huge_parameter(self) -> bytes:
        """A parameter of up to 100,000 bytes, or as many parameters."""
        size = 10 ** self._random.randrange(3, 6)
        name = self._random.choice(PARAMETERS)
        if self._random.random() < 0.5:
            return self._request(target=f"/v1/bm25/search?query=moon&{name}={'9' * size}")
        return self._request(target=f"/v1/bm25/search?query={'moon%20' * (size // 7)}")

    def _tool_call(self) -> bytes:
        """A call of a tool with values of any types."""
        call: dict[str, Any] = {
            "jsonrpc": self._random.choice(("2.0", "2.0", "2.0", "1.0", 2, None)),
            "id": self._random.choice((1, "one", None, 1.5, [], {})),
            "method": self._random.choice(("tools/call", "tools/call", "tools/list", "nothing", 3)),
            "params": {
                "name": self._random.choice(("search", "fetch", "nothing", 3, None)),
                "arguments": {
                    name: self._random.choice(TOOL_VALUES)
                    for name in self._random.sample(("query", "index", "hits", "id", "x"), 3)
                },
            },
        }
        removed = self._random.choice((*call, *(["nothing"] * 6)))
        call.pop(removed, None)
        return self._post(json.dumps(call).encode())

    def _broken_json(self) -> bytes:
        """A body that is no JSON, or none of a call."""
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search"}}
        body = bytearray(json.dumps(call).encode())
        for _ in range(self._random.randrange(1, 6)):
            body[self._random.randrange(len(body))] = self._random.randrange(256)
        choices = (
            bytes(body),
            bytes(body)[: self._random.randrange(len(body))],
            b"[]",
            b"[" * 5000,
        )
        return self._post(self._random.choice((*choices, b"\xff\xfe", b"1e999999", b'"\\ud800"')))

    def _post(self, body: bytes) -> bytes:
        """A body that is sent to the tools."""
        kind = self._random.choice(("application/json",) * 5 + ("text/plain", "", "a/b; charset=x"))
        version = self._random.choice(("2025-06-18",) * 5 + ("2026-07-28", "1", "x" * 50))
        return self._request(
            "POST",
            "/mcp",
            body=body,
            Content_Type=kind,
            Accept="application/json, text/event-stream",
            MCP_Protocol_Version=version,
        )

    def _wrong_length(self) -> bytes:
        """A body of another length than its header says, or in broken chunks."""
        path = self._random.choice(("/mcp", "/v1/bm25/search?query=moon"))
        lengths = ("-1", "x", "0", "5", "100", "99999999999999999999999", "1,2")
        if self._random.random() < 0.5:
            length = self._random.choice(lengths)
            return self._request("POST", path, body=b'{"id": 1}', Content_Length=length)
        chunks = self._random.choice(
            (b"5\r\nabc", b"zz\r\n", b"0\r\n\r\n", b"-1\r\nx\r\n", b"3\r\nabc\r\n")
        )
        lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        return f"{lines}Content-Type: application/json\r\n\r\n".encode() + chunks

    def _random_bytes(self) -> bytes:
        """No request at all."""
        return self._random.randbytes(self._random.randrange(1, 2000))

    def _cut(self) -> bytes:
        """A request of which the end is missing."""
        request = self._random.choice((self._query, self._tool_call))()
        return request[: self._random.randrange(1, len(request))]


def send(address: str, request: Mangled) -> int | None:
    """Send a request and return the status of its answer; None if the server only hangs up."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    with socket.create_connection((host, port), SECONDS) as connection:
        answer = b""
        # the server may hang up before it has read all of it
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request.content)
            if request.hangs_up:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                answer += part
    words = answer.split(maxsplit=2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else None


def send_all(address: str, count: int, seed: int) -> Counter[int | None]:
    """Send mangled requests one after the other; return how often the server answered how."""
    return Counter(send(address, request) for request in Mangler(seed).requests(count))
