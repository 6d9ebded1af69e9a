import pytest

from denserk.errors import DenserkError
from denserk.formats.training_records import (
    Losses,
    count_losses,
    join_neighbours,
    need_ids,
    need_texts,
    pairs,
)
from denserk.records import Candidate, TrainingExample


def line(qid, positive, negative):
    return TrainingExample(qid, "", (Candidate(positive),), (Candidate(negative),))


def test_neighbours_of_one_query_join_and_others_do_not():
    lines = [line("1", "a", "x"), line("1", "b", "x"), line("2", "a", "y"), line("1", "c", "z")]
    joined = [
        (e.qid, [c.docid for c in e.positives], [c.docid for c in e.negatives])
        for e in join_neighbours(lines)
    ]
    assert joined == [("1", ["a", "b"], ["x"]), ("2", ["a"], ["y"]), ("1", ["c"], ["z"])]


def test_pairs_are_every_positive_with_every_negative():
    a, b, x, y = map(Candidate, "abxy")
    losses = Losses()
    example = TrainingExample("1", "q", (a, b), (x, y))
    assert list(pairs(example, losses)) == [(a, x), (a, y), (b, x), (b, y)]
    assert list(pairs(example._replace(negatives=()), losses)) == []
    assert losses == {"examples without a positive or without a negative": 1}


def test_losses_are_counted_by_name():
    candidates = (Candidate("d1", "one", "", 2.0, {"rank": 3}), Candidate("d2", "two", "head"))
    example = TrainingExample("1", "q", candidates[:1], candidates[1:], ("a", "b"), {"prompt": "p"})
    losses = Losses()
    count_losses(example, losses, {"text"})
    assert +losses == {
        "passage ids": 2,
        "titles": 1,
        "scores": 1,
        "answers": 2,
        "rank": 1,
        "prompt": 1,
    }


@pytest.mark.parametrize(
    ("need", "example", "hint"),
    [
        (need_texts, TrainingExample("1", "", (), ()), "--queries"),
        (need_texts, TrainingExample("1", "q", (Candidate("d1"),), ()), "--corpus"),
        (need_ids, TrainingExample("1", "q", (Candidate(text="one"),), ()), "tevatron"),
    ],
)
def test_what_is_missing_is_told_with_what_brings_it(need, example, hint):
    with pytest.raises(DenserkError) as caught:
        need(example)
    assert hint in str(caught.value.hint)
