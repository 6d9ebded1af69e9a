"""Shares as a picture: rows of bars, one below the other; readable in grey."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from denserk.analysis.pictures import FONT, new_figure, save

ROW, BAR, WIDTH = 1.15, 0.42, 3.2
"""Inches: a row's height, a bar with the room around it, and the least width of the picture."""
WRITTEN = 16
"""Up to so many bars in a row, each has its share above it in figures."""
TICKS = 24
"""At most so many names below the bars."""


def draw_shares(shares: Mapping[str, Mapping[str, float]], quantity: str, path: Path) -> None:
    """Writes shares as PNG, PDF or SVG, by the file's suffix.

    Args:
        shares: what a row is called -> name of a bar -> its share, 0 to 1.
        quantity: what the bars' names are.
        path: the file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: it cannot be written.
    """
    names = sorted({name for each in shares.values() for name in each}, key=_place)
    longest = max(map(len, shares)) * 0.55 * FONT / 72 + 0.8
    width = min(max(WIDTH, longest, BAR * len(names) + 0.8), 9)
    made = new_figure(width, ROW * len(shares) + 0.5, "drawing shares", rows=len(shares))
    rows = np.atleast_1d(made)
    for axes, (title, each) in zip(rows, shares.items(), strict=True):
        _draw_row(axes, names, title, each)
    highest = max(share for each in shares.values() for share in each.values())
    rows[-1].set_ylim(0, 118 * highest)  # shared by all, as the names are
    rows[-1].locator_params(axis="y", nbins=3)
    rows[-1].yaxis.set_major_formatter("{x:g} %")
    step = -(-len(names) // TICKS)
    rows[-1].set_xticks(range(0, len(names), step), names[::step])
    rows[-1].set_xlim(-0.7, len(names) - 0.3)
    rows[-1].set_xlabel(quantity, fontsize=FONT)
    save(rows[-1].figure, path)


def _place(name: str) -> tuple[bool, int]:
    """Numbers in their order, after a name that is none."""
    return name.isdecimal(), int(name) if name.isdecimal() else 0


def _draw_row(axes: Any, names: list[str], title: str, shares: Mapping[str, float]) -> None:
    own = [name for name in names if name in shares]
    heights = [100 * shares[name] for name in own]
    axes.bar([names.index(name) for name in own], heights, width=0.7, color="0.35")
    if len(names) <= WRITTEN:
        for name, height in zip(own, heights, strict=True):
            axes.annotate(
                f"{height:.1f}",
                (names.index(name), height),
                (0, 1.5),
                textcoords="offset points",
                ha="center",
                fontsize=FONT - 1.5,
            )
    axes.set_title(title, fontsize=FONT, loc="left", parse_math=False)
    axes.tick_params(labelsize=FONT - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", alpha=0.3, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
