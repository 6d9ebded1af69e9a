"""How long a piece of work takes, one by one: each time, and percentiles that are times.

As the Aggretriever paper's Table 9 gives them: the 1st, 50th and 99th percentile.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

PERCENTILES = (1, 50, 99)


def time_each(
    work: Callable[[T], object], items: Iterable[T], finish: Callable[[], object]
) -> NDArray[np.float64]:
    """The seconds by the clock that the work takes on each of N items: (N,).

    Args:
        work: what is timed.
        items: what it is called with.
        finish: waits until a device has done all that it was given, before the clock starts and
            before it stops.
    """
    seconds = []
    for item in items:
        finish()
        start = time.perf_counter()
        work(item)
        finish()
        seconds.append(time.perf_counter() - start)
    return np.array(seconds)


def percentiles(
    times: NDArray[np.float64], wanted: Sequence[float] = PERCENTILES
) -> tuple[float, ...]:
    """Percentiles by nearest rank: the smallest time that so many per cent do not exceed.

    Nothing is interpolated: each of them was measured.

    >>> percentiles(np.array([5.0, 1.0, 3.0, 9.0]), (1, 50, 75, 99))
    (1.0, 3.0, 5.0, 9.0)
    """
    ranked: NDArray[np.float64] = np.percentile(times, wanted, method="inverted_cdf")
    return tuple(ranked.tolist())
