import pytest

from denserk.training.curves import draw, names_of, series

HISTORY = [
    {"step": 2, "loss": 3.0, "loss_a": 2.0, "loss_b": 1.0, "learning_rate": 0.1},
    {"step": 3, "eval_RR@10": 0.2, "eval_dev-loss": 2.0},
    {"step": 4, "loss": 2.0, "loss_a": 1.5, "loss_b": 0.5, "learning_rate": 0.05},
    {"step": 6, "eval_RR@10": 0.4, "eval_dev-loss": 1.0},
]


def test_series_are_steps_and_values():
    assert series(HISTORY, "loss") == ([2, 4], [3.0, 2.0])
    assert series(HISTORY, "eval_RR@10") == ([3, 6], [0.2, 0.4])
    assert series(HISTORY, "absent") == ([], [])


def test_names_in_the_order_of_their_first_appearance():
    assert names_of(HISTORY, "loss_") == ["loss_a", "loss_b"]
    assert names_of(HISTORY, "eval_") == ["eval_RR@10", "eval_dev-loss"]


def drawn(history, path, figures):
    """The figure that was saved, as its axes."""
    draw(history, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    return figures[0].axes


def lines(axis):
    return [(line.get_label(), list(line.get_ydata())) for line in axis.lines]


def test_every_quantity_has_its_curve(tmp_path, figures):
    loss, rate, *dev = drawn(HISTORY, tmp_path / "curves.png", figures)
    assert lines(loss) == [("loss", [3.0, 2.0]), ("a", [2.0, 1.5]), ("b", [1.0, 0.5])]
    assert [values for _, values in lines(rate)] == [[0.1, 0.05]]
    assert [axis.get_ylabel() for axis in dev] == ["RR@10", "dev-loss"]
    assert [values for axis in dev for _, values in lines(axis)] == [[0.2, 0.4], [2.0, 1.0]]


@pytest.mark.parametrize("history", [[], HISTORY[:1], HISTORY[1:2]], ids=["none", "loss", "dev"])
def test_short_logs_are_drawn_too(tmp_path, history):
    pytest.importorskip("matplotlib")
    draw(history, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").is_file()


def test_one_part_is_the_loss_itself(tmp_path, figures):
    one = [{key: v for key, v in entry.items() if key != "loss_b"} for entry in HISTORY]
    assert len(lines(drawn(one, tmp_path / "curves.png", figures)[0])) == 1


def test_the_legend_stands_above_the_curves_and_names_every_part(tmp_path, figures):
    parts = {f"loss_{number}": float(number) for number in range(8)}
    history = [{"step": 1, "loss": 28.0, "learning_rate": 0.1, **parts}]
    axis = drawn(history, tmp_path / "curves.png", figures)[0]
    assert len(axis.lines) == len(axis.get_legend().get_texts()) == 9
    box = axis.get_legend().get_window_extent()
    assert box.y0 >= axis.get_window_extent().y1
    assert len({(line.get_color(), line.get_linestyle()) for line in axis.lines}) == 9
