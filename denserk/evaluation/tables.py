"""Results as tables (plain, markdown, rich), tab-separated lines, JSON and trec_eval's lines."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import orjson

from denserk.config.evaluation import Correction, OutputFormat, PairedTest, ReportSettings
from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_count, trec_spelling
from denserk.evaluation.results import (
    BenchmarksResult,
    EvaluationResult,
    PublishedRow,
    RunResult,
    published_measures,
)

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from denserk.evaluation.significance import Comparison

Result = EvaluationResult | BenchmarksResult

DAGGER = "\u2020"  # behind a value that differs significantly from the baseline's
WIDE = 8  # more measures than this stand below each other, not side by side
ALL = "all"  # names the line of the mean among the queries
SUMMARY_ONLY = ("num_q", "gm_map")  # trec_eval prints these for all queries together only
TESTS = {PairedTest.T: "paired t-test", PairedTest.RANDOMISATION: "paired randomisation test"}
CORRECTIONS = {
    Correction.HOLM: "Holm's correction",
    Correction.BONFERRONI: "Bonferroni's correction",
    Correction.NONE: "no correction",
}


@dataclass(frozen=True)
class Cell:
    """A value as text; whether it is the best of its kind, and whether it differs significantly."""

    text: str
    best: bool = False
    differs: bool = False


@dataclass(frozen=True)
class Table:
    """`labels` columns of names, then columns of values; notes stand below."""

    header: tuple[str, ...]
    labels: int
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def legend(self, mark: str) -> tuple[str, ...]:
        """Return the notes, and before them what marks the best values, if any are marked."""
        best = any(cell.best for row in self.rows for cell in row)
        return (*([f"{mark}: best run by each measure"] if best else []), *self.notes)


def render(result: Result, report: ReportSettings, shape: OutputFormat) -> str:
    """Return a result as text in one of the output formats.

    Raises:
        UsageError: trec_eval's format cannot hold what was asked for.
    """
    if shape is OutputFormat.TREC_EVAL:
        return _trec_eval(result, report)
    if shape is OutputFormat.TSV:
        return "".join("\t".join(line) + "\n" for line in _lines(result, report))
    if shape is OutputFormat.JSON:
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(_as_object(result, report), option=options).decode()
    as_text = as_markdown if shape is OutputFormat.MARKDOWN else as_plain
    return "\n".join(map(as_text, tables(result, report)))


def tables(result: Result, report: ReportSettings) -> list[Table]:
    """Return the measures, the differences from the baseline, and the published results."""
    if isinstance(result, BenchmarksResult):
        found, measures = [_benchmarks_table(result, report.places)], result.measures
    else:
        found, measures = [_measures_table(result, report)], tuple(map(str, result.measures))
        if result.comparison is not None:
            found.append(_differences_table(result.comparison, report.places))
    return [*found, *([_published_table(result.published, measures)] if result.published else [])]


def as_plain(table: Table) -> str:
    """Return aligned columns; a star marks the best values, a dagger those that differ."""
    values = [cell for row in table.rows for cell in row[table.labels :]]
    starred, daggered = any(cell.best for cell in values), any(cell.differs for cell in values)

    def shown(cell: Cell, column: int) -> str:
        if column < table.labels:
            return cell.text
        dagger = (DAGGER if cell.differs else " ") if daggered else ""
        return cell.text + dagger + (("*" if cell.best else " ") if starred else "")

    cells = (tuple(map(Cell, table.header)), *table.rows)
    rows = [[shown(cell, column) for column, cell in enumerate(row)] for row in cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<" * table.labels + ">" * (len(widths) - table.labels)
    lines = (
        "  ".join(f"{t:{side}{width}}" for t, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in (*lines, *table.legend("*")))


def escape_markdown(text: str) -> str:
    r"""Escape a text so that markdown, HTML and markdown tables show it as it is.

    >>> print(escape_markdown("a|b <img src=x> [x](y)"))
    a\|b &lt;img src=x&gt; \[x\](y)
    """
    return re.sub(r"([\\`*\[\]|])", r"\\\1", escape(text, quote=False))


def as_markdown(table: Table) -> str:
    """Return a markdown table; the best values in bold."""

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(texts) + " |\n"

    def shown(cell: Cell) -> str:
        text = escape_markdown(cell.text)
        return (f"**{text}**" if cell.best else text) + DAGGER * cell.differs

    rule = "---|" * table.labels + "---:|" * (len(table.header) - table.labels)
    rows = "".join(line(map(shown, row)) for row in table.rows)
    escaped = replace(table, notes=tuple(map(escape_markdown, table.notes)))
    below = "".join(f"\n{note}\n" for note in escaped.legend("**bold**"))
    return line(map(escape_markdown, table.header)) + f"|{rule}\n" + rows + below


def as_rich(table: Table) -> "RichTable":
    """Return a table for a terminal; the best values in green."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(pad_edge=False)
    for column, name in enumerate(table.header):
        label = column < table.labels
        rich.add_column(
            Text(name),
            justify="left" if label else "right",
            no_wrap=not label,
            min_width=None if label else 7,
        )
    for row in table.rows:
        rich.add_row(
            *(Text(c.text + DAGGER * c.differs, "bold green" if c.best else "") for c in row)
        )
    return rich


