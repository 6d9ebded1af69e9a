"""Packing against the walk that Condenser's preparation describes."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.pretraining_data import block_limits, pack, windows
from denserk.data.sampling import Purpose, random_words

LENGTHS = st.lists(st.integers(0, 12), max_size=20)


@given(LENGTHS, st.lists(st.integers(1, 15), min_size=21, max_size=21))
def test_packing_restated(lengths, limits):
    blocks, block, drawn = [], 0, iter(limits)
    limit = next(drawn)
    for length in lengths:
        if block and block + length > limit:
            blocks.append(block)
            block, limit = 0, next(drawn)
        block += length
    assert pack(lengths, limits) == [*blocks, block][: len(blocks) + (block > 0)]


@given(st.integers(0, 100), st.integers(1, 12))
def test_windows_are_whole_but_the_last(length, size):
    found = windows(length, size)
    assert sum(found) == length
    assert all(part == size for part in found[:-1])
    assert all(0 < part <= size for part in found[-1:])


def test_limits():
    draws = random_words(1, Purpose.BLOCK, np.arange(1), 0, 40_000)[0]
    limits = block_limits(draws, 20, 0.1)
    short = limits[limits < 20]
    expected = 40_000 * 0.1 * 19 / 20
    assert abs(len(short) - expected) < 5 * math.sqrt(expected)
    counts = np.bincount(short, minlength=20)[1:]
    assert (abs(counts - len(short) / 19) < 5 * math.sqrt(len(short) / 19)).all()
    assert (block_limits(draws, 20, 0.0) == 20).all()
