"""Questions with the passages that were retrieved for them, as JSON of DPR and of Pyserini."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.io import written_files
from denserk.io.short_texts import one_line
from denserk.records import Passage, Query


class Context(NamedTuple):
    """A passage that was retrieved for a question, its score, and whether it holds an answer."""

    passage: Passage
    score: float
    has_answer: bool


WriteContexts = Callable[[Query, Iterable[Context]], None]


@contextmanager
def contexts_writer(path: str | Path, *, pyserini: bool = False) -> Iterator[WriteContexts]:
    """Open a file of questions, answers and contexts; yield the function that writes a question.

    DPR's format is an array with `ctxs`, best first; Pyserini's is an object by query id with
    `contexts`.
    """
    opening, closing = b"[", b"]"
    if pyserini:
        opening, closing = b"{", b"}"
    with written_files.whole_binary(path) as out:
        out.write(opening)
        yield _ContextsFile(out, pyserini=pyserini).write
        out.write(b"\n" + closing + b"\n")


class _ContextsFile:
    """An open file of questions with their contexts, one entry of its JSON each."""

    def __init__(self, out: BinaryIO, *, pyserini: bool) -> None:
        self._out = out
        self._is_pyserini = pyserini
        self._is_empty = True

    def write(self, query: Query, contexts: Iterable[Context]) -> None:
        """Write a question with its answers and its contexts."""
        entries = []
        for context in contexts:
            if self._is_pyserini:
                entry = _pyserini_entry(context.passage)
            else:
                entry = _dpr_entry(context.passage)
            entry["score"] = f"{context.score:.9g}"  # a string; 9 digits are exact for float32
            entry["has_answer"] = context.has_answer
            entries.append(entry)
        list_key = "contexts" if self._is_pyserini else "ctxs"
        record = {"question": query.text, "answers": query.answers, list_key: entries}
        self._out.write(b"\n" if self._is_empty else b",\n")
        self._is_empty = False
        if self._is_pyserini:
            self._out.write(orjson.dumps(query.qid) + b":")
        self._out.write(orjson.dumps(record))


def _dpr_entry(passage: Passage) -> dict[str, Any]:
    """Return a passage as DPR writes it."""
    return {"id": passage.docid, "title": passage.title, "text": passage.text}


def _pyserini_entry(passage: Passage) -> dict[str, Any]:
    """Return a passage as Pyserini writes it: its text has one line end, after the title."""
    text = f"{one_line(passage.title)}\n{one_line(passage.text)}"
    return {"docid": passage.docid, "text": text}
