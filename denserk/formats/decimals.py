"""Numbers in a table of text, all at once: exactly what `float` makes of each."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.float64]

DIGITS = 15
"""Decimal digits whose whole number a float64 always holds."""
DOT, ZERO = ord("."), ord("0")


def parse_decimals(text: Bytes, starts: Places, ends: Places) -> Numbers:
    """The numbers at text[starts[i]:ends[i]].

    A whole number of at most 15 digits over a power of ten is a division of two exact float64, and
    so rounded as `float` rounds. What is written otherwise (a sign, an exponent) goes through it.

    Args:
        text: (T,) bytes.
        starts: (N,).
        ends: (N,).

    Raises:
        ValueError: one is no number.

    >>> line = np.frombuffer(b"7 12.5 -1e3", np.uint8)
    >>> parse_decimals(line, np.array([0, 2, 7]), np.array([1, 6, 11])).tolist()
    [7.0, 12.5, -1000.0]
    """
    lengths = ends - starts
    numbers = np.empty(len(starts))
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        rows = np.flatnonzero(lengths == length)
        table = sliding_window_view(text, length)[starts[rows]]
        numbers[rows] = _of_one_length(table)
    return numbers


def _of_one_length(table: Bytes) -> Numbers:
    """The numbers of (N, L) characters."""
    numbers = np.empty(len(table))
    dots = table == DOT
    places = np.where(dots.any(axis=1), dots.argmax(axis=1), table.shape[1])
    for place in np.flatnonzero(np.bincount(places)).tolist():
        rows = np.flatnonzero(places == place)
        numbers[rows] = _of_one_form(table[rows], place)
    return numbers


def _of_one_form(table: Bytes, place: int) -> Numbers:
    """The numbers of (N, L) characters whose first dot stands at one place."""
    digits = np.delete(table, place, axis=1) if place < table.shape[1] else table
    digits = digits - np.uint8(ZERO)  # what is no digit is above 9: below, bytes wrap round
    count = digits.shape[1]
    whole = digits.astype(np.float64) @ 10.0 ** np.arange(count - 1, -1, -1)
    numbers: Numbers = whole / 10.0 ** (count - place if place < table.shape[1] else 0)
    plain = (digits <= 9).all(axis=1) & (0 < count <= DIGITS)
    for row in np.flatnonzero(~plain).tolist():
        numbers[row] = float(table[row].tobytes())
    return numbers
