"""Keys against Python's sort of tuples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from denserk.index.hits import NO_HIT, hit_keys, hits_of, in_order

SCORES = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf])
HITS = st.lists(st.tuples(SCORES, st.integers(0, 2**32 - 2)), max_size=20)


@given(HITS)
def test_sorted_keys_are_hits_in_order(hits):
    scores, rows = (
        np.array([s for s, _ in hits], np.float32),
        np.array([r for _, r in hits], np.int64),
    )
    found = hits_of(np.sort(hit_keys(scores, rows)))
    right = sorted(zip(scores.tolist(), rows.tolist(), strict=True), key=lambda h: (-h[0], h[1]))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == right


def test_what_is_no_hit_stands_last():
    scores, rows = in_order(np.array([[-np.inf, -9, 2]], np.float32), np.array([[-1, 4, 5]]))
    assert scores.tolist() == [[2, -9, -np.inf]]
    assert rows.tolist() == [[5, 4, -1]]
    assert hit_keys(np.ones(1, np.float32), np.array([-1])).tolist() == [int(NO_HIT)]
