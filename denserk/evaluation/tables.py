"""Results as tables (rich, Markdown), tab-separated lines, JSON and trec_eval's lines."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import orjson

from denserk.config.benchmarks import groups_within
from denserk.config.evaluation import Correction, OutputFormat, ReportSettings
from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_count, trec_spelling
from denserk.evaluation.results import BenchmarksResult, Comparison, EvaluationResult, Values

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Result = EvaluationResult | BenchmarksResult

DAGGER = "\u2020"  # marks a value that differs significantly from the baseline's
WIDE = 8  # more measures than this stand below each other, not side by side
ALL = "all"  # names the line of the mean among the queries
SUMMARY_ONLY = ("num_q", "gm_map")  # trec_eval prints these for all queries together only
DIFFERENCES = ("difference", "low", "high", "effect", "p", "wins", "ties", "losses")  # TSV lines


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


def render(result: Result, report: ReportSettings, format: OutputFormat) -> str:
    """Return a result as text in one of the output formats; `as_rich` is for `table`."""
    if format is OutputFormat.TREC_EVAL:
        return _trec_eval(result, report)
    if format is OutputFormat.TSV:
        return "".join("\t".join(line) + "\n" for line in _lines(result, report))
    if format is OutputFormat.JSON:
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(_as_object(result, report), option=options).decode()
    blocks = []
    for table in tables(result, report):
        rows = [[*map(escape_markdown, table.header)]]
        for row in table.rows:
            texts = [(escape_markdown(cell.text), cell) for cell in row]
            rows.append([(f"**{t}**" if c.best else t) + DAGGER * c.differs for t, c in texts])
        lines = ["| " + " | ".join(row) + " |\n" for row in rows]
        rule = "---|" * table.labels + "---:|" * (len(table.header) - table.labels)
        notes = escape_markdown("".join(f"\n{note}\n" for note in table.legend("bold")))
        blocks.append("".join([lines[0], f"|{rule}\n", *lines[1:], notes]))
    return "\n".join(blocks)


def tables(result: Result, report: ReportSettings) -> list[Table]:
    """Return the measures, the differences from the baseline, and the published results."""
    every = result.results.values() if isinstance(result, BenchmarksResult) else [result]
    measures = list(dict.fromkeys(measure for one in every for measure in one.measures))
    found, places = [_measures_table(result, measures, report)], report.places
    if isinstance(result, EvaluationResult) and (compared := result.comparison) is not None:
        rows = [
            (
                Cell(run),
                Cell(name),
                Cell(f"{of.mean:+.{places}f}", differs=compared.significant(run, name)),
                Cell(f"{of.low:+.{places}f}..{of.high:+.{places}f}"),
                Cell(f"{of.effect:.2f}"),
                Cell(f"{of.corrected:.1e}" if of.corrected < 5e-4 else f"{of.corrected:.3f}"),
                Cell(f"{of.wins}/{of.ties}/{of.losses}"),
            )
            for run, differences in compared.differences.items()
            for name, of in differences.items()
        ]
        effects = "d: Cohen's d of the paired differences; +/=/-: queries better, equal, worse"
        share = f"{100 * (1 - compared.settings.alpha):g}% interval"
        header = ("run", "measure", "difference", share, "d", "p", "+/=/-")
        found.append(Table(header, 2, tuple(rows), (difference_note(compared), effects)))
    if result.published:  # systems by measures: those of the runs come first
        known = dict.fromkeys(name for row in result.published for name in row.values)
        across = dict.fromkeys([*(name for name in map(str, measures) if name in known), *known])
        lines = []
        for row in result.published:
            labels = (row.paper, row.benchmark, row.table, row.system, row.setting)
            lines.append(tuple(map(Cell, (*labels, *(row.values.get(m, "") for m in across)))))
        names = ("paper", "benchmark", "row", "system", "setting", *across)
        found.append(Table(names, 5, tuple(lines)))
    return found


def as_rich(table: Table, printable: Callable[[str], str]) -> "RichTable":
    """Return aligned columns; a star and green mark the best values, a dagger those that differ."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=None, pad_edge=False, header_style="")
    for column, name in enumerate(table.header):
        value = column >= table.labels
        rich.add_column(Text(printable(name)), justify="right" if value else "left", no_wrap=value)
    for row in table.rows:
        texts = (DAGGER * c.differs + "*" * c.best + printable(c.text) for c in row)
        rich.add_row(*map(Text, texts, ("green" if cell.best else "" for cell in row)))
    return rich


def escape_markdown(text: str) -> str:
    r"""Escape a text so that markdown, HTML and markdown tables show it as it is.

    A "<" before a blank opens no tag, and stays readable in the text itself.

    >>> print(escape_markdown("a|b <img src=x> [x](y) p < 0.05"))
    a\|b &lt;img src=x&gt; \[x\](y) p < 0.05
    """
    escaped = re.sub(r"([\\`*\[\]|])", r"\\\1", escape(text, quote=False))
    return escaped.replace("&lt; ", "< ")


def number(measure: Measure, value: float, places: int = 4) -> str:
    """Return a value as text: counts as whole numbers, other measures with `places` decimals."""
    return f"{value:.{0 if is_count(measure) else places}f}"


