from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.analysis.layer_curves import DASHES, INKS, MARKS, draw, spread

CURVES = {"a $x$": [1.0, 2.0, 3.0], "b": [3.0, 2.5, 3.01], "_c": [2.0], "d": [2.99, 3.0, 3.0]}


FAR = {"low": -1e9, "high": 1e9}


@given(st.lists(st.floats(-100, 100), max_size=9), st.floats(0, 20))
def test_places_keep_their_distance_order_and_middle(wanted, gap):
    placed = spread(wanted, gap, **FAR)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert (np.diff([placed[i] for i in order]) >= gap - 1e-9).all()
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-6)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=3), st.integers(0, 3))
def test_no_other_places_are_nearer_to_the_wanted_ones(wanted, low):
    """All places on a grid of halves, tried one by one."""
    bounds = {"low": low, "high": 8.0}
    placed = spread(wanted, 2.0, **bounds)

    def cost(places):
        return sum((w - p) ** 2 for w, p in zip(sorted(wanted), places, strict=True))

    grid = np.arange(low, 8.25, 0.5)
    tried = [grid[list(chosen)] for chosen in np.ndindex(*[len(grid)] * len(wanted))]
    allowed = [places for places in tried if (np.diff(places) >= 2).all()]
    assert min(placed) >= low
    assert max(placed) <= 8
    assert cost(sorted(placed)) <= min(map(cost, allowed)) + 1e-9


def test_places_that_are_far_enough_stay():
    assert spread([5.0, 1.0, 3.0], 1.5, 0, 9) == pytest.approx([5.0, 1.0, 3.0])


def test_too_many_places_keep_their_distance_all_the_same():
    assert spread([1.0, 1.0, 1.0], 2.0, 0.0, 3.0) == [0.0, 2.0, 4.0]


def test_every_model_has_its_curve_and_its_name(tmp_path, figures):
    draw(CURVES, "entropy (nats)", tmp_path / "p.png")
    axes = figures[0].axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == list(CURVES.values())
    assert [list(line.get_xdata()) for line in axes.lines][0::2] == [[1, 2, 3], [1]]
    assert [text.get_text() for text in axes.texts] == list(CURVES)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "entropy (nats)")


MANY = {"/a/long/path/to/a/model/" * 3 + str(i): [0.0, 1.0, 2.0 + i / 100] for i in range(30)}


@pytest.mark.parametrize("curves", [CURVES, MANY], ids=["few", "many"])
def test_names_do_not_overlap_and_stand_right_of_the_curves(tmp_path, figures, curves):
    draw(curves, "entropy (nats)", tmp_path / "p.png")
    axes = figures[0].axes[0]
    axes.figure.draw_without_rendering()
    extent = pytest.importorskip("matplotlib.text").Text.get_window_extent  # without the arrow
    boxes = [extent(text) for text in axes.texts]
    ordered = sorted(boxes, key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in pairwise(ordered))
    whole = axes.figure.bbox
    for text, box in zip(axes.texts, boxes, strict=True):
        assert text.xyann[0] > 3
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1


def test_curves_differ_without_their_colour(tmp_path, figures):
    draw({str(i): [1.0, i] for i in range(40)}, "entropy (nats)", tmp_path / "p.png")
    axes = figures[0].axes[0]
    looks = {(line.get_marker(), str(line._dash_pattern)) for line in axes.lines}
    assert len(looks) == len(MARKS) * len(DASHES) == 40
    assert axes.lines[7].get_color() == INKS[7 % len(INKS)]


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_kinds_of_pictures(tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    path = Path(tmp_path / f"p.{suffix}")
    draw(CURVES, "entropy", path)
    assert path.read_bytes().startswith(start)


def test_one_layer_is_drawn_too(tmp_path, figures):
    draw({"one": [1.0]}, "entropy (nats)", tmp_path / "p.png")
    axes = figures[0].axes[0]
    assert [tick for tick in axes.get_xticks() if 0.5 < tick < 1.5] == [1.0]
