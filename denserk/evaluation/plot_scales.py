"""Where values stand on an axis, and which of them are written on it."""

import math
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0, 10.0)
"""Distances between ticks, times a power of ten."""
BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class Scale:
    """A line from values to places.

    Attributes:
        low, high: the values at its ends.
        start, end: the places of its ends.
        log: whether equal factors, and not equal differences, are equally far apart.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value stands.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 1, log=True)(10)
        (150.0, 0.5)
        """
        low, high, value = (
            map(math.log10, (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between the ends, `most` at most where the axis is linear.

        >>> Scale(0, 0.83, 0, 1).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8]
        >>> Scale(1, 1000, 0, 1, log=True).ticks(), Scale(3, 60, 0, 1, log=True).ticks()
        ([1.0, 10.0, 100.0, 1000.0], [5.0, 10.0, 20.0, 50.0])
        """
        return self._log_ticks() if self.log else self._linear_ticks(most)

    def _linear_ticks(self, most: int) -> list[float]:
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(s * power for s in STEPS if span / (s * power) < most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        digits = (1.0,) if math.log10(self.high / self.low) >= 2 else STEPS[:3]
        values = (digit * 10.0**power for power in decades for digit in digits)
        return [v for v in values if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]


def around(values: list[float], *, log: bool = False, margin: float = 0.08) -> tuple[float, float]:
    """Ends of an axis that leave room on both sides of the values.

    >>> around([1.0, 3.0], margin=0.25)
    (0.5, 3.5)
    >>> around([10.0], log=True)
    (5.0, 20.0)
    """
    low, high = min(values), max(values)
    if log:
        room = max((high / low) ** margin, 2.0)
        return low / room, high * room
    room = (high - low) * margin or abs(high) * margin or margin
    return low - room, high + room


def told_bytes(count: float) -> str:
    """A size as people say it.

    >>> told_bytes(26_000_000_000), told_bytes(1500), told_bytes(12)
    ('26 GB', '1.5 kB', '12 bytes')
    """
    for unit, name in BYTES:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def told_milliseconds(value: float) -> str:
    """A time as people say it.

    >>> told_milliseconds(1500), told_milliseconds(0.25)
    ('1.5 s', '0.25 ms')
    """
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


def told_score(value: float) -> str:
    """A score as people say it: never with an exponent where a number will do.

    >>> told_score(147012.3), told_score(13.09421), told_score(0.00123456)
    ('147,012', '13.094', '0.0012346')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.5g}"
