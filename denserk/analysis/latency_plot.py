"""Times as a picture: a row a model, a dot a time, marks at the percentiles; readable in grey."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.analysis.latency import PERCENTILES, percentiles
from denserk.analysis.pictures import FONT, LETTER, new_figure, save

ROW, WIDTH = 0.75, 5.0
"""Inches: a model's row, and the picture without the models' names."""
MIDDLE = 0.21
"""Rows from a row's number down to the middle of its dots."""
BEYOND = 1.15
"""The axis ends at this multiple of the highest 99th percentile; what is slower is counted."""
GOLDEN = (5**0.5 - 1) / 2
"""Its multiples spread evenly over [0, 1), whatever their number: the dots' heights."""


def draw_times(times: Mapping[str, NDArray[np.float64]], quantity: str, path: Path) -> None:
    """Writes the times of several models as PNG, PDF or SVG, by the file's suffix.

    Args:
        times: the model's name -> its times, (N,).
        quantity: what they are, with their unit.
        path: the file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: it cannot be written.
    """
    width = WIDTH + LETTER * max(map(len, times))
    axes = new_figure(width, ROW * len(times) + 0.8, "drawing times")
    marks = [percentiles(each) for each in times.values()]
    limit = BEYOND * max(mark[-1] for mark in marks)
    for row, (each, mark) in enumerate(zip(times.values(), marks, strict=True)):
        _draw_row(axes, row, each, mark, limit)
    places = [row + MIDDLE for row in range(len(times))]
    axes.set_yticks(places, list(times), fontsize=FONT, parse_math=False)
    axes.set_ylim(len(times) - 0.5, -0.35)
    axes.set_xlim(0, limit)
    axes.set_xlabel(quantity, fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3, lw=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(axes.figure, path)


def _draw_row(
    axes: Any, row: int, times: NDArray[np.float64], marks: Sequence[float], limit: float
) -> None:
    """A model's dots, its percentiles above them, and how many times lie beyond the axis."""
    heights = (np.arange(len(times)) * GOLDEN) % 1
    axes.plot(
        times, row + 0.06 + 0.3 * heights, ls="", marker="o", ms=2.2, mew=0, color="0.25", alpha=0.3
    )
    for percentile, mark in zip(PERCENTILES, marks, strict=True):
        wide = percentile == 50
        axes.plot([mark, mark], [row, row + 2 * MIDDLE], color="black", lw=1.8 if wide else 0.9)
    _write_marks(axes, row, marks, limit)
    slower = times[times > limit]
    if len(slower):
        axes.annotate(
            f"{len(slower)} slower,\nup to {slower.max():.3g}",
            (limit, row + MIDDLE),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=FONT - 1.5,
            annotation_clip=False,
        )


def _write_marks(axes: Any, row: int, marks: Sequence[float], limit: float) -> None:
    """The percentiles in figures: left of the first, above the middle, right of the last.

    Where the three would run into each other, one line tells them all.
    """
    low, middle, high = marks
    room = 0.07 * limit
    if min(middle - low, high - middle) >= room:
        sides = ((low, "right"), (middle, "center"), (high, "left"))
        texts = [(mark, side, f"{mark:.3g}") for mark, side in sides]
    else:
        texts = [(middle, "center" if middle > 3 * room else "left", _together(marks))]
    for place, side, text in texts:
        axes.annotate(text, (place, row - 0.06), ha=side, va="bottom", fontsize=FONT - 0.5)


def _together(marks: Sequence[float]) -> str:
    return " | ".join(f"{mark:.3g}" for mark in marks)
