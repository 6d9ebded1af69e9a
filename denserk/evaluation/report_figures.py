"""The plots of a report: recall by depth, cost, scores; in-domain against zero-shot."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.markup import Html, join, tag
from denserk.evaluation.plot_scales import told_bytes, told_milliseconds, told_score
from denserk.evaluation.plots import (
    Axis,
    Series,
    distribution_plot,
    line_plot,
    point_plot,
    swatch,
)
from denserk.evaluation.query_differences import main_measure
from denserk.evaluation.report_parts import figure, legend, scrolling, several
from denserk.evaluation.run_profile import RunProfile
from denserk.evaluation.suites_result import SuitesResult

IN_DOMAIN = ("msmarco-dev", "beir/msmarco", "msmarco-titled-dev", "dl19", "dl20")
"""The suites that the field's retrievers are trained for; the first that is there is taken."""


@dataclass(frozen=True)
class Cost:
    """What a run's manifest says it cost; None where it says nothing."""

    index_bytes: int | None = None
    query_milliseconds: float | None = None


def run_figures(
    result: EvaluationResult, profiles: Sequence[RunProfile], costs: Sequence[Cost]
) -> list[Html]:
    """Recall by depth, what effectiveness costs, scores; those that there is something for."""
    runs = [run.name for run in result.runs]
    figures = [*_recall(profiles), *_cost_figures(result, costs)]
    keyed = [legend(runs), tag("div", *figures, class_="figures")] if figures else []
    scored = list(_scores(profiles))
    if scored:
        words = ["relevant", "not relevant, or not judged"]
        keyed += [
            tag("h3", "Scores"),
            tag("ul", *(tag("li", swatch(n), w) for n, w in enumerate(words)), class_="legend"),
            tag("div", *scored, class_="figures"),
        ]
    return keyed


def _recall(profiles: Sequence[RunProfile]) -> Iterator[Html]:
    told = [one for one in profiles if one.recall]
    if not told:
        return
    series = [Series(one.name, tuple(one.recall)) for one in profiles]
    deepest = max(depth for one in told for depth, _ in one.recall)
    across = Axis("depth", (1, max(deepest, 2)), log=True, told="{:,.0f}".format)
    plot = line_plot("Recall by depth, a line a run", series, across, Axis("recall", (0, 1)))
    grades = "" if profiles[0].level == 1 else f" of grade {profiles[0].level} or higher"
    yield figure(
        f"Recall by depth: the share of the relevant passages{grades} among the first so many, "
        "mean over queries.",
        plot,
        _values(series),
    )


def _values(series: Sequence[Series]) -> Html:
    """The numbers of a line plot, for those who want or need them."""
    depths = sorted({x for one in series for x, _ in one.points})
    known = [dict(one.points) for one in series]
    rows = [
        tag(
            "tr",
            tag("th", f"{depth:,.0f}", scope="row"),
            *(tag("td", f"{p[depth]:.4f}" if depth in p else "", class_="number") for p in known),
        )
        for depth in depths
    ]
    head = tag(
        "tr", *(tag("th", name, scope="col") for name in ("depth", *(s.name for s in series)))
    )
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("details", tag("summary", "The numbers"), scrolling(table, "recall by depth"))


def _cost_figures(result: EvaluationResult, costs: Sequence[Cost]) -> Iterator[Html]:
    """Effectiveness against index size, and against time, where manifests know them."""
    measure = main_measure(result)
    up = Axis(measure)
    kinds: tuple[tuple[str, str, Callable[[Cost], float | None], Callable[[float], str]], ...] = (
        ("size of the index", "", lambda c: c.index_bytes, told_bytes),
        (
            "time a query",
            " (encoding and searching)",
            lambda c: c.query_milliseconds,
            told_milliseconds,
        ),
    )
    for title, what, value_of, told in kinds:
        values = [value_of(cost) for cost in costs]
        if not any(values):
            continue
        series = [
            Series(run.name, ((value, run.summary[measure]),) if value else ())
            for run, value in zip(result.runs, values, strict=True)
        ]
        label = f"{measure} against {title}, a mark a run"
        known = [f"{run.name} {told(v)}" for run, v in zip(result.runs, values, strict=True) if v]
        yield figure(
            f"{measure} against {title}{what}, as the manifests tell: {', '.join(known)}.",
            point_plot(label, series, Axis(title, log=True, told=told), up),
        )


def _scores(profiles: Sequence[RunProfile]) -> Iterator[Html]:
    for one in profiles:
        if one.scores is None:
            continue
        kinds = (one.scores.relevant, one.scores.others)
        shares = [[count / (sum(bins) or 1) for count in bins] for bins in kinds]
        counts = " and ".join(f"{sum(bins):,}" for bins in kinds)
        yield figure(
            f"{one.name}: scores of {counts} hits, each kind by itself.",
            distribution_plot(
                f"Scores of {one.name}, relevant hits and others",
                one.scores.edges,
                shares,
                Axis("score", told=told_score),
            ),
        )


def transfer_figure(result: SuitesResult) -> tuple[Html | None, str]:
    """The figure of in-domain against zero-shot, or why there is none."""
    home = next((name for name in IN_DOMAIN if name in result.results), None)
    away = [name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN]
    if home is None or not away:
        return None, (
            "In-domain against zero-shot is not drawn: it takes a run on MS MARCO "
            f"({' or '.join(IN_DOMAIN)}) and runs on other sets of BEIR."
        )
    inside = str(result.results[home].measures[0])
    shared = [str(m) for m in result.results[away[0]].measures]
    outside = next((m for m in shared if all(_has(result, name, m) for name in away)), None)
    if outside is None:
        return None, "In-domain against zero-shot is not drawn: the sets share no measure."
    series = []
    for run in result.runs:
        x = _value(result, home, run, inside)
        means = [_value(result, name, run, outside) for name in away]
        y = math.fsum(means) / len(means)
        series.append(Series(run, () if math.isnan(x + y) else ((x, y),)))
    if not any(one.points for one in series):
        return None, "In-domain against zero-shot is not drawn: no folder has a run of every set."
    across = Axis(f"{inside} on {home}", told="{:.3g}".format)
    up = Axis(f"mean {outside} on {several(away, 'set')} of BEIR", told="{:.3g}".format)
    plot = point_plot("Zero-shot against in-domain effectiveness, a mark a run", series, across, up)
    left = [one.name for one in series if not one.points]
    without = f" Without {', '.join(left)}: not on every set." if left else ""
    words = f"In-domain ({home}) against zero-shot ({', '.join(away)}).{without}"
    return join(legend(result.runs, line=False), figure(words, plot)), ""


def _has(result: SuitesResult, name: str, measure: str) -> bool:
    return any(str(one) == measure for one in result.results[name].measures)


def _value(result: SuitesResult, name: str, run: str, measure: str) -> float:
    values = result.values(name, run)
    return math.nan if values is None else values.get(measure, math.nan)
