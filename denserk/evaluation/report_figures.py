"""The figures of the HTML report: SVG images by matplotlib, with their captions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from denserk.plots import (
    INKS,
    NamedPoint,
    as_image,
    draw_lines,
    new_axes,
    series_style,
    write_names,
)

BINS = 30  # of the scores
Points = Sequence[tuple[float, float]]


class Figure(NamedTuple):
    """An image as HTML, and what it shows."""

    image: str
    caption: str


class Cost(NamedTuple):
    """What a query or an index costs, by run."""

    title: str
    unit: str
    cost_by_run: Mapping[str, float]


class Scores(NamedTuple):
    """The scores of a run's hits."""

    relevant: list[float]
    others: list[float]  # not relevant, or not judged


class Transfer(NamedTuple):
    """In-domain against zero-shot effectiveness."""

    in_domain: str  # the benchmark that retrievers are trained for
    in_domain_measure: str
    zero_shot: list[str]
    zero_shot_measure: str
    points: Mapping[str, Points]  # one of each run that has all values, or none


def draw_recall(recall_by_run: Mapping[str, Points], level: int) -> Figure:
    """Draw the recall of runs by depth."""
    axes = new_axes(4.4, 2.7 + 0.19 * len(recall_by_run))
    draw_lines(axes, recall_by_run, "lower center")
    axes.set(xlabel="depth", ylabel="recall", ylim=(0, 1.02), xscale="log")
    axes.xaxis.set_major_formatter("{x:,g}")
    image = as_image(axes, "Recall by depth, a line per run")
    grades = "" if level == 1 else f" of grade {level} or higher"
    caption = (
        f"Recall by depth: the share of the relevant passages{grades} among the first hits, mean "
        "over queries."
    )
    return Figure(image, caption)


def draw_cost(cost: Cost, measure: str, value_by_run: Mapping[str, float]) -> Figure:
    """Draw effectiveness against a cost: a mark for each run whose cost is known."""
    from matplotlib.ticker import EngFormatter

    points = [
        NamedPoint(value, cost.cost_by_run[run], run)
        for run, value in value_by_run.items()
        if run in cost.cost_by_run
    ]
    axes = _named_points(points)
    axes.set(xlabel=cost.title, ylabel=measure)
    formatter = EngFormatter(cost.unit)
    axes.xaxis.set_major_formatter(formatter)
    image = as_image(axes, f"{measure} against {cost.title}, a mark per run")
    costs = []
    for run, value in cost.cost_by_run.items():
        rounded = float(f"{value:.3g}")
        costs.append(f"{run} {formatter(rounded)}")
    return Figure(image, f"{measure} against {cost.title}, from the manifests: {', '.join(costs)}.")


def draw_scores(run: str, scores: Scores) -> Figure:
    """Draw how the scores of relevant hits and of others are distributed, each in per cent."""
    axes = new_axes(4.4, 2.6)
    axes.hist(
        scores,
        BINS,
        weights=[np.full(len(values), 100 / max(len(values), 1)) for values in scores],
        label=["relevant", "not relevant or not judged"],
        color=list(INKS[:2]),
        histtype="step",
        lw=1.4,
    )
    axes.figure.legend(loc="outside upper center", ncols=2)
    axes.set_xlabel("score")
    axes.yaxis.set_major_formatter("{x:g} %")
    image = as_image(axes, f"Scores of {run}, relevant hits and others")
    counts = f"{len(scores.relevant):,} relevant and {len(scores.others):,} other hits"
    return Figure(image, f"{run}: scores of {counts}.")


def draw_transfer(transfer: Transfer) -> Figure:
    """Draw a mark per run: how well it does out of its domain, against in it."""
    axes = _named_points(
        [
            NamedPoint(zero_shot, in_domain, run)
            for run, points in transfer.points.items()
            for in_domain, zero_shot in points
        ]
    )
    axes.set(
        xlabel=f"{transfer.in_domain_measure} on {transfer.in_domain}",
        ylabel=f"mean {transfer.zero_shot_measure} on BEIR datasets",
    )
    image = as_image(axes, "Zero-shot against in-domain effectiveness, a mark per run")
    zero_shot = ", ".join(transfer.zero_shot)
    return Figure(image, f"In-domain ({transfer.in_domain}) against zero-shot ({zero_shot}).")


def _named_points(points: Sequence[NamedPoint]) -> Any:
    """Draw a mark with its name for each run."""
    axes = new_axes(4.4, 2.9)
    for number, point in enumerate(points):
        style = series_style(number)
        axes.plot(point.position, point.height, style["marker"], color=style["color"], ms=5)
    axes.margins(x=0.25, y=0.15)
    write_names(axes, points)
    return axes
