import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.evaluation.plot_scales import STEPS, Scale, around, told_bytes, told_milliseconds

values = st.floats(1e-6, 1e9)


@given(values, st.floats(1.001, 1e6), st.booleans())
def test_ends_stand_at_the_ends_and_ticks_between_them(
    low: float, factor: float, log: bool
) -> None:
    scale = Scale(low, low * factor, 10.0, 90.0, log)
    assert math.isclose(scale(low), 10.0, abs_tol=1e-6)
    assert math.isclose(scale(low * factor), 90.0, abs_tol=1e-6)
    ticks = scale.ticks()
    assert ticks == sorted(set(ticks))
    assert all(10 - 1e-3 <= scale(tick) <= 90 + 1e-3 for tick in ticks)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_linear_ticks_are_round_and_equally_far_apart(low: float, span: float) -> None:
    ticks = Scale(low, low + span, 0.0, 1.0).ticks()
    assert 2 <= len(ticks) <= 7
    step = ticks[1] - ticks[0]
    digit = step / 10.0 ** math.floor(math.log10(step * (1 + 1e-6)))
    assert any(math.isclose(digit, round_one, rel_tol=1e-4) for round_one in STEPS)


def test_room_is_left_around_values() -> None:
    assert around([2.0]) == (1.84, 2.16)
    assert around([0.0]) == (-0.08, 0.08)
    low, high = around([10.0, 1e6], log=True)
    assert low < 10.0 < 1e6 < high


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (told_bytes(999), "999 bytes"),
        (told_bytes(1000), "1 kB"),
        (told_bytes(27_163_521_024), "27.2 GB"),
        (told_milliseconds(999), "999 ms"),
        (told_milliseconds(12_345), "12.3 s"),
    ],
)
def test_in_words(told: str, expected: str) -> None:
    assert told == expected
