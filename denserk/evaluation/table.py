"""Measures as text: one function a shape, and the grids that tables share."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import orjson

from denserk.errors import UsageError
from denserk.evaluation.comparison_table import (
    as_difference_grid,
    as_json_value,
    difference_lines,
)
from denserk.evaluation.evaluator import EvaluationResult, RunResult
from denserk.evaluation.grid import Cell, Grid, as_markdown_table, as_text
from denserk.evaluation.measures import Measure, is_count
from denserk.evaluation.published_table import as_json_rows, as_published_grid, published_lines
from denserk.evaluation.trec_names import trec_spelling
from denserk.settings.evaluation import OutputFormat, ReportSettings

WIDE = 8
"""More measures than this stand below each other, not side by side."""
ALL = "all"
"""The line of the summary among queries."""


SUMMARY_ONLY = ("num_q", "gm_map")
"""Measures that trec_eval prints for all queries together, and not for each."""


def number(measure: Measure, value: float, places: int = 4) -> str:
    """A value as people read it: counts whole, the rest with `places` decimals."""
    if is_count(measure) and not math.isnan(value):
        return f"{value:.0f}"
    return f"{value:.{places}f}"


def _compared(
    result: EvaluationResult, measure: Measure, values: list[float], places: int
) -> list[Cell]:
    """The values of several runs; all that print as the highest does are the best."""
    texts = [number(measure, value, places) for value in values]
    ranked = [value for value in values if not math.isnan(value)]
    if len(values) < 2 or is_count(measure) or not ranked:
        return [Cell(text) for text in texts]
    top, against = number(measure, max(ranked), places), result.comparison
    return [
        Cell(text, text == top, against is not None and against.significant(run.name, str(measure)))
        for text, run in zip(texts, result.runs, strict=True)
    ]


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
            columns.append(_compared(result, measure, means, report.places))
    return Grid(
        ("query" if report.per_query else "run", *map(str, result.measures)),
        1,
        tuple(
            (Cell(label), *cells)
            for label, cells in zip(labels, zip(*columns, strict=True), strict=True)
        ),
    )


def as_grids(result: EvaluationResult, report: ReportSettings) -> list[Grid]:
    """The measures, below them the differences from the baseline, then the papers' rows."""
    grids = [replace(as_grid(result, report), notes=tuple(_relation_notes(result, report.places)))]
    if result.comparison is not None:
        grids.append(as_difference_grid(result.comparison, report.places))
    if result.published:
        grids.append(as_published_grid(result.published, list(map(str, result.measures))))
    return grids


def _tall(result: EvaluationResult, report: ReportSettings) -> Grid:
    """Measures (of each query) down, runs across."""
    rows = []
    for qid, runs in _sections(result, report):
        for measure in result.measures:
            values = [values.get(str(measure), math.nan) for values in runs]
            label = (Cell(qid),) if report.per_query else ()
            cells = _compared(result, measure, values, report.places)
            if qid != ALL:  # tests are of means
                cells = [Cell(cell.text, cell.best) for cell in cells]
            rows.append((*label, Cell(str(measure)), *cells))
    labels = ("query", "measure") if report.per_query else ("measure",)
    return Grid((*labels, *(run.name for run in result.runs)), len(labels), tuple(rows))


def _relation_notes(result: EvaluationResult, places: int) -> Iterator[str]:
    """The means over relations, a line a run."""
    for run in result.runs:
        if run.over_relations:
            means = (f"{name} {value:.{places}f}" for name, value in run.over_relations.items())
            yield f"{run.name}, mean over relations: {', '.join(means)}"


def as_table(result: EvaluationResult, report: ReportSettings) -> str:
    """Aligned columns in plain text; a star marks the best of several runs."""
    return "\n".join(map(as_text, as_grids(result, report)))


def as_markdown(result: EvaluationResult, report: ReportSettings) -> str:
    """Tables in markdown; the best of several runs in bold."""
    return "\n".join(map(as_markdown_table, as_grids(result, report)))


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
            if qid == ALL:
                lines += [
                    f"{prefix}{name}:relations\t{value:.{report.places}f}\n"
                    for name, value in run.over_relations.items()
                ]
    if result.comparison is not None:
        lines += difference_lines(result.comparison, report.places)
    lines += published_lines(result.published)
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
        if run.over_relations:
            whole["mean_over_relations"] = run.over_relations
        if report.per_query:
            sections = _sections(result, report)
            whole["queries"] = {qid: runs[position] for qid, runs in sections if qid != ALL}
        return whole

    content: dict[str, object] = {
        "relevance_level": result.relevance_level,
        "queries": len(result.queries),
        "providers": result.providers,
        "runs": [described(run, position) for position, run in enumerate(result.runs)],
    }
    if result.comparison is not None:
        content["comparison"] = as_json_value(result.comparison)
    if result.published:
        content["published"] = as_json_rows(result.published)
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(content, option=options).decode()


def as_trec_eval(result: EvaluationResult, report: ReportSettings) -> str:
    """trec_eval's lines and names, where it has them; a line `runid` opens each of several runs.

    The summary of a single run begins with it where it was asked for.

    Raises:
        UsageError: the runs are compared with a baseline or with papers, which trec_eval has no
            lines for.
    """
    for option, given in (("--baseline", result.comparison), ("--against", result.published)):
        if given:
            raise UsageError(
                f"--format trec_eval has no lines for {option}", "choose another format"
            )
    lines = []
    for i, run in enumerate(result.runs):
        if len(result.runs) > 1:
            lines.append(f"{'runid':<22}\t{ALL}\t{run.run_id or run.name}\n")
        for qid, runs in _sections(result, report):
            if qid == ALL and run.run_id is not None and len(result.runs) == 1:
                lines.append(f"{'runid':<22}\t{ALL}\t{run.run_id}\n")
            for measure in result.measures:
                name = trec_spelling(str(measure), result.relevance_level)
                if str(measure) in runs[i] and (qid == ALL or name not in SUMMARY_ONLY):
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
