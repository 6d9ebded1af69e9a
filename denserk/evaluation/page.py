"""The HTML page of a report: tables, curves, differences by query and passages, in one file.

The page is `report.html`, a Jinja template that escapes every text; plots are SVG by matplotlib.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from denserk import __version__
from denserk.config.evaluation import ReportSettings
from denserk.evaluation.evaluator import some
from denserk.evaluation.report import Cost, Report, main_measure, reference_of
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.evaluation.tables import Cell, Table, tables
from denserk.extras import require
from denserk.io.plots import INKS, as_svg, draw_lines, new_axes, style

LONGEST = 420  # characters shown of a passage
MOST_ROWS = 10_000  # rows of the table of queries; browsers become slow with more
# the benchmark that retrievers are trained for; the first one that has a result is taken
IN_DOMAIN = ("msmarco-dev", "beir/msmarco", "msmarco-titled-dev", "dl19", "dl20")


@dataclass(frozen=True)
class Figure:
    """A plot as SVG, its caption, and its numbers where a table of them helps."""

    svg: str
    caption: str
    table: Table | None = None


def as_page(report: Report) -> str:
    """Return the whole page of runs on one benchmark."""
    result = report.result
    with style():
        figures = [*_recall(report), *_costs(report)]
        scores = list(_scores(report))
    return _render(
        report.title,
        f"{several(result.runs, 'run')}, {several(result.queries, 'query', 'queries')}",
        [run.name for run in result.runs],
        tables(result, ReportSettings()),
        figures=figures,
        scores=scores,
        notes=[*_notes(result), *report.lacking],
        report=report,
        measure=main_measure(result),
        reference=result.runs[reference_of(result)].name,
        moved=report.rows[: report.shown] if report.profiles else [],
        rows=report.rows[:MOST_ROWS],
    )


def as_benchmarks_page(result: BenchmarksResult) -> str:
    """Return the whole page of runs on several benchmarks, in-domain against zero-shot."""
    with style():
        figure, lacking = transfer_figure(result)
    return _render(
        "Runs on several benchmarks",
        f"{several(result.runs, 'run')}, {several(result.results, 'benchmark')}",
        result.runs,
        tables(result, ReportSettings()),
        figures=[figure] if figure else [],
        notes=[lacking] if lacking else [],
    )


def transfer_figure(result: BenchmarksResult) -> tuple[Figure | None, str]:
    """Return the plot of in-domain against zero-shot effectiveness, or why there is none."""
    home = next((name for name in IN_DOMAIN if name in result.results), None)
    away = [name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN]
    if home is None or not away:
        return None, (
            "In-domain against zero-shot is not drawn: it needs a run on MS MARCO "
            f"({' or '.join(IN_DOMAIN)}) and runs on other BEIR datasets."
        )
    measures = [list(map(str, result.results[name].measures)) for name in away]
    shared = [m for m in measures[0] if all(m in others for others in measures)]
    if not shared:
        return None, "In-domain against zero-shot is not drawn: the datasets share no measure."
    inside, outside = str(result.results[home].measures[0]), shared[0]

    def value(name: str, run: str, measure: str) -> float:
        return (result.values(name, run) or {}).get(measure, math.nan)

    points: dict[str, list[tuple[float, float]]] = {}
    for run in result.runs:
        x = value(home, run, inside)
        y = math.fsum(value(name, run, outside) for name in away) / len(away)
        points[run] = [] if math.isnan(x + y) else [(x, y)]
    if not any(points.values()):
        return None, "In-domain against zero-shot is not drawn: no folder has all runs."
    left = [name for name, found in points.items() if not found]
    without = f" Without {', '.join(left)}: not on every dataset." if left else ""
    axes = _legend_below(points)
    axes.set_xlabel(f"{inside} on {home}")
    axes.set_ylabel(f"mean {outside} on {several(away, 'BEIR dataset')}")
    svg = as_svg(axes, "Zero-shot against in-domain effectiveness, a mark per run", "transfer")
    return Figure(svg, f"In-domain ({home}) against zero-shot ({', '.join(away)}).{without}"), ""


def several(things: Collection[object], one: str, more: str | None = None) -> str:
    """Return a count with its noun.

    >>> several("ab", "run"), several("a", "query", "queries")
    ('2 runs', '1 query')
    """
    return f"{len(things):,} {one if len(things) == 1 else more or f'{one}s'}"


def format_value(value: float, *, signed: bool = False) -> str:
    """Return a value with four decimals, a dash for NaN.

    >>> format_value(-0.25, signed=True), format_value(0.0, signed=True), format_value(math.nan)
    ('−0.2500', '0.0000', '–')
    """
    if math.isnan(value):
        return "–"
    text = f"{abs(value) if signed else value:.4f}"
    sign = "" if not signed or float(text) == 0 else "+" if value > 0 else "−"
    return sign + text


def format_score(value: float) -> str:
    """Return a score, without an exponent where a plain number will do.

    >>> format_score(147012.3), format_score(13.09421)
    ('147,012', '13.094')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.5g}"


