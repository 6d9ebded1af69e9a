from itertools import combinations, pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.training import CacheSettings
from denserk.data.batches import pad
from denserk.training import batching
from denserk.training.batching import (
    GRAIN,
    UNLIMITED,
    Limits,
    Work,
    ends_of_groups,
    group,
    items_at_once,
)

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
    batch, work = pad(texts, 0), Work()
    with patch.dict(batching.PRICES, cpu=16):
        groups = group(batch, limits, work)
    found = [row[mask].tolist() for part in groups.batches for row, mask in zip(*part, strict=True)]
    assert [found[place] for place in groups.back] == texts
    rows = torch.cat(groups.rows)
    assert [texts[row] for row in rows] == found
    positions = sum(part.input_ids.numel() for part in groups.batches)
    assert (work.tokens, work.real, work.positions) == (sum(lengths), sum(lengths), positions)
    assert all(part.attention_mask.any(0).all() for part in groups.batches)


def test_one_group_keeps_the_order():
    groups = group(pad([[5], [5, 6], [5, 6, 7]], 0), UNLIMITED)
    assert [rows.tolist() for rows in groups.rows] == [[0, 1, 2]]


def test_what_is_read_again_is_no_further_text():
    work = Work()
    assert work.padding == 0.0
    work.count([4, 2])
    work.count([3], again=True)
    assert (work.tokens, work.real, work.positions) == (6, 9, 11)
    assert work.padding == pytest.approx(2 / 11)


@pytest.mark.parametrize(
    ("cache", "items"),
    [
        (CacheSettings(p_chunk=3), 4),
        (CacheSettings(grad_cache=True, p_chunk=7), 2),
        (CacheSettings(grad_cache=True, p_chunk=2), 1),
        (CacheSettings(grad_cache=True, chunk_tokens=100), 3),
    ],
)
def test_chunks_of_whole_items(cache, items):
    assert items_at_once(cache, 3, pad([[5] * 10] * 12, 0)) == items
