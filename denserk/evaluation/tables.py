"""Results as tables (plain, markdown, rich), tab-separated lines, JSON and trec_eval's lines."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import orjson

from denserk.config.evaluation import Correction, OutputFormat, PairedTest, ReportSettings
from denserk.errors import UsageError
from denserk.evaluation.benchmarks import BenchmarksResult, PublishedRow, published_measures
from denserk.evaluation.evaluator import EvaluationResult, Values
from denserk.evaluation.measures import Measure, is_count, trec_spelling

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from denserk.evaluation.significance import Comparison

Result = EvaluationResult | BenchmarksResult

DAGGER = "\u2020"  # behind a value that differs significantly from the baseline's
WIDE = 8  # more measures than this stand below each other, not side by side
ALL = "all"  # names the line of the mean among the queries
SUMMARY_ONLY = ("num_q", "gm_map")  # trec_eval prints these for all queries together only
TESTS = {PairedTest.T: "paired t-test", PairedTest.RANDOMISATION: "paired randomisation test"}
# labels of the lines of a comparison -> attributes of a Difference
DIFFERENCES = {
    "difference": "mean",
    **{name: name for name in ("low", "high", "effect")},
    "p": "corrected",
    **{name: name for name in ("wins", "ties", "losses")},
}
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
    """Return a result as text in one of the output formats."""
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
        every = (measure for one in result.results.values() for measure in one.measures)
        measures = list(dict.fromkeys(every))
        found = [_benchmarks_table(result, measures, report)]
    else:
        measures = list(result.measures)
        found = [_measures_table(result, report)]
        if result.comparison is not None:
            found.append(_differences_table(result.comparison, report.places))
    if result.published:
        found.append(_published_table(result.published, list(map(str, measures))))
    return found


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


def as_rich(table: Table, printable: Callable[[str], str]) -> "RichTable":
    """Return a table for a terminal, of printable texts; the best values in green."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(pad_edge=False)
    for column, name in enumerate(table.header):
        value = column >= table.labels
        side: Any = "right" if value else "left"
        least = 7 if value else None
        rich.add_column(Text(printable(name)), justify=side, no_wrap=value, min_width=least)
    for row in table.rows:
        texts = (printable(cell.text) + DAGGER * cell.differs for cell in row)
        styles = ("bold green" if cell.best else "" for cell in row)
        rich.add_row(*map(Text, texts, styles))
    return rich


def number(measure: Measure, value: float, places: int = 4) -> str:
    """Return a value as text: counts as whole numbers, other measures with `places` decimals."""
    return f"{value:.{0 if is_count(measure) else places}f}"


def _sections(result: Result, report: ReportSettings) -> Iterator[tuple[str, list[Values | None]]]:
    """Yield (benchmark, query id or `all`; values of each run by measure)."""
    if isinstance(result, BenchmarksResult):
        yield from result.rows()
        return
    for qid in result.queries if report.per_query else ():
        values = [run.per_query.items() for run in result.runs]
        yield qid, [{name: of[qid] for name, of in run if qid in of} for run in values]
    if report.summary:
        yield (
            ALL,
            [
                {**run.summary, **{f"{m}:relations": v for m, v in run.over_relations.items()}}
                for run in result.runs
            ],
        )


def _cells(
    measure: Measure, runs: Sequence[Values | None], places: int, missing: str = "nan"
) -> list[Cell]:
    """Return the values of the runs; all that print like the highest one are the best."""
    values = [(of or {}).get(str(measure), math.nan) for of in runs]
    ranked = [value for value in values if not math.isnan(value)]
    compared = ranked and len(values) > 1 and not is_count(measure)
    top = number(measure, max(ranked), places) if compared else None
    texts = [missing if math.isnan(value) else number(measure, value, places) for value in values]
    return [Cell(text, text == top) for text in texts]


def _measures_table(result: EvaluationResult, report: ReportSettings) -> Table:
    """Return a table with runs (or queries) down and measures across; many measures stand down."""
    names, measures = [run.name for run in result.runs], tuple(map(str, result.measures))
    notes = [
        f"{run.name}, mean over relations: "
        + ", ".join(f"{m} {value:.{report.places}f}" for m, value in run.over_relations.items())
        for run in result.runs
        if run.over_relations
    ]
    rows: list[tuple[Cell, ...]] = []
    header: tuple[str, ...] = ("query" if report.per_query else "run", *measures)
    labels = 1
    down = len(measures) > WIDE or (report.per_query and len(names) > 1)
    if down:
        header = (*(("query",) if report.per_query else ()), "measure", *names)
        labels = len(header) - len(names)
    for qid, runs in _sections(result, report):
        cells = [_cells(measure, runs, report.places) for measure in result.measures]
        if result.comparison is not None and qid == ALL:  # tests are of means
            for measure, row in zip(measures, cells, strict=True):
                for place, name in enumerate(names):
                    differs = result.comparison.significant(name, measure)
                    row[place] = replace(row[place], differs=differs)
        if down:
            label = (Cell(qid),) if report.per_query else ()
            rows += [(*label, Cell(m), *row) for m, row in zip(measures, cells, strict=True)]
        else:
            first = [qid] if report.per_query else names
            rows += zip(map(Cell, first), *cells, strict=True)
    return Table(header, labels, tuple(rows), tuple(notes))


