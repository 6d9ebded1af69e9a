"""`denserk eval`."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.options import command
from denserk.settings.comparison import ComparisonSettings
from denserk.settings.evaluation import EvaluationSettings, OutputFormat, ReportSettings

if TYPE_CHECKING:
    from denserk.evaluation.grid import Grid


@command(app, "eval", settings="Measures", comparison="Differences", report="Output")
def evaluate(
    settings: EvaluationSettings,
    comparison: ComparisonSettings,
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
    from denserk.evaluation.table import FORMATS, as_grids
    from denserk.tasks.evaluate import compare_runs, gates_of
    from denserk.tasks.evaluate import evaluate as task

    named = [*(files or []), *(run or [])]
    baseline = comparison.baseline
    added = [baseline] if baseline is not None and baseline not in named else []
    inputs = sort_inputs([*added, *(files or [])], run or [], qrels)
    result = task(inputs.runs, inputs.qrels, settings, console())
    if baseline is not None:
        result = compare_runs(result, inputs.runs, comparison)
    terminal = sys.stdout.isatty()
    shape = report.format or (OutputFormat.TABLE if terminal else OutputFormat.TSV)
    if shape is OutputFormat.TABLE and terminal and "NO_COLOR" not in os.environ:
        for grid in as_grids(result, report):
            _draw(grid)
    else:
        sys.stdout.write(FORMATS[shape](result, report))
    sys.stdout.flush()
    require(result, gates_of(settings))


def _draw(grid: "Grid") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from denserk.evaluation.grid import DIFFERS

    table = Table(pad_edge=False)
    for column, name in enumerate(grid.header):
        label = column < grid.labels
        table.add_column(
            Text(name),
            justify="left" if label else "right",
            no_wrap=not label,
            min_width=7 if label else None,
        )
    for row in grid.rows:
        table.add_row(
            *(
                Text(cell.text + DIFFERS * cell.differs, "bold green" if cell.best else "")
                for cell in row
            )
        )
    out = Console()
    out.print(table)
    for note in grid.notes:
        out.print(Text(note))
