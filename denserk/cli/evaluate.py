"""`denserk eval`."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.options import command
from denserk.settings.evaluation import EvaluationSettings, OutputFormat, ReportSettings

if TYPE_CHECKING:
    from denserk.evaluation.table import Grid


@command(app, "eval", settings="Measures", report="Output")
def evaluate(
    settings: EvaluationSettings,
    report: ReportSettings,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|QRELS",
            help="Runs and one file of judgements, in any order: told apart by their content.",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run", metavar="RUN", help="A run, said to be one.", rich_help_panel="Input"
        ),
    ] = None,
    qrels: Annotated[
        str | None,
        typer.Option(
            "--qrels",
            metavar="QRELS",
            help="The judgements: a file, a BEIR folder, or a collection by name (beir:scifact).",
            rich_help_panel="Input",
        ),
    ] = None,
) -> None:
    """Measure runs against judgements."""
    from denserk.evaluation.gates import require
    from denserk.evaluation.inputs import sort_inputs
    from denserk.evaluation.table import FORMATS, as_grid
    from denserk.tasks.evaluate import evaluate as task
    from denserk.tasks.evaluate import gates_of

    inputs = sort_inputs(files or [], run or [], qrels)
    result = task(inputs.runs, inputs.qrels, settings, console())
    terminal = sys.stdout.isatty()
    shape = report.format or (OutputFormat.TABLE if terminal else OutputFormat.TSV)
    if shape is OutputFormat.TABLE and terminal and "NO_COLOR" not in os.environ:
        _draw(as_grid(result, report))
    else:
        sys.stdout.write(FORMATS[shape](result, report))
    sys.stdout.flush()
    require(result, gates_of(settings))


def _draw(grid: "Grid") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column, name in enumerate(grid.header):
        label = column < grid.labels
        table.add_column(Text(name), justify="left" if label else "right", no_wrap=not label)
    for row in grid.rows:
        table.add_row(*(Text(cell.text, "bold green" if cell.best else "") for cell in row))
    Console().print(table)
