"""Talking to Milvus: who one is, how long one waits, and what goes wrong in one sentence."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from denserk.errors import DenserkError, OutputError, ServerError, UsageError
from denserk.extras import require
from denserk.settings.milvus import (
    AUTHORITY,
    CLIENT_CERTIFICATE,
    CLIENT_KEY,
    PASSWORD,
    SECRETS,
    SERVER_NAME,
    TOKEN,
    USER,
    CollectionSettings,
)

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
FIRST_WAIT = 1.0
"""Seconds before a request is sent again; each wait is twice the one before."""
LONGEST_WAIT = 30.0
FULL = ("No space left", "File too large", "quota exceeded", "quota exhausted", "Disk quota")
REFUSED = ("auth check failure", "unauthenticated", "UNAUTHENTICATED", "permission", "api key")
TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "rate limit", "not connected")
CONNECT_FAILED = 2
RATE_LIMIT = 8
TLS = (
    ("ca_pem_path", AUTHORITY),
    ("client_pem_path", CLIENT_CERTIFICATE),
    ("client_key_path", CLIENT_KEY),
    ("server_name", SERVER_NAME),
)
"""The client's argument, and the variable that it comes from."""

OPEN_FILES: Counter[str] = Counter()
"""Local files by how many connections they have: they share one embedded server."""

T = TypeVar("T")


class _Kept(logging.Handler):
    """Keeps the last error that a library logs, which would otherwise be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the error of a record, if it has one."""
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]


def _hush() -> _Kept:
    """The client and the embedded server print nothing by themselves."""
    for name in ("pymilvus", "pymilvus.milvus_client", "pymilvus.bulk_writer"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    kept = _Kept()
    embedded = logging.getLogger("milvus_lite")
    embedded.handlers, embedded.propagate = [kept], False
    return kept


def credentials() -> dict[str, str]:
    """What the environment says of who one is, as the client's arguments.

    Raises:
        UsageError: a user without a password.
    """
    given = {name: os.environ[variable] for name, variable in TLS if os.environ.get(variable)}
    token, user = os.environ.get(TOKEN), os.environ.get(USER)
    if not token and user:
        password = os.environ.get(PASSWORD)
        if not password:
            raise UsageError(f"{USER} is set, {PASSWORD} is not", f"set both, or {TOKEN}")
        token = f"{user}:{password}"
    return given | ({"token": token} if token else {})


def scrubbed(text: str) -> str:
    """A text without the secrets of the environment."""
    for variable in SECRETS:
        if secret := os.environ.get(variable):
            text = text.replace(secret, "***")
    return text


class Connection:
    """An open connection; a context that ends it.

    Args:
        settings: the address, and how long a request may take.
        create: whether a local file may be new.

    Raises:
        MissingExtraError: the client, or the embedded server, is not installed.
        UsageError: the local file is not there.
        ServerError: the server does not answer.
    """

    def __init__(self, settings: CollectionSettings, *, create: bool = False) -> None:
        self._settings = settings
        self.library: ModuleType = require("pymilvus", "--engine milvus")
        self._kept = _hush()
        arguments: dict[str, Any] = {}
        if settings.is_embedded:
            require("milvus_lite", f"the local file {settings.address}")
            self._prepare_file(Path(settings.address), create)
        else:
            arguments |= credentials()
            if arguments.keys() - {"token"}:
                arguments["secure"] = True
        wait = min(CONNECT_SECONDS, settings.milvus_timeout)
        try:
            self.client = self.library.MilvusClient(
                settings.address, timeout=wait, dedicated=True, **arguments
            )
        except self.library.MilvusException as error:
            raise self._unreachable(error) from None
        OPEN_FILES[settings.address] += settings.is_embedded

    @staticmethod
    def _prepare_file(path: Path, create: bool) -> None:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise UsageError(f"{path}: no such file", "denserk index --engine milvus makes it")
        if path.is_file():
            raise UsageError(
                f"{path} is a file; milvus-lite 3 keeps a folder of that name",
                "name another one: files of milvus-lite 2 are not read",
            )

    def _unreachable(self, error: Any) -> DenserkError:
        where = self._settings.address
        if self._settings.is_embedded:
            cause = self._kept.error
            if type(cause).__name__ == "DataDirLockedError":
                return ServerError(
                    f"{where} is in use by another process", "one process at a time opens a file"
                )
            return self.refusal(cause or error, f"{where} cannot be opened")
        if error.code == CONNECT_FAILED:
            return ServerError(
                f"no Milvus answers at {where}", "is the server running, and its port reachable?"
            )
        return self.refusal(error, f"{where} does not let denserk in")

    def refusal(self, error: Any, what: str) -> DenserkError:
        """An error of the library as one of denserk's."""
        reason = _first_line(getattr(error, "message", "") or str(error))
        if not reason and self._kept.error is not None:
            cause = self._kept.error
            reason = f"{type(cause).__name__} {cause}".strip()
        reason = scrubbed(reason)
        if any(sign in reason for sign in FULL):
            return OutputError(f"{what}: {reason}", "make room, then go on with --resume")
        if any(sign in reason for sign in REFUSED):
            return ServerError(f"{what}: {reason}", f"set {TOKEN} in the environment")
        return ServerError(f"{what}: {reason}")

    def call(self, what: str, ask: Callable[..., T], *args: Any, tries: int = 1, **named: Any) -> T:
        """Asks the server for something, again where it is only busy or away.

        Args:
            what: what could not be done if this fails, "passages cannot be written".
            ask: a method of the client.
            args: its arguments.
            tries: how often it is asked at most; more than once only what may be done twice.
            named: its named arguments.

        Raises:
            ServerError: the server refuses, or does not answer.
            OutputError: it has no room.
        """
        wait = FIRST_WAIT
        embedded = self._settings.is_embedded  # in this process: it cannot be away, only at work
        named["timeout"] = None if embedded else self._settings.milvus_timeout
        for attempt in range(1, tries + 1):
            self._kept.error = None
            try:
                return ask(*args, **named)
            except (self.library.MilvusException, *_transport_errors()) as error:
                if attempt == tries or not _is_transient(error):
                    raise self.refusal(error, what) from None
                reason = scrubbed(_first_line(str(error)))
            logger.warning(f"Milvus: {reason}; trying again in {wait:g} s")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("tries is at least 1")

    def close(self) -> None:
        """Ends the connection; an embedded server writes what it holds, and stops."""
        self.client.close()
        if not self._settings.is_embedded:
            return
        OPEN_FILES[self._settings.address] -= 1
        if not OPEN_FILES[self._settings.address]:
            manager = require("milvus_lite.server_manager", "a local file")
            manager.server_manager_instance.release_server(self._settings.address)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _first_line(text: str) -> str:
    """The reason alone, without what libraries wrap around it."""
    text = re.sub(r"^<\w+: \(code=[^,]*, message=(.*)\)>$", r"\1", text.strip(), flags=re.DOTALL)
    return text.splitlines()[0][:300] if text else ""


def _transport_errors() -> tuple[type[BaseException], ...]:
    grpc = require("grpc", "--engine milvus")
    return (grpc.RpcError, grpc.FutureTimeoutError)


def _is_transient(error: Any) -> bool:
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    if code in (CONNECT_FAILED, RATE_LIMIT) or getattr(error, "retriable", False):
        return True
    text = f"{code} {error}"
    return any(sign in text for sign in TRANSIENT)
