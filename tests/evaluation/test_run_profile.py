import random

import pytest

from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.run_profile import (
    BINS,
    DEPTHS,
    Hit,
    TopList,
    count_scores,
    mean_recall,
    profile,
)

JUDGEMENTS = {"q1": {"a": 2, "b": 0, "c": 1}, "q2": {"a": 1}, "q3": {"x": 0}}
RUN = {"q1": {"b": 3.0, "c": 2.0, "z": 2.0}, "q2": {"b": 1.0}, "other": {"a": 1.0}}


def test_tops_are_in_trec_evals_order_with_their_grades() -> None:
    found = profile("run", RUN, JUDGEMENTS, list(JUDGEMENTS), 1, ["q1", "q2", "q3"], 2)
    assert found.lists == {
        "q1": TopList((Hit("b", 3.0, 0), Hit("z", 2.0, None)), 3, 3),
        "q2": TopList((Hit("b", 1.0, None),), None, 1),
        "q3": TopList((), None, 0),
    }


def test_recall_is_what_ir_measures_tells() -> None:
    draw = random.Random(7)
    judgements = {
        f"q{q}": {f"d{draw.randrange(60)}": draw.randrange(4) for _ in range(12)} for q in range(9)
    }
    run = {
        f"q{q}": {f"d{d}": float(draw.randrange(9)) for d in draw.sample(range(60), 5 * q + 2)}
        for q in range(8)
    }
    for level in (1, 2):
        found = profile("run", run, judgements, list(judgements), level, [], 1)
        depths = [depth for depth, _ in found.recall]
        assert depths == [*(depth for depth in DEPTHS if depth < 37), 37]
        measures = parse_measures([f"R(rel={level})@{depth}" for depth in depths]).measures
        expected = Evaluator(measures, judgements).evaluate("run", run).summary.values()
        assert [recall for _, recall in found.recall] == pytest.approx(list(expected))


def test_every_score_is_in_its_bin() -> None:
    found = count_scores([1.0, 2.5, 4.0], [0.0, 1.0, 1.0])
    assert found is not None
    assert (len(found.edges), found.edges[0], found.edges[-1]) == (BINS + 1, 0.0, 4.0)
    assert (sum(found.relevant), sum(found.others)) == (3, 3)
    assert [n for n, count in enumerate(found.others) if count] == [0, 7]  # 1.0 / (4.0 / 30)


@pytest.mark.parametrize("scores", [[], [1.0], [2.0, 2.0], [1.0, 1.0000000000000002]])
def test_scores_that_do_not_differ_have_no_bins(scores: list[float]) -> None:
    assert count_scores(scores, []) is None


def test_no_hits_no_recall() -> None:
    assert mean_recall({}, {"q": {"a"}}) == ()
