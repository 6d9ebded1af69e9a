"""What is let go would not have come back."""

import numpy as np
import pytest

from denserk.index import candidates
from denserk.index.candidates import Candidates
from denserk.index.hit_keys import hits_of


def sorted_by_hand(scores, depth, size):
    """(score, row) of the best row of each passage."""
    best = []
    for first in range(0, len(scores), size):
        part = scores[first : first + size]
        best.append((float(part.max()), first + int(part.argmax())))
    return sorted(best, key=lambda hit: (-hit[0], hit[1]))[:depth]


@pytest.fixture(params=[0, 10_000])
def room(request, monkeypatch):
    """With room for everything, and with hardly any."""
    monkeypatch.setattr(candidates, "HELD", 1)
    monkeypatch.setattr(candidates, "SPARE", request.param)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_best_are_held_in_whatever_order_rows_come(size, parts):
    draw = np.random.default_rng(1)
    scores = draw.integers(-20, 21, (4, 600)).astype(np.float32)  # nearly every cut is a tie
    held = [Candidates(np.full(4, -np.inf, np.float32), 7, size) for _ in range(parts)]
    for number, rows in enumerate(np.split(draw.permutation(600), 12)):
        queries, places = np.divmod(np.arange(4 * len(rows)), len(rows))
        found = rows[places]
        held[number % parts].add(queries, found, scores[queries, found])
    for other in held[1:]:
        held[0].absorb(other)
    keys, misled = held[0].finish()
    assert misled == []
    for line, query in zip(keys, scores, strict=True):
        found_scores, found_rows = hits_of(line)
        hits = list(zip(found_scores.tolist(), found_rows.tolist(), strict=True))
        assert hits == sorted_by_hand(query, 7, size)


def test_a_floor_that_too_few_reach_is_told():
    held = Candidates(np.array([2, 0], np.float32), 3)
    queries, rows = np.repeat([0, 1], 4), np.tile(np.arange(4), 2)
    held.add(queries, rows, np.array([1, 2, 3, 0] * 2, np.float32))
    keys, misled = held.finish()
    assert misled == [0]
    assert hits_of(keys[1])[1].tolist() == [2, 1, 0]
    assert keys.shape == (2, 3)
