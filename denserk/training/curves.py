"""Training curves: the log of a run, drawn over its steps."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.plots import new_axes, series_style
from denserk.training.trainer import EVAL

# heights in inches of the panels
LOSS_PANEL = 2.6
MEASURE_PANEL = 1.3
DEV_LOSS = f"{EVAL}dev-loss"
LEAST_SPAN = 0.1  # of the axis of a measure between 0 and 1: small gains look small

History = Sequence[Mapping[str, Any]]


def draw_curves(history: History) -> Any:
    """Draw the log of a run over the steps: losses in one panel, each measure in a panel below.

    Training losses are smoothed over a tenth of the log, in front of the raw values in light
    colour.
    """
    names = list(dict.fromkeys(chain.from_iterable(history)))
    measures = [name for name in names if name.startswith(EVAL) and name != DEV_LOSS]
    heights = [LOSS_PANEL] + [MEASURE_PANEL] * len(measures)
    panels = new_axes(
        *(5.5, 0.5 + sum(heights)),
        *(len(heights), 1),
        sharey=False,
        squeeze=False,
        height_ratios=heights,
    )
    loss_axes, *measure_axes = panels[:, 0]
    _draw_losses(loss_axes, history, names)
    for axes, name in zip(measure_axes, measures, strict=True):
        _draw_measure(axes, history, name)
    panels[-1, 0].set_xlabel("step")
    return loss_axes


def _draw_losses(axes: Any, history: History, names: Sequence[str]) -> None:
    """Draw the training loss, its parts if there are several, and the development loss."""
    parts = [name for name in names if name.startswith("loss_")]
    labels = {"loss": "training"}
    if len(parts) > 1:
        labels |= {name: f"training: {name.removeprefix('loss_')}" for name in parts}
    for number, (name, label) in enumerate(labels.items()):
        steps, values = _points(history, name)
        style = series_style(number)
        axes.plot(steps, values, color=style["color"], lw=0.8, alpha=0.3)
        style.pop("marker")
        axes.plot(steps, _smoothed(values), label=label, lw=1.4, **style)
    if DEV_LOSS in names:
        steps, values = _points(history, DEV_LOSS)
        axes.plot(steps, values, label="development", lw=1.4, ms=4, **series_style(len(labels)))
    axes.set_ylabel("loss")
    axes.legend(loc="upper right", ncols=2, title="smoothed; light: as logged", title_fontsize=7)


def _draw_measure(axes: Any, history: History, name: str) -> None:
    """Draw a measure of the development set."""
    steps, values = _points(history, name)
    axes.plot(steps, values, lw=1.4, ms=4, **series_style(0))
    axes.set_ylabel(name.removeprefix(EVAL).replace("-", " "))
    is_share = values.min() >= 0 and values.max() <= 1
    missing_span = LEAST_SPAN - (values.max() - values.min())
    if is_share and missing_span > 0:
        low = max(0.0, values.min() - missing_span / 2)
        axes.set_ylim(low, low + LEAST_SPAN)


def _points(history: History, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps at which a quantity was logged, and its values."""
    entries = [entry for entry in history if name in entry]
    steps = np.array([entry["step"] for entry in entries], dtype=np.float64)
    values = np.array([entry[name] for entry in entries], dtype=np.float64)
    return steps, values


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of values over a window of a tenth of them, which is cut at the ends."""
    window = np.ones(max(1, len(values) // 10))
    counts = np.convolve(np.ones(len(values)), window, "same")
    return np.convolve(values, window, "same") / counts
