"""The papers' rows as text, to stand below a run's: a grid, lines, JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from denserk.evaluation.grid import Cell, Grid
from denserk.evaluation.published import PublishedRow, measures_of


def as_published_grid(rows: Sequence[PublishedRow], measures: Sequence[str]) -> Grid:
    """Systems down, measures across: those of the runs first, then those that papers alone have."""
    several = len({row.suite for row in rows}) > 1
    told = measures_of(rows)
    across = [name for name in measures if name in told]
    across += [name for name in told if name not in across]
    labels = ("paper", *(("suite",) if several else ()), "row", "system", "setting")
    return Grid(
        (*labels, *across),
        len(labels),
        tuple(
            (
                Cell(row.paper),
                *((Cell(row.suite),) if several else ()),
                *(Cell(row.table), Cell(row.system), Cell(row.setting)),
                *(Cell(row.values.get(name, "")) for name in across),
            )
            for row in rows
        ),
    )


def published_lines(rows: Sequence[PublishedRow]) -> Iterator[str]:
    """Lines of paper, suite, table and row, system, setting, measure, value."""
    for row in rows:
        for measure, value in row.values.items():
            labels = (row.paper, row.suite, row.table, row.system, row.setting)
            yield "\t".join((*labels, measure, value)) + "\n"


def as_json_rows(rows: Sequence[PublishedRow]) -> list[dict[str, Any]]:
    """The rows as JSON has them; values are numbers."""
    return [
        {**asdict(row), "values": {name: float(value) for name, value in row.values.items()}}
        for row in rows
    ]
