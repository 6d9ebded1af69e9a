import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.analysis.latency import percentiles, time_each

TIMES = st.lists(st.floats(0, 1e3), min_size=1, max_size=150)


@given(TIMES, st.sampled_from([1, 25, 50, 99, 100]))
def test_a_percentile_is_the_smallest_time_that_so_many_do_not_exceed(times, wanted):
    (found,) = percentiles(np.array(times), (wanted,))
    ranked = sorted(times)
    assert found == ranked[math.ceil(wanted * len(times) / 100) - 1]


def test_the_clock_starts_and_stops_when_the_device_has_finished(monkeypatch):
    """A clock that only work and waiting move: 3 for the work's tail, which `finish` waits for."""
    clock, pending, order = [0.0], [5.0], []

    def work(item):
        order.append(item)
        pending[0] = 3.0

    def finish():
        clock[0] += pending[0]
        pending[0] = 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert time_each(work, "ab", finish).tolist() == [3.0, 3.0]
    assert order == ["a", "b"]


def test_no_item_no_time():
    assert time_each(pytest.fail, [], lambda: None).shape == (0,)
