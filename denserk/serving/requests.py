"""Requests for passages: what they may ask for, and what the server answers."""

import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from denserk.config.retrieval import FusionMethod, FusionSettings
from denserk.config.serving import AnswerSettings
from denserk.records import Passage

JOINT = "+"  # between the names of indexes that are fused
DOCUMENT_PARAMETERS = frozenset(("parse", "max_doc_length"))
SEARCH_PARAMETERS = DOCUMENT_PARAMETERS | {"query", "hits", "k1", "b"}  # those of Pyserini
SEARCH_PARAMETERS |= {"method", "weights", "rerank", "highlight"}
LARGEST_WEIGHT = 1e6
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
TRUE_FALSE = {"true": True, "false": False}


class RequestError(Exception):
    """A request that is not answered: the status of HTTP, and one sentence that says why."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after  # seconds, for status 503


INTERNAL_ERROR = RequestError(500, "Internal error; see the server's log")


@dataclass(frozen=True)
class SearchRequest:
    """A query for one index, or for several whose hits are fused."""

    query: str
    indexes: tuple[str, ...]
    hits: int
    fusion: FusionSettings
    rerank: bool
    has_excerpts: bool  # of each passage, with the terms of the query marked


Marks: TypeAlias = Sequence[tuple[int, int]]  # where terms of the query begin and end in a text


class AnsweredHit(NamedTuple):
    """A passage of an answer, which is a list of them, the best first."""

    docid: str
    score: float
    passage: Passage | None  # None if the corpus lacks it
    title: str = ""  # this and the rest for requests with excerpts
    title_marks: Marks = ()
    excerpt: str = ""  # the part of the text that has most of the query's terms
    marks: Marks = ()  # of the excerpt


class Limits(NamedTuple):
    """What requests may name and ask for."""

    indexes: Sequence[str]
    answers: AnswerSettings
    max_query_length: int
    can_rerank: bool

    def read_indexes(self, text: str) -> tuple[str, ...]:
        """Return the names of `bm25` or `bm25+dense`."""
        names = tuple(text.split(JOINT))
        for name in names:
            if name not in self.indexes:
                message = f"No index is named {name!r}: there are {', '.join(self.indexes)}"
                raise RequestError(400, message)
            if names.count(name) > 1:
                raise RequestError(400, f"The index {name!r} is named twice")
        return names

    def search_request(
        self,
        query: str | None,
        indexes: tuple[str, ...],
        *,
        hits: int | None = None,
        method: str | None = None,
        weights: Sequence[float] | None = None,
        rerank: bool | None = None,
        has_excerpts: bool = False,
    ) -> SearchRequest:
        """Return a request within the limits; a RequestError says which one it exceeds.

        What is None has its default: the first hits are reranked wherever the server can.
        """
        if query is None or not query.strip():
            raise RequestError(400, "Parameter 'query' is required")
        if len(query) > self.max_query_length:
            message = (
                f"Parameter 'query' has {len(query):,} characters: "
                f"at most {self.max_query_length:,} are allowed"
            )
            raise RequestError(400, message)
        if rerank and not self.can_rerank:
            raise RequestError(400, "Parameter 'rerank': the server was started without --rerank")
        is_reranked = self.can_rerank if rerank is None else rerank
        return SearchRequest(
            query=query,
            indexes=indexes,
            hits=self._read_hits(hits, is_reranked=is_reranked),
            fusion=_fusion_of(indexes, method, weights),
            rerank=is_reranked,
            has_excerpts=has_excerpts,
        )

    def _read_hits(self, hits: int | None, *, is_reranked: bool) -> int:
        """Return the number of hits, or its default, within the limit."""
        largest = self.answers.max_hits
        where = ""
        if is_reranked and self.answers.rerank_depth < largest:
            largest = self.answers.rerank_depth
            where = " with reranking"
        if hits is None:
            return min(self.answers.hits, largest)
        if hits <= 0:
            raise RequestError(400, "Parameter 'hits' must be positive")
        if hits > largest:
            raise RequestError(400, f"Parameter 'hits' is {hits}: at most {largest}{where}")
        return hits


def _fusion_of(
    indexes: Sequence[str], method: str | None, weights: Sequence[float] | None
) -> FusionSettings:
    """Return how the hits of several indexes are fused."""
    if len(indexes) == 1:
        if method is not None or weights is not None:
            name = "weights" if method is None else "method"
            message = f"Parameter {name!r} needs several indexes: name them INDEX{JOINT}INDEX"
            raise RequestError(400, message)
        return FusionSettings()
    methods = [choice.value for choice in FusionMethod]
    if method is not None and method not in methods:
        raise RequestError(400, f"Parameter 'method' must be one of {', '.join(methods)}")
    chosen_method = FusionMethod.RRF if method is None else FusionMethod(method)
    if weights is None:
        return FusionSettings(method=chosen_method)
    if len(weights) != len(indexes):
        message = f"Parameter 'weights' has {len(weights)} numbers for {len(indexes)} indexes"
        raise RequestError(400, message)
    are_allowed = all(0 <= weight <= LARGEST_WEIGHT for weight in weights)
    if not are_allowed or not any(weights):
        message = (
            f"Parameter 'weights' must be numbers from 0 to {LARGEST_WEIGHT:,.0f}, one above 0"
        )
        raise RequestError(400, message)
    return FusionSettings(method=chosen_method, weights=tuple(weights))


def reject_unknown(parameters: Mapping[str, str], known: AbstractSet[str]) -> None:
    """Raise a RequestError for a parameter that there is not."""
    for name in parameters:
        if name not in known:
            message = f"Parameter {name!r} is unknown: there are {', '.join(sorted(known))}"
            raise RequestError(400, message)


def read_boolean(parameters: Mapping[str, str], name: str) -> bool | None:
    """Return a parameter that is true or false; None without it."""
    text = parameters.get(name)
    if text is None:
        return None
    value = TRUE_FALSE.get(text.strip().lower())
    if value is None:
        raise RequestError(400, f"Parameter {name!r} must be 'true' or 'false'")
    return value


def read_integer(parameters: Mapping[str, str], name: str) -> int | None:
    """Return a parameter that is a whole number above 0; None without it, or if it is empty."""
    text = parameters.get(name, "").strip()
    if not text:
        return None
    if INTEGER.fullmatch(text) is None:
        raise RequestError(400, f"Parameter {name!r} must be an integer")
    value = int(text)
    if value <= 0:
        raise RequestError(400, f"Parameter {name!r} must be positive")
    return value


def read_number(parameters: Mapping[str, str], name: str) -> float | None:
    """Return a parameter that is a finite number; None without it, or if it is empty."""
    text = parameters.get(name, "").strip()
    return _finite(text, name) if text else None


def read_weights(parameters: Mapping[str, str]) -> list[float] | None:
    """Return the numbers of `weights=0.3,0.7`; None without them, or if they are empty."""
    text = parameters.get("weights", "").strip()
    if not text:
        return None
    return [_finite(part, "weights") for part in text.split(",")]


def _finite(text: str, name: str) -> float:
    """Return the number of a text; a RequestError if it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        raise RequestError(400, f"Parameter {name!r} must be a number") from None
    if not math.isfinite(number):
        raise RequestError(400, f"Parameter {name!r} must be a finite number")
    return number
