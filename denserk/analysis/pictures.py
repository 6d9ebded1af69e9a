"""What all pictures share: their type, the file they go to, the package that draws them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from denserk.extras import installed, require
from denserk.formats.files import whole_binary
from denserk.reporting import Reporter

FONT = 8.5
"""Points."""
LETTER = 0.6 * FONT / 72
"""Inches that a letter takes."""


def new_figure(width: float, height: float, purpose: str, rows: int = 1) -> Any:
    """The axes of a new figure; of several rows, an array of them that share both scales.

    Args:
        width: in inches.
        height: in inches.
        purpose: what needs the package, as a noun phrase.
        rows: axes above each other.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", purpose)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure.subplots(rows, sharex=True, sharey=True)


def save(figure: Any, path: Path) -> None:
    """Writes a figure as PNG, PDF or SVG, by the file's suffix.

    Raises:
        OutputError: it cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.removeprefix("."), dpi=300)
    with whole_binary(path) as handle:
        handle.write(buffer.getbuffer())


def draw_if_installed(
    draw: Callable[[Path], None], what: str, path: Path | None, reporter: Reporter
) -> None:
    """Draws a picture that was not asked for by name: where there is a path, and matplotlib.

    Args:
        draw: writes it to a path.
        what: what it shows, as a plural ("the curves").
        path: the file; None draws nothing.
        reporter: told where it is, or why there is none.
    """
    if path is None:
        return
    if installed("matplotlib"):
        draw(path)
        reporter.note(f"{what} are in {path}")
    else:
        reporter.note("no plot: matplotlib is not installed (pip install 'denserk[report]')")
