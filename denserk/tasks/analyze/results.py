"""Results of analyses: rows by column, tables and plots."""

from collections.abc import Callable, Sequence
from typing import Any

from denserk.config import analysis
from denserk.io.written_files import write_rows
from denserk.plots import save_if_installed

Row = dict[str, Any]  # a result: column of the table -> value


def as_table(rows: Sequence[Row], columns: Sequence[str] = (), digits: int = 6) -> list[list[str]]:
    """Return the header and the rows of a table of results: named columns, by default all.

    >>> as_table([{"label": "a", "share": 0.25}], digits=2)
    [['label', 'share'], ['a', '0.25']]
    """
    columns = list(columns or rows[0])
    table = [columns]
    for row in rows:
        table.append([_cell(row[column], digits) for column in columns])
    return table


def _cell(value: Any, digits: int) -> str:
    """Return a value as text, real numbers with that many digits."""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def save(rows: Sequence[Row], draw: Callable[[], Any], settings: analysis.SeveralModels) -> None:
    """Write the results as CSV, and their plot."""
    write_rows(settings.output, as_table(rows))
    save_if_installed(draw, "the results", settings.picture)
