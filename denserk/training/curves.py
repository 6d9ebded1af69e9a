"""Training curves: the log of a run, drawn over its steps."""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.plots import new_axes, series_style
from denserk.training.trainer import EVAL

# heights in inches of the panels
LOSS_PANEL = 2.4
LOWER_PANEL = 1.1


def draw_curves(history: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the log of a run in panels over the steps: loss, learning rate, each validation.

    Losses are smoothed over a tenth of the log, above the raw values in light colour.
    """
    panels = _panels(history)
    heights = [LOSS_PANEL] + [LOWER_PANEL] * (len(panels) - 1)
    grid = new_axes(5.5, 0.5 + sum(heights), len(panels), sharey=False, height_ratios=heights)
    loss_axes, rate_axes, *_ = grid
    for axes, names in zip(grid, panels, strict=True):
        for number, name in enumerate(names):
            points = [(entry["step"], entry[name]) for entry in history if name in entry]
            steps, values = np.array(points).T
            style = series_style(number)
            if axes is loss_axes:
                axes.plot(steps, values, color=style["color"], lw=0.8, alpha=0.3)
                values = _smoothed(values)
            markers_every = ceil(len(steps) / 10)
            label = "total" if name == "loss" else name.removeprefix("loss_")
            axes.plot(steps, values, label=label, lw=1.4, ms=4, markevery=markers_every, **style)
        axes.set_ylabel(names[0].removeprefix(EVAL).replace("_", " "))
    rate_axes.ticklabel_format(axis="y", scilimits=(0, 0))
    if len(panels[0]) > 1:
        loss_axes.legend(loc="upper right", ncols=2)
    grid[-1].set_xlabel("step")
    return loss_axes


def _panels(history: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the names of the quantities of each panel: losses, learning rate, a measure each."""
    names = list(dict.fromkeys(chain.from_iterable(history)))
    losses = ["loss"]
    parts = [name for name in names if name.startswith("loss_")]
    if len(parts) > 1:
        losses += parts
    measures = [[name] for name in names if name.startswith(EVAL)]
    return [losses, ["learning_rate"], *measures]


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of values over a window of a tenth of them, which is cut at the ends."""
    window = np.ones(max(1, len(values) // 10))
    counts = np.convolve(np.ones(len(values)), window, "same")
    return np.convolve(values, window, "same") / counts
