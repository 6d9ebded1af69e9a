"""Results as tables, tab-separated lines, JSON and trec_eval's lines."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any, NamedTuple, TextIO

import orjson

from denserk.config.benchmarks import groups_within
from denserk.config.evaluation import (
    ComparisonSettings,
    Correction,
    OutputFormat,
    PairedTest,
    ReportSettings,
)
from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_count, trec_spelling
from denserk.evaluation.power import (
    VERDICT_NOTES,
    detectable_text,
    has_power,
    is_undecided,
    power_notes,
    verdict,
)
from denserk.evaluation.predicted_tables import (
    predicted_lines,
    predicted_object,
    predicted_tables,
)
from denserk.evaluation.results import (
    BenchmarksResult,
    Comparison,
    Difference,
    EvaluationResult,
    PublishedRow,
    RunResult,
    Values,
)
from denserk.evaluation.t_test_power import POWER
from denserk.evaluation.table_markup import (
    ALL,
    DAGGER,
    Cell,
    Table,
    as_latex,
    as_markdown,
    as_rich,
    p_text,
    parts_that_fit,
    summary_labels,
)
from denserk.evaluation.unjudged_tables import bounds_lines, bounds_object, bounds_tables
from denserk.reporting import printable

Result = EvaluationResult | BenchmarksResult

WIDE = 8  # more measures than this stand below each other, not side by side
SUMMARY_ONLY = ("num_q", "gm_map")  # trec_eval prints these for all queries together only


class Section(NamedTuple):
    """A part of a table or of lines: a benchmark, a query, or `all` queries together."""

    name: str
    values_by_run: Sequence[Values | None]  # None where a run lacks the benchmark
    is_mean: bool = False  # over all queries; one query may have its name, `all`


def render(result: Result, report: ReportSettings, format: OutputFormat) -> str:
    """Return a result as text in one of the output formats."""
    if format is OutputFormat.TABLE:
        text = StringIO()
        write_aligned(result, report, text, in_colour=False)
        return text.getvalue()
    if format is OutputFormat.TREC_EVAL:
        return _trec_eval(result, report)
    if format is OutputFormat.TSV:
        return "".join("\t".join(line) + "\n" for line in _lines(result, report))
    if format is OutputFormat.JSON:
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(_as_object(result, report), option=options).decode()
    if format is OutputFormat.LATEX:
        return "\n".join(_latex_tables(result, report))
    return "\n".join(as_markdown(table) for table in tables(result, report))


def write_aligned(
    result: Result, report: ReportSettings, file: TextIO, *, in_colour: bool | None = None
) -> None:
    """Write tables of aligned columns, by default in colour on a terminal.

    Columns that do not fit on a terminal stand in a further table below.
    """
    from rich.console import Console

    console = Console(
        file=file,
        force_terminal=in_colour,
        force_jupyter=False,
        width=1 << 20,  # rich would cut rows at the terminal's width
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    for number, table in enumerate(tables(result, report)):
        if number > 0:
            console.print()
        parts = [table]
        if console.is_terminal:
            parts = parts_that_fit(table, Console(file=file).width)
        for part_number, part in enumerate(parts):
            if part_number > 0:
                console.print()
            console.print(as_rich(part))
        for note in table.legend("*"):
            console.print(printable(note, None))


def tables(result: Result, report: ReportSettings, *, with_predictions: bool = True) -> list[Table]:
    """Return the measures, the differences from the baseline, and the published results.

    Without `with_predictions`, the tables of predicted labels are left out.
    """
    measures = _measures_of(result)
    result_tables = [_measures_table(result, measures, report)]
    if isinstance(result, EvaluationResult) and result.comparison is not None:
        result_tables += _differences_tables(result.comparison, report.places)
        result_tables += _undecided_tables(result.comparison)
    if with_predictions:
        result_tables += tables_of_predictions(result, report)
    if isinstance(result, EvaluationResult) and result.unjudged is not None:
        result_tables += bounds_tables(result.unjudged, report.places)
    if result.published:
        result_tables.append(_published_table(result.published, measures))
    return result_tables


def has_notes(result: Result) -> bool:
    """Return whether tables say what lines do not: which tests, labels, assumptions or papers."""
    if isinstance(result, BenchmarksResult):
        return bool(result.published)
    return any((result.comparison, result.predicted, result.unjudged, result.published))


def tables_of_predictions(result: Result, report: ReportSettings) -> list[Table]:
    """Return the means and differences with predicted labels; none without such labels."""
    if isinstance(result, EvaluationResult) and result.predicted is not None:
        return predicted_tables(result.predicted, report.places)
    return []


def format_value(measure: Measure, value: float, places: int = 4) -> str:
    """Return a value as text: counts as whole numbers, other measures with `places` decimals.

    >>> from ir_measures import RR, NumQ
    >>> format_value(RR @ 10, 0.25, 3), format_value(NumQ, 43.0)
    ('0.250', '43')
    """
    if is_count(measure):
        return f"{value:.0f}"
    return f"{value:.{places}f}"


def difference_note(comparison: Comparison, corrected: str = "p and interval") -> str:
    """Return what a dagger means; `corrected` is what is shown of a corrected test."""
    settings = comparison.settings
    test = _test_text(comparison, f"paired {settings.test} test")
    test_count = comparison.test_count
    correction = ""
    is_corrected = settings.correction not in (Correction.TUKEY, Correction.NONE)
    if is_corrected and test_count > 1:
        name = settings.correction.capitalize()
        correction = f"; {name} correction of {corrected} for {test_count} tests"
    level = f"p < {settings.alpha:g}"
    return f"{DAGGER} differs from {comparison.baseline} ({level}; {test}{correction})"


def _interval_note(comparison: Comparison) -> list[str]:
    """Return how the interval is computed, where the test does not imply it."""
    settings = comparison.settings
    is_of_test = settings.correction is Correction.TUKEY or settings.test is PairedTest.T
    if is_of_test and not settings.seeds:
        return []
    return ["interval: Student's t of the differences of queries; it may disagree with p"]


def _test_text(comparison: Comparison, paired_test: str) -> str:
    """Return the test of a comparison: `paired_test`, or what takes its place."""
    if comparison.settings.seeds:
        return "permutation of runs within queries, and beyond the spread over seeds"
    if comparison.settings.correction is Correction.TUKEY:
        return f"randomised Tukey HSD{_tukey_families(comparison)}"
    return paired_test


def _tukey_families(comparison: Comparison) -> str:
    """Return how Tukey's test of all runs is corrected for measures, as a part of a sentence."""
    measures: set[str] = set()
    for differences in comparison.differences.values():
        measures.update(differences)
    if len(measures) > 1:
        return f" of all runs; Bonferroni correction for {len(measures)} measures"
    return " of all runs"


