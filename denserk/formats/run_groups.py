"""Runs a query at a time, quickly: blocks of clean lines are taken apart as arrays.

A clean line of six columns (or three with scores) is ASCII, with one blank or tab between columns.
A block with any other line goes through `run_lines`, line by line, and so do the other shapes: what
is accepted and what is refused is the same.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from denserk.errors import InputError
from denserk.formats.decimals import Bytes, Places, parse_decimals
from denserk.formats.files import (
    BOM,
    BROKEN_GZIP,
    breaks_off,
    look_ahead,
    number_lines,
    open_binary,
)
from denserk.formats.run_lines import again, look, parse_lines, twice
from denserk.reporting import SILENT, Reporter
from denserk.settings.formats import RunFormat

BLOCK = 1 << 19
"""Bytes that are read at once: few enough for the caches of a processor."""
HEAD = 1 << 20
"""Bytes at the start of a file that may tell its shape; a line is shorter."""
WIDEST = 64
"""Bytes of ids up to which they are cut out as one table."""
NEWLINE, BLANK, TAB = b"\n \t"
COLUMNS = {RunFormat.TREC: (6, 2, 4), RunFormat.TEVATRON: (3, 1, 2)}
"""Shapes whose clean lines are read as arrays: how many columns, the passage's, the score's."""
LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)


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
    reporter: Reporter = SILENT,
    form: RunFormat | None = None,
    passed: Counter[str] | None = None,
) -> Iterator[RunGroup]:
    """Hits of a run, query by query, in the order of the file, in constant memory.

    Args:
        path: the file; "-" is standard input.
        reporter: is told the shape, where it was detected.
        form: its shape; None detects it.
        passed: where given, counts a passage that comes twice for a query (its best score counts)
            and a last line that is cut off, in place of refusing them.

    Raises:
        UsageError: there is no such file.
        InputError: a line is broken, its score is not finite, a passage comes twice for a query, or
            the lines of a query do not stand together.
    """
    finished: set[str] = set()
    open_part: RunPart | None = None
    for part in read_parts(path, reporter, form, passed, tell_cut_off=True):
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
    reporter: Reporter = SILENT,
    form: RunFormat | None = None,
    passed: Counter[str] | None = None,
    *,
    tell_cut_off: bool = False,
) -> Iterator[RunPart]:
    """Hits of a run, as stretches of one query, in the order of the file, in constant memory.

    A query whose lines do not stand together comes in several parts, and so does a long one.

    Args:
        path: the file; "-" is standard input.
        reporter: is told the shape, where it was detected.
        form: its shape; None detects it.
        passed: see `read_groups`; passages that come twice are left to the caller.
        tell_cut_off: a broken last line without an end is refused as one that is cut off.

    Raises:
        UsageError: there is no such file.
        InputError: a line is broken, or its score is not finite.
    """
    with open_binary(path) as raw:
        head, handle = look_ahead(raw, path, HEAD)
        lines = head[: head.rfind(b"\n") + 1] if len(head) == HEAD else head
        detected, _ = look(number_lines(io.BytesIO(lines), path), path, reporter, form)
        if detected is None:
            return
        first = 1
        for block in _blocks(handle, path):
            yield from _parts_of(block, first, detected, path, passed, tell_cut_off)
            first += block.count(b"\n")


def _blocks(handle: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """Whole lines with Unix ends, many at once; what follows the last line end comes by itself."""
    rest = b""
    try:
        start = handle.read(len(BOM))
        rest = start.removeprefix(BOM)
        while data := handle.read(BLOCK):
            whole, end, tail = data.rpartition(b"\n")
            if end:
                block = rest + whole + end
                yield block.replace(b"\r\n", b"\n") if b"\r" in block else block
                rest = tail
            else:
                rest += data
    except BROKEN_GZIP as error:
        raise breaks_off(path, None, error) from None
    if rest:
        yield rest


def _parts_of(
    block: bytes,
    first: int,
    form: RunFormat,
    path: str | Path,
    passed: Counter[str] | None,
    tell_cut_off: bool,
) -> Iterator[RunPart]:
    """The parts of a block; `first` is the number of its first line."""
    if form in COLUMNS and block.endswith(b"\n") and block.isascii():
        parts = _clean_parts(block, first, form)
        if parts is not None:
            yield from parts
            return
    yield from _any_parts(block, first, form, path, passed, tell_cut_off)


def _clean_parts(block: bytes, first: int, form: RunFormat) -> Iterator[RunPart] | None:
    """The parts of a block of clean lines; None where a line is not clean."""
    width, docid, score = COLUMNS[form]
    text = np.frombuffer(block + bytes(8), np.uint8)
    ends = _ends(text[:-8], width)
    if ends is None:
        return None
    first_of_line = np.concatenate([[0], ends[:-1, -1] + 1])
    try:
        scores = parse_decimals(text, ends[:, score - 1] + 1, ends[:, score])
    except ValueError:
        return None
    if not np.isfinite(scores).all():
        return None
    begins = _changes(text, first_of_line, ends[:, 0])
    docids = _strings(text, ends[:, docid - 1] + 1, ends[:, docid])
    return _cut(text, first, docids, scores.tolist(), (first_of_line, ends[:, 0]), begins)


def _ends(text: Bytes, width: int) -> Places | None:
    """Where each column ends: (lines, width); None where not all lines have that many columns."""
    ends = np.flatnonzero(text <= BLANK)
    if not len(ends) or len(ends) % width or ends[0] == 0 or (np.diff(ends) == 1).any():
        return None
    table = ends.reshape(-1, width)
    signs = text[table]
    between = signs[:, :-1]
    if (signs[:, -1] != NEWLINE).any() or ((between != BLANK) & (between != TAB)).any():
        return None
    return table


def _changes(text: Bytes, starts: Places, ends: Places) -> list[int]:
    """The lines whose first column is not that of the line before, and the count of lines.

    Columns are compared eight bytes at a time, as numbers.
    """
    lengths = ends - starts
    words = np.ndarray((len(text) - 7,), np.dtype("<u8"), text, strides=(1,))
    changed = lengths[1:] != lengths[:-1]
    for offset in range(0, int(lengths.max()), 8):
        left = np.clip(lengths - offset, 0, 8)
        word = words[np.minimum(starts + offset, len(words) - 1)] & LOW_BYTES[left]
        changed |= word[1:] != word[:-1]
    return [0, *(np.flatnonzero(changed) + 1).tolist(), len(starts)]


def _strings(text: Bytes, starts: Places, ends: Places) -> list[str]:
    """The strings at text[starts[i]:ends[i]], all ASCII."""
    lengths = ends - starts
    width = int(lengths.max())
    if width > WIDEST:
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [text[start:end].tobytes().decode() for start, end in places]
    padded = np.concatenate([text, np.zeros(width, np.uint8)])
    table = sliding_window_view(padded, width)[starts]
    table[np.arange(width) >= lengths[:, None]] = 0  # numpy's strings end with their zeros
    found: list[str] = table.astype(np.uint32).view(f"U{width}").ravel().tolist()
    return found


def _cut(
    text: Bytes,
    first: int,
    docids: list[str],
    scores: list[float],
    qids: tuple[Places, Places],
    begins: list[int],
) -> Iterator[RunPart]:
    """The parts that begin at these lines; `qids` is where query ids start and end."""
    names = _strings(text, *(places[begins[:-1]] for places in qids))
    for qid, (begin, end) in zip(names, pairwise(begins), strict=True):
        yield RunPart(qid, docids[begin:end], scores[begin:end], range(first + begin, first + end))


def _any_parts(
    block: bytes,
    first: int,
    form: RunFormat,
    path: str | Path,
    passed: Counter[str] | None,
    tell_cut_off: bool,
) -> Iterator[RunPart]:
    """The parts of any block, line by line."""
    numbered = enumerate(block.removesuffix(b"\n").split(b"\n"), start=first)
    part: RunPart | None = None
    try:
        for line, qid, docid, score, _ in parse_lines(numbered, form, path):
            if part is None or qid != part.qid:
                if part is not None:
                    yield part
                lines: list[int] = []
                part = RunPart(qid, [], [], lines)
            part.docids.append(docid)
            part.scores.append(score)
            lines.append(line)
    except InputError as error:
        if block.endswith(b"\n"):
            raise
        if passed is None:
            raise (_cut_off(error, path, first) if tell_cut_off else error) from None
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
