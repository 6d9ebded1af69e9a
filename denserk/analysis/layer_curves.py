"""A quantity of each layer as a picture: one curve a model, named at its end, readable in grey."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from denserk.analysis.pictures import FONT, LETTER, new_figure, save

INKS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#a06c00")
"""Colours that stay apart for colour-blind eyes; in grey, marks and dashes tell curves apart."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (9, 2, 3, 2)))
SIZE = (4.0, 3.2)
"""Inches without the names, which widen the picture; many of them make it higher."""
LINE = 1.25 * FONT / 72
"""Inches that a name takes."""


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones (least squares), in their order and at least `gap` apart.

    All lie between `low` and `high`, where there is room.

    >>> spread([1.0, 1.0, 5.0], gap=2.0, low=-9.0, high=9.0)
    [0.0, 2.0, 5.0]
    >>> spread([1.0, 1.0, 5.0], gap=2.0, low=0.5, high=5.0)
    [0.5, 2.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    pools: list[tuple[float, int]] = []  # mean place and size; neighbours too near are pooled
    for rank, i in enumerate(order):
        mean, size = wanted[i] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    highest = max(low, high - gap * (len(wanted) - 1))
    flat = [min(max(mean, low), highest) for mean, size in pools for _ in range(size)]
    places = dict(zip(order, (place + r * gap for r, place in enumerate(flat)), strict=True))
    return [places[i] for i in range(len(wanted))]


def draw(curves: Mapping[str, Sequence[float]], quantity: str, path: Path) -> None:
    """Writes curves over layers 1 to L as PNG, PDF or SVG, by the file's suffix.

    Args:
        curves: the curve's name -> a value a layer.
        quantity: what the values are, with their unit.
        path: the file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: it cannot be written.
    """
    width = SIZE[0] + LETTER * max(map(len, curves))
    height = max(SIZE[1], LINE * len(curves) + 1)
    axes = new_figure(width, height, "drawing curves")
    looks = zip(cycle(INKS), cycle(MARKS), cycle(DASHES), strict=False)
    for values, (ink, mark, dash) in zip(curves.values(), looks, strict=False):
        layers = range(1, len(values) + 1)
        axes.plot(
            layers, values, color=ink, marker=mark, ls=dash, lw=1.3, ms=4.5, mec="white", mew=0.5
        )
    axes.set_xlabel("layer", fontsize=FONT)
    axes.set_ylabel(quantity, fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    axes.locator_params(axis="x", nbins=13, integer=True, min_n_ticks=1)
    axes.grid(alpha=0.3, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _name(axes, curves, height - 0.6)
    save(axes.figure, path)


def _name(axes: Any, curves: Mapping[str, Sequence[float]], inches: float) -> None:
    """Writes every curve's name to the right of all, a thin line leading there from its end."""
    bottom, top = axes.get_ylim()
    gap = (top - bottom) * LINE / inches
    ends = [values[-1] for values in curves.values()]
    longest = max(len(values) for values in curves.values())
    right = longest + 0.06 * max(longest - 1, 1)
    for (name, values), place in zip(curves.items(), spread(ends, gap, bottom, top), strict=True):
        axes.annotate(
            name,
            (len(values), values[-1]),
            (right, place),
            color="black",
            fontsize=FONT,
            va="center",
            parse_math=False,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "0.55",
                "lw": 0.5,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 4,
            },
        )
