"""The plot of an evaluation (`--plot`): runs by measures with intervals, or curves over depth."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import fill
from typing import Any

import numpy as np

from denserk.config.evaluation import ComparisonSettings
from denserk.evaluation.evaluator import EvaluationResult, RunResult
from denserk.evaluation.measures import Measure, is_mean
from denserk.evaluation.significance import t_test
from denserk.evaluation.tables import DAGGER, difference_note, number
from denserk.io.plots import INKS, TEXT, draw_lines, new_axes

ACROSS, LONGEST = 3, 30  # panels in a row; characters in a line of a run's name
FEW = 4  # curves in a plot of one column


def is_family(measures: Sequence[Measure]) -> bool:
    """Return whether three or more measures are one at ascending cut-offs.

    >>> from denserk.evaluation.measures import parse_measures
    >>> [is_family(parse_measures([m]).measures) for m in ("R@1 R@5 R@10", "R@5 R@1 AP", "R@1 R@5")]
    [True, False, False]
    """
    bases = [(m.NAME, {**m.params, "cutoff": None}) for m in measures]
    depths = [m.params.get("cutoff", 0) for m in measures]
    return len(depths) > 2 and bases.count(bases[0]) == len(bases) and depths == sorted(depths)


def draw(result: EvaluationResult, settings: ComparisonSettings) -> Any:
    """Draw a point per run and measure, or a curve per run over the cut-offs of one measure."""
    family = is_family(result.measures)
    axes = draw_curves(result, settings) if family else draw_points(result, settings)
    notes = (
        f"Means over {len(result.queries):,} queries with their {1 - settings.alpha:.0%} intervals"
    )
    if result.comparison is not None:
        known, said = f"{DAGGER} differs", "all but hollow marks differ"
        note = difference_note(result.comparison)
        notes += f"; {note.replace(known, said) if family else note}"
    figure = axes.figure
    lines = fill(notes, int(20 * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=6.5, x=0.01, ha="left")
    return axes


def interval(run: RunResult, measure: Measure, alpha: float) -> tuple[float, float]:
    """Return Student's t interval of a mean over queries; NaN for other summaries."""
    values = np.array([*run.per_query[str(measure)].values()])
    if not is_mean(measure) or len(values) < 2:
        return math.nan, math.nan
    found = t_test(values).confidence_interval(1 - alpha)
    return float(found.low), float(found.high)


def draw_points(result: EvaluationResult, settings: ComparisonSettings) -> Any:
    """Draw a panel per measure: means and intervals, runs below each other, values beside them."""
    runs, compared = result.runs, result.comparison
    names = [fill(run.name, LONGEST) for run in runs]
    across = min(ACROSS, len(result.measures))
    down = math.ceil(len(result.measures) / across)
    lines = sum(name.count("\n") + 1.35 for name in names)
    size = (3.4 if across == 1 else 7.0, 0.35 + down * (0.55 + 0.135 * lines))
    grid = np.ravel(new_axes(*size, down, across, sharex=False))
    for axes, measure in zip_longest(grid, result.measures):
        if measure is None:
            axes.set_visible(False)
            continue
        for row, run in enumerate(runs):
            value, name = run.summary[str(measure)], str(measure)
            ink = TEXT if compared and run.name == compared.baseline else INKS[0]
            axes.plot(interval(run, measure, settings.alpha), (row, row), color=ink, lw=1.1)
            axes.plot(value, row, "o", color=ink, ms=4)
            label = number(measure, value, 3)
            if compared and (found := compared.differences.get(run.name, {}).get(name)):
                p = f"={found.corrected:.3f}" if found.corrected >= 5e-4 else "<0.001"
                label += f"{DAGGER * compared.significant(run.name, name)} p{p}"
            if compared and run.name == compared.baseline:
                axes.axvline(value, color=TEXT, lw=0.7, ls=(0, (4, 3)))
            side = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 7}
            axes.text(1.02, row, label, **side)
        axes.set_title(measure, fontsize=8.5 if len(str(measure)) < 22 else 6.5, loc="left")
        axes.set_yticks(range(len(runs)), names)
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.tick_params(length=0, labelsize=7.5)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(visible=False, axis="y")
    return grid[0]


def draw_curves(result: EvaluationResult, settings: ComparisonSettings) -> Any:
    """Draw a measure over its cut-offs: a curve per run with the band of its intervals."""
    compared, few = result.comparison, len(result.runs) <= FEW
    axes = new_axes(3.4, 2.8 + 0.16 * len(result.runs)) if few else new_axes(7, 3.2)
    depths = [int(measure["cutoff"]) for measure in result.measures]
    means = {run.name: [run.summary[str(m)] for m in result.measures] for run in result.runs}
    points = {name: list(zip(depths, values, strict=True)) for name, values in means.items()}
    lines = {fill(name, LONGEST): line for name, line in points.items()}
    draw_lines(axes, lines, "upper left" if few else "right upper")
    for line, run in zip(list(axes.lines), result.runs, strict=True):
        bands = zip(*(interval(run, m, settings.alpha) for m in result.measures), strict=True)
        axes.fill_between(depths, *bands, color=line.get_color(), alpha=0.13 if few else 0.05, lw=0)
        for (depth, value), measure in zip(points[run.name], result.measures, strict=True):
            tested = compared and str(measure) in compared.differences.get(run.name, {})
            if compared and tested and not compared.significant(run.name, str(measure)):
                marker, color = line.get_marker(), line.get_color()
                axes.plot(depth, value, marker, ms=4, color=color, mfc="white")
    axes.set(xscale="log", xlabel="depth", ylabel=str(result.measures[0]).partition("@")[0])
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    return axes
