"""Options of `denserk serve`."""

import re
from pathlib import Path
from typing import NamedTuple

from denserk.config.options import REQUIRED, Settings, option, setting
from denserk.errors import UsageError

INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]+")
NAMED_INDEX = re.compile(rf"(?P<name>{INDEX_NAME.pattern})=(?P<path>.+)", re.DOTALL)


class NamedIndex(NamedTuple):
    """An index, and what requests call it."""

    name: str
    path: str


def named_index(text: str) -> NamedIndex:
    """Parse `[NAME=]DIR`; the default name is that of the folder.

    >>> named_index("bm25=indexes/toy-bm25"), named_index("indexes/toy-dense/")
    (NamedIndex(name='bm25', path='indexes/toy-bm25'), \
NamedIndex(name='toy-dense', path='indexes/toy-dense/'))
    """
    match = None if Path(text).exists() else NAMED_INDEX.fullmatch(text)
    if match is not None:
        return NamedIndex(match["name"], match["path"])
    name = Path(text).absolute().name
    if INDEX_NAME.fullmatch(name) is None:
        message = f"--index {text}: a request cannot name it {name!r}: letters, digits, _ . - only"
        raise UsageError(message, f"name it: --index NAME={text}")
    return NamedIndex(name, text)


class ServedSettings(Settings, kw_only=True):
    """Input."""

    index: tuple[str, ...] = option(REQUIRED, metavar="[NAME=]DIR", repeat=True, nonempty=True)
    """Index folder, or folder of vectors; repeatable. Requests name it NAME, by default as the
    folder."""
    model: str | None = option(
        None, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID", completes="models"
    )
    """Model that encodes the queries, also openai:NAME. [default: the model of each index]"""
    rerank: str | None = option(None, "--reranker", metavar="NAME|DIR|HUB_ID")
    """Cross-encoder that reranks the first hits: a folder or a Hugging Face name."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """Passages of all indexes. [default: what each index was made from]"""

    def _check(self) -> None:
        names = [index.name for index in self.indexes]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two indexes are named {name}", "name them: --index NAME=DIR")

    @property
    def indexes(self) -> list[NamedIndex]:
        """The indexes with their names, the default one first."""
        return [named_index(text) for text in self.index]


class AnswerSettings(Settings):
    """Answers."""

    hits: int = option(10, "-k", at_least=1)
    """Passages of an answer, unless the request gives a number."""
    max_hits: int = option(1000, at_least=1)
    """Largest number of passages that a request may ask for."""
    fusion_depth: int = setting(100, at_least=1)
    """Hits of each index that are fused for a request that names several; at least as many as it
    asks for."""
    rerank_depth: int = setting(50, at_least=1)
    """First hits that --rerank scores; an answer has no others."""

    def _check(self) -> None:
        if self.hits > self.max_hits:
            raise UsageError(f"--hits {self.hits} is above --max-hits {self.max_hits}")


class HttpSettings(Settings):
    """Server."""

    host: str = option("127.0.0.1", metavar="ADDRESS", nonempty=True)
    """Address to listen at; 0.0.0.0 for every network of this machine."""
    port: int = option(8000, at_least=0, at_most=65535)
    """Port; 0 takes a free one, which is logged."""
    allow_host: tuple[str, ...] = option((), metavar="NAME", repeat=True, nonempty=True)
    """Name by which clients reach the server, such as that of a reverse proxy; repeatable. Always
    accepted are localhost and --host, and IP addresses if --host is not local."""
    mcp: bool = option(False, excludes="host port allow_host")
    """Serve the tools of MCP over standard input and output, and nothing else."""
    max_query_length: int = setting(2000, at_least=1)
    """Largest number of characters of a query."""
    max_body: int = setting(65_536, at_least=1024)
    """Largest number of bytes in the body of a request."""
    max_waiting: int = setting(64, at_least=1)
    """Requests that are answered or wait at a time; the server rejects others with status 503."""
    batch_queries: int = setting(32, at_least=1)
    """Queries that are encoded and searched together."""
    batch_milliseconds: float = setting(3.0, at_least=0, at_most=1000)
    """Time to wait for further queries before a batch is searched."""
    reload_seconds: float = setting(2.0, at_least=0.05)
    """Time between two looks at whether an index was rebuilt."""
    shutdown_seconds: int = setting(10, at_least=0)
    """Time that requests have to end after SIGTERM or Ctrl-C."""
    access_log: bool = setting(False)
    """Log a line for each request: method, path, status and time, not the query."""
