"""Records of what unjudged hits can change: bounds, decisions, and what to judge next."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan

ROUNDING = 1e-12  # of sums; a bound this near to 0 is 0


class Decision(StrEnum):
    """Whether any judgments of unjudged hits could turn the sign of a difference."""

    HIGHER = "decided: higher"
    NOT_LOWER = "decided: not lower"
    EQUAL = "decided: equal"
    NOT_HIGHER = "decided: not higher"
    LOWER = "decided: lower"
    OPEN = "open"
    NO_QUERY = "no query"  # with a value of both runs


@dataclass(frozen=True)
class Interval:
    """The least and the greatest value over all completions of the judgments."""

    low: float
    high: float
    exact: bool = True  # completions reach both ends; else no completion has a value outside

    @property
    def width(self) -> float:
        """Return how far the greatest value is from the least one."""
        return self.high - self.low

    @property
    def decision(self) -> Decision:
        """Return what is certain about the sign of a value within the bounds.

        >>> Interval(0.0, 0.25).decision.value, Interval(-0.125, 0.25).decision.value
        ('decided: not lower', 'open')
        """
        if isnan(self.low) or isnan(self.high):
            return Decision.NO_QUERY
        if self.low > ROUNDING:
            return Decision.HIGHER
        if self.high < -ROUNDING:
            return Decision.LOWER
        is_never_lower = self.low >= -ROUNDING
        is_never_higher = self.high <= ROUNDING
        if is_never_lower and is_never_higher:
            return Decision.EQUAL
        if is_never_lower:
            return Decision.NOT_LOWER
        if is_never_higher:
            return Decision.NOT_HIGHER
        return Decision.OPEN

    @property
    def is_open(self) -> bool:
        """Return whether some judgments may make a difference positive, and others negative."""
        return self.decision is Decision.OPEN


@dataclass(frozen=True)
class BoundedValue:
    """A value by the qrels as they are, with its bounds; and the bounds of each query."""

    value: float
    interval: Interval
    per_query: Mapping[str, Interval]


@dataclass(frozen=True)
class UnjudgedPair:
    """A query and a hit that nobody has judged."""

    qid: str
    docid: str


@dataclass(frozen=True)
class JudgingPlan:
    """Pairs whose judgment would decide the sign of a difference, the most useful ones first."""

    run: str
    baseline: str
    measure: str
    pairs: tuple[UnjudgedPair, ...]  # to be judged now
    sufficient: int  # number of pairs that decide, whatever their grades
    likely: int | None = None  # number that decides in half of the simulated judgments
    very_likely: int | None = None  # number that decides in nine of ten
    share_higher: float | None = None  # of simulated judgments, those by which the run is higher


@dataclass(frozen=True)
class UnjudgedBounds:
    """Bounds of runs, and of their differences from a baseline, over all completions."""

    highest_grade: int  # that a completion gives
    hits: Mapping[str, int]  # measure -> number of unjudged hits, down to its depth
    runs: Mapping[str, Mapping[str, BoundedValue]]  # run -> measure -> value
    differences: Mapping[str, Mapping[str, BoundedValue]]  # run -> measure -> run minus baseline
    baseline_of: Mapping[str, str]  # the run that each run is compared with
    assuming: tuple[str, ...]  # measures that assume that no other passage is relevant
    not_assuming: tuple[str, ...]
    plan: JudgingPlan | None = None
