"""Confidence intervals, and the digits of the means that they are of."""

from typing import NamedTuple

DIGITS = 12  # of a mean or difference; smaller ones come from the order of a sum


class ConfidenceInterval(NamedTuple):
    """Bounds of a mean or of a mean difference."""

    low: float
    high: float