def number(measure: Measure, value: float, places: int = 4) -> str:
    """Return a value as text: counts as whole numbers, other measures with `places` decimals."""
    if is_count(measure) and not math.isnan(value):
        return f"{value:.0f}"
    return f"{value:.{places}f}"


def comparison_note(comparison: "Comparison") -> str:
    """Return what the dagger means."""
    settings = comparison.settings
    tests = sum(map(len, comparison.differences.values()))
    correction = f"; {CORRECTIONS[settings.correction]}"
    if settings.correction is not Correction.NONE:
        correction = f"{correction} of p and interval for {tests} tests" if tests > 1 else ""
    return (
        f"{DAGGER} differs from {comparison.baseline} "
        f"(p < {settings.alpha:g}; {TESTS[settings.test]}{correction})"
    )


def _sections(
    result: EvaluationResult, report: ReportSettings
) -> Iterator[tuple[str, list[Mapping[str, float]]]]:
    """Yield (query id or `all`, values of each run by measure)."""
    for qid in result.queries if report.per_query else ():
        values = [run.per_query.items() for run in result.runs]
        yield qid, [{name: of[qid] for name, of in run if qid in of} for run in values]
    if report.summary:
        yield ALL, [run.summary for run in result.runs]


def _value_cells(
    result: EvaluationResult, measure: Measure, values: list[float], places: int
) -> list[Cell]:
    """Return the values of the runs; all that print like the highest one are the best."""
    texts = [number(measure, value, places) for value in values]
    ranked = [value for value in values if not math.isnan(value)]
    if len(values) < 2 or is_count(measure) or not ranked:
        return [Cell(text) for text in texts]
    top, against = number(measure, max(ranked), places), result.comparison
    return [
        Cell(text, text == top, against is not None and against.significant(run.name, str(measure)))
        for text, run in zip(texts, result.runs, strict=True)
    ]


