"""Results on standard output: coloured tables on a terminal, plain text elsewhere."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from denserk.cli.console import printable
from denserk.settings.evaluation import (
    ComparisonSettings,
    EvaluationSettings,
    OutputFormat,
    PageSettings,
    ReportSettings,
    ReportSources,
)

if TYPE_CHECKING:
    from denserk.evaluation.benchmarks import BenchmarksResult
    from denserk.evaluation.evaluator import EvaluationResult
    from denserk.evaluation.tables import Table

logger = logging.getLogger(__name__)


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
    from denserk.tasks.evaluate import check_minimums, compare_runs

    if comparison.baseline is not None:
        result = compare_runs(result, runs, comparison)
    show(result, report)
    if sources is not None:
        from denserk.tasks.report import write_report

        path = write_report(result, runs, sources, page, settings)
        logger.info(f"{path}: the page, {path.stat().st_size / 1000:,.0f} kB")
    check_minimums(result, settings)


def format_of(report: ReportSettings) -> OutputFormat:
    """Return the format asked for; by default a table on a terminal and lines elsewhere."""
    return report.format or (OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.TSV)


def show(result: "EvaluationResult | BenchmarksResult", report: ReportSettings) -> None:
    """Print a result; control characters in names are escaped on a terminal."""
    from denserk.evaluation.tables import render, tables

    shape, on_terminal = format_of(report), sys.stdout.isatty()
    if shape is OutputFormat.TABLE and on_terminal and "NO_COLOR" not in os.environ:
        for table in tables(result, report):
            _draw(table)
    else:
        text = render(result, report, shape)
        if on_terminal:
            text = "".join(c if c in "\n\t" else printable(c) for c in text)
        sys.stdout.write(text)
    sys.stdout.flush()


def _draw(table: "Table") -> None:
    from rich.console import Console
    from rich.text import Text

    from denserk.evaluation.tables import as_rich

    cells = tuple(
        tuple(replace(cell, text=printable(cell.text, None)) for cell in row) for row in table.rows
    )
    header = tuple(printable(name, None) for name in table.header)
    out = Console()
    out.print(as_rich(replace(table, header=header, rows=cells)))
    for note in table.legend("green"):
        out.print(Text(note))