def _latex_tables(result: Result, report: ReportSettings) -> list[str]:
    """Return the measures in LaTeX, and what predicted labels, bounds and papers add to them."""
    measures = _measures_of(result)
    measures_table = _measures_table(result, measures, report)
    caption = _measures_caption(result, measures_table, report)
    latex_tables = [as_latex(measures_table, caption, "tab:results")]
    for number, table in enumerate(tables_of_predictions(result, report), start=1):
        latex_tables.append(as_latex(table, _caption_of_notes(table), f"tab:predicted-{number}"))
    if isinstance(result, EvaluationResult) and result.unjudged is not None:
        for number, table in enumerate(bounds_tables(result.unjudged, report.places), start=1):
            latex_tables.append(as_latex(table, _caption_of_notes(table), f"tab:bounds-{number}"))
    if result.published:
        published_table = _published_table(result.published, measures)
        latex_tables.append(as_latex(published_table, "Published results.", "tab:published"))
    return latex_tables


def _caption_of_notes(table: Table) -> str:
    """Return the title of a table and its notes as sentences."""
    sentences = [f"{text}." for text in (table.title, *table.notes)]
    return " ".join(sentences)


def _measures_caption(result: Result, table: Table, report: ReportSettings) -> str:
    """Return what the values of a table are, and what its bold type and its marks mean."""
    section_header = _section_header(result, report)
    sentences = ["Retrieval effectiveness."]
    if section_header:
        sentences = [f"Retrieval effectiveness by {section_header}."]
    if table.marks_best:
        sentences.append("The best run by each measure is in bold.")
    if isinstance(result, EvaluationResult) and report.summary:
        if any(run.spread for run in result.runs):
            sentences.append("Values with ± are means and standard deviations over seeds.")
        if result.comparison is not None:
            sentences.append(_significance_sentence(result.comparison))
    for note in table.notes:
        sentences.append(f"{note}.")
    return " ".join(sentences)


