"""Measures as text: one function a shape, and the grid that tables share."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson

from denserk.evaluation.evaluator import EvaluationResult, RunResult
from denserk.evaluation.measures import Measure, is_count
from denserk.evaluation.trec_names import trec_spelling
from denserk.settings.evaluation import OutputFormat, ReportSettings

WIDE = 8
"""More measures than this stand below each other, not side by side."""
ALL = "all"
"""The line of the summary among queries."""


@dataclass(frozen=True)
class Cell:
    """A value as text, and whether it is the best of its kind among several runs."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table before it is drawn: `labels` columns of names, then columns of values."""

    header: tuple[str, ...]
    labels: int
    rows: tuple[tuple[Cell, ...], ...]


def number(measure: Measure, value: float, places: int = 4) -> str:
    """A value as people read it: counts whole, the rest with `places` decimals."""
    if is_count(measure) and not math.isnan(value):
        return f"{value:.0f}"
    return f"{value:.{places}f}"


def _compared(measure: Measure, values: list[float], places: int) -> list[Cell]:
    """The values of several runs; all that print as the highest does are the best."""
    texts = [number(measure, value, places) for value in values]
    ranked = [value for value in values if not math.isnan(value)]
    if len(values) < 2 or is_count(measure) or not ranked:
        return [Cell(text) for text in texts]
    top = number(measure, max(ranked), places)
    return [Cell(text, text == top) for text in texts]


def _sections(
    result: EvaluationResult, report: ReportSettings
) -> Iterator[tuple[str, list[Mapping[str, float]]]]:
    """(query id or `all`, the runs' values by measure), for each block of lines."""
    if report.per_query:
        for qid in result.queries:
            yield (
                qid,
                [
                    {name: values[qid] for name, values in run.per_query.items() if qid in values}
                    for run in result.runs
                ],
            )
    if report.summary:
        yield ALL, [run.summary for run in result.runs]


def as_grid(result: EvaluationResult, report: ReportSettings) -> Grid:
    """Lays out a result: runs (or queries) down, measures across, unless the measures are many."""
    several = len(result.runs) > 1
    if len(result.measures) > WIDE or (report.per_query and several):
        return _tall(result, report)
    columns: list[list[Cell]] = []
    labels: list[str] = []
    if report.per_query:
        blocks = [(qid, values[0]) for qid, values in _sections(result, report)]
        labels = [qid for qid, _ in blocks]
        for measure in result.measures:
            cells = [values.get(str(measure), math.nan) for _, values in blocks]
            columns.append([Cell(number(measure, value, report.places)) for value in cells])
    else:
        labels = [run.name for run in result.runs]
        for measure in result.measures:
            means = [run.summary[str(measure)] for run in result.runs]
            columns.append(_compared(measure, means, report.places))
    return Grid(
        ("query" if report.per_query else "run", *map(str, result.measures)),
        1,
        tuple(
            (Cell(label), *cells)
            for label, cells in zip(labels, zip(*columns, strict=True), strict=True)
        ),
    )


def _tall(result: EvaluationResult, report: ReportSettings) -> Grid:
    """Measures (of each query) down, runs across."""
    rows = []
    for qid, runs in _sections(result, report):
        for measure in result.measures:
            values = [values.get(str(measure), math.nan) for values in runs]
            label = (Cell(qid),) if report.per_query else ()
            rows.append((*label, Cell(str(measure)), *_compared(measure, values, report.places)))
    labels = ("query", "measure") if report.per_query else ("measure",)
    return Grid((*labels, *(run.name for run in result.runs)), len(labels), tuple(rows))


def as_table(result: EvaluationResult, report: ReportSettings) -> str:
    """Aligned columns in plain text; a star marks the best of several runs."""
    grid = as_grid(result, report)
    marked = any(cell.best for row in grid.rows for cell in row)

    def shown(cell: Cell, column: int) -> str:
        mark = "" if column < grid.labels or not marked else "*" if cell.best else " "
        return cell.text + mark

    cells = (tuple(map(Cell, grid.header)), *grid.rows)
    lines = [[shown(cell, column) for column, cell in enumerate(row)] for row in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [
            text.ljust(widths[i]) if i < grid.labels else text.rjust(widths[i])
            for i, text in enumerate(line)
        ]
        for line in lines
    ]
    return "".join("  ".join(line).rstrip() + "\n" for line in aligned)


def as_markdown(result: EvaluationResult, report: ReportSettings) -> str:
    """A table in markdown; the best of several runs in bold."""
    grid = as_grid(result, report)

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |\n"

    rule = "---|" * grid.labels + "---:|" * (len(grid.header) - grid.labels)
    rows = (line(f"**{c.text}**" if c.best else c.text for c in row) for row in grid.rows)
    return line(grid.header) + f"|{rule}\n" + "".join(rows)


def as_tsv(result: EvaluationResult, report: ReportSettings) -> str:
    """ir-measures' lines: measure, value; before them the run (of several) and the query."""
    lines = []
    for i, run in enumerate(result.runs):
        whose = [run.name] if len(result.runs) > 1 else []
        for qid, runs in _sections(result, report):
            prefix = "\t".join([*whose, *([qid] if report.per_query else []), ""])
            lines += [
                f"{prefix}{measure}\t{runs[i][str(measure)]:.{report.places}f}\n"
                for measure in result.measures
                if str(measure) in runs[i]
            ]
    return "".join(lines)


def as_json(result: EvaluationResult, report: ReportSettings) -> str:
    """One object: each run's measures, what was missing, and under -q the queries."""

    def described(run: RunResult, position: int) -> dict[str, object]:
        whole: dict[str, object] = {
            "run": run.name,
            "measures": run.summary,
            "missing": run.missing,
            "unjudged": run.unjudged,
            "tied_lines": run.ties.lines,
        }
        if report.per_query:
            sections = _sections(result, report)
            whole["queries"] = {qid: runs[position] for qid, runs in sections if qid != ALL}
        return whole

    content = {
        "relevance_level": result.relevance_level,
        "queries": len(result.queries),
        "providers": result.providers,
        "runs": [described(run, position) for position, run in enumerate(result.runs)],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(content, option=options).decode()


def as_trec_eval(result: EvaluationResult, report: ReportSettings) -> str:
    """trec_eval's lines and names, where it has them; a line `runid` opens each of several runs."""
    lines = []
    for i, run in enumerate(result.runs):
        if len(result.runs) > 1:
            lines.append(f"{'runid':<22}\t{ALL}\t{run.name}\n")
        for qid, runs in _sections(result, report):
            for measure in result.measures:
                name = trec_spelling(str(measure), result.relevance_level)
                if str(measure) in runs[i] and (name != "num_q" or qid == ALL):
                    lines.append(f"{name:<22}\t{qid}\t{number(measure, runs[i][str(measure)])}\n")
    return "".join(lines)


FORMATS: dict[OutputFormat, Callable[[EvaluationResult, ReportSettings], str]] = {
    OutputFormat.TABLE: as_table,
    OutputFormat.TSV: as_tsv,
    OutputFormat.JSON: as_json,
    OutputFormat.TREC_EVAL: as_trec_eval,
    OutputFormat.MARKDOWN: as_markdown,
}
"""Shape -> the function that writes it."""
