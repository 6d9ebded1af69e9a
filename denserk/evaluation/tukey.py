"""Randomised Tukey HSD ("honestly significant difference"): all pairs of several systems at once.

If no systems differ, the values of a query might as well belong to them in any other order. The
difference of two systems is significant if the range of all means, highest minus lowest, is rarely
as large in random orders: Carterette, "Multiple Testing in Statistical Analysis of Systems-Based
Information Retrieval Experiments" (2012); Sakai, "Laboratory Experiments in Information Retrieval"
(2018).
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from denserk.evaluation.intervals import DIGITS

Floats = NDArray[np.float64]

MOST_ORDERED = 7  # systems whose orders are all listed: 5,040
ORDERS = 5040  # drawn for each query of more systems
BLOCK = 1 << 18  # means in memory at once


def permuted_ranges(
    values: Floats,
    permutations: int,
    seed: int,
    advance: Callable[[int], object] = lambda count: None,
) -> Floats:
    """Return the ranges of the systems' means over queries in random orders, ascending.

    values: (systems, queries) -> (permutations,). The values of each query are permuted on their
    own. `advance` is called with the number of permutations whenever some are done.

    >>> permuted_ranges(np.array([[0.0], [0.5], [1.0]]), 3, seed=1).tolist()
    [1.0, 1.0, 1.0]
    """
    random = np.random.default_rng(seed)
    system_count, query_count = values.shape
    differs = np.ptp(values, axis=0) > 0  # queries without differences do not change the range
    values_by_query = values.T[differs]
    block_size = max(1, BLOCK // system_count)
    ranges = []
    for start in range(0, permutations, block_size):
        count = min(block_size, permutations - start)
        sums = _permuted_sums(values_by_query, count, random)
        ranges.append(np.ptp(sums, axis=1) / max(1, query_count))
        advance(count)
    return np.sort(np.concatenate(ranges))


def _permuted_sums(values_by_query: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return the systems' sums over queries in random orders.

    values_by_query: (queries, systems) -> (count, systems).
    """
    system_count = values_by_query.shape[1]
    if system_count <= MOST_ORDERED:
        orders = np.array(list(itertools.permutations(range(system_count))))  # (orders, systems)
    sums = np.zeros((count, system_count))
    for values in values_by_query:
        if system_count > MOST_ORDERED:
            unordered = np.tile(np.arange(system_count), (ORDERS, 1))
            orders = random.permuted(unordered, axis=1)
        ordered_values = values[orders]
        rows = random.integers(0, len(orders), count)
        sums += ordered_values[rows]
    return sums


def range_p_value(difference: float, ranges: Floats) -> float:
    """Return the share of ranges, ascending, that are as large as a difference of two means.

    The observed order is counted among them.

    >>> range_p_value(-0.3, np.array([0.1, 0.2, 0.3]))
    0.5
    """
    smallest_range = abs(difference) - 10.0**-DIGITS
    extreme_count = len(ranges) - int(np.searchsorted(ranges, smallest_range))
    return (extreme_count + 1) / (len(ranges) + 1)


def critical_range(ranges: Floats, level: float) -> float:
    """Return the largest difference whose p-value is not below a level, by ranges, ascending.

    It is infinite where there are too few permutations for a p-value below that level.

    >>> ranges = np.arange(1, 100) / 100
    >>> critical_range(ranges, 0.05), range_p_value(0.96, ranges), range_p_value(0.97, ranges)
    (0.96, 0.05, 0.04)
    >>> critical_range(ranges, 0.01)
    inf
    """
    # A p-value is below the level if fewer than level * (len(ranges) + 1) - 1 ranges are as large
    # as the difference; 1e-12 keeps rounding from raising a product that is a whole number.
    extreme_count = math.ceil(level * (len(ranges) + 1) * (1 - 1e-12)) - 2
    if extreme_count < 0:
        return math.inf
    return float(ranges[len(ranges) - 1 - extreme_count])
