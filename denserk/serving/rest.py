"""The JSON interface: paths, parameters and answers of Pyserini's REST server, and a few more.

`GET /v1/{index}/search` and `GET /v1/{index}/doc/{docid}` are those of Pyserini 2.1 to 2.4. The
index may be several, `bm25+dense`, whose hits are fused.
"""

import json
from functools import cache
from importlib import resources
from typing import Any

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from denserk.index.bm25 import recorded_bm25
from denserk.records import Passage
from denserk.serving.batching import Batcher
from denserk.serving.guard import error_headers
from denserk.serving.requests import (
    DOCUMENT_PARAMETERS,
    INTERNAL_ERROR,
    SEARCH_PARAMETERS,
    AnsweredHit,
    Limits,
    RequestError,
    read_boolean,
    read_integer,
    read_number,
    read_weights,
    reject_unknown,
)
from denserk.version import __version__

API = "v1"
ROUTES = "Expected route /v1/{index}/search or /v1/{index}/doc/{docid}"


class RestInterface:
    """The handlers of JSON requests."""

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self._batcher = batcher
        self._limits = limits
        self._openapi = openapi_text()

    def routes(self) -> list[Route]:
        """Return the routes of the interface."""
        return [
            Route("/v1/{index}/search", self.search, methods=["GET"]),
            Route("/v1/{index}/doc/{docid:path}", self.document, methods=["GET"]),
            Route("/v1/indexes", self.indexes, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.yaml", self.openapi_yaml, methods=["GET"]),
            Route("/openapi.json", self.openapi_json, methods=["GET"]),
        ]

    async def search(self, request: Request) -> Response:
        """Answer a query."""
        token = request.path_params["index"]
        indexes = self._limits.read_indexes(token)
        parameters = request.query_params
        reject_unknown(parameters, SEARCH_PARAMETERS)
        shape = _DocumentShape.read(parameters)
        has_highlights = read_boolean(parameters, "highlight") or False
        self._reject_other_bm25(
            indexes, read_number(parameters, "k1"), read_number(parameters, "b")
        )
        search_request = self._limits.search_request(
            parameters.get("query"),
            indexes,
            hits=read_integer(parameters, "hits"),
            method=parameters.get("method"),
            weights=read_weights(parameters),
            rerank=read_boolean(parameters, "rerank"),
            has_excerpts=has_highlights,
        )
        hits = await self._batcher.search(search_request)
        candidates = [
            _candidate(hit, rank, shape, has_highlights=has_highlights)
            for rank, hit in enumerate(hits, start=1)
        ]
        return JSONResponse(
            {
                "api": API,
                "index": token,
                "query": {"text": search_request.query},
                "candidates": candidates,
            }
        )

    async def document(self, request: Request) -> Response:
        """Answer with a passage by its id."""
        token = request.path_params["index"]
        docid = request.path_params["docid"]
        indexes = self._limits.read_indexes(token)
        parameters = request.query_params
        reject_unknown(parameters, DOCUMENT_PARAMETERS)
        shape = _DocumentShape.read(parameters)
        if not docid.strip():
            raise RequestError(400, "Path parameter 'docid' is required")
        passage = await self._batcher.call(self._batcher.service.passage, indexes, docid)
        if passage is None:
            raise RequestError(404, f"Document not found: {docid}")
        doc = shape.document(passage)
        return JSONResponse({"api": API, "index": token, "docid": docid, "doc": doc})

    async def indexes(self, request: Request) -> Response:
        """Answer with the indexes that are served."""
        descriptions = [
            {"name": name, **index.current.description()}
            for name, index in self._batcher.service.indexes.items()
        ]
        return JSONResponse({"api": API, "indexes": descriptions})

    async def health(self, request: Request) -> Response:
        """Answer that the server answers, and which indexes are older than their folders."""
        outdated = [
            name
            for name, index in self._batcher.service.indexes.items()
            if index.reload_error is not None
        ]
        return JSONResponse({"status": "ok", "version": __version__, "outdated": outdated})

    async def metrics(self, request: Request) -> Response:
        """Answer with counts, as Prometheus reads them."""
        indexes = self._batcher.service.indexes
        reloads = {name: index.reloads for name, index in indexes.items()}
        text = self._batcher.metrics.text(reloads)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi_yaml(self, request: Request) -> Response:
        """Answer with the description of the interface, as YAML."""
        return PlainTextResponse(self._openapi, media_type="application/yaml; charset=utf-8")

    async def openapi_json(self, request: Request) -> Response:
        """Answer with the description of the interface, as JSON."""
        return JSONResponse(openapi_document())

    def _reject_other_bm25(
        self, indexes: tuple[str, ...], k1: float | None, b: float | None
    ) -> None:
        """Raise a RequestError for `k1` or `b` that an index was not built with.

        Pyserini computes scores with those of a request; here they are computed once, by `index`.
        """
        if k1 is None and b is None:
            return
        if k1 is None or b is None:
            raise RequestError(400, "BM25 parameters k1 and b must be set together")
        for name in indexes:
            opened = self._batcher.service.indexes[name].current.opened
            if opened.bm25 is None:
                message = f"BM25 parameters k1 and b do not apply to {name}, an index of vectors"
                raise RequestError(400, message)
            built = recorded_bm25(opened.manifests[0])
            if (k1, b) != (built.k1, built.b):
                message = (
                    f"The index {name} was built with k1={built.k1:g} and b={built.b:g}, "
                    "which a request cannot change"
                )
                raise RequestError(400, message)


class _DocumentShape:
    """How the passages of an answer are returned."""

    def __init__(self, *, parse: bool, longest: int | None) -> None:
        self._parse = parse
        self._longest = longest

    @classmethod
    def read(cls, parameters: Any) -> "_DocumentShape":
        """Return the shape that a request asks for."""
        parse = read_boolean(parameters, "parse")
        longest = read_integer(parameters, "max_doc_length")
        if longest is not None and parse is False:
            raise RequestError(400, "Parameter 'max_doc_length' requires parse=true")
        return cls(parse=parse is not False, longest=longest)

    def document(self, passage: Passage | None) -> Any:
        """Return a passage as an object; with parse=false as a text of JSON that has its id."""
        if passage is None:
            return None
        fields = {"title": passage.title, "text": passage.text}
        if not self._parse:
            return json.dumps({"id": passage.docid, **fields}, ensure_ascii=False)
        return {**fields, "text": passage.text[: self._longest]}


def _candidate(
    hit: AnsweredHit, rank: int, shape: _DocumentShape, *, has_highlights: bool
) -> dict[str, Any]:
    """Return a hit as JSON."""
    candidate = {
        "docid": hit.docid,
        "score": hit.score,
        "rank": rank,
        "doc": shape.document(hit.passage),
    }
    if has_highlights:
        candidate["excerpt"] = {"text": hit.excerpt, "highlights": hit.marks}
    return candidate


def openapi_text() -> str:
    """Return the description of the interface, in YAML."""
    return resources.files("denserk.serving").joinpath("openapi.yaml").read_text("utf-8")


@cache
def openapi_document() -> dict[str, Any]:
    """Return the description of the interface."""
    document: dict[str, Any] = yaml.safe_load(openapi_text())
    document["info"]["version"] = __version__
    return document


def json_error(error: RequestError) -> Response:
    """Return an error as JSON, with the field that Pyserini's server has."""
    headers = error_headers(error)
    return JSONResponse({"error": error.message}, status_code=error.status, headers=headers)


def as_request_error(error: Exception, path: str) -> RequestError:
    """Return an error of the routes, such as an unknown path, as one of a request."""
    if isinstance(error, RequestError):
        return error
    if not isinstance(error, HTTPException):
        return INTERNAL_ERROR  # the guard logs it
    unknown = ROUTES if path.startswith("/v1/") else f"There is nothing at {path}"
    allowed_methods = (error.headers or {}).get("Allow", "")
    method = "POST" if "POST" in allowed_methods else "GET"
    messages = {404: unknown, 405: f"Only {method} is supported"}
    return RequestError(error.status_code, messages.get(error.status_code, error.detail))
