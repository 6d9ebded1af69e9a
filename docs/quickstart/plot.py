"""Draws runs' measures as bars.

`denserk eval ... --format json | python docs/quickstart/plot.py PNG`
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

INKS = ("#0072b2", "#d55e00", "#009e73")
"""Colours that stay apart for colour-blind eyes and in print."""
HEIGHT = 0.42
"""Inches a bar."""


def draw(told: Mapping[str, Any], path: Path) -> None:
    """One panel a measure, one bar a run, in the order given, each with its value.

    Args:
        told: what `denserk eval --format json` prints.
        path: the picture.
    """
    names = [run["run"] for run in told["runs"]]
    measures = list(told["runs"][0]["measures"])
    size = (3 * len(measures) + 1, HEIGHT * len(names) + 1)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for panel, measure, ink in zip(panels, measures, INKS, strict=False):
        values = [run["measures"][measure] for run in told["runs"]]
        bars = panel.barh(names, values, color=ink, height=0.6)
        panel.bar_label(bars, fmt="%.3f", padding=3)
        panel.set_xlim(0, max(values) * 1.25)
        panel.set_title(f"{measure}, {told['queries']:,} questions", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Draws what comes on standard input into the file named on the command line."""
    draw(json.load(sys.stdin), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
