"""What the queries of a comparison can show, and what would decide an undecided one."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import Correction
from denserk.evaluation.results import Comparison, Difference
from denserk.evaluation.t_test_power import POWER, needed_queries, roughness, smallest_difference

MOST_TIMES = 100  # a need of more than so many times the queries at hand is not stated


def with_power(
    difference: Difference, sample: NDArray[np.float64], level: float, alpha: float
) -> Difference:
    """Return a difference with what its queries can show at a level.

    `sample` has the paired differences, (N,), whose standard deviation the power is computed from;
    where they do not differ, it is not known. How many queries would show the difference is
    computed only where it is not significant: its corrected p-value is not below `alpha`.
    """
    query_count = len(sample)
    if query_count < 2 or not np.ptp(sample):
        return replace(difference, level=level)
    deviation = float(sample.std(ddof=1))
    needed = None
    if difference.corrected >= alpha and level > 0:
        needed = _needed_or_none(difference.mean, deviation, level)
    return replace(
        difference,
        level=level,
        detectable=smallest_difference(deviation, query_count, level),
        roughness=roughness(sample),
        needed_queries=needed,
    )


def _needed_or_none(mean: float, deviation: float, level: float) -> int | None:
    """Return how many queries show a mean difference; None if no number does."""
    try:
        return needed_queries(mean, deviation, level)
    except ValueError:
        return None


def has_power(comparison: Comparison) -> bool:
    """Return whether the power of the tests is known; it is not that of tests over seeds."""
    return not comparison.settings.seeds


def is_undecided(comparison: Comparison, run: str, measure: str) -> bool:
    """Return whether the test of a difference leaves open whether there is one."""
    return has_power(comparison) and not comparison.significant(run, measure)


def verdict(difference: Difference) -> str:
    """Return what is known of a difference that is not significant, and what would decide it.

    >>> unknown = Difference(0.025, -0.01, 0.06, 0.1, 0.2, 30, 50, 20, 0.2)
    >>> verdict(replace(unknown, detectable=0.05, needed_queries=337))
    'about 240 more queries would show 0.025'
    >>> verdict(replace(unknown, mean=0.0001, detectable=0.05, needed_queries=15_000_000))
    'a true difference of 0.05 or more would probably have been seen'
    """
    if difference.query_count < 2:
        return "fewer than two queries cannot be tested"
    if difference.wins + difference.losses == 0:
        return "no query has a difference"
    if math.isnan(difference.detectable):
        return "too few queries or permutations for this test"
    needed = difference.needed_queries
    if needed is None or needed > MOST_TIMES * difference.query_count:
        smallest = short(difference.detectable)
        return f"a true difference of {smallest} or more would probably have been seen"
    more_queries = needed - difference.query_count
    if more_queries <= 0:
        return "too few queries or permutations for this test"
    more = more_queries_text(more_queries, is_rough=difference.is_rough(needed))
    return f"{more} would show {short(difference.mean)}"


def more_queries_text(count: int, *, is_rough: bool) -> str:
    """Return an estimate of how many more queries are needed.

    >>> more_queries_text(231, is_rough=False), more_queries_text(129, is_rough=True)
    ('about 240 more queries', 'very roughly 130 more queries')
    """
    about = "very roughly" if is_rough else "about"
    return f"{about} {round_up(count):,} more queries"


def detectable_text(difference: Difference, places: int) -> str:
    """Return the smallest difference that queries show.

    It is "-" where nothing is known of it, and has a "~" where it is rough.
    """
    if math.isnan(difference.detectable):
        return "-"
    mark = "~" if difference.is_rough(difference.query_count) else ""
    return f"{mark}{difference.detectable:.{places}f}"


def short(difference: float) -> str:
    """Return the size of a difference with two digits, or as a whole number.

    >>> short(-0.02481), short(0.1), short(123.4)
    ('0.025', '0.1', '123')
    """
    size = abs(difference)
    return f"{size:.0f}" if size >= 10 else f"{size:.2g}"


def round_up(count: int) -> int:
    """Return a number rounded up to two digits.

    >>> round_up(7), round_up(231), round_up(5612)
    (7, 240, 5700)
    """
    digits = len(str(count))
    unit = int(10.0 ** max(0, digits - 2))
    return -(-count // unit) * unit


def power_notes(comparison: Comparison) -> list[str]:
    """Return what the smallest differences that queries show are, and by which test."""
    notes = [
        f"detectable: smallest true difference that so many queries show in {100 * POWER:g} % of "
        f"samples ({_reference_test(comparison)})"
    ]
    for differences in comparison.differences.values():
        for difference in differences.values():
            if difference.is_rough(difference.query_count):
                return [*notes, "~: rough, as few queries differ, or some differ far more"]
    return notes


def _reference_test(comparison: Comparison) -> str:
    """Return the t test whose power is that of the comparison's tests."""
    settings = comparison.settings
    if settings.correction is Correction.TUKEY:
        return "t test with the interval shown"
    test_count = comparison.test_count
    if test_count > 1 and settings.correction is not Correction.NONE:
        return f"t test at {settings.alpha:g} / {test_count}"
    return f"t test at {settings.alpha:g}"


VERDICT_NOTES = (
    "undecided: not shown to differ, and not shown to be equal",
    f"more queries: of the same kind; they show the difference with a chance of {100 * POWER:g} %, "
    "if it is as seen so far",
)
