"""Requests for embeddings to an OpenAI-compatible server: POST to the URL with /embeddings.

The key, and the user information of a URL, stand in the header of requests and nowhere else: no
error, log or file has them. Requests follow no redirect, so they reach no other host.
"""

import base64
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from threading import Event, Lock, Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.encoding import ServerSettings
from denserk.errors import ServerError, UsageError, reason_of
from denserk.version import __version__

logger = logging.getLogger(__name__)

# Texts of a request where --batch-size is not given: as many as text-embeddings-inference takes
TEXTS_PER_REQUEST = 32
FIRST_WAIT = 0.5  # seconds before the second attempt; twice as long before each further one
LONGEST_WAIT = 30.0  # seconds between attempts, unless the server names a time
LONGEST_RETRY_AFTER = 120.0  # seconds that a server may name
# further attempts to reach a server that has never answered: probably its URL is wrong
RETRIES_OF_FIRST_CONTACT = 2
TOO_MANY_REQUESTS = 429
FIRST_SERVER_ERROR = 500
# statuses of a request whose texts the server does not take
STATUSES_OF_REJECTED_TEXTS = (400, 413, 422)
# statuses of a missing or wrong key
STATUSES_OF_KEYS = (401, 403)
ENDPOINT = "/embeddings"
OPENAI_HOST = "api.openai.com"
SHOWN = 300  # characters of the server's words in a message
SHORTEST_SECRET = 4  # characters of a value in a URL's query that may be a secret
READ_OF_ERRORS = 1 << 16  # bytes of an answer that is an error
STOPPED = "stopped, as another request failed"

Vectors = NDArray[np.float32]
Advance = Callable[[int], None] | None  # called with the number of texts of each answer


class ServerUrl(NamedTuple):
    """The URL of a server, taken apart."""

    public: str  # without user information, query and fragment: as it is shown and recorded
    endpoint: str  # where requests go
    credentials: str | None  # user:password of the URL

    @property
    def is_openai(self) -> bool:
        """Whether this is OpenAI's own server."""
        parts = urlsplit(self.public)
        return parts.scheme == "https" and parts.netloc == OPENAI_HOST


def parse_server_url(base_url: str) -> ServerUrl:
    """Take apart a URL that `ServerSettings` has checked.

    >>> parse_server_url("https://me:secret@example.org/v1/?token=t").public
    'https://example.org/v1'
    >>> parse_server_url("http://localhost:8000/v1").endpoint
    'http://localhost:8000/v1/embeddings'
    """
    parts = urlsplit(base_url)
    _, _, host_and_port = parts.netloc.rpartition("@")
    path = parts.path.rstrip("/").removesuffix(ENDPOINT)
    public = urlunsplit((parts.scheme, host_and_port, path, "", ""))
    endpoint = urlunsplit((parts.scheme, host_and_port, path + ENDPOINT, parts.query, ""))
    credentials = None
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return ServerUrl(public, endpoint, credentials)


