"""Numbers in a table of text, all at once: exactly what `float` reads and `"%.9g"` writes."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.float64]
Words = NDArray[np.uint64]
"""Eight characters each, the first in the lowest byte."""

DIGITS = 15
"""Decimal digits whose whole number a float64 always holds."""
DOT, ZERO, MINUS = b".0-"
TENS = 10.0 ** np.arange(DIGITS + 1)
DOTS, ZEROS, LOW_BITS, TOP_BITS, ABOVE_NINE = (
    np.uint64(int.from_bytes(bytes([byte] * 8))) for byte in (DOT, ZERO, 0x01, 0x80, 0x80 - 10)
)
PAIRS, FOURS, EIGHTS = (
    np.uint64(mask) for mask in (0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF)
)

NEAR_HALF = 1e-6
"""Ten times the error of a product below 10 ** 9."""
POWERS = 10.0 ** np.arange(-4, 9)
"""Between the first and the last, `%g` writes no exponent and eight digits stand before the dot."""
UNITS = 10.0 ** np.arange(13, 0, -1)
"""By which a number between two of the powers becomes one of nine digits."""
NINE_DIGITS = 10.0**9
NUMBER = np.dtype(
    [
        ("sign", "u1"),
        *((part, "<u4") for part in ("high", "low")),
        ("dot", "u1"),
        *((part, "<u4") for part in ("first", "second", "third")),
    ]
)
"""A number as text, four digits a part, zeros where there is no character."""
_FOUR = (np.arange(10_000)[:, None] // [1000, 100, 10, 1] % 10 + ZERO).astype(np.uint8)
_LED = np.maximum.accumulate(_FOUR > ZERO, axis=1)
_FOLLOWED = np.maximum.accumulate(_FOUR[:, ::-1] > ZERO, axis=1)[:, ::-1]
DIGITS_4, HEADS, TAILS = ((_FOUR * kept).view("<u4").ravel() for kept in (1, _LED, _FOLLOWED))
"""The numbers below 10,000 in four digits, without zeros in front, without zeros behind."""
HEADS_OR_ZERO = np.where(HEADS > 0, HEADS, ZERO)


def parse_decimals(text: Bytes, starts: Places, ends: Places) -> Numbers:
    """The numbers at text[starts[i]:ends[i]].

    A whole number of at most 15 digits over a power of ten is a division of two exact float64, and
    so rounded as `float` rounds. What is written otherwise (an exponent) goes through it. Eight
    digits are read at once, as one word.

    Args:
        text: (T,) bytes of ASCII, 24 of them behind the last number.
        starts: (N,).
        ends: (N,).

    Raises:
        ValueError: one is no number.

    >>> line = np.frombuffer(b"7 12.5 -1e3" + bytes(24), np.uint8)
    >>> parse_decimals(line, np.array([0, 2, 7]), np.array([1, 6, 11])).tolist()
    [7.0, 12.5, -1000.0]
    """
    negative = text[starts] == MINUS
    begins = starts + negative
    words = np.ndarray((len(text) - 7,), np.dtype("<u8"), text, strides=(1,))
    first = words[begins]
    lengths = ends - begins
    whole = np.minimum(_before_dot(first), lengths)
    behind = np.maximum(lengths - whole - 1, 0)
    usual = (lengths > (whole < lengths)) & (whole + behind <= DIGITS)
    usual &= (whole == lengths) | (text[begins + whole] == DOT)
    parts = [(first, whole), (words[begins + whole + 1], np.minimum(behind, 8))]
    if (behind > 8).any():
        parts.append((words[begins + whole + 9], np.maximum(behind - 8, 0)))
    total = np.zeros(len(starts))
    for word, count in parts:
        digits = (word ^ ZEROS) << (8 * (8 - np.minimum(count, 8))).astype(np.uint64)
        usual &= (digits + ABOVE_NINE) & TOP_BITS == 0
        total = total * TENS.take(count, mode="clip") + _eight_digits(digits)
    numbers: Numbers = np.where(negative, -total, total) / TENS.take(behind, mode="clip")
    for row in np.flatnonzero(~usual).tolist():
        numbers[row] = float(text[starts[row] : ends[row]].tobytes())
    return numbers


def _before_dot(words: Words) -> Places:
    """How many of eight characters stand before the first dot."""
    rest = words ^ DOTS  # the lowest zero byte is the dot
    marks = (rest - LOW_BITS) & ~rest & TOP_BITS
    return (np.bitwise_count((marks & -marks) - np.uint64(1)) >> 3).astype(np.int64)


def _eight_digits(digits: Words) -> Words:
    """The number of eight digits, a byte each, the first in the lowest: neighbours are joined."""
    for size, mask in ((8, PAIRS), (16, FOURS), (32, EIGHTS)):
        digits = (digits * np.uint64(10 ** (size // 8)) + (digits >> np.uint64(size))) & mask
    return digits


def format_decimals(numbers: Numbers) -> NDArray[np.void]:
    """Each number as `"%.9g"` writes it: (N,) rows of 22 bytes, zeros where there is no character.

    A number times a power of ten, rounded, is the whole number of its nine digits, unless the
    product lies so near to a half that its own error could decide. Such numbers, those from 10 ** 8
    on and what `%g` writes with an exponent go through Python one by one.

    >>> format_decimals(np.array([12.5, -0.25])).tobytes().replace(bytes(1), b"")
    b'12.5-0.25'
    """
    size = np.abs(numbers)
    first = np.searchsorted(POWERS, size, side="right")  # the first digit counts 10 ** (first - 5)
    usual = (first > 0) & (first < len(POWERS))
    first = np.where(usual, first, 1)
    unit = UNITS.take(first)
    scaled = np.where(usual, size, 0) * unit
    digits = np.rint(scaled)
    usual &= (digits < NINE_DIGITS) & (np.abs(np.abs(scaled - digits) - 0.5) > NEAR_HALF)
    digits = np.where(usual, digits, 0)
    whole = np.floor(digits / unit)
    table = _spell(whole, (digits - whole * unit) * (UNITS[1] / unit))
    table["sign"] = np.where(numbers < 0, MINUS, 0)
    rows = table.view(f"V{NUMBER.itemsize}")
    for row in np.flatnonzero(~usual).tolist():
        text = b"%.9g" % numbers[row]
        rows[row] = np.void(text.ljust(NUMBER.itemsize, b"\0"))
    return rows


def _spell(whole: Numbers, behind: Numbers) -> NDArray[np.void]:
    """Numbers by what stands before the dot, below 10 ** 8, and the twelve digits behind it."""
    table = np.empty(len(whole), NUMBER)
    high, low = _halves(whole)
    table["high"] = HEADS.take(high)
    table["low"] = np.where(high > 0, DIGITS_4.take(low), HEADS_OR_ZERO.take(low))
    table["dot"] = np.where(behind > 0, DOT, 0)
    rest, third = _halves(behind)
    first, second = _halves(rest)
    table["first"] = np.where(second + third > 0, DIGITS_4.take(first), TAILS.take(first))
    table["second"] = np.where(third > 0, DIGITS_4.take(second), TAILS.take(second))
    table["third"] = TAILS.take(third)
    return table


def _halves(numbers: Numbers | Places) -> tuple[Places, Places]:
    """All but the last four digits, and those."""
    high = np.floor(numbers / 10_000)
    return high.astype(np.intp), (numbers - 10_000 * high).astype(np.intp)
