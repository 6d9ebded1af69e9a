"""Training curves of a run's log: loss and its parts, learning rate, validation measures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denserk.formats.plots import INKS, look, new_axes, save, style

FEW = 40  # points of a curve up to which each is marked


def series(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of one quantity of the log."""
    entries = [entry for entry in history if name in entry]
    return [int(entry["step"]) for entry in entries], [float(entry[name]) for entry in entries]


def names_of(history: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """Return the logged quantities with a prefix, in the order of their first appearance."""
    return list(dict.fromkeys(n for entry in history for n in entry if n.startswith(prefix)))


def draw(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the curves of a log as PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: the file cannot be written.
    """
    dev, parts = names_of(history, "eval_"), names_of(history, "loss_")
    with style():
        axes = new_axes(7, 2.4 * (2 + len(dev)), 2 + len(dev), sharey=False)
        names = ["loss", *parts] if len(parts) > 1 else ["loss"]
        for number, name in enumerate(names):
            points = series(history, name)
            marker = "." if len(points[0]) <= FEW else None
            label = name.removeprefix("loss_")
            axes[0].plot(*points, **{**look(number), "marker": marker, "label": label})
        axes[0].set_ylabel("training loss")
        if len(parts) > 1:  # the legend is above the axes: inside it would cover a curve
            axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0)
        axes[1].plot(*series(history, "learning_rate"), color=INKS[0])
        axes[1].set_ylabel("learning rate")
        axes[1].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        for axis, name in zip(axes[2:], dev, strict=True):
            axis.plot(*series(history, name), color=INKS[2], marker="o", markersize=3)
            axis.set_ylabel(name.removeprefix("eval_"))
        axes[-1].set_xlabel("step")
        save(axes[0], path)