class Authorization:
    """What a request proves itself with: the URL's user information, or else the key.

    Only a header has the secret; `without_secrets` removes it from what a server answers.
    """

    def __init__(self, url: ServerUrl, variable: str, *, sends_key: bool) -> None:
        self.variable = variable
        key = os.environ.get(variable, "").strip()
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"${variable} holds characters that no key has")
        self.header: str | None = None
        self._secrets = [key]
        # a key that was held back
        self.is_withheld = bool(key) and url.credentials is None and not sends_key
        if url.credentials is not None:
            encoded = base64.b64encode(url.credentials.encode()).decode()
            _, _, password = url.credentials.partition(":")
            self.header = f"Basic {encoded}"
            self._secrets += [encoded, url.credentials, password]
        elif key and sends_key:
            self.header = f"Bearer {key}"
        query = urlsplit(url.endpoint).query
        self._secrets.append(query)
        for _, value in parse_qsl(query):
            if len(value) >= SHORTEST_SECRET:
                self._secrets.append(value)

    def without_secrets(self, text: str) -> str:
        """Return the words of a server with *** in place of every secret."""
        for secret in self._secrets:
            if secret:
                text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class NamedTexts:
    """Texts for the server, with the ids that messages name; they are in no batches yet."""

    kind: str  # "passage", "query" or "control text"
    ids: Sequence[str]
    texts: Sequence[str]
    # of texts that are tokenized elsewhere, as `encode` counts them
    tokens: int = 0
    positions: int = 0

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self.texts)

    @property
    def name(self) -> str:
        """The texts in a message."""
        if self.count == 1:
            return f"{self.kind} {self.ids[0]}"
        plural = {"query": "queries"}.get(self.kind, f"{self.kind}s")
        return f"{plural} {self.ids[0]} to {self.ids[-1]}"

    def part(self, start: int, stop: int) -> "NamedTexts":
        """Return the texts of some rows."""
        return NamedTexts(self.kind, self.ids[start:stop], self.texts[start:stop])


class _Rejected(NamedTuple):
    """An answer that is an error, in the words of the server."""

    status: int
    words: str


class _Failure(Exception):
    """An attempt after which another one may succeed."""

    def __init__(self, message: str, seconds: float | None = None, *, answered: bool) -> None:
        super().__init__(message)
        self.message = message
        self.seconds = seconds  # that the server says to wait
        self.answered = answered  # the server answered, with an error


class _RejectedTextsError(Exception):
    """The server does not take the texts of a request."""

    def __init__(self, rejected: _Rejected) -> None:
        super().__init__(rejected.words)
        self.rejected = rejected


class _NoRedirects(HTTPRedirectHandler):
    """Makes an error of every redirect."""

    def redirect_request(self, *_: Any) -> None:
        """Return no further request."""


