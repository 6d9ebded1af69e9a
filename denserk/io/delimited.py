"""Rows of CSV and other delimited files."""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from denserk.errors import InputError
from denserk.io.files import Lines
from denserk.io.short_texts import columns_phrase

LONGEST_CELL = 1 << 26  # characters of a cell of CSV, past which a quote was never closed


def read_rows(
    lines: Lines, path: str | Path, delimiter: str, expected: str, *, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns) of CSV; a quoted column may hold line ends; skip empty rows.

    If `strict`, text behind a closing quote and a quote that is never closed are errors.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))  # a limit of the process
    row_lines = _LinesOfRow(lines)
    try:
        for row in csv.reader(row_lines, delimiter=delimiter, strict=strict):
            line = row_lines.first_line
            row_lines.first_line = 0
            if any(row):
                yield line, row
    except csv.Error as error:
        found = f"a row that is not quoted as CSV ({error})"
        raise InputError(path, row_lines.first_line or None, found, expected) from None


class _LinesOfRow:
    """The lines of CSV, with the number of the first one that was read of a row."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.first_line = 0  # the reader sets it back after each row

    def __iter__(self) -> Iterator[str]:
        for number, text in self._lines:
            if self.first_line == 0:
                self.first_line = number
            yield text + "\n"


def read_table(
    lines: Lines, path: str | Path, delimiter: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, cells by name) of CSV under a header; see RFC 4180."""
    signs = {",": "commas", ";": "semicolons", "\t": "tabs"}
    expected = f"CSV: {signs[delimiter]} between columns, quotes around a cell that has them"
    rows = read_rows(lines, path, delimiter, expected, strict=True)
    first_row = next(rows, None)
    if first_row is None:
        return
    header_line, header_cells = first_row
    if header_cells[0].startswith("sep="):
        expected = "the names of the columns"
        raise InputError(path, header_line, "Excel's line sep=", expected, "delete this line")
    names = [cell.strip() for cell in header_cells]
    for name, count in Counter(names).items():
        if name and count > 1:
            found = f"the column {name[:80]} twice"
            raise InputError(path, header_line, found, "each column once")
    for line, cells in rows:
        if len(cells) != len(names):
            header = ascii(", ".join(names)[:200])[1:-1]  # without quotes
            found = f"{columns_phrase(len(cells))} between {signs[delimiter]}"
            expected = f"{len(names)}, as in the first row: {header}"
            raise InputError(path, line, found, expected)
        yield line, dict(zip(names, cells, strict=True))
