"""Runs a query at a time, quickly: blocks of clean lines are taken apart as arrays.

A block with any other line goes through `run_lines`, line by line, and so do the other shapes: what
is accepted and what is refused is the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from denserk.errors import InputError
from denserk.formats.files import look_ahead, number_lines, open_binary
from denserk.formats.run_blocks import HEAD, CleanLines, form_of, read_blocks, take_apart
from denserk.formats.run_lines import Hit, again, parse_lines, twice
from denserk.settings.formats import RunFormat


class RunGroup(NamedTuple):
    """The hits of one query, as the file has them."""

    qid: str
    docids: list[str]
    scores: list[float]


@dataclass
class RunPart:
    """Lines of one query that follow each other, with their numbers."""

    qid: str
    docids: list[str]
    scores: list[float]
    lines: Sequence[int]


def read_groups(
    path: str | Path,
    form: RunFormat | None = None,
    passed: Counter[str] | None = None,
    *,
    by_rank: bool = False,
) -> Iterator[RunGroup]:
    """Hits of a run, query by query, in the order of the file, in constant memory.

    Args:
        path: the file; "-" is standard input.
        form: its shape; None detects it.
        passed: where given, counts a passage that comes twice for a query (its best score counts)
            and a last line that is cut off, in place of refusing them.
        by_rank: the score is the negative of the rank column.

    Raises:
        UsageError: there is no such file.
        InputError: a line is broken, its score is not finite, a passage comes twice for a query, or
            the lines of a query do not stand together.
    """
    finished: set[str] = set()
    open_part: RunPart | None = None
    for part in read_parts(path, form, passed, tell_cut_off=True, by_rank=by_rank):
        if open_part is not None and part.qid == open_part.qid:
            open_part.docids += part.docids
            open_part.scores += part.scores
            open_part.lines = [*open_part.lines, *part.lines]
            continue
        if open_part is not None:
            yield _whole(open_part, path, passed)
            finished.add(open_part.qid)
            if part.qid in finished:
                raise again(part.qid, open_part.qid, path, part.lines[0])
        open_part = part
    if open_part is not None:
        yield _whole(open_part, path, passed)


def _whole(part: RunPart, path: str | Path, passed: Counter[str] | None) -> RunGroup:
    """A query's hits, each passage once."""
    if len(set(part.docids)) == len(part.docids):
        return RunGroup(part.qid, part.docids, part.scores)
    best: dict[str, float] = {}
    for docid, score, line in zip(part.docids, part.scores, part.lines, strict=True):
        if docid in best:
            if passed is None:
                raise twice(part.qid, docid, path, line)
            passed["a passage twice for a query"] += 1
        best[docid] = max(score, best.get(docid, score))
    return RunGroup(part.qid, list(best), list(best.values()))


def read_parts(
    path: str | Path,
    form: RunFormat | None = None,
    passed: Counter[str] | None = None,
    *,
    tell_cut_off: bool = False,
    plain: bool = False,
    by_rank: bool = False,
) -> Iterator[RunPart]:
    """Hits of a run, as stretches of one query, in the order of the file, in constant memory.

    A query whose lines do not stand together comes in several parts, and so does a long one.

    Args:
        path: the file; "-" is standard input.
        form: its shape; None detects it.
        passed: see `read_groups`; passages that come twice are left to the caller.
        tell_cut_off: a broken last line without an end is refused as one that is cut off.
        plain: every line is read by itself.
        by_rank: the score is the negative of the rank column.

    Raises:
        UsageError: there is no such file.
        InputError: a line is broken, or its score is not finite.
    """
    with open_binary(path) as raw:
        head, handle = look_ahead(raw, path, HEAD)
        detected = form_of(head, path, form)
        if detected is None:
            return
        if by_rank:  # a rank is looked for in all lines of a query, so they are read as one block
            numbered = number_lines(handle, path)
            yield from _any_parts(parse_lines(numbered, detected, path, by_rank=True), path)
            return
        first = 1
        for block in read_blocks(handle, path):
            lines = None if plain else take_apart(block, detected)
            if lines is not None:
                yield from _cut(lines, first)
            else:
                numbered = enumerate(block.removesuffix(b"\n").split(b"\n"), start=first)
                hits = parse_lines(numbered, detected, path)
                last = None if block.endswith(b"\n") else first
                yield from _any_parts(hits, path, last, passed, tell_cut_off)
            first += block.count(b"\n")


def _cut(lines: CleanLines, first: int) -> Iterator[RunPart]:
    """The parts of clean lines; `first` is the number of the first."""
    docids, scores = lines.docids.strings(), lines.scores.tolist()
    for qid, (begin, end) in zip(lines.qids, pairwise(lines.begins), strict=True):
        yield RunPart(qid, docids[begin:end], scores[begin:end], range(first + begin, first + end))


def _any_parts(
    hits: Iterable[Hit],
    path: str | Path,
    last: int | None = None,
    passed: Counter[str] | None = None,
    tell_cut_off: bool = False,
) -> Iterator[RunPart]:
    """The parts of any lines, one by one; `last` is the number of a last line without an end."""
    part: RunPart | None = None
    try:
        for line, qid, docid, score, _ in hits:
            if part is None or qid != part.qid:
                if part is not None:
                    yield part
                lines: list[int] = []
                part = RunPart(qid, [], [], lines)
            part.docids.append(docid)
            part.scores.append(score)
            lines.append(line)
    except InputError as error:
        if last is None:
            raise
        if passed is None:
            raise (_cut_off(error, path, last) if tell_cut_off else error) from None
        passed["a last line that is cut off"] += 1
    if part is not None:
        yield part


def _cut_off(error: InputError, path: str | Path, line: int) -> InputError:
    """What is wrong with a last line that has no end, and is broken."""
    found = str(error).partition(": found ")[2].partition("; expected ")[0]
    return InputError(
        path,
        line,
        f"a last line that is cut off ({found})",
        "a whole file",
        "write the run again, or add --skip-missing to do without the line",
    )
