"""Tools for agents by the Model Context Protocol: `search` and `fetch`, by its official SDK."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from denserk.errors import DenserkError
from denserk.records import Passage
from denserk.reporting import show_error
from denserk.serving.batching import Batcher
from denserk.serving.pages import heading_of
from denserk.serving.requests import (
    INTERNAL_ERROR,
    JOINT,
    AnsweredHit,
    Limits,
    RequestError,
)
from denserk.version import __version__

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)


class FoundPassage(BaseModel):
    """A passage that `search` found: `text` is the part that fits the query best."""

    id: str
    title: str
    text: str
    score: float


class FoundPassages(BaseModel):
    """What `search` found, the best first, in the index (or indexes) of this name."""

    index: str
    results: list[FoundPassage]


class FetchedPassage(BaseModel):
    """A whole passage."""

    id: str
    title: str
    text: str


def tools_server(batcher: Batcher, limits: Limits) -> MCPServer:
    """Return the MCP server of the tools."""
    _keep_root_logger_quiet()
    names = ", ".join(limits.indexes)
    server = MCPServer(
        "denserk",
        version=__version__,
        instructions=(
            "Search passages, then fetch those whose whole text you need. "
            f"Indexes: {names}; several are searched as one by INDEX{JOINT}INDEX."
        ),
        subscriptions=False,  # streams without an end
    )
    tools = Tools(batcher, limits)
    index_description = f"Index to search: {names}, or several with {JOINT} between them."
    server.add_tool(
        tools.search,
        description=(
            "Search for passages about a question or some words. Returns their ids, titles, "
            f"best parts and scores, the best first. {index_description}"
        ),
        annotations=READ_ONLY,
    )
    server.add_tool(
        tools.fetch,
        description=(
            f"Fetch the whole text of a passage by the id that search returned. {index_description}"
        ),
        annotations=READ_ONLY,
    )
    return server


class Tools:
    """The functions of the tools; the default index is the first one of the server."""

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self._batcher = batcher
        self._limits = limits

    async def search(
        self,
        query: Annotated[str, Field(description="A question, or words.")],
        index: Annotated[
            str | None, Field(description="Name of an index. By default the first one.")
        ] = None,
        hits: Annotated[int | None, Field(description="Number of passages.")] = None,
    ) -> FoundPassages:
        """Search for passages."""
        with _tool_errors():
            indexes = self._read_indexes(index)
            request = self._limits.search_request(query, indexes, hits=hits, has_excerpts=True)
            answer = await self._batcher.search(request)
        results = [_found_passage(hit) for hit in answer]
        return FoundPassages(index=JOINT.join(indexes), results=results)

    async def fetch(
        self,
        id: Annotated[str, Field(description="Id of the passage.")],
        index: Annotated[
            str | None, Field(description="Name of an index. By default the first one.")
        ] = None,
    ) -> FetchedPassage:
        """Fetch a passage."""
        with _tool_errors():
            indexes = self._read_indexes(index)
            passage = await self._batcher.call(self._batcher.service.passage, indexes, id)
            if passage is None:
                raise RequestError(404, f"Document not found: {id}")
        return _fetched_passage(passage)

    def _read_indexes(self, index: str | None) -> tuple[str, ...]:
        """Return the names of the indexes that a tool is to search."""
        return self._limits.read_indexes(self._limits.indexes[0] if index is None else index)


def _found_passage(hit: AnsweredHit) -> FoundPassage:
    """Return a hit as `search` returns it."""
    title = hit.title or hit.docid
    return FoundPassage(id=hit.docid, title=title, text=hit.excerpt, score=hit.score)


def _fetched_passage(passage: Passage) -> FetchedPassage:
    """Return a passage as `fetch` returns it."""
    return FetchedPassage(id=passage.docid, title=heading_of(passage), text=passage.text)


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Answer errors in the block as those of a tool, which the agent reads."""
    try:
        yield
    except RequestError as error:
        raise ToolError(error.message) from None
    except Exception as error:  # noqa: BLE001  (answered and logged)
        message = f"internal error: {type(error).__name__}: {error}"
        show_error(DenserkError(message, "please report it with the output of --traceback"))
        raise ToolError(INTERNAL_ERROR.message) from None


class McpEndpoint:
    """The tools at a path of the HTTP server (streamable HTTP); `running` must be entered first.

    Requests have no session, so that each is answered alone and nothing is kept between them. The
    guard has checked Host and Origin before.
    """

    def __init__(self, batcher: Batcher, limits: Limits, max_body: int) -> None:
        server = tools_server(batcher, limits)
        server.streamable_http_app(  # makes the manager
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_body,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self._manager = server.session_manager
        self.running = self._manager.run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._manager.handle_request(scope, receive, send)


def _keep_root_logger_quiet() -> None:
    """Keep the SDK from writing its own messages to stderr: it does if nobody handles them."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())