def _sections(result: Result, report: ReportSettings) -> Iterator[tuple[str, list[Values | None]]]:
    """Yield (benchmark, query id or `all`; values of each run by measure)."""
    if isinstance(result, BenchmarksResult):
        # benchmarks, and then the known means
        for name in (*result.results, *(group.name for group in groups_within(result.results))):
            runs = [result.values(name, run) for run in result.runs]
            if any(runs):
                yield name, runs
        return
    for qid in result.queries if report.per_query else ():
        values = [run.per_query.items() for run in result.runs]
        yield qid, [{name: of[qid] for name, of in run if qid in of} for run in values]
    if report.summary:
        summaries: list[Values | None] = []
        for run in result.runs:
            relations = {f"{m}:relations": value for m, value in run.over_relations.items()}
            summaries.append({**run.summary, **relations})
        yield ALL, summaries


def _measures_table(result: Result, measures: Sequence[Measure], report: ReportSettings) -> Table:
    """Return runs (of each query or benchmark) by measures; many measures as rows, runs across."""
    one = result if isinstance(result, EvaluationResult) else None
    names = [run if isinstance(run, str) else run.name for run in result.runs]
    down = len(measures) > WIDE
    section = "benchmark" if one is None else "query" if report.per_query else None
    with_run = not down and (len(names) > 1 or section is None)

    def cells(title: str, measure: Measure, runs: Sequence[Values | None]) -> list[Cell]:
        values = [(of or {}).get(str(measure)) for of in runs]
        texts = ["" if value is None else number(measure, value, report.places) for value in values]
        spreads = [run.spread.get(str(measure)) for run in one.runs] if one and title == ALL else []
        ranked = [value for value in values if value is not None and not math.isnan(value)]
        compared = ranked and len(values) > 1 and not is_count(measure)
        # all values that print like the highest are the best
        top = number(measure, max(ranked), report.places) if compared else None
        tested = one.comparison if one and title == ALL else None  # tests are of means
        return [
            Cell(
                text if spread is None else f"{text} ± {number(measure, spread, report.places)}",
                text == top,
                tested is not None and tested.significant(name, str(measure)),
            )
            for name, text, spread in zip_longest(names, texts, spreads)
        ]

    rows: list[tuple[Cell, ...]] = []
    for title, runs in _sections(result, report):
        label = (Cell(title),) if section else ()
        columns = [cells(title, measure, runs) for measure in measures]
        if down:
            rows += [(*label, Cell(str(m)), *c) for m, c in zip(measures, columns, strict=True)]
        else:
            for name, values in zip(names, zip(*columns, strict=True), strict=True):
                rows.append((*label, *[Cell(name)] * with_run, *values))
    labels = [*[section] * bool(section), *["measure"] * down, *["run"] * with_run]
    notes = [
        f"{run.name}, mean over relations: "
        + ", ".join(f"{m} {value:.{report.places}f}" for m, value in run.over_relations.items())
        for run in (one.runs if one else ())
        if run.over_relations
    ]
    header = (*filter(None, labels), *(names if down else map(str, measures)))
    return Table(header, len(labels), tuple(rows), tuple(notes))


def difference_note(comparison: Comparison) -> str:
    """Return what a dagger means."""
    settings, correction = comparison.settings, ""
    tests = sum(map(len, comparison.differences.values()))
    if tests > 1 and settings.correction is not Correction.NONE:
        name = settings.correction.capitalize()
        correction = f"; {name} correction of p and interval for {tests} tests"
    test = f"paired {settings.test} test"
    if settings.seeds:
        test = "permutation of runs within queries, and beyond the spread over seeds"
    level = f"p < {settings.alpha:g}"
    return f"{DAGGER} differs from {comparison.baseline} ({level}; {test}{correction})"


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
                values = {**vars(found), "difference": found.mean, "p": found.corrected}
                for label in DIFFERENCES:
                    value = values[label]
                    digits = ".3g" if label == "p" else f".{report.places}f"
                    shown = str(value) if type(value) is int else f"{value:{digits}}"
                    yield run, f"{measure}:{label}", shown
    for row in result.published:
        for measure, printed in row.values.items():
            yield row.paper, row.benchmark, row.table, row.system, row.setting, measure, printed


def _as_object(result: Result, report: ReportSettings) -> dict[str, Any]:
    """Return everything in full precision, for JSON."""
    sections = list(_sections(result, report))
    whole: dict[str, Any] = {}
    if isinstance(result, BenchmarksResult):
        whole["runs"] = [
            {"run": run, "benchmarks": {name: values[position] for name, values in sections}}
            for position, run in enumerate(result.runs)
        ]
    else:
        whole |= {"relevance_level": result.relevance_level, "queries": len(result.queries)}
        whole |= {"providers": result.providers, "runs": []}
        for position, run in enumerate(result.runs):
            shown: dict[str, Any] = {"run": run.name, "measures": run.summary}
            shown |= {"missing": run.missing, "unjudged": run.unjudged}
            if run.seeds:
                shown |= {"runs": [each.name for each in run.seeds], "deviation": run.spread}
            shown |= {"tied_lines": sum(run.ties.values())}
            if run.over_relations:
                shown["mean_over_relations"] = run.over_relations
            if report.per_query:
                shown["queries"] = {qid: of[position] for qid, of in sections if qid != ALL}
            whole["runs"].append(shown)
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
        why = "--format trec_eval has no lines for several benchmarks, --baseline or --against"
        raise UsageError(why, "choose another format")
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
