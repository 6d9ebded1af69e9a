from dataclasses import replace

import pytest

from denserk.evaluation.choice import (
    Choice,
    Cost,
    Outcome,
    SystemResult,
    UndecidedDifference,
    sentence,
    undecided_sentence,
)
from denserk.evaluation.choice_page import cost_axis, draw_choice, write_page
from denserk.plots import style

LEADER = SystemResult("<b>one</b>", "one", True, 50, 0.6, 0.0, 0.0, 0.0, cost=Cost(5.0, 100.0, 1.0))
SECOND = SystemResult("two", "two", True, 50, 0.59, -0.01, -0.1, 0.08, cost=Cost(2.0, 10.0, 1.0))
THIRD = SystemResult("three", "three", False, 25, 0.2, -0.4, -0.6, -0.1, cost=Cost(2.1))
OPEN = UndecidedDifference("two", 0.01, 0.2, 500)


@pytest.fixture
def choice():
    systems = (LEADER, SECOND, THIRD)
    commands = ("denserk search --index '<i>'",)
    return Choice("nDCG@10", 0.05, Outcome.UNDECIDED, 2, 50, 50, systems, (OPEN,), commands)


def test_what_is_decided(choice):
    assert choice.best == ("<b>one</b>", "two")
    assert choice.cheapest.name == "two"
    assert "undecided" in sentence(choice)
    assert "one</b> is the best" in sentence(replace(choice, outcome=Outcome.DECIDED))
    assert "the time is over" in sentence(replace(choice, outcome=Outcome.BUDGET))


def test_what_would_decide(choice):
    assert "about 450 more queries" in undecided_sentence(OPEN, choice)
    rough = undecided_sentence(replace(OPEN, needed_queries=179, is_rough=True), choice)
    assert rough.startswith("very roughly 130 more queries")
    assert "a few more" in undecided_sentence(replace(OPEN, needed_queries=50), choice)
    assert "too few queries" in undecided_sentence(replace(OPEN, needed_queries=None), choice)
    equal = replace(OPEN, difference=0.0, needed_queries=None)
    assert "the same mean" in undecided_sentence(equal, choice)


def test_the_page_escapes_what_it_shows(choice, tmp_path):
    write_page(tmp_path / "index.html", choice)
    page = (tmp_path / "index.html").read_text()
    assert "<b>one" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;one" in page


def test_costs_of_the_picture():
    assert cost_axis([LEADER, SECOND, THIRD]).positions == [5.0, 2.0, 2.1]
    without_times = [replace(LEADER, cost=Cost(None, 100.0)), SECOND]
    assert cost_axis(without_times).label == "bytes a passage"
    assert cost_axis([replace(LEADER, cost=Cost()), THIRD]).label == ""


def test_names_do_not_cover_each_other(choice):
    with style():
        figure = draw_choice(choice).figure
        figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 3
    for first in boxes:
        assert sum(first.overlaps(box) for box in boxes) == 1


def test_names_do_not_cover_points_near_them(choice):
    near_leader = replace(SECOND, name="a rather long name", difference=-0.012, cost=Cost(4.6))
    with style():
        figure = draw_choice(replace(choice, systems=(LEADER, near_leader, THIRD))).figure
        figure.draw_without_rendering()
        [axes] = figure.axes
    [name] = [text for text in axes.texts if text.get_text() == near_leader.name]
    point_of_leader = axes.transData.transform((5.0, LEADER.mean))
    assert not name.get_window_extent().contains(*point_of_leader)
