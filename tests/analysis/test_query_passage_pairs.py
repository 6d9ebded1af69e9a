import numpy as np
import pytest

from denserk.analysis.query_passage_pairs import choose_pairs
from denserk.config.analysis import WinningVectorSettings
from denserk.config.formats import DETECTED
from denserk.data.sampling import choose_items
from denserk.errors import InputError, MismatchError
from tests.reporters import Heard

RUN = "q1 Q0 d5 1 1 t\nq1 Q0 d3 2 3 t\nq1 Q0 d1 3 2 t\nq3 Q0 d10 1 1 t\nq3 Q0 d1 2 1 t\n"


def chosen(toy, **more):
    (toy / "run.trec").write_text(RUN)
    given = {"model": ("m",), "topics": str(toy / "queries.tsv"), **more}
    settings = WinningVectorSettings(corpus=str(toy / "corpus.jsonl"), **given)
    pairs = choose_pairs(settings, None, DETECTED)
    named = {
        name: [(pairs.queries[q].qid, pairs.passages[p].docid) for q, p in rows]
        for name, rows in pairs.sets.items()
    }
    for rows in pairs.sets.values():
        assert (np.diff(rows[:, 1]) >= 0).all()
    return named


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1, [("q2", "d1"), ("q1", "d3"), ("q3", "d4"), ("q2", "d5")]), (2, [("q2", "d1")])],
)
def test_positives_from_a_grade_on(toy, level, expected):
    found = chosen(toy, qrels=str(toy / "qrels.txt"), relevance_level=level)
    assert found == {"positive": expected}


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, [("q1", "d3"), ("q3", "d10")]),
        (2, [("q1", "d1"), ("q3", "d1"), ("q1", "d3"), ("q3", "d10")]),
    ],
)
def test_the_best_of_a_run_by_score_then_by_name(toy, depth, expected):
    assert chosen(toy, run=str(toy / "run.trec"), depth=depth) == {"retrieved": expected}


def test_both_look_at_the_same_queries(toy):
    found = chosen(toy, qrels=str(toy / "qrels.txt"), run=str(toy / "run.trec"), depth=1)
    assert found == {
        "positive": [("q1", "d3"), ("q3", "d4")],
        "retrieved": [("q1", "d3"), ("q3", "d10")],
    }


def test_queries_are_drawn_of_those_that_have_passages(toy):
    found = chosen(toy, run=str(toy / "run.trec"), depth=1, sample=1, seed=4)
    (row,) = choose_items(np.arange(2), 1, seed=4)
    assert [qid for qid, _ in found["retrieved"]] == [("q1", "q3")[row]]


def test_passages_that_are_nowhere_are_told(toy):
    warnings = []

    class Told(Heard):
        def warn(self, text):
            warnings.append(text)

    (toy / "more.txt").write_text("q1 0 d3 1\nq1 0 x1 1\nq2 0 x2 1\n")
    Told()
    found = chosen(toy, qrels=str(toy / "more.txt"))
    assert found == {"positive": [("q1", "d3")]}
    corpus = toy / "corpus.jsonl"
    assert warnings == [f"passages that {corpus} does not hold are left out: 2 of 3 (x1, x2)"]


@pytest.mark.parametrize(
    ("qrels", "said"),
    [
        ("zz 0 d1 1\n", "no query of .* has a passage in .*other.txt"),
        ("q1 0 d1 0\n", "no query of .* has a passage in"),
        ("q1 0 x1 1\n", "corpus.jsonl holds none of the positive passages of"),
    ],
)
def test_nothing_in_common(toy, qrels, said):
    (toy / "other.txt").write_text(qrels)
    with pytest.raises(MismatchError, match=said):
        chosen(toy, qrels=str(toy / "other.txt"))


def test_a_broken_run(toy):
    (toy / "broken.trec").write_text("q1 Q0 d1 1 x t\n")
    with pytest.raises(InputError, match=r"broken\.trec, line 1: found score 'x'"):
        chosen(toy, run=str(toy / "broken.trec"))
