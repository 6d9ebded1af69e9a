"""The result of `denserk choose`: records, their JSON, and sentences about them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from denserk.evaluation.power import more_queries_text


class Outcome(StrEnum):
    """How a comparison has ended."""

    DECIDED = "decided"  # one system is left
    UNDECIDED = "undecided"  # all queries are used, and several systems are left
    BUDGET = "budget"  # the time is over, and several systems are left


@dataclass(frozen=True)
class Cost:
    """What a system costs; None: it is not known."""

    query_milliseconds: float | None = None
    passage_bytes: float | None = None
    build_minutes: float | None = None


@dataclass(frozen=True)
class SystemResult:
    """One system, on the queries on which it was evaluated.

    `difference` is its mean minus that of the leader on the same queries, from `low` to `high`.
    """

    name: str
    retriever: str  # its expression
    may_be_best: bool
    queries: int
    mean: float
    difference: float
    low: float
    high: float
    weights: tuple[float, ...] | None = None  # of a hybrid, after the last block
    cost: Cost = Cost()


@dataclass(frozen=True)
class UndecidedDifference:
    """A system that may be as good as the leader, and how many queries would show the difference.

    `needed_queries` is an estimate, for the case that the observed difference is the true one. It
    is the number of queries of a paired t test with a power of 80 %, at a level that is corrected
    for the number of systems. The sequential comparison needs more than that test: where the test
    would need no more queries than there are, it is the number at which the evidence against the
    system would drop it, if the evidence continues to grow as before. None: the means are equal, or
    there are too few queries for an estimate.
    """

    system: str
    difference: float
    deviation: float  # of the differences of queries
    needed_queries: int | None
    is_rough: bool = False  # the number, by the rule of `Difference.is_rough`


@dataclass(frozen=True)
class TestOpening:
    """One opening of the sealed test queries, a line of sealed.jsonl."""

    opening: int  # its number, from 1
    time: str
    qrels: str
    sha256: str  # of the judgments
    comparison_sha256: str  # of settings, candidates and deciding queries
    measure: str
    queries: int
    means: Mapping[str, float]  # by system
    was_recorded: bool = False  # by an earlier call, and not opened again

    def as_json(self) -> dict[str, Any]:
        """Return the line of sealed.jsonl."""
        values = asdict(self)
        del values["was_recorded"]
        return values


@dataclass(frozen=True)
class Choice:
    """The decision among retrievers.

    Attributes:
        systems: the leader first, then the others that may be the best, then those dropped, the
            last one first.
        undecided: the differences that are not decided; empty if one system is left.
        commands: command lines that build the leader again.
        test: the sealed test queries; None if they were not asked for, or are still sealed.
    """

    measure: str
    alpha: float
    outcome: Outcome
    blocks: int
    queries: int  # evaluated
    available_queries: int
    systems: tuple[SystemResult, ...]
    undecided: tuple[UndecidedDifference, ...]
    commands: tuple[str, ...]
    test: TestOpening | None = None

    @property
    def leader(self) -> SystemResult:
        """The system with the highest mean of those that may be the best."""
        return self.systems[0]

    @property
    def best(self) -> tuple[str, ...]:
        """The names of the systems that may be the best."""
        return tuple(system.name for system in self.systems if system.may_be_best)

    @property
    def cheapest(self) -> SystemResult | None:
        """Of the systems that may be the best, the one with the fastest query, if that is known."""
        timed_systems = [
            system
            for system in self.systems
            if system.may_be_best and system.cost.query_milliseconds is not None
        ]
        return min(timed_systems, key=_query_milliseconds, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return what choice.json holds: no times, so that equal comparisons have equal bytes."""
        systems = []
        for system in self.systems:
            values = asdict(system)
            del values["cost"]
            systems.append(values)
        return {
            "measure": self.measure,
            "alpha": self.alpha,
            "outcome": self.outcome.value,
            "may_be_best": list(self.best),
            "leader": self.leader.name,
            "blocks": self.blocks,
            "queries": self.queries,
            "available_queries": self.available_queries,
            "systems": systems,
            "undecided": [asdict(difference) for difference in self.undecided],
            "commands": list(self.commands),
        }


def _query_milliseconds(system: SystemResult) -> float:
    return system.cost.query_milliseconds or 0.0


def sentence(choice: Choice) -> str:
    """Return the decision in one sentence."""
    basis = f"{choice.measure} of {choice.queries:,} of {choice.available_queries:,} queries"
    leader = choice.leader
    if choice.outcome is Outcome.DECIDED:
        return f"{leader.name} is the best: {leader.mean:.4f} {basis}"
    names = ", ".join(choice.best)
    if choice.outcome is Outcome.BUDGET:
        return f"the time is over; any of these may be the best: {names} ({basis})"
    return f"undecided; any of these may be the best: {names} ({basis})"


def undecided_sentence(difference: UndecidedDifference, choice: Choice) -> str:
    """Return a sentence about what would decide between the leader and a system."""
    systems = f"{choice.leader.name} and {difference.system}"
    if difference.difference == 0:
        return f"{systems} have the same mean: no number of queries would tell them apart"
    if difference.needed_queries is None:
        return (
            f"the number of queries that would decide between {systems} is not known: there are "
            "too few queries, or the difference is too small"
        )
    more_queries = difference.needed_queries - choice.queries
    shown = f"the difference of {difference.difference:.4f} between {systems}"
    if more_queries <= 0:
        return f"a few more queries would show {shown}, if that is the true one"
    more = more_queries_text(more_queries, is_rough=difference.is_rough)
    return f"{more} would show {shown}, if that is the true one"
