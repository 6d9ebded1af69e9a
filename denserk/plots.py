"""Plots with matplotlib in one style: written to a file, or as images of an HTML page."""

import io
import logging
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from denserk.extras import installed, require
from denserk.io.written_files import whole_binary

logger = logging.getLogger(__name__)

# colour-blind safe; series also differ by marker and dash, so they differ in grey
INKS = ("#0066a6", "#c14a00", "#00795a", "#a8478a", "#7d6200", "#4b45a8", "#5c6670", "#a3182f")
MARKERS = ("o", "s", "^", "D", "X", "P")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 2)))
TEXT = "#1b1f24"
LEAST_GAP = 0.16  # inches between two names
NEAR_WIDTH = 0.9  # inches; a point so near on the right would lie in a name
INNER = 0.83  # of a figure's height is that of its axes, about
POINTS_PER_INCH = 72
STYLE: Any = {
    "font.size": 8.5,
    "figure.constrained_layout.use": True,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "grid.color": "#d5dae0",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), TEXT),
    **dict.fromkeys(("xtick.color", "ytick.color"), TEXT),
    "text.parse_math": False,  # names of models and runs may hold $
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "denserk",  # the same plot has the same bytes
}


def style() -> Any:
    """Return a context manager that applies denserk's plot style."""
    return require("matplotlib", "drawing plots").rc_context(STYLE)


def new_axes(width: float, height: float, rows: int = 1, columns: int = 1, **shape: Any) -> Any:
    """Return the axes of a new figure of that size in inches; an array of them if several."""
    from matplotlib.figure import Figure

    shape = {"sharex": True, "sharey": True, **shape}
    return Figure(figsize=(width, height)).subplots(rows, columns, **shape)


def series_style(number: int) -> dict[str, Any]:
    """Return colour, marker and dash of the n-th series of a plot."""
    return {
        "color": INKS[number % len(INKS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
    }


def draw_lines(
    axes: Any, lines: Mapping[str, Sequence[tuple[float, float]]], legend: str = "right upper"
) -> None:
    """Draw named lines of (x, y) points, with a legend at that side of the axes."""
    for number, points in enumerate(lines.values()):
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, lw=1.4, ms=4, **series_style(number))
    # labels are passed here because matplotlib hides those that begin with "_"
    axes.figure.legend(axes.lines, list(lines), loc=f"outside {legend}")


class NamedPoint(NamedTuple):
    """A point with a name; points are sorted by height."""

    height: float
    position: float
    name: str


def write_names(axes: Any, points: Sequence[NamedPoint]) -> None:
    """Write the names of points beside them, above each other where they are near.

    From the lowest point to the highest, a name moves up until it is `LEAST_GAP` above the one
    before, wherever that is from left to right. It stands right of its point, or left of it where
    another point would lie in the name. The limits of the axes have to be set before.
    """
    low, high = axes.get_ylim()
    inches = axes.figure.get_figheight() * INNER
    least_gap = LEAST_GAP / inches * (high - low)
    points = sorted(points)
    next_height = low
    for point in points:
        text_height = max(point.height, next_height)
        next_height = text_height + least_gap
        inches_above = (text_height - point.height) / (high - low) * inches
        is_left = _has_point_on_the_right(axes, point, points)
        axes.annotate(
            point.name,
            (point.position, point.height),
            (-7 if is_left else 7, inches_above * POINTS_PER_INCH + 3),
            textcoords="offset points",
            ha="right" if is_left else "left",
            fontsize=7.5,
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.6},
        )


def _has_point_on_the_right(axes: Any, point: NamedPoint, points: Sequence[NamedPoint]) -> bool:
    """Return whether another point lies near on the right, at about the same height."""
    to_share = axes.transData + axes.transAxes.inverted()
    width = axes.figure.get_figwidth()
    height = axes.figure.get_figheight()
    left, bottom = to_share.transform((point.position, point.height))
    for other in points:
        other_left, other_bottom = to_share.transform((other.position, other.height))
        is_level = abs(other_bottom - bottom) * height < LEAST_GAP
        if is_level and 0 < (other_left - left) * width < NEAR_WIDTH:
            return True
    return False


def save_if_installed(draw: Callable[[], Any], what: str, path: Path | None) -> None:
    """Write the axes that `draw` returns as PNG, PDF or SVG, where matplotlib is installed."""
    if path is None:
        return
    if not installed("matplotlib"):
        logger.info("no plot: matplotlib is not installed (pip install matplotlib)")
        return
    buffer = io.BytesIO()
    with style():
        draw().figure.savefig(buffer, format=path.suffix.removeprefix("."), dpi=300)
    with whole_binary(path) as handle:
        handle.write(buffer.getvalue())
    logger.info(f"{what} are in {path}")


def as_image(axes: Any, label: str) -> str:
    """Return a figure as an HTML image with its SVG inside; the label is for screen readers."""
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    data = b64encode(buffer.getvalue()).decode()
    return f'<img class="plot" alt="{escape(label)}" src="data:image/svg+xml;base64,{data}">'
