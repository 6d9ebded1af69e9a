import pytest

from denserk.analysis.share_bars import TICKS, WRITTEN, draw_shares


def bars(axes):
    return [(round(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in axes.patches]


def test_a_row_of_bars_for_each_set_at_the_places_of_all_names(tmp_path, figures):
    shares = {"two $x$": {"10": 0.25, "12": 0.75}, "three": {"2": 0.0, "9": 0.5, "12": 0.5}}
    draw_shares(shares, "layer", tmp_path / "p.png")
    first, second = figures[0].axes
    assert [label.get_text() for label in second.get_xticklabels()] == ["2", "9", "10", "12"]
    assert bars(first) == [(2, 25.0), (3, 75.0)]
    assert bars(second) == [(0, 0.0), (1, 50.0), (3, 50.0)]
    assert [text.get_text() for text in second.texts] == ["0.0", "50.0", "50.0"]
    assert [axes.get_title("left") for axes in (first, second)] == list(shares)
    assert second.get_xlabel() == "layer"


def test_a_name_that_is_no_number_stands_first(tmp_path, figures):
    draw_shares({"m": {"mean": 0.5, "0": 0.25, "1": 0.25}}, "token", tmp_path / "p.pdf")
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mean", "0", "1"]


@pytest.mark.parametrize("count", [1, WRITTEN, WRITTEN + 1, 128])
def test_many_bars_lose_their_figures_and_some_names(tmp_path, figures, count):
    draw_shares({"m": {str(i): 1 / count for i in range(count)}}, "token", tmp_path / "p.png")
    (axes,) = figures[0].axes
    assert len(axes.patches) == count
    assert len(axes.texts) == (count if count <= WRITTEN else 0)
    assert min(count, 2) <= len(axes.get_xticks()) <= TICKS