def _significance_sentence(comparison: Comparison) -> str:
    """Return what a dagger means in a caption: the baseline, the test, alpha, the correction."""
    settings = comparison.settings
    test_count = comparison.test_count
    if test_count == 0:
        return f"No difference from {comparison.baseline} could be tested."
    test = _test_text(comparison, f"two-sided paired {settings.test} test")
    details = f"{test}; p < {settings.alpha:g}"
    if test_count > 1 and settings.correction is not Correction.TUKEY:
        correction = f"{settings.correction.capitalize()} correction"
        if settings.correction is Correction.NONE:
            correction = "no correction"
        details = f"{details}; {correction} for {test_count} tests"
    for run, differences in comparison.differences.items():
        if any(comparison.significant(run, measure) for measure in differences):
            return f"{DAGGER} differs significantly from {comparison.baseline} ({details})."
    return f"No run differs significantly from {comparison.baseline} ({details})."


def _measures_of(result: Result) -> list[Measure]:
    """Return the measures of a result, on whichever benchmark, each once."""
    if isinstance(result, EvaluationResult):
        return list(dict.fromkeys(result.measures))
    measures: dict[Measure, None] = {}
    for benchmark_result in result.results.values():
        measures |= dict.fromkeys(benchmark_result.measures)
    return list(measures)


def _run_names(result: Result) -> list[str]:
    if isinstance(result, BenchmarksResult):
        return list(result.runs)
    return [run.name for run in result.runs]


def _sections(result: Result, report: ReportSettings) -> Iterator[Section]:
    """Return the benchmarks, or the queries and their mean, as far as the report shows them."""
    if isinstance(result, BenchmarksResult):
        return _benchmark_sections(result)
    return _query_sections(result, report)


def _benchmark_sections(result: BenchmarksResult) -> Iterator[Section]:
    """Yield the benchmarks, and then the means over groups of them that are complete."""
    groups = [group.name for group in groups_within(result.results)]
    for name in [*result.results, *groups]:
        values_by_run = [result.values(name, run) for run in result.runs]
        if any(values_by_run):
            yield Section(name, values_by_run)


def _query_sections(result: EvaluationResult, report: ReportSettings) -> Iterator[Section]:
    """Yield the queries, and then the mean over them."""
    if report.per_query:
        for qid in result.queries:
            yield Section(qid, [_values_of_query(run, qid) for run in result.runs])
    if report.summary:
        summaries: list[Values | None] = []
        for run in result.runs:
            # for TSV lines: tables look up measures, and show these values otherwise
            spread = {f"{name}:deviation": value for name, value in run.spread.items()}
            relations = {f"{name}:relations": mean for name, mean in run.over_relations.items()}
            summaries.append({**run.summary, **spread, **relations})
        yield Section(ALL, summaries, is_mean=True)


def _values_of_query(run: RunResult, qid: str) -> Values:
    """Return a run's values of the measures that are defined for a query."""
    return {name: values[qid] for name, values in run.per_query.items() if qid in values}


def _measures_table(result: Result, measures: Sequence[Measure], report: ReportSettings) -> Table:
    """Return a table of runs by measures; with many measures, of measures by runs."""
    section_header = _section_header(result, report)
    run_names = _run_names(result)
    measures_are_rows = len(measures) > WIDE
    runs_are_named = not measures_are_rows and (len(run_names) > 1 or not section_header)

    rows: list[tuple[Cell, ...]] = []
    for section in _sections(result, report):
        section_cells = [Cell(section.name)] if section_header else []
        columns = [_measure_cells(result, section, measure, report.places) for measure in measures]
        if measures_are_rows:
            for measure, cells_of_measure in zip(measures, columns, strict=True):
                rows.append((*section_cells, Cell(str(measure)), *cells_of_measure))
        else:
            cells_by_run = zip(*columns, strict=True)
            for run_name, cells_of_run in zip(run_names, cells_by_run, strict=True):
                name_cells = [Cell(run_name)] if runs_are_named else []
                rows.append((*section_cells, *name_cells, *cells_of_run))

    label_headers = [section_header] if section_header else []
    if measures_are_rows:
        label_headers.append("measure")
    if runs_are_named:
        label_headers.append("run")
    value_headers = run_names if measures_are_rows else [str(measure) for measure in measures]
    notes = [] if isinstance(result, BenchmarksResult) else _relation_notes(result, report.places)
    return Table((*label_headers, *value_headers), len(label_headers), tuple(rows), tuple(notes))


