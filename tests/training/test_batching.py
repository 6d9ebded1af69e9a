from itertools import combinations, pairwise
from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.batches import pad
from denserk.training import steps
from denserk.training.steps import GRAIN, Limits, Work, ends_of_groups, group

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=9).map(
    lambda lengths: sorted(lengths, reverse=True)
)
LIMITS = st.builds(Limits, st.none() | st.integers(1, 5), st.none() | st.integers(1, 200))


def cost(lengths, ends, price):
    return sum((end - start) * lengths[start] + price for start, end in pairwise([0, *ends]))


@given(LENGTHS, st.integers(1, 100))
def test_no_other_cut_is_cheaper(lengths, price):
    """Every way to cut, between texts whose lengths count as different."""
    found = ends_of_groups(lengths, price)
    places = [
        n for n in range(1, len(lengths)) if -(-lengths[n] // GRAIN) != -(-lengths[n - 1] // GRAIN)
    ]
    ways = [w for count in range(len(places) + 1) for w in combinations(places, count)]
    assert cost(lengths, found, price) == min(
        cost(lengths, [*way, len(lengths)], price) for way in ways
    )


@given(LENGTHS, LIMITS, st.integers(1, 100))
def test_limits_hold_and_every_text_is_in_one_group(lengths, limits, price):
    ends = ends_of_groups(lengths, price, limits)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(lengths)
    for start, end in pairwise([0, *ends]):
        assert limits.texts is None or end - start <= limits.texts
        tokens = (end - start) * lengths[start]
        assert limits.tokens is None or end - start == 1 or tokens <= limits.tokens


@given(st.lists(st.integers(1, 64), min_size=1, max_size=9), LIMITS)
def test_a_batch_is_the_same_texts_in_another_order(lengths, limits):
    texts = [[7 + number] * length for number, length in enumerate(lengths)]
    work = Work()
    with patch.dict(steps.PRICES, cpu=16):
        groups = group(pad(texts, 0), work, limits)
    found = [row[mask].tolist() for part in groups.batches for row, mask in zip(*part, strict=True)]
    assert [found[place] for place in groups.back] == texts
    assert [texts[row] for row in torch.cat(groups.rows)] == found
    positions = sum(part.input_ids.numel() for part in groups.batches)
    assert (work.tokens, work.real, work.positions) == (sum(lengths), sum(lengths), positions)
    assert all(part.attention_mask.any(0).all() for part in groups.batches)
