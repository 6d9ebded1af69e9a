"""A local server that answers as OpenAI's /v1/embeddings does, and fails as a test says.

The vector of a text depends on its words, so that texts that share words are close.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np

DIMENSION = 32


class Reply(NamedTuple):
    """An answer instead of embeddings; status 0 closes the connection without one."""

    status: int
    body: Mapping[str, Any] | str = ""
    headers: Mapping[str, str] = {}


class Received(NamedTuple):
    """A request."""

    path: str
    texts: list[str]
    model: str
    authorization: str | None


@dataclass
class EmbeddingsServer:
    """What the server does, and the requests that it got."""

    port: int = 0
    seed: int = 0  # another seed is another model
    dimension: int = DIMENSION
    # answers to the next requests, in their order
    replies: list[Reply] = field(default_factory=list)
    # the answer to a request, from its texts; None: embeddings
    reply_to: Callable[[Sequence[str]], Reply | None] = lambda texts: None
    # changes the list of embeddings of an answer
    change: Callable[[list[dict[str, Any]]], Any] = lambda items: items
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def texts(self) -> list[str]:
        """All texts of all requests."""
        return [text for request in self.received for text in request.texts]

    def vector(self, text: str) -> np.ndarray:
        """The vector of a text: the normalised sum of those of its words."""
        total = np.zeros(self.dimension)
        for word in text.lower().split() or [""]:
            digest = hashlib.sha256(f"{self.seed} {word}".encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
            total += generator.standard_normal(self.dimension)
        return (total / np.linalg.norm(total)).astype(np.float32)

    def items(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The embeddings of an answer."""
        return [
            {"object": "embedding", "index": index, "embedding": self.vector(text).tolist()}
            for index, text in enumerate(texts)
        ]


def _handler(state: EmbeddingsServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            state.received.append(Received(self.path, [], "", self.headers.get("Authorization")))
            self._send(Reply(200, "followed"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = body["input"]
            authorization = self.headers.get("Authorization")
            with lock:
                state.received.append(Received(self.path, texts, body["model"], authorization))
                reply = state.replies.pop(0) if state.replies else None
            if reply is None:
                reply = state.reply_to(texts)
            if reply is None:
                data = state.change(state.items(texts))
                reply = Reply(200, {"object": "list", "data": data, "model": body["model"]})
            self._send(reply)

        def _send(self, reply: Reply) -> None:
            if reply.status == 0:
                self.close_connection = True
                return
            body = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    return Handler


@contextmanager
def embeddings_server(**settings: Any) -> Iterator[EmbeddingsServer]:
    """A server in a thread of this process."""
    state = EmbeddingsServer(**settings)
    with ThreadingHTTPServer(("127.0.0.1", state.port), _handler(state)) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
