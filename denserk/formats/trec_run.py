"""Runs: TREC's six columns, MS MARCO's and Tevatron's three, JSON lines.

`run_lines` tells the shapes apart.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any

from denserk.errors import OutputError
from denserk.formats.files import number_lines, open_binary, whole_text
from denserk.formats.json_lines import dump_json
from denserk.formats.run_groups import read_parts
from denserk.formats.run_lines import Hit, again, look, parse_lines, twice
from denserk.records import ScoredPassage
from denserk.reporting import SILENT, Reporter
from denserk.settings.formats import RunFormat

MSMARCO_DEPTH = 1000
"""Passages a query that MS MARCO's evaluation accepts."""


def read_run(
    path: str | Path, reporter: Reporter = SILENT, form: RunFormat | None = None
) -> Iterator[ScoredPassage]:
    """Hits of a run, in the order of the file, in constant memory.

    A rank stands for its negative as score, so that higher is better in every shape.

    Args:
        path: the file; "-" is standard input.
        reporter: is told the shape, where it was detected.
        form: its shape; None detects it.

    Raises:
        InputError: a line is broken, its score is not finite, a passage comes twice for a query, or
            the lines of a query do not stand together (`read_run_scores` takes such a file).
    """
    finished: set[str] = set()
    current: str | None = None
    docids: set[str] = set()
    for line, qid, docid, score, place in _hits(path, reporter, form):
        if qid != current:
            if qid in finished:
                raise again(qid, current, path, line)
            current = qid
            finished.add(qid)
            docids = set()
        if docid in docids:
            raise twice(qid, docid, path, line)
        docids.add(docid)
        yield ScoredPassage(qid, docid, score, _rank(place))


def parse_query(
    lines: Iterable[tuple[int, bytes]], form: RunFormat, path: str | Path
) -> list[ScoredPassage]:
    """One query's hits, from its numbered lines; `path` names them in errors.

    Raises:
        InputError: a line is broken, or a passage comes twice.
    """
    hits: dict[str, ScoredPassage] = {}
    for line, qid, docid, score, place in parse_lines(lines, form, path):
        if docid in hits:
            raise twice(qid, docid, path, line)
        hits[docid] = ScoredPassage(qid, docid, score, _rank(place))
    return list(hits.values())


def _rank(place: str) -> int:
    return int(place) if place.isascii() and place.isdecimal() and len(place) < 19 else 0


def read_run_scores(
    path: str | Path, reporter: Reporter = SILENT, form: RunFormat | None = None
) -> dict[str, dict[str, float]]:
    """A whole run: query -> passage -> score, in the file's order; queries may be interleaved.

    Raises:
        InputError: a line is broken, its score is not finite, or a passage comes twice for a query.
    """
    run: dict[str, dict[str, float]] = {}
    for part in read_parts(path, reporter, form):
        hits = run.setdefault(part.qid, {})
        before = len(hits)
        hits.update(zip(part.docids, part.scores, strict=True))
        if len(hits) < before + len(part.docids):
            seen = set(islice(hits, before))
            for docid, line in zip(part.docids, part.lines, strict=True):
                if docid in seen:
                    raise twice(part.qid, docid, path, line)
                seen.add(docid)
    return run


def _hits(path: str | Path, reporter: Reporter, form: RunFormat | None) -> Iterator[Hit]:
    """Hits of a file of any shape, in its order."""
    with open_binary(path) as raw:
        detected, lines = look(number_lines(raw, path), path, reporter, form)
        if detected:
            yield from parse_lines(lines, detected, path)


Results = Iterable[tuple[str, Sequence[tuple[str, float]]]]


def write_run(
    path: str | Path, results: Results, form: RunFormat = RunFormat.TREC, tag: str = "denserk"
) -> int:
    """Writes a run; returns how many lines. "-" is standard output, `.gz` is compressed.

    Args:
        path: the file.
        results: (qid, [(docid, score), ...]), one query at a time, each best first.
        form: the shape. MS MARCO's holds the first 1000 of a query.
        tag: last column of a TREC run.

    Raises:
        OutputError: a score is not finite, or the file cannot be written.
    """
    count = 0
    lines = _WRITERS[form]
    with whole_text(path) as out:
        for qid, hits in results:
            if form is RunFormat.MSMARCO:
                hits = hits[:MSMARCO_DEPTH]
            if not hits:
                continue
            docids, scores = zip(*hits, strict=True)
            if not all(map(isfinite, scores)):
                docid, score = next(hit for hit in hits if not isfinite(hit[1]))
                raise OutputError(f"query {qid}: the score of passage {docid} is {score}")
            out.write(lines(qid, docids, scores, tag))
            count += len(hits)
    return count


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


_WRITERS: dict[RunFormat, Callable[[str, Sequence[str], Sequence[float], str], str]] = {
    RunFormat.TREC: _trec,
    RunFormat.MSMARCO: _msmarco,
    RunFormat.TEVATRON: _tevatron,
    RunFormat.JSONL: _jsonl,
}
