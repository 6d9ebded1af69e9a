import xml.etree.ElementTree as ElementTree

import pytest

from denserk.evaluation.markup import Html
from denserk.evaluation.plots import (
    BOTTOM,
    DASHES,
    HEIGHT,
    INKS,
    LEFT,
    MARKS,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Series,
    distribution_plot,
    line_plot,
    mark,
    point_plot,
    swatch,
)

UNIT = Axis("depth", (1, 100), log=True), Axis("recall", (0, 1))


def parsed(svg: Html) -> ElementTree.Element:
    """SVG is XML, so that a parser finds what is not closed."""
    return ElementTree.fromstring(svg)


def test_lines_go_through_their_points() -> None:
    points = ((1.0, 0.0), (10.0, 0.5), (100.0, 1.0))
    svg = parsed(line_plot("label", [Series("<a>", points)], *UNIT))
    (line,) = svg.iter("polyline")
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    found = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert found == [(LEFT, HEIGHT - BOTTOM), middle, (WIDTH - RIGHT, TOP)]
    assert [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in svg.iter("circle")] == found
    assert [title.text for title in svg.iter("title")] == ["<a>"]
    assert svg.attrib["aria-label"] == "label"


def test_everything_drawn_lies_inside_the_frame() -> None:
    series = [Series(str(n), ((10.0**n, 0.1 * n),)) for n in range(1, 8)]
    svg = parsed(point_plot("label", series, Axis("size", log=True), Axis("nDCG@10")))
    marks = [*svg.iter("circle"), *svg.iter("polygon")]
    assert len(marks) == 7
    for circle in svg.iter("circle"):
        assert LEFT < float(circle.attrib["cx"]) < WIDTH - RIGHT
        assert TOP < float(circle.attrib["cy"]) < HEIGHT - BOTTOM


def test_a_series_without_points_keeps_its_ink() -> None:
    series = [Series("none", ()), Series("one", ((1.0, 1.0),))]
    svg = parsed(point_plot("label", series, Axis("x"), Axis("y")))
    assert [g.attrib["class"] for g in svg.iter("g")] == ["ink1"]


def test_outlines_are_as_high_as_their_shares() -> None:
    svg = parsed(distribution_plot("label", [0.0, 1.0, 2.0], [[1.0, 0.0], [0.5, 0.5]], Axis("s")))
    one, two = (path.attrib["d"] for path in svg.iter("path"))
    floor, left, right = HEIGHT - BOTTOM, LEFT, WIDTH - RIGHT
    top = floor - (floor - TOP) / 1.05
    half, middle = floor - (floor - top) / 2, (left + right) / 2
    assert (
        one
        == f"M{left:.1f} {floor:.1f}V{top:.1f}H{middle:.1f}V{floor:.1f}H{right:.1f}V{floor:.1f}Z"
    )
    assert (
        two
        == f"M{left:.1f} {floor:.1f}V{half:.1f}H{middle:.1f}V{half:.1f}H{right:.1f}V{floor:.1f}Z"
    )


def test_many_series_are_told_apart() -> None:
    looks = {swatch(number) for number in range(24)}
    assert len(looks) == 24
    assert (INKS, len(DASHES), len(MARKS)) == (8, 5, 6)


@pytest.mark.parametrize("number", range(len(MARKS)))
def test_marks_stand_around_their_place(number: int) -> None:
    shape = ElementTree.fromstring(mark(number, 50, 50, 10))
    if MARKS[number] == "circle":
        assert (shape.attrib["cx"], shape.attrib["cy"]) == ("50.0", "50.0")
        return
    corners = [tuple(map(float, c.split(","))) for c in shape.attrib["points"].split()]
    for axis in (0, 1):
        places = [corner[axis] for corner in corners]
        assert 35 < min(places) < 50 < max(places) < 65
