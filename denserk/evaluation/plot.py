"""The plot of `denserk eval --plot`: means of runs with their intervals.

Measures at one depth are panels with a point per run; one measure at several depths is a panel with
a curve per run.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import fill
from typing import Any

import numpy as np

from denserk.evaluation.measures import Measure
from denserk.evaluation.results import Comparison, EvaluationResult, RunResult
from denserk.evaluation.significance import interval
from denserk.evaluation.table_markup import DAGGER, LEAST_P
from denserk.evaluation.tables import difference_note, format_value
from denserk.plots import INKS, TEXT, draw_lines, new_axes

MOST_COLUMNS = 3  # panels of a plot in a row
LONGEST = 30  # characters in a line of a run's name
FEW = 4  # curves in a plot of one column


def draw(result: EvaluationResult, alpha: float) -> Any:
    """Draw a point per run and measure, or a curve per run over the cut-offs of one measure.

    Means have their intervals of level 1 - alpha.
    """
    note = f"Means over {len(result.queries):,} queries with their {1 - alpha:.0%} intervals"
    comparison = ""
    if result.comparison is not None:
        # the intervals of the plot are those of single runs, and are not corrected
        comparison = difference_note(result.comparison, corrected="p")
    if _is_over_depths(result.measures):
        axes = draw_curves(result, alpha)
        # a dagger marks values, not points of a curve
        comparison = comparison.replace(f"{DAGGER} differs", "all but hollow marks differ")
    else:
        axes = draw_points(result, alpha)
    if comparison:
        note += f"; {comparison}"
    figure = axes.figure
    lines = fill(note, int(20 * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=6.5, x=0.01, ha="left")
    return axes


def _is_over_depths(measures: Sequence[Measure]) -> bool:
    """Return whether measures are one at three or more ascending cut-offs.

    >>> from ir_measures import RR, R
    >>> _is_over_depths([R @ 1, R @ 10, R @ 100]), _is_over_depths([R @ 1, R @ 10, RR @ 100])
    (True, False)
    """
    without_cutoffs = []
    depths = []
    for measure in measures:
        without_cutoffs.append((measure.NAME, {**measure.params, "cutoff": None}))
        depths.append(measure.params.get("cutoff", 0))
    is_one_measure = all(measure == without_cutoffs[0] for measure in without_cutoffs)
    return len(depths) >= 3 and is_one_measure and depths == sorted(depths)


def draw_points(result: EvaluationResult, alpha: float) -> Any:
    """Draw a panel per measure: means and intervals, runs below each other, values beside them."""
    names = [fill(run.name, LONGEST) for run in result.runs]
    columns = min(MOST_COLUMNS, len(result.measures))
    rows = math.ceil(len(result.measures) / columns)
    width = 3.4 if columns == 1 else 7.0
    lines = sum(name.count("\n") + 1.35 for name in names)
    height = 0.35 + rows * (0.55 + 0.135 * lines)
    grid = np.ravel(new_axes(width, height, rows, columns, sharex=False))
    for axes, measure in zip_longest(grid, result.measures):
        if measure is None:
            axes.set_visible(False)
            continue
        for row, run in enumerate(result.runs):
            _draw_point(axes, row, run, measure, alpha, result.comparison)
        axes.set_title(measure, fontsize=8.5 if len(str(measure)) < 22 else 6.5, loc="left")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.tick_params(length=0, labelsize=7.5)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(visible=False, axis="y")
    return grid[0]


def _draw_point(
    axes: Any,
    row: int,
    run: RunResult,
    measure: Measure,
    alpha: float,
    comparison: Comparison | None,
) -> None:
    """Draw the mean of a run and its interval in a row, and a line through that of a baseline."""
    mean = run.summary[str(measure)]
    is_baseline = comparison is not None and run.name == comparison.baseline
    ink = TEXT if is_baseline else INKS[0]
    axes.plot(interval(run, measure, alpha), (row, row), color=ink, lw=1.1)
    axes.plot(mean, row, "o", color=ink, ms=4)
    if is_baseline:
        axes.axvline(mean, color=TEXT, lw=0.7, ls=(0, (4, 3)))
    label = format_value(measure, mean, 3)
    if comparison is not None:
        label += _test_result(comparison, run.name, str(measure))
    right_of_axes = axes.get_yaxis_transform()  # x in widths of the panel, y in rows
    axes.text(1.02, row, label, transform=right_of_axes, va="center", fontsize=7)


def _test_result(comparison: Comparison, run: str, measure: str) -> str:
    """Return the p-value of a difference and its dagger; nothing where there is none."""
    difference = comparison.differences.get(run, {}).get(measure)
    if difference is None or math.isnan(difference.corrected):
        return ""
    p = f"p={difference.corrected:.3f}"
    if difference.corrected < LEAST_P:
        p = "p<0.001"
    if comparison.significant(run, measure):
        return f"{DAGGER} {p}"
    return f" {p}"


def draw_curves(result: EvaluationResult, alpha: float) -> Any:
    """Draw a measure over its cut-offs: a curve per run with the band of its intervals."""
    if len(result.runs) <= FEW:
        axes = new_axes(3.4, 2.8 + 0.16 * len(result.runs))
        legend = "upper left"
        band_opacity = 0.13
    else:
        axes = new_axes(7, 3.2)
        legend = "right upper"
        band_opacity = 0.05
    depths = [int(measure["cutoff"]) for measure in result.measures]
    curves = {}
    for run in result.runs:
        means = [run.summary[str(measure)] for measure in result.measures]
        curves[fill(run.name, LONGEST)] = list(zip(depths, means, strict=True))
    draw_lines(axes, curves, legend)
    for line, run in zip(list(axes.lines), result.runs, strict=True):
        intervals = [interval(run, measure, alpha) for measure in result.measures]
        lows, highs = zip(*intervals, strict=True)
        axes.fill_between(depths, lows, highs, color=line.get_color(), alpha=band_opacity, lw=0)
        if result.comparison is not None:
            _draw_hollow_marks(axes, line, run, result.measures, result.comparison)
    axes.set(xscale="log", xlabel="depth", ylabel=str(result.measures[0]).partition("@")[0])
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    return axes


def _draw_hollow_marks(
    axes: Any, line: Any, run: RunResult, measures: Sequence[Measure], comparison: Comparison
) -> None:
    """Draw hollow marks on the curve of a run where it does not differ from the baseline."""
    tested_measures = comparison.differences.get(run.name, {})
    for measure in measures:
        name = str(measure)
        if name in tested_measures and not comparison.significant(run.name, name):
            depth = int(measure["cutoff"])
            mean = run.summary[name]
            marker = line.get_marker()
            axes.plot(depth, mean, marker, ms=4, color=line.get_color(), mfc="white")