def _measures_table(result: EvaluationResult, report: ReportSettings) -> Table:
    """Return a table with runs (or queries) down and measures across; many measures stand down."""
    notes = tuple(
        f"{run.name}, mean over relations: "
        + ", ".join(
            f"{name} {value:.{report.places}f}" for name, value in run.over_relations.items()
        )
        for run in result.runs
        if run.over_relations
    )
    names = [run.name for run in result.runs]
    rows: list[tuple[Cell, ...]] = []
    if len(result.measures) > WIDE or (report.per_query and len(names) > 1):
        for qid, runs in _sections(result, report):
            for measure in result.measures:
                values = [values.get(str(measure), math.nan) for values in runs]
                cells = _value_cells(result, measure, values, report.places)
                if qid != ALL:  # tests are of means
                    cells = [Cell(cell.text, cell.best) for cell in cells]
                label = (Cell(qid),) if report.per_query else ()
                rows.append((*label, Cell(str(measure)), *cells))
        labels = ("query", "measure") if report.per_query else ("measure",)
        return Table((*labels, *names), len(labels), tuple(rows), notes)
    measures = result.measures
    if report.per_query:
        for qid, (values_of,) in _sections(result, report):
            values = [values_of.get(str(measure), math.nan) for measure in measures]
            texts = map(number, measures, values, [report.places] * len(measures))
            rows.append((Cell(qid), *map(Cell, texts)))
    else:
        columns = [
            _value_cells(result, m, [run.summary[str(m)] for run in result.runs], report.places)
            for m in measures
        ]
        rows = list(zip(map(Cell, names), *columns, strict=True))
    return Table(
        ("query" if report.per_query else "run", *map(str, measures)), 1, tuple(rows), notes
    )


def _differences_table(comparison: "Comparison", places: int) -> Table:
    """Return a table with runs and measures down and the differences from the baseline across."""
    share = f"{100 * (1 - comparison.settings.alpha):g}% interval"
    rows = [
        (
            Cell(run),
            Cell(measure),
            Cell(f"{found.mean:+.{places}f}", differs=comparison.significant(run, measure)),
            Cell(f"{found.low:+.{places}f}..{found.high:+.{places}f}"),
            Cell(f"{found.effect:.2f}"),
            Cell(f"{found.corrected:.1e}" if found.corrected < 5e-4 else f"{found.corrected:.3f}"),
            Cell(f"{found.wins}/{found.ties}/{found.losses}"),
        )
        for run, measures in comparison.differences.items()
        for measure, found in measures.items()
    ]
    legend = "d: Cohen's d of the paired differences; +/=/-: queries better, equal, worse"
    header = ("run", "measure", "difference", share, "d", "p", "+/=/-")
    return Table(header, 2, tuple(rows), (comparison_note(comparison), legend))


def _published_table(rows: Sequence[PublishedRow], measures: Sequence[str]) -> Table:
    """Return a table with systems down and measures across: those of the runs come first."""
    several = len({row.suite for row in rows}) > 1
    known = published_measures(rows)
    across = [*(name for name in measures if name in known)]
    across += [name for name in known if name not in across]
    labels = ("paper", *(("suite",) if several else ()), "row", "system", "setting")
    cells = [
        (
            *(row.paper, *((row.suite,) if several else ()), row.table, row.system, row.setting),
            *(row.values.get(name, "") for name in across),
        )
        for row in rows
    ]
    return Table((*labels, *across), len(labels), tuple(tuple(map(Cell, row)) for row in cells))


def _benchmarks_table(result: BenchmarksResult, places: int) -> Table:
    """Return a table with benchmarks (and runs) down and measures across."""
    several = len(result.runs) > 1
    labels = ("suite", "run") if several else ("suite",)
    rows = []
    for name, runs in result.rows():
        shown = [
            [f"{values[m]:.{places}f}" if values and m in values else "" for m in result.measures]
            for values in runs
        ]
        best = [max(texts) if several else "" for texts in zip(*shown, strict=True)]
        for run, texts in zip(result.runs, shown, strict=True):
            cells = (Cell(t, bool(t) and t == top) for t, top in zip(texts, best, strict=True))
            rows.append((Cell(name), *((Cell(run),) if several else ()), *cells))
    return Table((*labels, *result.measures), len(labels), tuple(rows))


