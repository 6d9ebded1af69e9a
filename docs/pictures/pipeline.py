"""Draw docs/pictures/pipeline.svg: `python docs/pictures/pipeline.py [FILE]`."""

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

TRAIN, DENSE, SPARSE, MEASURE, DATA = "#8e44ad", "#1f6fb2", "#b8651b", "#2b8a4b", "#5f6b76"
TOP, MIDDLE, BOTTOM = 2.7, 1.4, 0.0
COLUMN = 2.45  # from one column to the next
WIDE, HIGH = 1.56, 0.56  # of a box

COMMANDS = [  # column, row, text, colour
    (0, TOP, "pretrain", TRAIN),
    (1, TOP, "finetune", TRAIN),
    (3, TOP, "mine-negatives", TRAIN),
    (1, MIDDLE, "encode", DENSE),
    (2, MIDDLE, "index", DENSE),
    (3, MIDDLE, "search", DENSE),
    (4, MIDDLE, "fuse, rerank", DENSE),
    (5, MIDDLE, "eval", MEASURE),
    (2, BOTTOM, "index (BM25)", SPARSE),
    (3, BOTTOM, "search", SPARSE),
]
FILES = [(0, MIDDLE, "corpus"), (5, TOP, "qrels"), (5, BOTTOM, "measures,\np-values")]
ARROWS = [  # from column and row, to column and row, label
    ((0, MIDDLE), (0, TOP), ""),
    ((0, TOP), (1, TOP), "backbone"),
    ((3, TOP), (1, TOP), "hard negatives"),
    ((1, TOP), (1, MIDDLE), "model"),
    ((0, MIDDLE), (1, MIDDLE), ""),
    ((1, MIDDLE), (2, MIDDLE), "vectors"),
    ((2, MIDDLE), (3, MIDDLE), "index"),
    ((3, MIDDLE), (4, MIDDLE), "run"),
    ((3, MIDDLE), (3, TOP), "run"),
    ((4, MIDDLE), (5, MIDDLE), "run"),
    ((5, TOP), (5, MIDDLE), ""),
    ((5, MIDDLE), (5, BOTTOM), ""),
    ((2, BOTTOM), (3, BOTTOM), "index"),
]


def box(axes: Axes, column: float, row: float, text: str, colour: str, *, command: bool) -> None:
    """Draw a command (filled) or a file (outlined)."""
    x, style = column * COLUMN, "round,pad=0,rounding_size=0.12" if command else "square,pad=0"
    face, ink = (colour, "white") if command else ("white", colour)
    corner = (x - WIDE / 2, row - HIGH / 2)
    axes.add_patch(
        FancyBboxPatch(corner, WIDE, HIGH, boxstyle=style, facecolor=face, edgecolor=colour)
    )
    axes.text(x, row, text, color=ink, ha="center", va="center", fontsize=10)


def arrow(axes: Axes, points: list[tuple[float, float]]) -> None:
    """Draw a line through points that ends in an arrowhead."""
    if len(points) > 2:
        axes.plot(*zip(*points[:-1], strict=True), color=DATA, lw=1.3, solid_joinstyle="round")
    end = {"arrowstyle": "-|>", "color": DATA, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", points[-1], points[-2], arrowprops=end)


def draw(path: Path) -> None:
    """Draw the commands, the files between them, and BM25 beside the dense path."""
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["svg.hashsalt"] = "pipeline"
    mpl.rcParams["font.family"] = ["DejaVu Sans"]
    figure = Figure(figsize=(10.6, 3.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.95, 5 * COLUMN + 0.95), ylim=(-0.4, 3.1))
    axes.axis("off")
    for (column, row), (to_column, to_row), label in ARROWS:
        x, to_x = column * COLUMN, to_column * COLUMN
        right = (to_x > x) - (to_x < x)
        up = (to_row > row) - (to_row < row)
        start = (x + right * WIDE / 2, row + up * HIGH / 2)
        end = (to_x - right * WIDE / 2, to_row - up * HIGH / 2)
        arrow(axes, [start, end])
        where = (
            (start[0] + end[0]) / 2 + 0.08 * abs(up),
            (start[1] + end[1]) / 2 + 0.06 * abs(right),
        )
        across, along = ("center", "bottom") if right else ("left", "center")
        axes.text(*where, label, color=DATA, fontsize=8.5, ha=across, va=along)
    gap = (COLUMN - WIDE) / 2
    arrow(axes, [(0, MIDDLE - HIGH / 2), (0, BOTTOM), (2 * COLUMN - WIDE / 2, BOTTOM)])
    arrow(
        axes,
        [(3 * COLUMN + WIDE / 2, BOTTOM), (4 * COLUMN, BOTTOM), (4 * COLUMN, MIDDLE - HIGH / 2)],
    )
    axes.text(
        3 * COLUMN + WIDE / 2 + gap, BOTTOM + 0.06, "run", color=DATA, fontsize=8.5, ha="center"
    )
    between = (MIDDLE + BOTTOM) / 2
    axes.text(3 * COLUMN, between, "queries", color=DATA, fontsize=10, ha="center", va="center")
    for side in (1, -1):
        start = between + side * 0.16
        arrow(
            axes,
            [(3 * COLUMN, start), (3 * COLUMN, between + side * (MIDDLE - between - HIGH / 2))],
        )
    for item in COMMANDS:
        box(axes, *item, command=True)
    for column, row, text in FILES:
        box(axes, column, row, text, DATA, command=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    if path.suffix == ".svg":
        fonts = path.read_text("utf-8").replace(
            "'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif"
        )
        path.write_text(fonts, "utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("pipeline.svg"))
