"""Questions with the passages that were retrieved for them: DPR's JSON array, Pyserini's object.

Both are written a question at a time, so that no more than one is in memory. Scores are strings,
as both toolkits have them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk.formats.files import whole_binary
from denserk.formats.tsv import one_line
from denserk.records import Passage, Query


class Context(NamedTuple):
    """A passage that was retrieved, its score, and whether it holds an answer."""

    passage: Passage
    score: float
    has_answer: bool


Write = Callable[[Query, Sequence[Context]], None]
"""Writes a question with its contexts, best first."""


@contextmanager
def dpr_json(path: str | Path) -> Iterator[Write]:
    """Opens a file of DPR's shape: an array of `question`, `answers`, `ctxs`.

    Raises:
        OutputError: it cannot be written.
    """
    with _opened(path, b"[", b"]", _dpr_entry) as write:
        yield write


@contextmanager
def pyserini_json(path: str | Path) -> Iterator[Write]:
    """Opens a file of Pyserini's shape: `question`, `answers`, `contexts` by query id.

    The text of a context is its title and its text with one line end between them.

    Raises:
        OutputError: it cannot be written.
    """
    with _opened(path, b"{", b"}", _pyserini_entry) as write:
        yield write


@contextmanager
def _opened(
    path: str | Path,
    opening: bytes,
    closing: bytes,
    entry: Callable[[Query, Sequence[Context]], bytes],
) -> Iterator[Write]:
    with whole_binary(path) as out:
        lead = opening + b"\n"

        def write(query: Query, contexts: Sequence[Context]) -> None:
            nonlocal lead
            out.write(lead + entry(query, contexts))
            lead = b",\n"

        yield write
        out.write((b"" if lead == b",\n" else lead) + b"\n" + closing + b"\n")


def _question(query: Query) -> dict[str, Any]:
    return {"question": query.text, "answers": query.answers}


def _dpr_entry(query: Query, contexts: Sequence[Context]) -> bytes:
    entries = [
        {
            "id": passage.docid,
            "title": passage.title,
            "text": passage.text,
            "score": f"{score:.9g}",
            "has_answer": has_answer,
        }
        for passage, score, has_answer in contexts
    ]
    return orjson.dumps({**_question(query), "ctxs": entries})


def _pyserini_entry(query: Query, contexts: Sequence[Context]) -> bytes:
    entries = [
        {
            "docid": passage.docid,
            "score": f"{score:.9g}",
            "text": f"{one_line(passage.title)}\n{one_line(passage.text)}",
            "has_answer": has_answer,
        }
        for passage, score, has_answer in contexts
    ]
    named = orjson.dumps(query.qid) + b":"
    return named + orjson.dumps({**_question(query), "contexts": entries})