def _section_header(result: Result, report: ReportSettings) -> str:
    """Return the header of the column of sections; "" where the mean is the only section."""
    if isinstance(result, BenchmarksResult):
        return "benchmark"
    if report.per_query:
        return "query"
    return ""


def _measure_cells(result: Result, section: Section, measure: Measure, places: int) -> list[Cell]:
    """Return a measure's value for each run of a section, the best ones marked."""
    values = [_value(values_of_run, measure) for values_of_run in section.values_by_run]
    best_text = _best_text(measure, values, places)
    cells = []
    for value in values:
        text = "" if value is None else format_value(measure, value, places)
        cells.append(Cell(text, best=text == best_text))
    if isinstance(result, BenchmarksResult) or not section.is_mean:
        return cells
    return [
        _with_statistics(cell, run, result.comparison, measure, places)
        for cell, run in zip(cells, result.runs, strict=True)
    ]


def _value(values: Values | None, measure: Measure) -> float | None:
    """Return the value of a measure; None for an empty cell."""
    if values is None:
        return None
    return values.get(str(measure))


def _best_text(measure: Measure, values: Sequence[float | None], places: int) -> str | None:
    """Return the text of the highest value: all values with this text are marked as the best.

    Returns None where none is marked: for counts, and where there is no other run.
    """
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    if len(values) < 2 or not numbers or is_count(measure):
        return None
    return format_value(measure, max(numbers), places)


def _with_statistics(
    cell: Cell, run: RunResult, comparison: Comparison | None, measure: Measure, places: int
) -> Cell:
    """Add a run's spread over seeds, and whether its mean differs from the baseline's."""
    spread = run.spread.get(str(measure))
    if spread is not None:
        cell = replace(cell, text=f"{cell.text} ± {format_value(measure, spread, places)}")
    if comparison is not None:
        cell = replace(cell, differs=comparison.significant(run.name, str(measure)))
    return cell


def _relation_notes(result: EvaluationResult, places: int) -> list[str]:
    """Return a note for each run with means over EntityQuestions' relations."""
    notes = []
    for run in result.runs:
        if run.over_relations:
            means = [f"{name} {mean:.{places}f}" for name, mean in run.over_relations.items()]
            notes.append(f"{run.name}, mean over relations: {', '.join(means)}")
    return notes


def _differences_tables(comparison: Comparison, places: int) -> list[Table]:
    """Return a table of runs and measures by statistics of their difference from the baseline.

    There is none without a measure to compare, as of counts alone.
    """
    rows = []
    for run, differences in comparison.differences.items():
        for measure, difference in differences.items():
            differs = comparison.significant(run, measure)
            cells = _difference_row(run, measure, difference, places, differs=differs)
            if has_power(comparison):
                cells = (*cells, Cell(detectable_text(difference, places)))
            rows.append(cells)
    if not rows:
        return []
    interval = f"{100 * (1 - comparison.settings.alpha):g}% interval"
    header = ["run", "measure", "difference", interval, "d", "p", "+/=/-"]
    effects = "d: Cohen's d of the paired differences; +/=/-: queries better, equal, worse"
    notes = [difference_note(comparison), *_interval_note(comparison), effects]
    if has_power(comparison):
        header.append("detectable")
        notes += power_notes(comparison)
    title = f"Differences from {comparison.baseline}"
    return [Table(tuple(header), 2, tuple(rows), tuple(notes), title)]


def _undecided_tables(comparison: Comparison) -> list[Table]:
    """Return a table of what would decide the undecided differences; none without any."""
    rows = []
    for run, differences in comparison.differences.items():
        for measure, difference in differences.items():
            if is_undecided(comparison, run, measure):
                rows.append((Cell(run), Cell(measure), Cell(verdict(difference))))
    if not rows:
        return []
    header = ("run", "measure", "undecided")
    return [Table(header, 3, tuple(rows), VERDICT_NOTES, "What would decide")]


