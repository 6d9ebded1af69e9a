"""Blocks of a run's lines, taken apart as arrays where every line is clean.

A clean line of six columns (or three with scores) is ASCII, with one blank or tab between columns.
"""

import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from denserk.formats.decimals import Bytes, Numbers, Places, parse_decimals
from denserk.formats.files import (
    BOM,
    LONGEST_LINE,
    READ_FAILURES,
    endless_line,
    number_lines,
    read_failure,
)
from denserk.formats.names import PADDING, Names
from denserk.formats.run_lines import look
from denserk.settings.formats import RunFormat

BLOCK = 1 << 19
"""Bytes that are read at once: few enough for the caches of a processor."""
HEAD = 1 << 20
"""Bytes at the start of a file that may tell its shape; a line is shorter."""
NEWLINE, BLANK, TAB = b"\n \t"
COLUMNS = {RunFormat.TREC: (6, 2, 4), RunFormat.TEVATRON: (3, 1, 2)}
"""Shapes whose clean lines are read as arrays: how many columns, the passage's, the score's."""


class CleanLines(NamedTuple):
    """The columns of N lines.

    Attributes:
        qids: the query of each stretch of lines that have the same.
        begins: the first line of each stretch, and N.
        docids: N passages.
        scores: (N,).
        starts: where each line starts in the block.
    """

    qids: list[str]
    begins: list[int]
    docids: Names
    scores: Numbers
    starts: Places

    def up_to_last(self) -> "CleanLines":
        """All but the last stretch."""
        end = self.begins[-2]
        return CleanLines(
            self.qids[:-1],
            self.begins[:-1],
            self.docids.at(slice(end)),
            self.scores[:end],
            self.starts[:end],
        )


def read_blocks(handle: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """Whole lines with Unix ends, many at once; what follows the last line end comes by itself."""
    rest: list[bytes] = []
    try:
        rest.append(handle.read(len(BOM)).removeprefix(BOM))
        while data := handle.read(BLOCK):
            whole, end, tail = data.rpartition(b"\n")
            if end:
                block = b"".join([*rest, whole, end])
                yield block.replace(b"\r\n", b"\n") if b"\r" in block else block
                rest = [tail]
            else:
                rest.append(data)
                if sum(map(len, rest)) >= LONGEST_LINE:
                    raise endless_line(path, None)
    except READ_FAILURES as error:
        raise read_failure(path, None, error) from None
    if last := b"".join(rest):
        yield last


def take_apart(block: bytes, form: RunFormat) -> CleanLines | None:
    r"""The columns of whole lines; None where a line is not clean, or its score not finite.

    >>> lines = take_apart(b"q1 Q0 d7 1 2.5 t\nq1 Q0 d9 2 1.5 t\n", RunFormat.TREC)
    >>> lines.qids, lines.begins, lines.docids.strings(), lines.scores.tolist()
    (['q1'], [0, 2], ['d7', 'd9'], [2.5, 1.5])
    """
    if form not in COLUMNS or not block.endswith(b"\n") or not block.isascii():
        return None
    width, docid, score = COLUMNS[form]
    text = np.frombuffer(block + bytes(PADDING), np.uint8)
    ends = _ends(text[:-PADDING], width)
    if ends is None:
        return None
    starts = np.concatenate([[0], ends[:-1, -1] + 1])
    try:
        scores = parse_decimals(text, ends[:, score - 1] + 1, ends[:, score])
    except ValueError:
        return None
    if not np.isfinite(scores).all():
        return None
    qids = Names(text, starts, ends[:, 0])
    begins = _changes(qids)
    docids = Names(text, ends[:, docid - 1] + 1, ends[:, docid])
    names = qids.at(begins[:-1]).strings()
    if any(name.startswith("#") for name in names):  # these may be comments
        return None
    return CleanLines(names, begins.tolist(), docids, scores, starts)


def _ends(text: Bytes, width: int) -> Places | None:
    """Where each column ends: (lines, width); None where not all lines have that many columns."""
    between = text <= BLANK
    ends = np.flatnonzero(between)
    if not len(ends) or len(ends) % width or between[0] or (between[1:] & between[:-1]).any():
        return None
    table = ends.reshape(-1, width)
    lines = text == NEWLINE
    known = np.count_nonzero(lines | (text == BLANK) | (text == TAB))
    if known != len(ends) or np.count_nonzero(lines) != len(table) or not lines[table[:, -1]].all():
        return None
    return table


def _changes(qids: Names) -> Places:
    """The lines whose query is not that of the line before, and the count of lines.

    Ids are compared eight bytes at a time, as numbers.
    """
    lengths = qids.ends - qids.starts
    changed = lengths[1:] != lengths[:-1]
    for offset in range(0, int(lengths.max()), 8):
        start = np.minimum(qids.starts + offset, qids.ends)
        word = Names(qids.text, start, np.minimum(start + 8, qids.ends)).keys()
        changed |= word[1:] != word[:-1]
    return np.concatenate([[0], np.flatnonzero(changed) + 1, [len(lengths)]])


def form_of(head: bytes, path: str | Path, form: RunFormat | None = None) -> RunFormat | None:
    """The shape of a run, by its first `HEAD` bytes; None where it is empty.

    Raises:
        InputError: it is of no shape.
    """
    lines = head[: head.rfind(b"\n") + 1] if len(head) == HEAD else head
    return look(number_lines(io.BytesIO(lines), path), path, form)[0]


def read_queries(
    handle: BinaryIO, path: str | Path, form: RunFormat
) -> Iterator[CleanLines | None]:
    """The clean lines of an open run, all lines of a query in one block, in the order of the file.

    None follows, and nothing after it, where a line is not clean or the lines of a query do not
    stand together: such a run is for readers of lines.

    Raises:
        InputError: it is compressed and breaks off.
    """
    finished: set[str] = set()
    held: list[bytes] = []
    enough = 0
    for block in chain(read_blocks(handle, path), [b""]):
        held.append(block)
        if block and sum(map(len, held)) < enough:
            continue
        text = b"".join(held)
        if not text:
            return
        lines = take_apart(text if text.endswith(b"\n") else text + b"\n", form)
        if lines is None:
            yield None
            return
        if block:  # the last query may go on
            first = lines.begins[-2]
            held = [text[int(lines.starts[first]) :]]
            enough = 2 * len(held[0])
            lines = lines.up_to_last()
        if not finished.isdisjoint(lines.qids) or len(set(lines.qids)) < len(lines.qids):
            yield None
            return
        finished.update(lines.qids)
        if lines.qids:
            yield lines
