"""The web application: routes, what runs while it runs, and the guard before all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from denserk.config.serving import AnswerSettings, HttpSettings
from denserk.serving.batching import Batcher
from denserk.serving.guard import Guard
from denserk.serving.mcp_tools import McpEndpoint, tools_server
from denserk.serving.metrics import Metrics
from denserk.serving.pages import Pages, is_for_people
from denserk.serving.requests import Limits, RequestError
from denserk.serving.rest import RestInterface, as_request_error, json_error
from denserk.serving.search import SearchService


def create_app(service: SearchService, answers: AnswerSettings, settings: HttpSettings) -> ASGIApp:
    """Return the application that answers by a service."""
    batcher = Batcher(service, settings, Metrics())
    limits = limits_of(service, answers, settings)

    pages = Pages(batcher, limits)
    mcp = McpEndpoint(batcher, limits, settings.max_body)

    async def answer_error(request: Request, error: Exception) -> Response:
        request_error = as_request_error(error, request.url.path)
        if is_for_people(request):
            return pages.error_page(request_error)
        return json_error(request_error)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with batcher.running(), mcp.running():
            yield

    app = Starlette(
        routes=[
            *RestInterface(batcher, limits).routes(),
            *pages.routes(),
            Route("/mcp", mcp, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys((RequestError, HTTPException, Exception), answer_error),
        lifespan=lifespan,
    )
    return Guard(app, settings, batcher.metrics)


async def serve_tools(
    service: SearchService, answers: AnswerSettings, settings: HttpSettings
) -> None:
    """Serve the tools of MCP over standard input and output, until the input ends."""
    batcher = Batcher(service, settings, Metrics())
    async with batcher.running():
        server = tools_server(batcher, limits_of(service, answers, settings))
        await server.run_stdio_async()


def limits_of(service: SearchService, answers: AnswerSettings, settings: HttpSettings) -> Limits:
    """Return what requests to a service may ask for."""
    return Limits(
        indexes=list(service.indexes),
        answers=answers,
        max_query_length=settings.max_query_length,
        can_rerank=service.reranker is not None,
    )