def _difference_row(
    run: str, measure: str, difference: Difference, places: int, *, differs: bool
) -> tuple[Cell, ...]:
    """Return a row of the table of differences."""
    interval = f"{difference.low:+.{places}f}..{difference.high:+.{places}f}"
    return (
        Cell(run),
        Cell(measure),
        Cell(f"{difference.mean:+.{places}f}", differs=differs),
        Cell(interval if math.isfinite(difference.low) else "-"),
        Cell(f"{difference.effect:.2f}" if math.isfinite(difference.effect) else "-"),
        Cell(p_text(difference.corrected)),
        Cell(f"{difference.wins}/{difference.ties}/{difference.losses}"),
    )


def _published_table(published: Sequence[PublishedRow], measures: Sequence[Measure]) -> Table:
    """Return a table of systems by measures: first the measures of the runs, then all others."""
    published_names: dict[str, None] = {}
    for row in published:
        published_names |= dict.fromkeys(row.values)
    shared_names = [str(measure) for measure in measures if str(measure) in published_names]
    names = list(dict.fromkeys([*shared_names, *published_names]))
    rows = []
    for row in published:
        system = f"{row.system} (evaluated here)" if row.is_evaluated else row.system
        labels = (row.paper, row.benchmark, row.table, system, row.setting)
        values = [row.values.get(name, "") for name in names]
        rows.append(tuple(Cell(text) for text in (*labels, *values)))
    label_headers = ("paper", "benchmark", "row", "system", "setting")
    return Table((*label_headers, *names), len(label_headers), tuple(rows))


