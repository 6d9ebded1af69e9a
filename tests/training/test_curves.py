"""Training curves."""

import pytest

from denserk.io.plots import style
from denserk.training.run_folder import draw_curves

HISTORY = [
    {"step": 2, "loss": 3.0, "loss_a": 2.0, "loss_b": 1.0, "learning_rate": 0.1},
    {"step": 3, "eval_RR@10": 0.2, "eval_dev-loss": 2.0},
    {"step": 4, "loss": 2.0, "loss_a": 1.5, "loss_b": 0.5, "learning_rate": 0.05},
    {"step": 6, "eval_RR@10": 0.4, "eval_dev-loss": 1.0},
]


def drawn(history):
    """The axes of all quantities, drawn by matplotlib."""
    pytest.importorskip("matplotlib")
    with style():
        figure = draw_curves(history).figure
        figure.canvas.draw()
    return figure.axes


def lines(axis):
    return [(line.get_label(), list(line.get_ydata())) for line in axis.lines]


def test_every_quantity_has_its_curve():
    loss, rate, *dev = drawn(HISTORY)
    assert lines(loss) == [("loss", [3.0, 2.0]), ("a", [2.0, 1.5]), ("b", [1.0, 0.5])]
    assert [values for _, values in lines(rate)] == [[0.1, 0.05]]
    assert [axis.get_ylabel() for axis in dev] == ["RR@10", "dev-loss"]
    assert [values for axis in dev for _, values in lines(axis)] == [[0.2, 0.4], [2.0, 1.0]]
    assert loss.get_ylim() != rate.get_ylim()


@pytest.mark.parametrize("history", [[], HISTORY[:1], HISTORY[1:2]], ids=["none", "loss", "dev"])
def test_short_logs_are_drawn_too(history):
    assert len(drawn(history)) == 2 + 2 * ("eval_RR@10" in history[0] if history else 0)


def test_one_part_is_the_loss_itself():
    one = [{key: v for key, v in entry.items() if key != "loss_b"} for entry in HISTORY]
    assert len(lines(drawn(one)[0])) == 1


def test_the_legend_names_every_part():
    parts = {f"loss_{number}": float(number) for number in range(8)}
    axis = drawn([{"step": 1, "loss": 28.0, "learning_rate": 0.1, **parts}])[0]
    (legend,) = axis.figure.legends
    assert len(axis.lines) == len(legend.get_texts()) == 9
