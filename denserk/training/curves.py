"""The log of a run as a picture: loss and its parts, learning rate, validation."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denserk.extras import require
from denserk.formats.files import whole_binary

HIDDEN = ("loss", "grad_norm", "learning_rate", "epoch", "step")
FEW = 40
"""Points up to which each is marked."""
INKS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#999999",
    "#f0e442",
)
"""Colours that stay apart for colour-blind eyes and in print."""


def series(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one quantity of the log."""
    entries = [entry for entry in history if name in entry]
    return [int(entry["step"]) for entry in entries], [float(entry[name]) for entry in entries]


def names_of(history: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """The quantities of the log that begin so, in the order of their first appearance."""
    return list(dict.fromkeys(n for entry in history for n in entry if n.startswith(prefix)))


def draw(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the curves of a run's log as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: it cannot be written.
    """
    require("matplotlib", "drawing curves")
    from matplotlib.figure import Figure

    dev = names_of(history, "eval_")
    figure = Figure(figsize=(7, 2.4 * (2 + len(dev))), layout="constrained")
    axes = figure.subplots(2 + len(dev), 1, sharex=True, squeeze=False)[:, 0]
    parts = names_of(history, "loss_")
    for ink, name in zip(INKS, ["loss", *parts] if len(parts) > 1 else ["loss"], strict=False):
        points = series(history, name)
        marker = "." if len(points[0]) <= FEW else None
        axes[0].plot(*points, color=ink, marker=marker, label=name.removeprefix("loss_"))
    axes[0].set_ylabel("training loss")
    if len(parts) > 1:
        axes[0].legend(  # above the axes: inside it would cover a curve
            frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0
        )
    axes[1].plot(*series(history, "learning_rate"), color=INKS[0])
    axes[1].set_ylabel("learning rate")
    axes[1].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axis, name in zip(axes[2:], dev, strict=True):
        axis.plot(*series(history, name), color=INKS[2], marker="o", markersize=3)
        axis.set_ylabel(name.removeprefix("eval_"))
    axes[-1].set_xlabel("step")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    with whole_binary(path) as handle:
        handle.write(buffer.getbuffer())
