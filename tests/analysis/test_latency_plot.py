import numpy as np
import pytest

from denserk.analysis.latency_plot import draw_times

FAST = np.linspace(10, 20, 200)
SLOW = np.concatenate([np.linspace(30, 40, 198), [90.0, 100.0]])


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_every_time_is_a_dot_and_every_percentile_a_mark(tmp_path, figures):
    draw_times({"fast": FAST, "slow $x$": SLOW}, "ms", tmp_path / "p.png")
    (axes,) = figures[0].axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [list(FAST), list(SLOW)]
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() != "o"]
    assert marks == [FAST[1], FAST[99], FAST[197], SLOW[1], SLOW[99], SLOW[197]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "slow $x$"]
    assert axes.get_xlabel() == "ms"
    assert axes.get_xlim()[0] == 0


def test_what_lies_beyond_the_axis_is_counted(tmp_path, figures):
    draw_times({"fast": FAST, "slow": SLOW}, "ms", tmp_path / "p.png")
    (axes,) = figures[0].axes
    assert axes.get_xlim()[1] == pytest.approx(1.15 * 40)
    assert [text for text in texts(axes) if "slower" in text] == ["2 slower,\nup to 100"]


@pytest.mark.parametrize(
    ("times", "written"),
    [
        (np.array([10.0, *[20.0] * 97, 40.0, 40.0]), ["10", "20", "40"]),
        (np.array([10.0, *[10.5] * 97, 11.0, 11.0]), ["10 | 10.5 | 11"]),
        (np.array([1.0]), ["1 | 1 | 1"]),
    ],
)
def test_percentiles_are_written_apart_where_there_is_room(tmp_path, figures, times, written):
    draw_times({"one": times}, "ms", tmp_path / "p.svg")
    assert texts(figures[0].axes[0]) == written


def test_all_that_is_written_lies_in_the_picture(tmp_path, figures):
    pytest.importorskip("matplotlib.text")
    draw_times({"a rather long name of a model": SLOW, "b": FAST}, "ms", tmp_path / "p.png")
    (figure,) = figures
    figure.draw_without_rendering()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
