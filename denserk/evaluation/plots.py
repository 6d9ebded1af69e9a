"""Small plots as SVG: lines, points, two distributions; pure functions of numbers.

Inks are classes that the page's style sheet colours for light, dark and paper; series differ by
ink, dash and mark together, so that none of them is needed to tell two apart.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from denserk.evaluation.markup import Html, join, tag
from denserk.evaluation.plot_scales import Scale, around

WIDTH, HEIGHT = 420, 290
LEFT, RIGHT, TOP, BOTTOM = 66, 26, 12, 44
INKS = 8
"""Classes ink0 to ink7 of the style sheet."""
DASHES = (None, "7 3", "2 3", "9 3 2 3", "5 2")
MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus")


@dataclass(frozen=True)
class Series:
    """The points of one run: (x, y), in the order in which a line joins them."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Axis:
    """What stands along one side.

    Attributes:
        title: what is measured.
        ends: the values at both ends; around the points where None.
        log: whether it is logarithmic.
        told: a value in words.
    """

    title: str
    ends: tuple[float, float] | None = None
    log: bool = False
    told: Callable[[float], str] = "{:g}".format


def line_plot(label: str, series: Sequence[Series], across: Axis, up: Axis) -> Html:
    """Lines, a mark on each point."""
    x, y = _scales(series, across, up)
    drawn = [
        tag(
            "g",
            tag("title", one.name),
            tag(
                "polyline",
                points=" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in one.points),
                stroke_dasharray=DASHES[number % len(DASHES)],
                class_="line",
            ),
            (mark(number, x(a), y(b), size=3) for a, b in one.points),
            class_=_ink(number),
        )
        for number, one in enumerate(series)
    ]
    return _svg(label, _frame(x, y, across, up), drawn)


def point_plot(label: str, series: Sequence[Series], across: Axis, up: Axis) -> Html:
    """One mark a run, large enough to be told apart; a series without points is left out.

    The number of a series, and with it ink and mark, is its place among all of them.
    """
    x, y = _scales([one for one in series if one.points], across, up)
    drawn = [
        tag(
            "g",
            tag("title", f"{one.name}: {across.told(a)}, {up.told(b)}"),
            mark(number, x(a), y(b), size=6),
            class_=_ink(number),
        )
        for number, one in enumerate(series)
        for a, b in one.points
    ]
    return _svg(label, _frame(x, y, across, up), drawn)


def distribution_plot(
    label: str, edges: Sequence[float], shares: Sequence[Sequence[float]], across: Axis
) -> Html:
    """Outlines of distributions over the same bins.

    Args:
        label: what it shows, for those who do not see it.
        edges: (n + 1,), ascending.
        shares: for each distribution (n,), the share of each bin.
        across: the axis of the values; its ends are those of the bins.
    """
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    most = max(max(bins) for bins in shares)
    y = Scale(0.0, most * 1.05 or 1.0, HEIGHT - BOTTOM, TOP)
    drawn = [
        tag(
            "path",
            d=_outline(edges, bins, x, y),
            stroke_dasharray=DASHES[number],
            class_=f"{_ink(number)} area",
        )
        for number, bins in enumerate(shares)
    ]
    return _svg(label, _frame(x, y, across, Axis("share", told="{:.0%}".format)), drawn)


def _outline(edges: Sequence[float], bins: Sequence[float], x: Scale, y: Scale) -> str:
    steps = [f"M{x(edges[0]):.1f} {y(0):.1f}"]
    for share, right in zip(bins, edges[1:], strict=True):
        steps.append(f"V{y(share):.1f}H{x(right):.1f}")
    return "".join([*steps, f"V{y(0):.1f}Z"])


def swatch(number: int, *, line: bool = True) -> Html:
    """A series' ink, dash and mark, to stand in a legend."""
    dash = DASHES[number % len(DASHES)]
    stroke = tag("line", x1=1, y1=8, x2=31, y2=8, stroke_dasharray=dash, class_="line")
    return tag(
        "svg",
        tag("g", stroke if line else "", mark(number, 16, 8, size=4.5), class_=_ink(number)),
        viewBox="0 0 32 16",
        class_="swatch",
        aria_hidden="true",
    )


def mark(number: int, x: float, y: float, size: float) -> Html:
    """The mark of a series, its centre at (x, y), about 2 `size` wide."""
    kind = MARKS[number % len(MARKS)]
    if kind == "circle":
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{size:g}", class_="mark")
    corners = " ".join(f"{x + a * size:.1f},{y + b * size:.1f}" for a, b in _corners(kind))
    return tag("polygon", points=corners, class_="mark")


def _corners(kind: str) -> Sequence[tuple[float, float]]:
    if kind == "square":
        return (-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)
    if kind == "triangle":
        return (0, -1.2), (1.1, 0.8), (-1.1, 0.8)
    if kind == "diamond":
        return (0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)
    arm = 0.35
    plus = [(arm, -1.2), (arm, -arm), (1.2, -arm), (1.2, arm), (arm, arm), (arm, 1.2)]
    plus += [(-a, -b) for a, b in plus]
    if kind == "plus":
        return plus
    turn = math.sqrt(0.5)
    return [((a - b) * turn, (a + b) * turn) for a, b in plus]


def _ink(number: int) -> str:
    return f"ink{number % INKS}"


def _scales(series: Sequence[Series], across: Axis, up: Axis) -> tuple[Scale, Scale]:
    points = [point for one in series for point in one.points]
    xs = across.ends or around([a for a, _ in points], log=across.log)
    ys = up.ends or around([b for _, b in points], log=up.log)
    return (
        Scale(*xs, LEFT, WIDTH - RIGHT, across.log),
        Scale(*ys, HEIGHT - BOTTOM, TOP, up.log),
    )


def _frame(x: Scale, y: Scale, across: Axis, up: Axis) -> Iterator[Html]:
    """Grid, ticks and titles."""
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in y.ticks():
        at = f"{y(tick):.1f}"
        yield tag("line", x1=LEFT, x2=right, y1=at, y2=at, class_="grid")
        yield tag("text", up.told(tick), x=LEFT - 7, y=f"{y(tick) + 4:.1f}", class_="end")
    for tick in x.ticks(most=5):
        at = f"{x(tick):.1f}"
        yield tag("line", x1=at, x2=at, y1=TOP, y2=floor, class_="grid")
        yield tag("text", across.told(tick), x=at, y=floor + 17, class_="middle")
    yield tag("line", x1=LEFT, x2=right, y1=floor, y2=floor, class_="axis")
    yield tag("text", across.title, x=(LEFT + right) / 2, y=HEIGHT - 6, class_="middle title")
    middle = (TOP + floor) / 2
    turned = f"translate(13 {middle:g}) rotate(-90)"
    yield tag("text", up.title, transform=turned, class_="middle title")


def _svg(label: str, *content: Html | Iterator[Html] | Sequence[Html]) -> Html:
    return tag(
        "svg",
        join(*content),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=label,
        class_="plot",
    )
