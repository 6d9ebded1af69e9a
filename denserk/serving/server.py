"""The server: what is opened before it listens, the socket, and its end."""

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.serving import AnswerSettings, HttpSettings, ServedSettings
from denserk.errors import ServerError, UsageError
from denserk.io.outputs import scratch_folder
from denserk.serving.indexes import QueryModel, ServedIndex
from denserk.serving.passages import SharedPassages
from denserk.serving.search import SearchService

logger = logging.getLogger(__name__)

BACKLOG = 128  # connections that wait to be accepted
# what uvicorn logs where the client went away before the answer
NOT_ANSWERED = "ASGI callable returned without completing response."
LOUD_LOGGERS = ("denserk.index", "denserk.models")  # of what every search would log again


@contextmanager
def open_service(
    served: ServedSettings,
    answers: AnswerSettings,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
    model_server: ServerSettings = NO_SERVER,
) -> Iterator[SearchService]:
    """Open all indexes and models; an error says what is missing.

    `overrides` are fields of the representation and of the texts that replace those of the models,
    `model_server` is that of a model behind a URL.
    """
    reranker = None
    reranker_fields: Sequence[str] = ()
    if served.rerank is not None:
        from denserk.io.model_files import look_for_model

        look_for_model(served.rerank)  # before torch is imported
        from denserk.models.cross_encoder import PairScorer

        reranker = PairScorer(served.rerank, compute=compute)
        reranker_fields = reranker.text.fields
    with scratch_folder("serve") as scratch:
        model = QueryModel(served.model, overrides, compute, model_server)
        shared_passages = SharedPassages(scratch, reranker_fields)
        indexes = [
            ServedIndex(index, model, served.corpus, shared_passages) for index in served.indexes
        ]
        is_bm25_only = all(index.current.encoder is None for index in indexes)
        if served.model is not None and is_bm25_only:
            raise UsageError(f"--model {served.model}: {served.index[0]} is a BM25 index")
        yield SearchService(indexes, answers, reranker)


def serve_http(service: SearchService, answers: AnswerSettings, settings: HttpSettings) -> None:
    """Answer requests until a signal ends the process."""
    import uvicorn

    from denserk.serving.app import create_app

    app = create_app(service, answers, settings)
    with closing(listening_socket(settings.host, settings.port)) as listener:
        config = uvicorn.Config(
            app,
            http="h11",  # bounds the length of a request's head
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.shutdown_seconds,
        )
        listener.listen(BACKLOG)  # from now on connections wait for the first answer
        address = _address_of(listener)
        logger.info(f"{', '.join(service.indexes)}: search at {address}/ (Ctrl-C ends it)")
        server = uvicorn.Server(config)
        with _quiet_searches(), _shown_errors_of_uvicorn():
            asyncio.run(server.serve(sockets=[listener]))


def serve_mcp(service: SearchService, answers: AnswerSettings, settings: HttpSettings) -> None:
    """Serve the tools of MCP over standard input and output, until the input ends."""
    from denserk.serving.app import serve_tools

    logger.info(f"{', '.join(service.indexes)}: tools search and fetch on standard input")
    with _quiet_searches():
        asyncio.run(serve_tools(service, answers, settings))


@contextmanager
def _quiet_searches() -> Iterator[None]:
    """Log only errors of searches in the block: each of them would repeat its notes."""
    loggers = [logging.getLogger(name) for name in LOUD_LOGGERS]
    for loud_logger in loggers:
        loud_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for loud_logger in loggers:
            loud_logger.setLevel(logging.NOTSET)


class _ErrorsOfUvicorn(logging.Handler):
    """Logs errors of the web server as denserk's, but not that a client went away."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message != NOT_ANSWERED:
            logger.error(f"uvicorn: {message}")


@contextmanager
def _shown_errors_of_uvicorn() -> Iterator[None]:
    """Log the errors of the web server in the block."""
    uvicorn_logger = logging.getLogger("uvicorn.error")
    handler = _ErrorsOfUvicorn(logging.ERROR)
    uvicorn_logger.addHandler(handler)
    try:
        yield
    finally:
        uvicorn_logger.removeHandler(handler)


def require_free_port(settings: HttpSettings) -> None:
    """Raise a ServerError if the port is taken: before minutes of loading."""
    listening_socket(settings.host, settings.port).close()


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and does not listen yet."""
    place = f"--host {host} --port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServerError(f"{place}: {error.strerror}", "give an address of this machine") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _bind_error(place, error) from None
    return listener


def _bind_error(place: str, error: OSError) -> ServerError:
    """Return the error of an address that cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        hint = "give another --port, or 0 for a free one"
        return ServerError(f"{place}: another program uses the port", hint)
    if error.errno == errno.EACCES:
        hint = "give a --port from 1024 on"
        return ServerError(f"{place}: only root may use this port", hint)
    return ServerError(f"{place}: {error.strerror}", "give an address of this machine")


def _address_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"
