"""Runs: TREC's six columns, MS MARCO's and Tevatron's three, JSON lines.

MS MARCO's third column is a rank, Tevatron's a score. A file of three columns is taken for ranks
where the third column counts 1, 2, 3, ... within each of its first queries.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import Any

from denserk.errors import InputError, OutputError
from denserk.formats.detection import columns, list_keys, told
from denserk.formats.files import decode_lines, number_lines, open_binary, whole_text
from denserk.formats.identifiers import identifier
from denserk.formats.json_lines import dump_json, parse_objects
from denserk.records import ScoredPassage
from denserk.reporting import SILENT, Reporter
from denserk.settings.formats import RunFormat

MSMARCO_DEPTH = 1000
"""Passages a query that MS MARCO's evaluation accepts."""

LOOK = 2000
"""Lines of a file with three columns that are looked at."""

_COLUMNS = {
    RunFormat.TREC: "6 columns: qid Q0 docid rank score tag",
    RunFormat.MSMARCO: "3 columns: qid, docid, rank",
    RunFormat.TEVATRON: "3 columns: qid, docid, score",
    RunFormat.JSONL: "JSON lines with qid, docid, score",
}
_INFINITY = float("inf")


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


def again(qid: str, current: str | None, path: str | Path, line: int) -> InputError:
    """The error about a query whose lines do not stand together."""
    return InputError(
        path,
        line,
        f"query {qid} again after query {current}",
        "the lines of a query together",
        "sort -s -k1,1 puts them together",
    )


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


def twice(qid: str, docid: str, path: str | Path, line: int) -> InputError:
    """The error about a passage that a query holds twice."""
    return InputError(
        path, line, f"passage {docid} twice for query {qid}", "each passage once a query"
    )


def read_run_scores(
    path: str | Path, reporter: Reporter = SILENT, form: RunFormat | None = None
) -> dict[str, dict[str, float]]:
    """A whole run: query -> passage -> score, in the file's order; queries may be interleaved.

    Raises:
        InputError: a line is broken, its score is not finite, or a passage comes twice for a query.
    """
    run: dict[str, dict[str, float]] = {}
    current: str | None = None
    hits: dict[str, float] = {}
    for line, qid, docid, score, _ in _hits(path, reporter, form):
        if qid != current:
            current = qid
            hits = run.setdefault(qid, {})
        if docid in hits:
            raise twice(qid, docid, path, line)
        hits[docid] = score
    return run


_Hit = tuple[int, str, str, float, str]
"""Line number, query, passage, score, rank as the file spells it."""


def _hits(path: str | Path, reporter: Reporter, form: RunFormat | None) -> Iterator[_Hit]:
    """Hits of a file of any shape, in its order."""
    with open_binary(path) as raw:
        detected, lines = look(number_lines(raw, path), path, reporter, form)
        if detected:
            yield from parse_lines(lines, detected, path)


def look(
    numbered: Iterator[tuple[int, bytes]],
    path: str | Path,
    reporter: Reporter = SILENT,
    form: RunFormat | None = None,
) -> tuple[RunFormat | None, Iterator[tuple[int, bytes]]]:
    """The shape of a run, and its lines again; no shape where it is empty.

    Raises:
        InputError: the first line is of no shape.
    """
    looked = list(islice((item for item in numbered if item[1].strip()), LOOK))
    if not looked:
        return None, numbered
    detected = form or detect(looked, path)
    if form is None:
        reporter.note(f"{told(path)}: {detected} run ({_COLUMNS[detected]})")
    return detected, chain(looked, numbered)


def parse_lines(
    lines: Iterable[tuple[int, bytes]], form: RunFormat, path: str | Path
) -> Iterator[_Hit]:
    """Hits of numbered lines: (line number, query, passage, score, rank as the file spells it).

    Raises:
        InputError: a line is broken, or its score is not finite.
    """
    if form is RunFormat.JSONL:
        return _json_hits(lines, path)
    return _column_hits(lines, form, path)


def detect(lines: Sequence[tuple[int, bytes]], path: str | Path) -> RunFormat:
    """The shape of a run by its first lines.

    Raises:
        InputError: the first line is of no shape.

    >>> detect([(1, b"q1 d7 1"), (2, b"q1 d9 2"), (3, b"q2 d7 1")], "run.tsv").value
    'msmarco'
    >>> detect([(1, b"q1 d7 12"), (2, b"q1 d9 11")], "run.tsv").value
    'tevatron'
    """
    line, first = lines[0]
    if first.lstrip().startswith(b"{"):
        return RunFormat.JSONL
    count = len(first.split())
    if count == 6:
        return RunFormat.TREC
    if count != 3:
        raise _wrong_columns(count, None, path, line)
    ranks: dict[bytes, int] = {}
    for _, text in lines:
        parts = text.split()
        if len(parts) != 3:
            break
        ranks[parts[0]] = rank = ranks.get(parts[0], 0) + 1
        if parts[2] != b"%d" % rank:
            return RunFormat.TEVATRON
    return RunFormat.MSMARCO


def _wrong_columns(count: int, form: RunFormat | None, path: str | Path, line: int) -> InputError:
    hint = None
    if count == 4 and form in (None, RunFormat.TREC):
        hint = "four columns are judgements: exchange run and judgements"
    expected = _COLUMNS[form] if form else " or ".join(_COLUMNS.values())
    return InputError(path, line, columns(count), expected, hint)


def _column_hits(
    lines: Iterable[tuple[int, bytes]], form: RunFormat, path: str | Path
) -> Iterator[_Hit]:
    trec = form is RunFormat.TREC
    ranked = form is RunFormat.MSMARCO
    place = ""
    for line, text in lines:
        try:
            if trec:
                qid, _, docid, place, number, _ = text.decode().split()
            else:
                qid, docid, number = text.decode().split()
            score = float(number)
            if not -_INFINITY < score < _INFINITY:
                raise ValueError(number)
            if ranked:
                place = number
                score = -float(int(number))
        except ValueError:
            if not text.strip():
                continue
            raise _broken(text, form, path, line) from None
        yield line, qid, docid, score, place


def _broken(text: bytes, form: RunFormat, path: str | Path, line: int) -> InputError:
    """What is wrong with a line that has the wrong columns or no finite number among them."""
    [(_, decoded)] = decode_lines([(line, text)], path)
    parts = decoded.split()
    if len(parts) != (6 if form is RunFormat.TREC else 3):
        return _wrong_columns(len(parts), form, path, line)
    number = parts[4] if form is RunFormat.TREC else parts[2]
    if form is RunFormat.MSMARCO:
        hint = "if the third column is a score, name the shape: tevatron"
        return InputError(path, line, f"rank {number[:40]!r}", "a whole number", hint)
    return InputError(path, line, f"score {number[:40]!r}", "a finite number")


def _json_hits(lines: Iterable[tuple[int, bytes]], path: str | Path) -> Iterator[_Hit]:
    for line, record in parse_objects(lines, path):
        if not {"qid", "docid", "score"} <= record.keys():
            found = f"the keys {list_keys(record)}"
            raise InputError(path, line, found, _COLUMNS[RunFormat.JSONL])
        score = record["score"]
        if type(score) not in (int, float) or not isfinite(score):
            raise InputError(path, line, f"score {str(score)[:40]!r}", "a finite number")
        qid = identifier(record["qid"], path, line, "query")
        docid = identifier(record["docid"], path, line, "passage")
        yield line, qid, docid, float(score), str(record.get("rank", ""))


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
