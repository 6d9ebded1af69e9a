"""What stands before every request: names of the server, origins, sizes, errors and counts."""

import ipaddress
import json
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from denserk.config.serving import HttpSettings
from denserk.errors import DenserkError
from denserk.reporting import printable, show_error
from denserk.serving.metrics import Metrics
from denserk.serving.requests import INTERNAL_ERROR, RequestError

logger = logging.getLogger(__name__)

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
LONGEST_TARGET = 32_768  # bytes of path and query of an address
CLIENT_CLOSED = 499  # nginx's status, in metrics alone: the client went away within its request
LONGEST_NUMBER = 18  # digits of a length
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    # pages have no script; their style sheet is a file of the server
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
        b"base-uri 'none'; frame-ancestors 'none'",
    ),
)


@dataclass(frozen=True)
class ServerNames:
    """The names by which clients may reach the server.

    A page of another site can make a browser send requests to this server, under a name of that
    site that leads here (DNS rebinding) or from its own origin. Both are rejected.
    """

    names: Collection[str]
    proxy_names: Collection[str] = ()  # of those, which a proxy in front may have at its own port
    any_address: bool = False  # IP addresses are names, too: no other site can have them

    @classmethod
    def of(cls, settings: HttpSettings) -> "ServerNames":
        """Return the names of a server by its settings."""
        proxy_names = {name.lower() for name in settings.allow_host}
        names = {*LOCAL_NAMES, settings.host.lower(), *proxy_names}
        return cls(names, proxy_names, any_address=settings.host not in LOCAL_NAMES)

    def allow(self, host: str | None) -> bool:
        """Return whether a Host header, `name` or `name:port`, is one of the names.

        >>> names = ServerNames({"localhost"})
        >>> names.allow("localhost:8000"), names.allow("evil.example"), names.allow(None)
        (True, False, False)
        """
        name = host_name(host or "")
        if name is None:
            return False
        return name in self.names or (self.any_address and _is_address(name))

    def allow_origin(self, origin: str | None, host: str | None) -> bool:
        """Return whether a request comes from a page of this server, or from no page.

        >>> names = ServerNames({"localhost"})
        >>> names.allow_origin("http://localhost:8000", "localhost:8000")
        True
        >>> names.allow_origin("http://evil.example", "localhost:8000")
        False
        """
        if origin is None:
            return True
        scheme, separator, origin_host = origin.lower().partition("://")
        if scheme not in ("http", "https") or not separator:
            return False
        if host is not None and origin_host == host.lower():
            return True
        return host_name(origin_host) in self.proxy_names


def host_name(host: str) -> str | None:
    """Return the name of `name:port` in lower case; None if it is malformed.

    >>> host_name("Localhost:8000"), host_name("[::1]:80"), host_name("a b")
    ('localhost', '::1', None)
    """
    if any(character in host for character in "/?#@\\ \t"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # a ValueError if it is no number
    except ValueError:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI application around another one: it rejects, counts and logs requests.

    An exception that the inner application does not answer is an internal error: one line in the
    log, and status 500.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings, metrics: Metrics) -> None:
        self._app = app
        self._names = ServerNames.of(settings)
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or reject it."""
        if scope["type"] != "http":  # the start and the end of the server
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        response = _Response(send)
        try:
            headers = _headers_of(scope)
            self._reject_other_sites(headers)
            self._reject_large(scope, headers)
            await self._app(scope, receive, response.send)
        except RequestError as error:
            await response.send_error(error)
        except ClientDisconnect:
            response.status = CLIENT_CLOSED
        except Exception as error:  # noqa: BLE001  (answered and logged)
            message = f"internal error: {type(error).__name__}: {error}"
            show_error(DenserkError(message, "please report it with the output of --traceback"))
            await response.send_error(INTERNAL_ERROR)
        self._note(scope, response.status, time.perf_counter() - started)

    def _reject_other_sites(self, headers: Mapping[str, str]) -> None:
        """Raise a RequestError for a request by another name, or of a page of another site."""
        host = headers.get("host")
        if not self._names.allow(host):
            message = "This server has another name; --allow-host NAME adds one"
            raise RequestError(421, message)
        if not self._names.allow_origin(headers.get("origin"), host):
            raise RequestError(403, "Requests of other sites are rejected")
        # browsers say so of pictures and the like, which have no Origin; links to here are welcome
        is_cross_site = headers.get("sec-fetch-site") == "cross-site"
        if is_cross_site and headers.get("sec-fetch-mode") != "navigate":
            raise RequestError(403, "Requests of other sites are rejected")

    def _reject_large(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Raise a RequestError for an address or a body that is too large."""
        target_length = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if target_length > LONGEST_TARGET:
            raise RequestError(414, f"The address is longer than {LONGEST_TARGET:,} bytes")
        length = headers.get("content-length", "0")
        if len(length) > LONGEST_NUMBER or not (length.isascii() and length.isdecimal()):
            raise RequestError(400, "The header Content-Length must be a number")
        if int(length) > self._settings.max_body:
            raise RequestError(413, f"The body is larger than {self._settings.max_body:,} bytes")

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that was answered, and log it if that is asked for."""
        route = route_of(scope["path"])
        self._metrics.count(route, status, seconds)
        if self._settings.access_log:
            path = printable(scope["path"], 200)
            logger.info(f"{scope['method']} {path} {status} {seconds * 1000:.1f} ms")


class _Response:
    """Sends a response with the headers that every one has, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_started = False
        self.status = 500

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self._has_started = True
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            message = {**message, "headers": [*headers, *SECURITY_HEADERS]}
        try:
            await self._send(message)
        except Exception as error:  # of the web server, whose connection is broken
            self.status = CLIENT_CLOSED
            raise ClientDisconnect from error

    async def send_error(self, error: RequestError) -> None:
        """Send an error as JSON, unless a response has started."""
        if self._has_started:
            return
        body = error_body(error)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        for name, value in error_headers(error).items():
            headers.append((name.lower().encode(), value.encode()))
        start = {"type": "http.response.start", "status": error.status, "headers": headers}
        with suppress(ClientDisconnect):
            await self.send(start)
            await self.send({"type": "http.response.body", "body": body})


def error_body(error: RequestError) -> bytes:
    """Return the JSON of an error, with the field that Pyserini's server has."""
    return json.dumps({"error": error.message}).encode()


def error_headers(error: RequestError) -> dict[str, str]:
    """Return the headers of an error: when to ask again, if it says so."""
    return {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}


def route_of(path: str) -> str:
    """Return the name of a path in metrics.

    >>> route_of("/v1/bm25/search"), route_of("/v1/bm25/doc/d1"), route_of("/"), route_of("/x")
    ('search', 'document', 'page', 'other')
    """
    if path.startswith("/v1/"):
        if path.endswith("/search"):
            return "search"
        return "document" if "/doc/" in path else "other"
    names: Mapping[str, str] = {
        "/": "page",
        "/mcp": "mcp",
        "/health": "health",
        "/metrics": "metrics",
    }
    return names.get(path, "other")


def _headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request by name; of a repeated one the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