def _differences_table(comparison: "Comparison", places: int) -> Table:
    """Return a table with runs and measures down and the differences from the baseline across."""
    settings = comparison.settings
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
    correction = f"; {CORRECTIONS[settings.correction]}"
    if settings.correction is not Correction.NONE:
        correction += f" of p and interval for {len(rows)} tests"
    notes = (
        f"{DAGGER} differs from {comparison.baseline} "
        f"(p < {settings.alpha:g}; {TESTS[settings.test]}{correction if len(rows) > 1 else ''})",
        "d: Cohen's d of the paired differences; +/=/-: queries better, equal, worse",
    )
    share = f"{100 * (1 - settings.alpha):g}% interval"
    header = ("run", "measure", "difference", share, "d", "p", "+/=/-")
    return Table(header, 2, tuple(rows), notes)


def _published_table(rows: Sequence[PublishedRow], measures: Sequence[str]) -> Table:
    """Return a table with systems down and measures across: those of the runs come first."""
    several = len({row.suite for row in rows}) > 1
    known = published_measures(rows)
    across = dict.fromkeys([*(name for name in measures if name in known), *known])
    labels = ["paper", "suite", "table", "system", "setting"]
    if not several:
        labels.remove("suite")
    cells = [
        (*(getattr(row, label) for label in labels), *(row.values.get(m, "") for m in across))
        for row in rows
    ]
    header = ("row" if label == "table" else label for label in labels)
    return Table((*header, *across), len(labels), tuple(tuple(map(Cell, row)) for row in cells))


def _benchmarks_table(
    result: BenchmarksResult, measures: Sequence[Measure], report: ReportSettings
) -> Table:
    labels = ("suite", "run") if len(result.runs) > 1 else ("suite",)
    rows = []
    for name, runs in result.rows():
        columns = [_cells(measure, runs, report.places, missing="") for measure in measures]
        for run, cells in zip(result.runs, zip(*columns, strict=True), strict=True):
            rows.append((*map(Cell, (name, run)[: len(labels)]), *cells))
    return Table((*labels, *map(str, measures)), len(labels), tuple(rows))


def _lines(result: Result, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield ir-measures' lines (measure, value) behind run (of several), benchmark and query."""
    sections = list(_sections(result, report))
    names = [run if isinstance(run, str) else run.name for run in result.runs]
    named = isinstance(result, BenchmarksResult) or report.per_query
    for position, name in enumerate(names):
        for section, runs in sections:
            prefix = (name,) * (len(names) > 1) + (section,) * named
            for measure, value in (runs[position] or {}).items():
                yield *prefix, measure, f"{value:.{report.places}f}"
    if isinstance(result, EvaluationResult) and result.comparison is not None:
        for run, measures in result.comparison.differences.items():
            for measure, found in measures.items():
                for label, attribute in DIFFERENCES.items():
                    value = getattr(found, attribute)
                    digits = ".3g" if label == "p" else f".{report.places}f"
                    shown = str(value) if type(value) is int else f"{value:{digits}}"
                    yield run, f"{measure}:{label}", shown
    for row in result.published:
        for measure, printed in row.values.items():
            yield row.paper, row.suite, row.table, row.system, row.setting, measure, printed


def _as_object(result: Result, report: ReportSettings) -> dict[str, Any]:
    """Return everything in full precision, for JSON."""
    sections = list(_sections(result, report))
    whole: dict[str, Any] = {}
    if isinstance(result, BenchmarksResult):
        whole["runs"] = [
            {"run": run, "suites": {name: values[position] for name, values in sections}}
            for position, run in enumerate(result.runs)
        ]
    else:
        whole["relevance_level"] = result.relevance_level
        whole["queries"] = len(result.queries)
        whole["providers"] = result.providers
        whole["runs"] = runs = []
        for position, run in enumerate(result.runs):
            found: dict[str, Any] = {
                "run": run.name,
                "measures": run.summary,
                "missing": run.missing,
                "unjudged": run.unjudged,
                "tied_lines": sum(run.ties.values()),
            }
            if run.over_relations:
                found["mean_over_relations"] = run.over_relations
            if report.per_query:
                found["queries"] = {qid: of[position] for qid, of in sections if qid != ALL}
            runs.append(found)
        if result.comparison is not None:
            settings = result.comparison.settings
            whole["comparison"] = {
                "baseline": result.comparison.baseline,
                **{name: getattr(settings, name) for name in ("test", "correction", "alpha")},
                "runs": result.comparison.differences,
            }
    if result.published:
        whole["published"] = [
            {**vars(row), "values": {name: float(value) for name, value in row.values.items()}}
            for row in result.published
        ]
    return whole


def _trec_eval(result: Result, report: ReportSettings) -> str:
    """Return trec_eval's lines and names; a line `runid` opens each of several runs."""
    if isinstance(result, BenchmarksResult) or result.comparison or result.published:
        raise UsageError(
            "--format trec_eval has no lines for several benchmarks, --baseline or --against",
            "choose another format",
        )
    lines = []
    several, sections = len(result.runs) > 1, list(_sections(result, report))
    for position, run in enumerate(result.runs):
        if several:
            lines.append(("runid", ALL, run.run_id or run.name))
        for qid, runs in sections:
            values = runs[position] or {}
            if qid == ALL and run.run_id is not None and not several:
                lines.append(("runid", ALL, run.run_id))
            for measure in result.measures:
                name = trec_spelling(measure, result.relevance_level)
                if str(measure) in values and (qid == ALL or name not in SUMMARY_ONLY):
                    lines.append((name, qid, number(measure, values[str(measure)])))
    return "".join(f"{name:<22}\t{qid}\t{value}\n" for name, qid, value in lines)
