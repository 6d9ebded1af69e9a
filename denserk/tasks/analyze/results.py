"""Results of analyses: rows by column, tables and plots."""

from collections.abc import Callable, Sequence
from typing import Any

from denserk.config import analysis
from denserk.io.files import write_rows
from denserk.plots import save_if_installed

Row = dict[str, Any]  # a result: column of the table -> value


def as_table(found: Sequence[Row], names: Sequence[str] = (), digits: int = 6) -> list[list[str]]:
    """Return the header and the rows of a table of results: named columns, by default all."""
    names = list(names or found[0])
    values = ([row[name] for name in names] for row in found)
    shown = [[f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row] for row in values]
    return [names, *shown]


def save(found: Sequence[Row], draw: Callable[[], Any], settings: analysis.SeveralModels) -> None:
    """Write the results as CSV, and their plot."""
    write_rows(settings.output, as_table(found))
    save_if_installed(draw, "the results", settings.picture)
