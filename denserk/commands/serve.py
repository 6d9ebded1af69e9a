"""`denserk serve`."""

import logging
import os
import signal
from typing import Annotated, Any

import typer

from denserk.commands.options import command
from denserk.config import encoding
from denserk.config.options import Given
from denserk.config.serving import AnswerSettings, HttpSettings, ServedSettings
from denserk.errors import Interrupted
from denserk.extras import require
from denserk.reporting import repeat_notes

logger = logging.getLogger(__name__)


@command(
    "serve",
    common="index model rerank corpus hits max_hits host port allow_host mcp device dtype threads "
    "quiet",
)
def serve(
    served: ServedSettings,
    answers: AnswerSettings,
    settings: HttpSettings,
    representation: Annotated[Given, encoding.RepresentationSettings],
    text: Annotated[Given, encoding.TextSettings],
    compute: encoding.ComputeSettings,
    model_server: encoding.ServerSettings,
) -> Any:
    """Serve indexes: a search page, JSON over HTTP, and tools for agents (MCP).

    denserk serve --index bm25/ --index dense=index/ --rerank reranker/
    denserk serve --index index/ --mcp
    """
    for module in ("starlette", "uvicorn", "mcp"):
        require(module, "denserk serve")
    from denserk.serving import server

    try:
        if not settings.mcp:
            server.require_free_port(settings)
        overrides = (representation, text)
        with server.open_service(served, answers, overrides, compute, model_server) as service:
            repeat_notes()
            serve_requests = server.serve_mcp if settings.mcp else server.serve_http
            serve_requests(service, answers, settings)
    except Interrupted as interruption:
        logger.info(f"stopped by {signal.Signals(interruption.signum).name}")
        status = 128 + interruption.signum
        if settings.mcp:  # a thread still reads standard input, and Python would wait for its end
            os._exit(status)
        raise typer.Exit(status) from None
