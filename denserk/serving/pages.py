"""The pages for people: search, a passage, and the description of the interface; no scripts."""

import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from denserk.records import Passage
from denserk.serving.batching import Batcher
from denserk.serving.guard import error_headers
from denserk.serving.requests import (
    JOINT,
    AnsweredHit,
    Limits,
    Marks,
    RequestError,
    SearchRequest,
    read_boolean,
    read_integer,
)
from denserk.serving.rest import API, openapi_document
from denserk.version import __version__

HITS_CHOICES = (10, 20, 50, 100)


class TextPart(NamedTuple):
    """A part of an excerpt."""

    text: str
    is_marked: bool  # a term of the query


class ShownHit(NamedTuple):
    """A hit of the search page."""

    hit: AnsweredHit
    heading: Sequence[TextPart]
    address: str  # of the passage's page
    excerpt: Sequence[TextPart]


class Form(NamedTuple):
    """What the fields of the search page hold."""

    query: str
    indexes: Sequence[str]
    hits: int
    rerank: bool


class Pages:
    """The handlers of pages."""

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self._batcher = batcher
        self._limits = limits
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("denserk", "serving"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._template = environment.get_template("page.html")
        self._style = resources.files("denserk.serving").joinpath("style.css").read_text("utf-8")

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route("/", self.search, methods=["GET"]),
            Route("/passage", self.passage, methods=["GET"]),
            Route("/docs", self.docs, methods=["GET"]),
            Route("/style.css", self.style, methods=["GET"]),
        ]

    async def search(self, request: Request) -> Response:
        """Answer with the search page; clients that want JSON get what Pyserini's root has."""
        if _wants_json(request):
            return JSONResponse(
                {
                    "name": "denserk",
                    "version": API,
                    "description": "Search in indexes of denserk",
                    "openapi": "/openapi.yaml",
                    "documentation": "/docs",
                }
            )
        form = self._read_form(request)
        if not form.query.strip():
            return self._render("search", form=form, shown_hits=None, seconds=0.0, error=None)
        started = time.perf_counter()
        try:
            search_request = self._search_request(request)
            hits = await self._batcher.search(search_request)
        except RequestError as error:
            page = self._render("search", form=form, shown_hits=None, seconds=0.0, error=error)
            return _with_status(page, error)
        form = form._replace(hits=search_request.hits)
        return self._render(
            "search",
            form=form,
            shown_hits=[_shown_hit(hit, search_request.indexes) for hit in hits],
            seconds=time.perf_counter() - started,
            error=None,
        )

    async def passage(self, request: Request) -> Response:
        """Answer with the page of a passage."""
        parameters = request.query_params
        docid = parameters.get("id", "")
        try:
            indexes = self._limits.read_indexes(parameters.get("index", ""))
            passage = await self._batcher.call(self._batcher.service.passage, indexes, docid)
            if passage is None:
                raise RequestError(404, f"Document not found: {docid}")
        except RequestError as error:
            return self.error_page(error)
        return self._render("passage", passage=passage, heading=heading_of(passage))

    async def docs(self, request: Request) -> Response:
        """Answer with the page that describes the interface."""
        document = openapi_document()
        shared = document["components"]["parameters"]
        operations = [
            _Operation(path, operation["summary"], _parameters(operation, shared))
            for path, methods in document["paths"].items()
            for operation in methods.values()
        ]
        return self._render("docs", operations=operations, indexes=self._limits.indexes)

    async def style(self, request: Request) -> Response:
        """Answer with the style sheet."""
        headers = {"Cache-Control": "max-age=3600"}
        return PlainTextResponse(self._style, headers=headers, media_type="text/css")

    def error_page(self, error: RequestError) -> Response:
        """Return the page of a request that is not answered."""
        return _with_status(self._render("error", error=error), error)

    def _read_form(self, request: Request) -> Form:
        """Return the fields of the search page; those that make no sense have their defaults."""
        parameters = request.query_params
        known = [name for name in parameters.getlist("index") if name in self._limits.indexes]
        return Form(
            query=parameters.get("q", "")[: self._limits.max_query_length],
            indexes=list(dict.fromkeys(known)) or [self._limits.indexes[0]],
            hits=self._limits.answers.hits,
            rerank=parameters.get("rerank") != "false",
        )

    def _search_request(self, request: Request) -> SearchRequest:
        """Return what the search page asks for."""
        parameters = request.query_params
        names = parameters.getlist("index") or [self._limits.indexes[0]]
        return self._limits.search_request(
            parameters.get("q"),
            self._limits.read_indexes(JOINT.join(names)),
            hits=read_integer(parameters, "hits"),
            rerank=read_boolean(parameters, "rerank"),
            has_excerpts=True,
        )

    def _render(self, view: str, **content: Any) -> HTMLResponse:
        """Fill the template, which escapes the content."""
        page = self._template.render(
            view=view,
            version=__version__,
            indexes_of_server=self._descriptions(),
            can_rerank=self._limits.can_rerank,
            hits_choices=self._hits_choices(),
            max_query_length=self._limits.max_query_length,
            **content,
        )
        return HTMLResponse(page)

    def _descriptions(self) -> dict[str, str]:
        """Return what the page says of each index, by name."""
        descriptions = {}
        for name, index in self._batcher.service.indexes.items():
            description = index.current.description()
            kind = "BM25" if description["type"] == "bm25" else "vectors"
            descriptions[name] = f"{kind}, {description['passages']:,} passages"
        return descriptions

    def _hits_choices(self) -> list[int]:
        """Return the numbers of hits that the page offers."""
        answers = self._limits.answers
        largest = answers.rerank_depth if self._limits.can_rerank else answers.max_hits
        choices = {min(answers.hits, largest), *HITS_CHOICES}
        return sorted(choice for choice in choices if choice <= largest)


