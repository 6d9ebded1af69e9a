"""Results on several suites as text: one function a shape."""

from collections.abc import Callable, Mapping

import orjson

from denserk.errors import UsageError
from denserk.evaluation.grid import Cell, Grid, as_markdown_table, as_text
from denserk.evaluation.published_table import as_json_rows, as_published_grid, published_lines
from denserk.evaluation.suites_result import SuitesResult
from denserk.settings.evaluation import OutputFormat, ReportSettings


def as_suites_grid(result: SuitesResult, places: int) -> Grid:
    """Suites (and runs, of several) down, measures across; the best of several runs marked."""
    several = len(result.runs) > 1
    labels = ("suite", "run") if several else ("suite",)
    rows = []
    for suite, runs in result.rows():
        shown = [
            [f"{values[m]:.{places}f}" if values and m in values else "" for m in result.measures]
            for values in runs
        ]
        best = [max(texts) for texts in zip(*shown, strict=True)] if several else []
        for run, texts in zip(result.runs, shown, strict=True):
            cells = [
                Cell(text, several and bool(text) and text == best[i])
                for i, text in enumerate(texts)
            ]
            rows.append((Cell(suite), *((Cell(run),) if several else ()), *cells))
    return Grid((*labels, *result.measures), len(labels), tuple(rows))


def as_suites_grids(result: SuitesResult, report: ReportSettings) -> list[Grid]:
    """The suites and their means, and below them the papers' rows."""
    grids = [as_suites_grid(result, report.places)]
    if result.published:
        grids.append(as_published_grid(result.published, result.measures))
    return grids


def as_table(result: SuitesResult, report: ReportSettings) -> str:
    """Aligned columns in plain text."""
    return "\n".join(map(as_text, as_suites_grids(result, report)))


def as_markdown(result: SuitesResult, report: ReportSettings) -> str:
    """Tables in markdown."""
    return "\n".join(map(as_markdown_table, as_suites_grids(result, report)))


def as_tsv(result: SuitesResult, report: ReportSettings) -> str:
    """Lines of suite, measure, value; before them the run, of several."""
    lines = []
    for position, run in enumerate(result.runs):
        whose = f"{run}\t" if len(result.runs) > 1 else ""
        for suite, runs in result.rows():
            lines += [
                f"{whose}{suite}\t{measure}\t{value:.{report.places}f}\n"
                for measure, value in (runs[position] or {}).items()
            ]
    return "".join([*lines, *published_lines(result.published)])


def as_json(result: SuitesResult, report: ReportSettings) -> str:
    """One object: each run's measures by suite, in full precision."""
    whole: dict[str, object] = {
        "runs": [
            {"run": run, "suites": {suite: runs[position] for suite, runs in result.rows()}}
            for position, run in enumerate(result.runs)
        ]
    }
    if result.published:
        whole["published"] = as_json_rows(result.published)
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(whole, option=options).decode()


def as_trec_eval(result: SuitesResult, report: ReportSettings) -> str:
    """Refused.

    Raises:
        UsageError: always.
    """
    raise UsageError("--format trec_eval has no lines for several suites", "choose another format")


SUITE_FORMATS: Mapping[OutputFormat, Callable[[SuitesResult, ReportSettings], str]] = {
    OutputFormat.TABLE: as_table,
    OutputFormat.TSV: as_tsv,
    OutputFormat.JSON: as_json,
    OutputFormat.TREC_EVAL: as_trec_eval,
    OutputFormat.MARKDOWN: as_markdown,
}
"""Shape -> the function that writes it."""