def _lines(result: Result, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield ir-measures' lines (measure, value) behind run (of several), benchmark and query."""
    if isinstance(result, BenchmarksResult):
        yield from _benchmark_lines(result, report.places)
    else:
        yield from _measure_lines(result, report)
        if result.comparison is not None:
            yield from _difference_lines(result.comparison, report.places)
    for row in result.published:
        for name, printed in row.values.items():
            yield row.paper, row.suite, row.table, row.system, row.setting, name, printed


def _benchmark_lines(result: BenchmarksResult, places: int) -> Iterator[tuple[str, ...]]:
    for position, run in enumerate(result.runs):
        for name, runs in result.rows():
            prefix = (run, name) if len(result.runs) > 1 else (name,)
            for measure, value in (runs[position] or {}).items():
                yield *prefix, measure, f"{value:.{places}f}"


def _measure_lines(result: EvaluationResult, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    for position, run in enumerate(result.runs):
        for qid, runs in _sections(result, report):
            prefix = (run.name,) * (len(result.runs) > 1) + (qid,) * report.per_query
            values = dict(runs[position])
            if qid == ALL:
                values |= {f"{m}:relations": value for m, value in run.over_relations.items()}
            names = map(str, result.measures)
            for name in (*names, *(name for name in values if name.endswith(":relations"))):
                if name in values:
                    yield *prefix, name, f"{values[name]:.{report.places}f}"


def _difference_lines(comparison: "Comparison", places: int) -> Iterator[tuple[str, ...]]:
    for run, measures in comparison.differences.items():
        for measure, found in measures.items():
            for name in ("mean", "low", "high", "effect", "corrected", "wins", "ties", "losses"):
                value = getattr(found, name)
                shown = f"{value:.3g}" if name == "corrected" else f"{value:.{places}f}"
                label = {"mean": "difference", "corrected": "p"}.get(name, name)
                yield run, f"{measure}:{label}", str(value) if type(value) is int else shown


def _as_object(result: Result, report: ReportSettings) -> dict[str, Any]:
    """Return everything in full precision, for JSON."""
    runs: list[dict[str, Any]]
    if isinstance(result, BenchmarksResult):
        runs = [
            {"run": run, "suites": {name: values[position] for name, values in result.rows()}}
            for position, run in enumerate(result.runs)
        ]
        whole: dict[str, Any] = {"runs": runs}
    else:
        runs = [_run_object(result, report, number) for number in range(len(result.runs))]
        whole = {
            "relevance_level": result.relevance_level,
            "queries": len(result.queries),
            "providers": result.providers,
            "runs": runs,
        }
        if result.comparison is not None:
            settings = result.comparison.settings
            whole["comparison"] = {
                "baseline": result.comparison.baseline,
                "test": settings.test,
                "correction": settings.correction,
                "alpha": settings.alpha,
                "runs": {
                    run: {measure: asdict(found) for measure, found in measures.items()}
                    for run, measures in result.comparison.differences.items()
                },
            }
    if result.published:
        whole["published"] = [
            {**asdict(row), "values": {name: float(value) for name, value in row.values.items()}}
            for row in result.published
        ]
    return whole


def _run_object(
    result: EvaluationResult, report: ReportSettings, position: int
) -> dict[str, object]:
    run: RunResult = result.runs[position]
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


def _trec_eval(result: Result, report: ReportSettings) -> str:
    """Return trec_eval's lines and names; a line `runid` opens each of several runs."""
    if isinstance(result, BenchmarksResult):
        lacking = "several suites"
    else:
        lacking = "--baseline" if result.comparison else "--against" if result.published else ""
    if lacking or isinstance(result, BenchmarksResult):
        raise UsageError(f"--format trec_eval has no lines for {lacking}", "choose another format")
    lines = []
    several = len(result.runs) > 1
    for i, run in enumerate(result.runs):
        if several:
            lines.append(("runid", ALL, run.run_id or run.name))
        for qid, runs in _sections(result, report):
            if qid == ALL and run.run_id is not None and not several:
                lines.append(("runid", ALL, run.run_id))
            for measure in result.measures:
                name = trec_spelling(str(measure), result.relevance_level)
                if str(measure) in runs[i] and (qid == ALL or name not in SUMMARY_ONLY):
                    lines.append((name, qid, number(measure, runs[i][str(measure)])))
    return "".join(f"{name:<22}\t{qid}\t{value}\n" for name, qid, value in lines)
