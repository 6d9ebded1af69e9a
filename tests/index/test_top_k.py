"""Against sorting everything."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from denserk.index.top_k import best_of_each, merge_top_k, ordered, top_k

# few distinct values, so that ties straddle nearly every cut
TIED = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 24)),
    elements=st.integers(-2, 2).map(float),
)


def sorted_by_hand(scores: np.ndarray, depth: int) -> list[list[tuple[float, int]]]:
    """Every row's (score, column), score descending and column ascending, cut."""
    return [
        sorted(((float(s), c) for c, s in enumerate(row)), key=lambda hit: (-hit[0], hit[1]))[
            :depth
        ]
        for row in scores
    ]


def hits(result: tuple[torch.Tensor, torch.Tensor]) -> list[list[tuple[float, int]]]:
    return [
        list(zip(scores, rows, strict=True))
        for scores, rows in zip(result[0].tolist(), result[1].tolist(), strict=True)
    ]


@given(TIED, st.integers(1, 30))
def test_top_k_is_a_cut_sort(scores, depth):
    rows = torch.arange(scores.shape[1])
    found = ordered(*top_k(torch.from_numpy(scores), rows, depth))
    assert hits(found) == sorted_by_hand(scores, depth)


@given(TIED, st.integers(1, 30), st.integers(1, 23))
def test_merging_blocks_is_searching_the_whole(scores, depth, split):
    whole = torch.from_numpy(scores)
    rows = torch.arange(scores.shape[1])
    left = top_k(whole[:, :split], rows[:split], depth)
    right = top_k(whole[:, split:], rows[split:], depth)
    merged = merge_top_k(left, right, depth)
    assert hits(ordered(*merged)) == sorted_by_hand(scores, depth)


@pytest.mark.parametrize("size", [1, 2, 3])
@given(data=st.data())
def test_best_of_each_passage(size, data):
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)) * size)
    scores = data.draw(hnp.arrays(np.float32, shape, elements=st.integers(-2, 2).map(float)))
    best, columns = best_of_each(torch.from_numpy(scores), size)
    for row, best_row, column_row in zip(scores, best.tolist(), columns.tolist(), strict=True):
        passages = row.reshape(-1, size)
        assert best_row == passages.max(1).tolist()
        assert column_row == [i * size + int(p.argmax()) for i, p in enumerate(passages)]
