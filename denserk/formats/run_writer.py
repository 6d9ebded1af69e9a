"""Writing runs in any shape: a query at a time, its passages best first.

A writer takes names and scores as they come from a search: no object a hit is made.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from denserk.errors import OutputError
from denserk.formats.decimals import Numbers
from denserk.formats.files import whole_binary
from denserk.formats.json_lines import dump_json
from denserk.formats.names import Names
from denserk.formats.run_layout import lay_out
from denserk.settings.formats import RunFormat

MSMARCO_DEPTH = 1000
"""Passages a query that MS MARCO's evaluation accepts."""
AT_ONCE = 8192
"""Lines that are laid out together: few enough for the caches of a processor."""


class RunWriter:
    """Writes one query after another.

    Args:
        out: where the lines go.
        form: the shape. MS MARCO's holds the first 1000 of a query.
        tag: last column of a TREC run.
        plain: lines are made one by one, not thousands at once.
    """

    def __init__(self, out: BinaryIO, form: RunFormat, tag: str, *, plain: bool) -> None:
        self._out, self._form, self._tag, self._plain = out, form, tag, plain
        self.lines = 0
        self._written = 0
        self._queries: list[tuple[str, int]] = []
        self._docids: list[Sequence[str] | Names] = []
        self._scores: list[Numbers] = []

    def write_ranked(
        self,
        qid: str,
        docids: Sequence[str] | Names,
        scores: Sequence[float] | NDArray[np.floating[Any]],
    ) -> None:
        """Writes a query's hits.

        Args:
            qid: the query.
            docids: K passages, best first; kept, and so not to be changed, until they are written.
            scores: K scores.

        Raises:
            OutputError: a score is not finite.
        """
        values = np.array(scores, np.float64)
        held = docids.starts if isinstance(docids, Names) else docids
        assert len(held) == len(values), (qid, len(held), len(values))
        if self._form is RunFormat.MSMARCO:
            values = values[:MSMARCO_DEPTH]
            docids = _first(docids, MSMARCO_DEPTH)
        if not len(values):
            return
        finite = np.isfinite(values)
        if not finite.all():
            place = int(np.argmin(finite))
            docid = _strings(docids)[place]
            raise OutputError(f"query {qid}: the score of passage {docid} is {values[place]}")
        self._queries.append((qid, len(values)))
        self._docids.append(docids)
        self._scores.append(values)
        self.lines += len(values)
        if self.lines - self._written >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Writes what is held back."""
        lines = None
        if not self._plain and self._queries:
            docids = _joined(self._docids)
            scores = np.concatenate(self._scores)
            if docids is not None:
                lines = lay_out(self._form, self._queries, docids, scores, self._tag)
        self._out.write(self._one_by_one() if lines is None else lines)
        self._written = self.lines
        self._queries, self._docids, self._scores = [], [], []

    def _one_by_one(self) -> bytes:
        write = _LINES[self._form]
        held = zip(self._queries, self._docids, self._scores, strict=True)
        return "".join(
            write(qid, _strings(docids), scores.tolist(), self._tag)
            for (qid, _), docids, scores in held
        ).encode()


@contextmanager
def run_writer(
    path: str | Path,
    form: RunFormat = RunFormat.TREC,
    tag: str = "denserk",
    *,
    plain: bool = False,
) -> Iterator[RunWriter]:
    """Opens a run for writing; it takes its name once it is whole.

    Args:
        path: the file; "-" is standard output, `.gz` is compressed.
        form: the shape.
        tag: last column of a TREC run.
        plain: lines are made one by one; the bytes are the same.

    Raises:
        OutputError: the file cannot be written.
    """
    with whole_binary(path) as out:
        writer = RunWriter(out, form, tag, plain=plain)
        yield writer
        writer.flush()


def _first(docids: Sequence[str] | Names, count: int) -> Sequence[str] | Names:
    if isinstance(docids, Names):
        return Names(docids.text, docids.starts[:count], docids.ends[:count])
    return docids[:count]


def _strings(docids: Sequence[str] | Names) -> Sequence[str]:
    return docids.strings() if isinstance(docids, Names) else docids


def _joined(held: Sequence[Sequence[str] | Names]) -> Names | None:
    """The ids of several queries as one text; None where they are none (see `Names.of`)."""
    names = [docids for docids in held if isinstance(docids, Names)]
    if len(names) < len(held) or any(each.text is not names[0].text for each in names):
        return Names.of([docid for docids in held for docid in _strings(docids)])
    starts = np.concatenate([each.starts for each in names])
    return Names(names[0].text, starts, np.concatenate([each.ends for each in names]))


def _ranked(docids: Sequence[str], scores: Sequence[float]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(zip(docids, range(1, len(docids) + 1), scores, strict=True)))


def _trec(qid: str, docids: Sequence[str], scores: Sequence[float], tag: str) -> str:
    line = f"{_literal(qid)} Q0 %s %d %.9g {_literal(tag)}\n"
    return line * len(docids) % _ranked(docids, scores)


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _msmarco(qid: str, docids: Sequence[str], scores: Sequence[float], tag: str) -> str:
    pairs = zip(docids, range(1, len(docids) + 1), strict=True)
    return f"{_literal(qid)}\t%s\t%d\n" * len(docids) % tuple(chain.from_iterable(pairs))


def _tevatron(qid: str, docids: Sequence[str], scores: Sequence[float], tag: str) -> str:
    pairs = zip(docids, scores, strict=True)
    return f"{_literal(qid)}\t%s\t%.9g\n" * len(docids) % tuple(chain.from_iterable(pairs))


def _jsonl(qid: str, docids: Sequence[str], scores: Sequence[float], tag: str) -> str:
    line = f'{{"qid":{_literal(_quoted(qid))},"docid":%s,"rank":%d,"score":%.9g}}\n'
    return line * len(docids) % _ranked([_quoted(docid) for docid in docids], scores)


def _quoted(text: str) -> str:
    return dump_json(text).decode("utf-8").rstrip("\n")


_LINES: dict[RunFormat, Callable[[str, Sequence[str], Sequence[float], str], str]] = {
    RunFormat.TREC: _trec,
    RunFormat.MSMARCO: _msmarco,
    RunFormat.TEVATRON: _tevatron,
    RunFormat.JSONL: _jsonl,
}
