"""Helpers for text files: their first line, tab-separated columns, CSV rows, names in messages."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from denserk.errors import InputError
from denserk.io.files import BOM, STREAM, whole_text

T = TypeVar("T")
Lines = Iterable[tuple[int, str]]  # numbered from 1, without line ends


def first_line(head: bytes) -> bytes:
    r"""Return the first line of a file's beginning that is not blank, without its end.

    >>> first_line(b"\n\r\nid\ttext\r\nd1\tone")
    b'id\ttext'
    """
    for line in head.removeprefix(BOM).split(b"\n"):
        if line.strip():
            return line.rstrip(b"\r")
    return b""


def is_json(start: bytes) -> bool:
    """Return whether a file that begins with this line is JSON: lines, an array or one object."""
    return start.lstrip()[:1] in (b"{", b"[")


def is_number(text: str) -> bool:
    """Return whether a column is a number.

    >>> is_number("-1.5"), is_number("nan"), is_number("a cat")
    (True, True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def peek(items: Iterator[T]) -> tuple[T | None, Iterator[T]]:
    """Return the first item of an iterator, and an iterator over all items.

    >>> first, items = peek(iter("abc"))
    >>> first, "".join(items)
    ('a', 'abc')
    """
    for first in items:
        return first, chain([first], items)
    return None, items


def display_name(path: str | Path) -> str:
    """Return a file's name for log messages.

    >>> display_name("toy/corpus.jsonl"), display_name("-")
    ('corpus.jsonl', 'standard input')
    """
    return "standard input" if str(path) == STREAM else Path(path).name


def some(names: Iterable[str], limit: int = 3) -> str:
    """Return the first few names, quoted, for a message.

    >>> some(["q1", "q2", "q3", "q4"])
    "'q1', 'q2', 'q3', ..."
    """
    first = list(islice(names, limit + 1))
    return ", ".join(map(repr, first[:limit])) + (", ..." if len(first) > limit else "")


def columns(count: int) -> str:
    """Return a number of columns as text: "1 column", "4 columns"."""
    return f"{count} column{'s' * (count != 1)}"


def one_line(text: str) -> str:
    r"""Replace tabs and line ends by spaces.

    >>> one_line("a\tb\r\nc")
    'a b c'
    """
    return text.replace("\r\n", " ").replace("\t", " ").replace("\n", " ").replace("\r", " ")


def csv_row(values: Iterable[str]) -> str:
    """Return tab-separated columns, quoted as in a CSV file, with a line end."""
    out = io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerow(values)
    return out.getvalue()


def quote(field: str) -> str:
    """Quote a column that would otherwise be read as a quoted one."""
    return csv_row((field,)).rstrip("\n") if field.startswith('"') else field


def unquote(field: str) -> str:
    """Undo the quoting of a column that a CSV writer may have quoted.

    >>> unquote('"[""a""]"'), unquote('"half" quoted')
    ('["a"]', '"half" quoted')
    """
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inner = field[1:-1]
    return field if '"' in inner.replace('""', "") else inner.replace('""', '"')


def read_rows(
    lines: Lines, path: str | Path, delimiter: str, expected: str
) -> Iterator[tuple[int, list[str]]]:
    r"""Yield (line number, columns) of CSV; a quoted column may hold line ends; skip empty rows.

    Raises:
        InputError: a row is not quoted as CSV; `expected` names the columns.

    >>> list(read_rows([(1, 'a,"b'), (2, '""c"'), (3, ""), (4, "d,e")], "x", ",", "two columns"))
    [(1, ['a', 'b\n"c']), (4, ['d', 'e'])]
    """
    reader = csv.reader((row + "\n" for _, row in lines), delimiter=delimiter)
    line = 1
    try:
        for row in reader:
            if any(row):
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        found = f"a row that is not quoted as CSV ({error})"
        raise InputError(path, line, found, expected) from None


def write_rows(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Write comma-separated rows; "-" is standard output."""
    with whole_text(path) as out:
        csv.writer(out, lineterminator="\n").writerows(rows)
