import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.formats.decimals import format_decimals, parse_decimals

WRITTEN = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e4, 1e4).map("{:.6f}".format),
    st.floats(-1e4, 1e4).map("{:.9g}".format),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["0", "5.", ".5", "+1", "-0", "1e5", "00012.50", "123456789012345.6"]),
)


def parse(numbers):
    text = np.frombuffer(" ".join(numbers).encode() + bytes(24), np.uint8)
    lengths = np.array([len(number) for number in numbers])
    ends = np.cumsum(lengths + 1) - 1
    return parse_decimals(text, ends - lengths, ends)


@given(st.lists(WRITTEN, min_size=1, max_size=40))
def test_every_number_is_what_float_makes_of_it(numbers):
    expected = np.array([float(number) for number in numbers])
    np.testing.assert_array_equal(parse(numbers).view(np.int64), expected.view(np.int64))


@pytest.mark.parametrize("broken", ["x", "1.2.3", ".", "--1", "1,5", "0x10", "1-2"])
def test_what_is_no_number(broken):
    with pytest.raises(ValueError, match="could not convert"):
        parse(["1.25", broken])


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(-1e4, 1e4),
    st.integers(-(10**10), 10**10).map(float),
    st.integers(-(10**10), 10**10).map(lambda number: number / 2**20),
    st.sampled_from([0.0, -0.0, 1e-4, 9.9999999995e-5, 0.1, 99999999.95, 1e8, 1.000000005]),
)


def formatted(numbers):
    return [row.tobytes().replace(b"\0", b"") for row in format_decimals(np.array(numbers))]


@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_every_number_is_written_as_python_writes_it(numbers):
    assert formatted(numbers) == [b"%.9g" % number for number in numbers]


def test_halves_between_two_numbers_of_nine_digits():
    numbers = [
        (whole + 0.5) / 2**power for whole in range(200_000_000, 200_000_200) for power in (0, 3)
    ]
    assert formatted(numbers) == [b"%.9g" % number for number in numbers]