class _Operation(NamedTuple):
    """A path of the interface."""

    path: str
    summary: str
    parameters: Sequence[Mapping[str, Any]]


def _parameters(
    operation: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the parameters of an operation, those that others have, too, among them."""
    parameters = []
    for parameter in operation.get("parameters", ()):
        reference = parameter.get("$ref")
        parameters.append(shared[reference.rpartition("/")[2]] if reference else parameter)
    return parameters


def _with_status(page: Response, error: RequestError) -> Response:
    """Return a page with the status and the headers of an error."""
    page.status_code = error.status
    page.headers.update(error_headers(error))
    return page


def _shown_hit(hit: AnsweredHit, indexes: Sequence[str]) -> ShownHit:
    """Return a hit with its heading and the address of its page."""
    parameters = {"index": JOINT.join(indexes), "id": hit.docid}
    heading = text_parts(hit.title, hit.title_marks) or [TextPart(hit.docid, is_marked=False)]
    excerpt = text_parts(hit.excerpt, hit.marks)
    return ShownHit(hit, heading, f"/passage?{urlencode(parameters)}", excerpt)


def heading_of(passage: Passage) -> str:
    """Return the title of a passage, or its id if it has none."""
    return passage.title.strip() or passage.docid


def text_parts(text: str, marks: Marks) -> list[TextPart]:
    """Return a text in parts that are marked or not.

    >>> parts = text_parts("the moon rises", [(4, 8)])
    >>> [(part.text, part.is_marked) for part in parts]
    [('the ', False), ('moon', True), (' rises', False)]
    """
    parts = []
    position = 0
    for start, end in marks:
        parts.append(TextPart(text[position:start], is_marked=False))
        parts.append(TextPart(text[start:end], is_marked=True))
        position = end
    parts.append(TextPart(text[position:], is_marked=False))
    return [part for part in parts if part.text]


def _wants_json(request: Request) -> bool:
    """Return whether a client asks for JSON, and not for a page."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def is_for_people(request: Request) -> bool:
    """Return whether an error is answered by a page: a browser asks, and not for JSON's paths."""
    is_page = not request.url.path.startswith("/v1/")
    return is_page and "text/html" in request.headers.get("accept", "")