def format_bytes(count: float) -> str:
    """Return a size.

    >>> format_bytes(26_000_000_000), format_bytes(1500), format_bytes(12)
    ('26 GB', '1.5 kB', '12 bytes')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} bytes"


def format_milliseconds(value: float) -> str:
    """Return a duration.

    >>> format_milliseconds(1500), format_milliseconds(0.25)
    ('1.5 s', '0.25 ms')
    """
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


def shorten(text: str, longest: int = LONGEST) -> str:
    """Cut a long text between words.

    >>> shorten("one two three", 9)
    'one two …'
    """
    if len(text) <= longest:
        return text
    cut = text[: longest - 1]
    return f"{cut.rpartition(' ')[0]} …" if " " in cut else f"{cut}…"


def _render(
    title: str, count: str, runs: Sequence[str], found: Sequence[Table], **content: Any
) -> str:
    """Fill the template."""
    jinja2 = require("jinja2", "a report")
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader("denserk", "evaluation"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(value=format_value, score=format_score, shorten=shorten)
    page: str = environment.get_template("report.html").render(
        {"scores": [], "report": None, "moved": [], "rows": [], **content},
        title=title,
        count=count,
        runs=runs,
        tables=found,
        version=__version__,
        inks=INKS,
    )
    return page


def _recall(report: Report) -> Iterator[Figure]:
    lines = {one.name: one.recall for one in report.profiles}
    depths = sorted({depth for points in lines.values() for depth, _ in points})
    if not depths:
        return
    axes = _legend_below(lines)
    axes.set(xlabel="depth", ylabel="recall", xscale="log", xlim=(1, max(depths[-1], 2)))
    axes.set_ylim(0, 1.02)
    _plain_ticks(axes, "{:,g}".format)
    known = [dict(points) for points in lines.values()]
    rows = [
        (Cell(f"{d:,}"), *(Cell(f"{points[d]:.4f}" if d in points else "") for points in known))
        for d in depths
    ]
    level = report.profiles[0].level
    grades = "" if level == 1 else f" of grade {level} or higher"
    yield Figure(
        as_svg(axes, "Recall by depth, a line per run", "recall"),
        f"Recall by depth: the share of the relevant passages{grades} among the first hits, mean "
        "over queries.",
        Table(("depth", *lines), 1, tuple(rows)),
    )


def _costs(report: Report) -> Iterator[Figure]:
    """Draw effectiveness against index size and against latency, where manifests know them."""
    result, measure = report.result, main_measure(report.result)
    kinds: tuple[tuple[str, Callable[[Cost], float | None], Callable[[float], str]], ...] = (
        ("index size", lambda cost: cost.index_bytes, format_bytes),
        ("latency", lambda cost: cost.query_milliseconds, format_milliseconds),
    )
    for title, value_of, told in kinds:
        values = [value_of(cost) for cost in report.costs]
        if not any(values):
            continue
        runs = list(zip(result.runs, values, strict=True))
        axes = _legend_below({r.name: [(v, r.summary[measure])] if v else [] for r, v in runs})
        present = [value for value in values if value]
        axes.set(xscale="log", xlim=(min(present) / 2, max(present) * 2))
        axes.set(xlabel=title, ylabel=measure)
        _plain_ticks(axes, told)
        known = ", ".join(f"{run.name} {told(value)}" for run, value in runs if value)
        what = " (encoding and searching one query)" if title == "latency" else ""
        yield Figure(
            as_svg(axes, f"{measure} against {title}, a mark per run", title.replace(" ", "-")),
            f"{measure} against {title}{what}, from the manifests: {known}.",
        )


def _scores(report: Report) -> Iterator[Figure]:
    for number, one in enumerate(report.profiles):
        if one.scores is None:
            continue
        axes = new_axes(4.4, 2.6)
        kinds = {"relevant": one.scores.relevant, "not relevant or not judged": one.scores.others}
        for ink, dash, (name, bins) in zip(INKS, ("-", "--"), kinds.items(), strict=False):
            share = 100 * bins / max(bins.sum(), 1)
            axes.stairs(share, one.scores.edges, color=ink, ls=dash, lw=1.4, label=name)
            axes.stairs(share, one.scores.edges, color=ink, alpha=0.15, fill=True)
        axes.figure.legend(loc="outside upper center", ncols=2)
        axes.set_xlabel("score")
        axes.yaxis.set_major_formatter("{x:g} %")
        counts = " and ".join(f"{bins.sum():,}" for bins in kinds.values())
        label = f"Scores of {one.name}, relevant hits and others"
        yield Figure(
            as_svg(axes, label, f"scores-{number}"), f"{one.name}: scores of {counts} hits."
        )


def _legend_below(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    """Draw named lines with the legend, whose names may be long, below them."""
    axes = new_axes(4.4, 2.7 + 0.19 * len(lines))
    draw_lines(axes, lines, "lower center")
    return axes


def _plain_ticks(axes: Any, told: Callable[[float], str]) -> None:
    """Write a few round values below a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = axes.get_xlim()
    digits = (1.0,) if high / low > 100 else (1.0, 3.0) if high / low > 15 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=digits))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: told(value)))
    axes.minorticks_off()


def _notes(result: EvaluationResult) -> Iterator[str]:
    for run in result.runs:
        if run.missing:
            yield (
                f"{run.name} lacks {len(run.missing):,} of {len(result.queries):,} judged queries: "
                f"{some(run.missing)}."
            )
        if run.unjudged:
            others = several(run.unjudged, "query", "queries")
            yield f"{run.name} has {others} without relevance judgments, which do not count."
        if run.ties.lines:
            yield (
                f"{run.name} has {run.ties.lines:,} lines that tie with another of their query; "
                "ties are ordered as in trec_eval, by passage id descending."
            )
    told = (f"{', '.join(names)} by {who}" for who, names in result.providers.items())
    yield f"Computed through ir-measures: {'; '.join(told)}."