class EmbeddingsClient:
    """Sends texts to the server of a model, several requests at a time.

    Attributes:
        url: that of the server.
        dimension: D of all vectors; None until the first answer.
    """

    def __init__(
        self,
        model: str,
        url: ServerUrl,
        settings: ServerSettings,
        texts_per_request: int | None = None,
        *,
        sends_key: bool = True,
    ) -> None:
        self.url = url
        self.dimension: int | None = None
        self._model = model
        self._settings = settings
        self._texts_per_request = texts_per_request or TEXTS_PER_REQUEST
        self._authorization = Authorization(url, settings.api_key_variable, sends_key=sends_key)
        self._opener = build_opener(_NoRedirects)
        self._setting_dimension = Lock()
        self._has_answered = False
        self._has_warned_of_size = False

    def embed(self, texts: NamedTexts, advance: Advance = None) -> Vectors:
        """Return the vectors of texts, in their order: (N, D) float32.

        A ServerError names the first texts, in their order, that the server has no vectors for.
        """
        size = self._texts_per_request
        requests = [texts.part(start, start + size) for start in range(0, texts.count, size)]
        stopped = Event()
        answers = self._send(requests, stopped)
        vectors: list[Vectors] = []
        try:
            for request, answer in zip(requests, answers, strict=True):
                vectors.append(answer.result())
                if advance is not None:
                    advance(request.count)
        finally:
            stopped.set()
        if not vectors:
            return np.empty((0, self.dimension or 0), np.float32)
        return np.concatenate(vectors)

    def _send(self, requests: Sequence[NamedTexts], stopped: Event) -> list["Future[Vectors]"]:
        """Send requests by several threads, and return their vectors to come.

        Once `stopped` is set, none is sent any more. The threads are daemons: a command that is
        interrupted does not wait for the server.
        """
        answers: list[Future[Vectors]] = [Future() for _ in requests]
        unsent = deque(zip(requests, answers, strict=True))

        def send_one_by_one() -> None:
            while unsent and not stopped.is_set():
                try:
                    request, answer = unsent.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    answer.set_result(self._embed_request(request, stopped))
                except Exception as error:  # noqa: BLE001  (raised where the vectors are expected)
                    answer.set_exception(error)

        for _ in range(min(self._settings.requests_at_once, len(requests))):
            Thread(target=send_one_by_one, name="request", daemon=True).start()
        return answers

    def _of_one_dimension(self, vectors: Vectors, texts: NamedTexts) -> Vectors:
        """Return vectors of the dimension of all others; a ServerError if it is another one."""
        dimension = vectors.shape[1]
        with self._setting_dimension:
            if self.dimension is None:
                self.dimension = dimension
        if dimension != self.dimension:
            raise ServerError(
                f"{self.url.public} answers the request of {texts.name} with vectors of "
                f"{dimension:,} dimensions, and had answered with {self.dimension:,}",
                f"is another model served as {self._model} now?",
            )
        return vectors

    def _embed_request(self, texts: NamedTexts, stopped: Event) -> Vectors:
        """Return the vectors of one request; one whose texts are rejected is divided."""
        try:
            answer = self._answer_of_attempts(texts, stopped)
        except _RejectedTextsError as error:
            if texts.count == 1:
                raise self._rejected_text(texts, error.rejected) from None
            middle = texts.count // 2
            first_half = self._embed_request(texts.part(0, middle), stopped)
            second_half = self._embed_request(texts.part(middle, texts.count), stopped)
            self._warn_of_size(texts.count, error.rejected)
            return np.concatenate([first_half, second_half])
        return self._of_one_dimension(self._vectors_of(answer, texts), texts)

    def _rejected_text(self, texts: NamedTexts, rejected: _Rejected) -> ServerError:
        """Return the error of a text that the server does not take."""
        length = len(texts.texts[0])
        return ServerError(
            f"{texts.name} ({length:,} characters): {self.url.public} rejects the text "
            f"({rejected.status}): {rejected.words}",
            "let the server cut long texts (docs/howto/encoder-by-url.md), or shorten them: "
            "denserk convert --split-words",
        )

    def _warn_of_size(self, count: int, rejected: _Rejected) -> None:
        """Warn, once, that a request was too large although each of its texts is taken."""
        if not self._has_warned_of_size:
            self._has_warned_of_size = True
            logger.warning(
                f"{self.url.public} rejects {count} texts at once ({rejected.status}: "
                f"{rejected.words}): they are sent in parts; --batch-size {count // 2} saves the "
                "attempts"
            )

    def _answer_of_attempts(self, texts: NamedTexts, stopped: Event) -> bytes:
        """Return the server's answer, after further attempts where one may succeed."""
        attempt = 1
        while True:
            try:
                return self._answer(texts)
            except _Failure as failure:
                seconds = self._seconds_to_wait(texts, failure, attempt)
            if stopped.wait(seconds):
                raise ServerError(STOPPED)
            attempt += 1

    def _seconds_to_wait(self, texts: NamedTexts, failure: _Failure, attempt: int) -> float:
        """Return the seconds before the next attempt, and log it; a ServerError after the last."""
        retries = self._settings.request_retries
        if not failure.answered and not self._has_answered:
            retries = min(retries, RETRIES_OF_FIRST_CONTACT)
        if attempt > retries:
            raise self._given_up(texts, failure, attempt) from None
        seconds = backoff(attempt) if failure.seconds is None else failure.seconds
        if seconds > LONGEST_RETRY_AFTER:
            raise self._asked_to_wait(texts, failure, seconds) from None
        logger.info(
            f"{self.url.public}: {failure.message}; attempt {attempt + 1} of {retries + 1} in "
            f"{seconds:.1f} s"
        )
        return seconds

    def _given_up(self, texts: NamedTexts, failure: _Failure, attempts: int) -> ServerError:
        """Return the error of a request without further attempts."""
        hint = f"is a server running at {self.url.public}?"
        if failure.answered or self._has_answered:
            hint = (
                "when the server answers again, denserk encode --resume continues; --set "
                "request-retries=N and --set request-timeout=SECONDS wait longer"
            )
        return ServerError(
            f"{self.url.public} has no vectors for {texts.name} after {attempts} attempts: "
            f"{failure.message}",
            hint,
        )

    def _asked_to_wait(self, texts: NamedTexts, failure: _Failure, seconds: float) -> ServerError:
        """Return the error of a server that names a time which is too long to wait."""
        return ServerError(
            f"{self.url.public} has no vectors for {texts.name} now: {failure.message}; it asks "
            f"to wait {seconds:,.0f} s",
            f"denserk waits {LONGEST_RETRY_AFTER:.0f} s at most; denserk encode --resume "
            "continues later",
        )

    def _answer(self, texts: NamedTexts) -> bytes:
        """Send one request, and return the body of its answer.

        Raises a `_Failure` where another attempt may succeed, a `_RejectedTextsError` for texts
        that the server does not take, and a ServerError for all else.
        """
        body = {"model": self._model, "input": list(texts.texts), "encoding_format": "float"}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"denserk/{__version__}",
        }
        if self._authorization.header is not None:
            headers["Authorization"] = self._authorization.header
        request = Request(self.url.endpoint, orjson.dumps(body), headers, method="POST")
        timeout = self._settings.request_timeout
        try:
            with self._opener.open(request, timeout=timeout) as response:
                answer: bytes = response.read()
        except HTTPError as error:
            with error:
                self._has_answered = True
                raise self._error_of(error, texts) from None
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            message = f"no answer ({self._words_of_reason(reason)})"
            raise _Failure(message, answered=False) from None
        self._has_answered = True
        return answer

    def _words_of_reason(self, reason: Any) -> str:
        """Return why there is no answer."""
        if isinstance(reason, TimeoutError):
            return f"none within {self._settings.request_timeout:g} s"
        words = reason_of(reason) if isinstance(reason, BaseException) else str(reason)
        return self._authorization.without_secrets(words)

    def _error_of(self, error: HTTPError, texts: NamedTexts) -> Exception:
        """Return what an answer that is an error is raised as."""
        status = error.code
        try:
            body = error.read(READ_OF_ERRORS)
        except (HTTPException, OSError):
            body = b""
        words = self._authorization.without_secrets(words_of(body) or str(error.reason))[:SHOWN]
        if status == TOO_MANY_REQUESTS or status >= FIRST_SERVER_ERROR:
            seconds = seconds_of(error.headers.get("Retry-After"))
            return _Failure(f"{status}: {words}", seconds, answered=True)
        if status in STATUSES_OF_REJECTED_TEXTS:
            return _RejectedTextsError(_Rejected(status, words))
        message = f"{self.url.public} rejects the request of {texts.name} ({status}): {words}"
        return ServerError(message, self._hint_of(status, error.headers.get("Location")))

    def _hint_of(self, status: int, location: str | None) -> str:
        """Return what to do about an answer that is an error; `location` is that of a redirect."""
        authorization = self._authorization
        if status in STATUSES_OF_KEYS:
            if authorization.is_withheld:
                return (
                    f"the key in ${authorization.variable} goes to no URL that a file names: give "
                    f"--base-url {self.url.public}"
                )
            return (
                f"export {authorization.variable}=KEY, or name another variable: --set "
                "api-key-variable=NAME"
            )
        target = urlsplit(location or "")
        if target.netloc:
            _, _, host = target.netloc.rpartition("@")
            return f"it leads to {target.scheme}://{host}: give the URL there as --base-url"
        return (
            f"the request went to {self.url.public}{ENDPOINT} for the model {self._model}: check "
            "--base-url, which mostly ends in /v1, and the model's name at the server"
        )

    def _vectors_of(self, answer: bytes, texts: NamedTexts) -> Vectors:
        """Return the vectors of an answer in the order of the texts: (N, D) float32.

        An answer with another number of vectors, with a wrong order or with what is no vector is a
        ServerError.
        """
        try:
            content = orjson.loads(answer)
        except ValueError as error:
            raise self._wrong(texts, f"text that is not JSON ({error})", "JSON") from None
        items = content.get("data") if isinstance(content, dict) else None
        if not isinstance(items, list):
            raise self._wrong(texts, "no list `data`", "a list of embeddings, `data`")
        if len(items) != texts.count:
            expected = f"{texts.count:,}, one for each text"
            raise self._wrong(texts, f"{len(items):,} embeddings", expected)
        rows: dict[int, Vectors] = {}
        for item in items:
            index = item.get("index") if isinstance(item, dict) else None
            if type(index) is not int or not 0 <= index < texts.count or index in rows:
                expected = f"each number from 0 to {texts.count - 1} once"
                raise self._wrong(texts, f"the `index` {index}", expected)
            rows[index] = self._vector_of(item.get("embedding"), texts.part(index, index + 1))
        vectors = [rows[index] for index in range(texts.count)]
        dimensions = {len(vector) for vector in vectors}
        if len(dimensions) > 1:
            shown = " and ".join(f"{dimension:,}" for dimension in sorted(dimensions))
            raise self._wrong(texts, f"vectors of {shown} dimensions", "one dimension")
        return np.stack(vectors)

    def _vector_of(self, numbers: Any, text: NamedTexts) -> Vectors:
        """Return the vector of one text: (D,) float32."""
        try:
            with np.errstate(over="ignore"):  # what overflows is infinite, and rejected next
                vector = np.asarray(numbers, np.float32)
        except (TypeError, ValueError):
            raise self._wrong(text, "an `embedding` that is no list of numbers", "one") from None
        if vector.ndim != 1 or not len(vector):
            raise self._wrong(text, "an `embedding` that is no list of numbers", "one")
        if not np.isfinite(vector).all():
            raise self._wrong(text, "a number that is not finite", "finite numbers")
        return vector

    def _wrong(self, texts: NamedTexts, found: str, expected: str) -> ServerError:
        """Return the error of an answer that is not what was asked for."""
        return ServerError(
            f"{self.url.public} answers the request of {texts.name} with {found}; expected "
            f"{expected}",
            "the server must answer as OpenAI's /v1/embeddings does",
        )


