"""Pools: pairs of a query and a passage with their texts, to be judged by people or a model.

A pool is a table between tabs, whose third column is empty until a grade is filled in. Texts have
neither tabs nor line ends. A spreadsheet may have saved it as CSV.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from denserk.errors import InputError
from denserk.io import delimited, files, written_files
from denserk.io.short_texts import unquote_cell, with_single_spaces

HEADER = ("query-id", "corpus-id", "score", "query", "text")


class PoolRow(NamedTuple):
    """A pair that is to be judged, with its texts where they are known."""

    qid: str
    docid: str
    query: str = ""
    text: str = ""


def write_pool(path: str | Path, rows: Iterable[PoolRow]) -> int:
    """Write pairs with empty grades; return their number."""
    return written_files.write_lines(path, map(_pool_line, rows), "\t".join(HEADER) + "\n")


def _pool_line(row: PoolRow) -> str:
    """Return a pair as a line whose grade is empty."""
    query = with_single_spaces(row.query)
    text = with_single_spaces(row.text)
    return f"{row.qid}\t{row.docid}\t\t{query}\t{text}\n"


def is_pool_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a first line are the header of a pool.

    Annotators may have added columns behind those of the pool.
    """
    return tuple(cell.strip() for cell in cells[: len(HEADER)]) == HEADER


class PoolJudgment(NamedTuple):
    """A line of a pool, and its grade as it stands there; empty if it is not filled in."""

    line: int
    qid: str
    docid: str
    grade: str


def read_judgments(
    lines: files.Lines, path: str | Path, delimiter: str = "\t"
) -> Iterator[PoolJudgment]:
    """Yield the rows of a pool below its header, those without a grade among them.

    Between commas or semicolons they are CSV, where a quoted cell may hold line ends.
    """
    rows = _rows_between_tabs(lines)
    if delimiter != "\t":
        expected = "CSV: quotes around a cell that has them, or a comma or a semicolon"
        rows = delimited.read_rows(lines, path, delimiter, expected, strict=True)
    next(rows, None)  # the header
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) < 3:
            raise InputError(path, line, f"{len(cells)} cells", f"a row of {', '.join(HEADER)}")
        qid, docid, grade = cells[:3]
        yield PoolJudgment(line, qid, docid, grade)


def _rows_between_tabs(lines: files.Lines) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of the lines that are not blank."""
    for line, text in lines:
        if text.strip():
            yield line, [unquote_cell(cell.strip()) for cell in text.split("\t")]
