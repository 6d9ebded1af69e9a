"""Measures on standard output: in colour to a terminal, as they are elsewhere."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from denserk.cli.console import printable
from denserk.settings.comparison import ComparisonSettings
from denserk.settings.evaluation import EvaluationSettings, OutputFormat, ReportSettings
from denserk.settings.report import PageSettings, ReportSources

if TYPE_CHECKING:
    from denserk.evaluation.evaluator import EvaluationResult
    from denserk.evaluation.grid import Grid
    from denserk.evaluation.suites_result import SuitesResult

logger = logging.getLogger(__name__)


def show_suites(result: "SuitesResult", report: ReportSettings) -> None:
    """Writes results on several suites to standard output."""
    from denserk.evaluation.suites_table import SUITE_FORMATS, as_suites_grids

    shape = shape_of(report)
    show(SUITE_FORMATS[shape](result, report), as_suites_grids(result, report), shape)


def finish(
    result: "EvaluationResult",
    runs: Sequence[str],
    settings: EvaluationSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
    sources: ReportSources | None,
) -> None:
    """Compare runs with a baseline, print the measures, write the page, check minimum values."""
    from denserk.evaluation.gates import require
    from denserk.evaluation.table import FORMATS, as_grids
    from denserk.tasks.evaluate import compare_runs, gates_of

    if comparison.baseline is not None:
        result = compare_runs(result, runs, comparison)
    shape = shape_of(report)
    show(FORMATS[shape](result, report), as_grids(result, report), shape)
    if sources is not None:
        from denserk.tasks.report import write_report

        path = write_report(result, runs, sources, page, settings)
        logger.info(f"{path}: the page, {path.stat().st_size / 1000:,.0f} kB")
    require(result, gates_of(settings))


def shape_of(report: ReportSettings) -> OutputFormat:
    """The shape that is asked for; a table on a terminal and lines elsewhere, where none is."""
    return report.format or (OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.TSV)


def show(text: str, grids: "Sequence[Grid]", shape: OutputFormat) -> None:
    """Writes a table in colour to a terminal, anything else as it is."""
    on_terminal = sys.stdout.isatty()
    if shape is OutputFormat.TABLE and on_terminal and "NO_COLOR" not in os.environ:
        for grid in grids:
            _draw(grid)
    elif on_terminal:
        sys.stdout.write("".join(c if c in "\n\t" else printable(c) for c in text))
    else:
        sys.stdout.write(text)
    sys.stdout.flush()


def _draw(grid: "Grid") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from denserk.evaluation.grid import DIFFERS

    table = Table(pad_edge=False)
    for column, name in enumerate(grid.header):
        label = column < grid.labels
        table.add_column(
            Text(printable(name, None)),
            justify="left" if label else "right",
            no_wrap=not label,
            min_width=7 if label else None,
        )
    for row in grid.rows:
        table.add_row(
            *(
                Text(
                    printable(cell.text, None) + DIFFERS * cell.differs,
                    "bold green" if cell.best else "",
                )
                for cell in row
            )
        )
    out = Console()
    out.print(table)
    for note in grid.legend("green"):
        out.print(Text(note))
