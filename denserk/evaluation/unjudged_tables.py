"""Bounds over unjudged hits as tables, tab-separated lines and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from denserk.config.evaluation import ReportSettings
from denserk.evaluation.table_markup import Cell, Table, summary_labels
from denserk.evaluation.unjudged_results import (
    ROUNDING,
    BoundedValue,
    Interval,
    JudgingPlan,
    UnjudgedBounds,
)

OUTER = "~"  # before a bound that perhaps no completion reaches


def bounds_tables(bounds: UnjudgedBounds, places: int) -> list[Table]:
    """Return a table of the values of runs, and one of their differences if there are any."""
    tables = [_values_table(bounds, places)]
    if _has_differences(bounds):
        tables.append(_differences_table(bounds, places))
    return tables


def _has_differences(bounds: UnjudgedBounds) -> bool:
    """Return whether any difference has bounds: not with one run, and not of Judged alone."""
    return any(bounds.differences.values())


def _values_table(bounds: UnjudgedBounds, places: int) -> Table:
    """Return a table of runs and measures by their values and bounds."""
    rows = []
    for run, values in bounds.runs.items():
        for measure, value in values.items():
            texts = (
                run,
                measure,
                f"{value.value:.{places}f}",
                _bound_text(value.interval.low, value.interval.exact, places),
                _bound_text(value.interval.high, value.interval.exact, places),
                f"{bounds.hits[measure]:,}",
            )
            rows.append(tuple(map(Cell, texts)))
    header = ("run", "measure", "value", "least", "greatest", "unjudged hits")
    title = "Bounds over unjudged hits"
    return Table(header, 2, tuple(rows), tuple(_assumptions(bounds)), title)


def _differences_table(bounds: UnjudgedBounds, places: int) -> Table:
    """Return a table of runs and measures by their differences from the baseline, with bounds."""
    rows = []
    for run, differences in bounds.differences.items():
        for measure, value in differences.items():
            texts = (
                run,
                bounds.baseline_of[run],
                measure,
                f"{value.value:+.{places}f}",
                _bound_text(value.interval.low, value.interval.exact, places, "+"),
                _bound_text(value.interval.high, value.interval.exact, places, "+"),
                value.interval.decision.value,
            )
            rows.append(tuple(map(Cell, texts)))
    header = ("run", "baseline", "measure", "difference", "least", "greatest", "sign")
    notes = ["decided: no grades of the unjudged hits turn the sign of the difference"]
    if bounds.plan is not None:
        notes += plan_sentences(bounds.plan)
    return Table(header, 3, tuple(rows), tuple(notes), "Bounds of differences")


def query_table(bounds: UnjudgedBounds, count: int, places: int = 4) -> Table | None:
    """Return the queries whose judgments may move a difference most, by the first measure.

    The difference is that of the first run. Returns None if there is none, or if no judgments move
    it.
    """
    if not _has_differences(bounds):
        return None
    run, differences = next(iter(bounds.differences.items()))
    measure, value = next(iter(differences.items()))
    movable_queries = [
        (qid, interval) for qid, interval in value.per_query.items() if interval.width > ROUNDING
    ]
    if not movable_queries:
        return None
    movable_queries.sort(key=_widest_first)
    rows = []
    for qid, interval in movable_queries[:count]:
        texts = (
            qid,
            _bound_text(interval.low, interval.exact, places, "+"),
            _bound_text(interval.high, interval.exact, places, "+"),
            interval.decision.value,
        )
        rows.append(tuple(map(Cell, texts)))
    note = (
        f"{measure} of {run} less that of {bounds.baseline_of[run]}: queries whose judgments may "
        "move it most"
    )
    return Table(("query", "least", "greatest", "sign"), 1, tuple(rows), (note,))


def _widest_first(item: tuple[str, Interval]) -> tuple[float, str]:
    """Return a key that sorts queries by the width of their bounds, the widest first."""
    qid, interval = item
    return -interval.width, qid


def _bound_text(bound: float, is_exact: bool, places: int, sign: str = "") -> str:
    """Return a bound as text; a mark says that perhaps no completion reaches it.

    `sign` is "+" where positive bounds have one. What rounds to 0 has no minus.

    >>> _bound_text(0.25, True, 3), _bound_text(0.25, False, 3, "+"), _bound_text(-1e-17, True, 1)
    ('0.250', '~+0.250', '0.0')
    """
    mark = "" if is_exact else OUTER
    rounded_bound = round(bound, places) + 0.0
    return f"{mark}{rounded_bound:{sign}.{places}f}"


def _assumptions(bounds: UnjudgedBounds) -> Iterator[str]:
    """Yield sentences on what the bounds are taken over."""
    yield (
        "least, greatest: over all grades from 0 to the qrels' highest "
        f"({bounds.highest_grade}) for the unjudged hits of all runs"
    )
    if bounds.assuming:
        yield (
            f"{', '.join(bounds.assuming)}: assuming that no passage is relevant beyond these hits "
            "and those that the qrels grade so"
        )
    if bounds.not_assuming:
        yield f"{', '.join(bounds.not_assuming)}: whatever other passages are relevant"
    if not all(value.interval.exact for value in _all_values(bounds)):
        yield f"{OUTER}: no grades give a value outside; the extreme itself is not computed"


def _all_values(bounds: UnjudgedBounds) -> Iterator[BoundedValue]:
    """Yield the values of all runs, and all differences."""
    for values in (*bounds.runs.values(), *bounds.differences.values()):
        yield from values.values()


def plan_sentences(plan: JudgingPlan) -> list[str]:
    """Return what a plan says: how many judgments decide, for sure and probably."""
    comparison = f"{plan.measure} of {plan.run} and {plan.baseline}"
    if not plan.sufficient:
        return [f"to judge: nothing, the sign is decided ({comparison})"]
    sentences = [
        f"to judge: {len(plan.pairs):,} of {plan.sufficient:,} unjudged hits ({comparison}); all "
        f"{plan.sufficient:,} decide the sign, whatever their grades"
    ]
    if plan.share_higher is None:
        sentences.append(
            "how many are probably enough is not estimated: that needs relevant and irrelevant "
            "hits among the judged ones"
        )
        return sentences
    if plan.likely is not None:
        sentences.append(
            f"simulated judgments, as frequent as the qrels' own: {plan.likely:,} hits decide in "
            f"half of them, {plan.very_likely:,} in 9 of 10"
        )
    sentences.append(
        f"{plan.run} is higher in {100 * plan.share_higher:.0f} % of simulated judgments"
    )
    return sentences


def bounds_lines(bounds: UnjudgedBounds, report: ReportSettings) -> Iterator[tuple[str, ...]]:
    """Yield (measure:statistic, value), behind the run and the query that they belong to.

    The run stands there if there are several, and the query, or `all`, if queries are reported.
    """
    for run, values in bounds.runs.items():
        labels = [run] if len(bounds.runs) > 1 else []
        yield from _bound_lines(labels, values, report, "")
    for run, differences in bounds.differences.items():
        yield from _bound_lines([run], differences, report, "difference-")
        if report.summary:
            for measure, value in differences.items():
                yield run, *summary_labels(report), f"{measure}:sign", value.interval.decision.value
    if report.summary and bounds.plan is not None:
        for statistic, text in _plan_statistics(bounds.plan, report.places):
            labels = [bounds.plan.run, *summary_labels(report)]
            yield *labels, f"{bounds.plan.measure}:{statistic}", text


def _bound_lines(
    labels: Sequence[str],
    values: Mapping[str, BoundedValue],
    report: ReportSettings,
    prefix: str,
) -> Iterator[tuple[str, ...]]:
    """Yield the least and greatest values; `prefix` begins the names of statistics."""
    for measure, value in values.items():
        intervals: list[tuple[Sequence[str], Interval]] = []
        if report.per_query:
            intervals += [([qid], interval) for qid, interval in value.per_query.items()]
        if report.summary:
            intervals.append((summary_labels(report), value.interval))
        for section, interval in intervals:
            least = _bound_text(interval.low, interval.exact, report.places)
            greatest = _bound_text(interval.high, interval.exact, report.places)
            yield *labels, *section, f"{measure}:{prefix}least", least
            yield *labels, *section, f"{measure}:{prefix}greatest", greatest


def _plan_statistics(plan: JudgingPlan, places: int) -> Iterator[tuple[str, str]]:
    """Yield the names and values of how many judgments decide, as far as they are known."""
    yield "to-judge", str(len(plan.pairs))
    yield "to-judge-sufficient", str(plan.sufficient)
    if plan.likely is not None:
        yield "to-judge-likely", str(plan.likely)
    if plan.very_likely is not None:
        yield "to-judge-very-likely", str(plan.very_likely)
    if plan.share_higher is not None:
        yield "share-higher", f"{plan.share_higher:.{places}f}"


def bounds_object(bounds: UnjudgedBounds, report: ReportSettings) -> dict[str, Any]:
    """Return bounds for JSON, in full precision."""
    runs = {}
    for run, values in bounds.runs.items():
        runs[run] = {measure: _value_object(value, report) for measure, value in values.items()}
    differences = {}
    for run, values in bounds.differences.items():
        measures = {}
        for measure, value in values.items():
            sign = value.interval.decision.value
            measures[measure] = {**_value_object(value, report), "sign": sign}
        differences[run] = {"baseline": bounds.baseline_of[run], "measures": measures}
    bounds_of_runs: dict[str, Any] = {
        "highest_grade": bounds.highest_grade,
        "hits": bounds.hits,
        "runs": runs,
        "differences": differences,
        "assuming_no_other_relevant_passage": bounds.assuming,
    }
    if bounds.plan is not None:
        bounds_of_runs["to_judge"] = bounds.plan
    return bounds_of_runs


def _value_object(value: BoundedValue, report: ReportSettings) -> dict[str, Any]:
    """Return a value with its bounds for JSON."""
    interval = value.interval
    values: dict[str, Any] = {
        "value": value.value,
        "least": interval.low,
        "greatest": interval.high,
        "exact": interval.exact,
    }
    if report.per_query:
        values["queries"] = {
            qid: {"least": bound.low, "greatest": bound.high, "exact": bound.exact}
            for qid, bound in value.per_query.items()
        }
    return values
