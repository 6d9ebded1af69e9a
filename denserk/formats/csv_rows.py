"""Rows of a file that is quoted as CSV: read with the lines they begin on, and written."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from denserk.errors import InputError
from denserk.formats.files import whole_text


def read_rows(
    lines: Iterable[tuple[int, str]], path: str | Path, delimiter: str, expected: str
) -> Iterator[tuple[int, list[str]]]:
    r"""Yields (line number, columns); a quoted one may hold line ends; empty rows are passed over.

    Args:
        lines: numbered lines without their ends.
        path: names the file in errors.
        delimiter: what stands between two columns.
        expected: the columns, for errors.

    Raises:
        InputError: a row is not quoted as CSV.

    >>> list(read_rows([(1, 'a,"b'), (2, '""c"'), (3, ""), (4, "d,e")], "x", ",", "two columns"))
    [(1, ['a', 'b\n"c']), (4, ['d', 'e'])]
    """
    position = [0]

    def rows() -> Iterator[str]:
        for position[0], row in lines:
            yield row + "\n"

    reader = csv.reader(rows(), delimiter=delimiter)
    while True:
        line = position[0] + 1
        try:
            columns = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                path, line, f"a row that is not quoted as CSV ({error})", expected
            ) from None
        if any(columns):
            yield line, columns


def write_rows(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Writes rows with commas between their columns; "-" is standard output.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_text(path) as out:
        csv.writer(out, lineterminator="\n").writerows(rows)
