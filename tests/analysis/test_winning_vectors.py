from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from denserk.analysis.winning_vectors import KEPT_APART, add_counts, vector_names, winners
from denserk.modeling.similarity import PassageVectors, max_similarity, vector_scores
from denserk.settings.encoding import Reduction, Representation, RepresentationSettings


def literal(query, vectors, mask):
    """Equation 2 by hand: the first of the highest among real vectors."""
    best, place = -float("inf"), None
    for number, (vector, real) in enumerate(zip(vectors, mask, strict=True)):
        score = sum(q * v for q, v in zip(query, vector, strict=True))
        if real and score > best:
            best, place = score, number
    return place


def test_winners_are_those_of_the_maximum():
    draw = torch.Generator().manual_seed(3)
    queries = torch.randint(-2, 3, (40, 3), generator=draw).float()  # small: many ties
    values = torch.randint(-2, 3, (40, 4, 3), generator=draw).float()
    mask = torch.rand(40, 4, generator=draw) < 0.7
    mask[:, 0] = True
    won = winners(queries, PassageVectors(values, mask))
    arguments = (queries.tolist(), values.tolist(), mask.tolist())
    assert won.tolist() == [literal(*each) for each in zip(*arguments, strict=True)]
    scores = vector_scores(queries, values)[torch.arange(40), torch.arange(40)]
    best = max_similarity(scores[:, None])
    free = winners(queries, PassageVectors(values))
    assert torch.equal(scores.gather(1, free[:, None]), best)


def test_what_is_no_number_wins_as_none():
    values = torch.tensor([[[1.0], [float("nan")]], [[1.0], [2.0]]])
    assert winners(torch.ones(2, 1), PassageVectors(values)).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("kind", "by_cls", "names"),
    [
        ("mlr", True, ["12", "10", "0"]),
        ("me-bert", True, ["0", "1", "2"]),
        ("me-bert", False, ["mean", "0", "1"]),
        ("colbert", True, ["0", "1", "2"]),
    ],
)
def test_vectors_are_named_as_they_stand(kind, by_cls, names):
    maker: Any = SimpleNamespace(
        settings=RepresentationSettings(Representation(kind)), by_cls=by_cls, layers=(12, 10, 0)
    )
    assert vector_names(maker, 3) == names


def test_counts_grow_to_the_longest_passage():
    counts = np.zeros(0, dtype=np.int64)
    for winning, size in (([1, 1], 2), ([3], 5), ([0], 1)):
        counts = add_counts(counts, winning, size)
    assert counts.tolist() == [1, 2, 0, 1, 0]


def test_reductions_either_keep_vectors_apart_or_make_one():
    assert set(Reduction) - set(KEPT_APART) == {Reduction.AVERAGE, Reduction.SCALAR_MIX}