def backoff(attempt: int) -> float:
    """Return the seconds to wait after an attempt, from 1: twice as long each time, and random.

    Random, so that several clients do not come back at once.
    """
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    return longest * random.uniform(0.5, 1.0)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After, a number or a date; None if it says nothing.

    >>> seconds_of("2.5"), seconds_of("Wed, 21 Oct 2015 07:28:00 GMT"), seconds_of("soon")
    (2.5, 0.0, None)
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return _seconds_until(retry_after)
    return max(0.0, seconds) if np.isfinite(seconds) else None


def _seconds_until(date: str) -> float | None:
    """Return the seconds from now to a date of HTTP, 0 for one that is over; None for no date."""
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def words_of(body: bytes) -> str:
    r"""Return the message in the body of an error, as different servers write it, on one line.

    >>> words_of(b'{"error": {"message": "too long", "code": 400}}')
    'too long'
    >>> words_of(b'{"error": "too long", "error_type": "Validation"}'), words_of(b"Bad\nGateway")
    ('too long', 'Bad Gateway')
    """
    try:
        content = orjson.loads(body)
    except ValueError:
        content = body.decode("utf-8", "replace")
    for key in ("error", "message", "detail"):
        if isinstance(content, dict) and content.get(key):
            content = content[key]
    words = content if isinstance(content, str) else orjson.dumps(content).decode()
    return " ".join(words.split())