def _lines(result: Result, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield the fields of TSV lines: values of the runs, differences, published values."""
    yield from _value_lines(result, report)
    if isinstance(result, EvaluationResult) and result.comparison is not None:
        yield from _difference_lines(result.comparison, report)
    if isinstance(result, EvaluationResult) and result.predicted is not None:
        yield from predicted_lines(result.predicted, report)
    if isinstance(result, EvaluationResult) and result.unjudged is not None:
        yield from bounds_lines(result.unjudged, report)
    for row in result.published:
        for measure, text in row.values.items():
            yield row.paper, row.benchmark, row.table, row.system, row.setting, measure, text


def _value_lines(result: Result, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield (measure, value), as ir-measures prints them, behind what they belong to.

    This is the run, if there are several, and the benchmark or the query, if there are sections.
    """
    sections = list(_sections(result, report))
    sections_are_named = _section_header(result, report) != ""
    run_names = _run_names(result)
    for position, run_name in enumerate(run_names):
        for section in sections:
            labels = [run_name] if len(run_names) > 1 else []
            if sections_are_named:
                labels.append(section.name)
            values = section.values_by_run[position] or {}
            for measure, value in values.items():
                yield *labels, measure, f"{value:.{report.places}f}"


def _difference_lines(comparison: Comparison, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield (run, measure:statistic, value) of the differences from the baseline.

    `all` stands behind the run if queries are reported, too.
    """
    places = report.places
    for run, differences in comparison.differences.items():
        for measure, difference in differences.items():
            statistics = {
                "difference": f"{difference.mean:.{places}f}",
                "low": f"{difference.low:.{places}f}",
                "high": f"{difference.high:.{places}f}",
                "effect": f"{difference.effect:.{places}f}",
                "p": f"{difference.corrected:.3g}",
                "wins": str(difference.wins),
                "ties": str(difference.ties),
                "losses": str(difference.losses),
            }
            if has_power(comparison):
                statistics["detectable"] = f"{difference.detectable:.{places}f}"
                statistics["roughness"] = f"{difference.roughness:.2f}"
            if difference.needed_queries is not None:
                statistics["needed_queries"] = str(difference.needed_queries)
            for statistic, text in statistics.items():
                yield run, *summary_labels(report), f"{measure}:{statistic}", text


def _as_object(result: Result, report: ReportSettings) -> dict[str, Any]:
    """Return a result for JSON, its values in full precision."""
    if isinstance(result, BenchmarksResult):
        values = _benchmarks_object(result)
    else:
        values = _evaluation_object(result, report)
    if result.published:
        values["published"] = [_published_object(row) for row in result.published]
    return values


def _benchmarks_object(result: BenchmarksResult) -> dict[str, Any]:
    sections = list(_benchmark_sections(result))
    runs = []
    for position, run in enumerate(result.runs):
        benchmarks = {section.name: section.values_by_run[position] for section in sections}
        runs.append({"run": run, "benchmarks": benchmarks})
    return {"runs": runs}


def _evaluation_object(result: EvaluationResult, report: ReportSettings) -> dict[str, Any]:
    runs = []
    for run in result.runs:
        values = _run_object(run)
        if report.per_query:
            values["queries"] = {qid: _values_of_query(run, qid) for qid in result.queries}
        runs.append(values)
    evaluation: dict[str, Any] = {
        "relevance_level": result.relevance_level,
        "queries": len(result.queries),
        "providers": result.providers,
        "runs": runs,
    }
    if result.comparison is not None:
        evaluation["comparison"] = _comparison_object(result.comparison)
    if result.predicted is not None:
        evaluation["predicted"] = predicted_object(result.predicted)
    if result.unjudged is not None:
        evaluation["unjudged"] = bounds_object(result.unjudged, report)
    return evaluation


def _run_object(run: RunResult) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run": run.name,
        "measures": run.summary,
        "missing": run.missing,
        "unjudged": run.unjudged,
    }
    if run.seeds:
        values["runs"] = [run_of_seed.name for run_of_seed in run.seeds]
        values["deviation"] = run.spread
    values["tied_lines"] = sum(run.ties.values())
    if run.over_relations:
        values["mean_over_relations"] = run.over_relations
    return values


def _comparison_object(comparison: Comparison) -> dict[str, Any]:
    settings = comparison.settings
    return {
        "baseline": comparison.baseline,
        "test": _test_name(settings),
        "correction": settings.correction,
        "alpha": settings.alpha,
        "power": POWER,
        "runs": comparison.differences,
    }


def _test_name(settings: ComparisonSettings) -> str:
    """Return the test that the p-values are of: `settings.test`, or what takes its place."""
    if settings.seeds:
        return "permutation"
    if settings.correction is Correction.TUKEY:
        return Correction.TUKEY
    return settings.test


def _published_object(row: PublishedRow) -> dict[str, Any]:
    values = {name: float(text) for name, text in row.values.items()}
    return {**vars(row), "values": values}


def _trec_eval(result: Result, report: ReportSettings) -> str:
    """Return trec_eval's lines and names.

    A line `runid` opens each of several runs; in one run, it opens the summary if it is a measure.
    """
    if (
        isinstance(result, BenchmarksResult)
        or result.comparison
        or result.unjudged
        or result.predicted
        or result.published
    ):
        message = (
            "--format trec_eval has no lines for several benchmarks, --baseline, --unjudged, "
            "--predicted or --against"
        )
        raise UsageError(message, "choose another format")
    sections = list(_query_sections(result, report))
    is_of_one_run = len(result.runs) == 1
    lines: list[str] = []
    for position, run in enumerate(result.runs):
        if not is_of_one_run:
            lines.append(_trec_eval_line("runid", ALL, run.run_id or run.name))
        for section in sections:
            if is_of_one_run and section.is_mean and run.run_id is not None:
                lines.append(_trec_eval_line("runid", ALL, run.run_id))
            lines += _trec_eval_values(result, section, position)
    return "".join(lines)


def _trec_eval_values(result: EvaluationResult, section: Section, position: int) -> Iterator[str]:
    """Yield the lines of a run, by its position, for a query or for all of them."""
    for measure in result.measures:
        name = trec_spelling(measure, result.relevance_level)
        if not section.is_mean and name in SUMMARY_ONLY:
            continue
        value = _value(section.values_by_run[position], measure)
        if value is not None:
            yield _trec_eval_line(name, section.name, format_value(measure, value))


def _trec_eval_line(name: str, qid: str, value: str) -> str:
    r"""Return a line of trec_eval.

    >>> _trec_eval_line("map", "all", "0.2500")
    'map                   \tall\t0.2500\n'
    """
    return f"{name:<22}\t{qid}\t{value}\n"
