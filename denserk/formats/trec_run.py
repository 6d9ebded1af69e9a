"""Runs: TREC's six columns, MS MARCO's and Tevatron's three, JSON lines.

`run_lines` tells the shapes apart.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from denserk.formats.files import STREAM, number_lines, open_binary, read_lines
from denserk.formats.run_groups import read_parts
from denserk.formats.run_lines import Hit, again, is_comment, look, parse_lines, twice
from denserk.formats.run_writer import run_writer
from denserk.records import ScoredPassage
from denserk.settings.formats import RunFormat


def read_run(path: str | Path, form: RunFormat | None = None) -> Iterator[ScoredPassage]:
    """Hits of a run, in the order of the file, in constant memory.

    A rank stands for its negative as score, so that higher is better in every shape.

    Args:
        path: the file; "-" is standard input.
        form: its shape; None detects it.

    Raises:
        InputError: a line is broken, its score is not finite, a passage comes twice for a query, or
            the lines of a query do not stand together (`read_run_scores` takes such a file).
    """
    finished: set[str] = set()
    current: str | None = None
    docids: set[str] = set()
    for line, qid, docid, score, place in _hits(path, form):
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


def read_run_tag(path: str | Path) -> str | None:
    """The tag of a run's last line, which trec_eval prints as `runid`.

    None where the file has no tags or cannot be read twice (standard input, a pipe).
    """
    if str(path) == STREAM or not Path(path).is_file():
        return None
    last = b""
    for _, line in read_lines(path):
        if line.strip() and not is_comment(line):
            last = line
    columns = [] if last.lstrip().startswith(b"{") else last.split(None, 6)
    return columns[5].decode("utf-8", "replace") if len(columns) > 5 else None


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
    path: str | Path,
    form: RunFormat | None = None,
    *,
    plain: bool = False,
    by_rank: bool = False,
) -> dict[str, dict[str, float]]:
    """A whole run: query -> passage -> score, in the file's order; queries may be interleaved.

    Args:
        path: the file; "-" is standard input.
        form: its shape; None detects it.
        plain: every line is read by itself, not many as arrays.
        by_rank: the score is the negative of the rank column.

    Raises:
        InputError: a line is broken, its score is not finite, a passage comes twice for a query, or
            by rank: a line has none, or a query has it twice.
    """
    run: dict[str, dict[str, float]] = {}
    for part in read_parts(path, form, plain=plain, by_rank=by_rank):
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


def _hits(path: str | Path, form: RunFormat | None) -> Iterator[Hit]:
    """Hits of a file of any shape, in its order."""
    with open_binary(path) as raw:
        detected, lines = look(number_lines(raw, path), path, form)
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
    with run_writer(path, form, tag) as writer:
        for qid, hits in results:
            if hits:
                docids, scores = zip(*hits, strict=True)
                writer.write_ranked(qid, docids, scores)
    return writer.lines
