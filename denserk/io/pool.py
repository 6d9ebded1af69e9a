"""Pools: pairs of a query and a passage with their texts, to be judged by people or a model.

A pool is a table between tabs, whose third column is empty until a grade is filled in. Texts have
neither tabs nor line ends.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from denserk.io import files

HEADER = ("query-id", "corpus-id", "score", "query", "text")


class PoolRow(NamedTuple):
    """A pair that is to be judged, with its texts where they are known."""

    qid: str
    docid: str
    query: str = ""
    text: str = ""


def write_pool(path: str | Path, rows: Iterable[PoolRow]) -> int:
    """Write pairs with empty grades; return their number."""
    lines = (
        f"{row.qid}\t{row.docid}\t\t{_one_line(row.query)}\t{_one_line(row.text)}\n" for row in rows
    )
    return files.write_lines(path, lines, "\t".join(HEADER) + "\n")


def _one_line(text: str) -> str:
    r"""Return a text with single blanks in place of tabs and line ends.

    >>> _one_line("a title\n\ta text")
    'a title a text'
    """
    return " ".join(text.split())


def is_pool_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a first line are the header of a pool.

    Annotators may have added columns behind those of the pool.
    """
    return tuple(cell.strip() for cell in cells[: len(HEADER)]) == HEADER
