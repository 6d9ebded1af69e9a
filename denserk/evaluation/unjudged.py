"""What unjudged hits can change: bounds of measures over all judgments of them.

The unjudged hits of a query are the passages that any of the runs returns, down to the depth of a
measure, and that the qrels do not grade. A passage that no run returns stays as the qrels have it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from math import fsum, inf, nan
from typing import NamedTuple

import numpy as np

from denserk.errors import UsageError
from denserk.evaluation.completions import (
    SUPPORTED,
    UNJUDGED,
    BoundedMeasure,
    QueryHits,
    bounded_measure,
    bounds_of,
)
from denserk.evaluation.measures import Measure, providers_of
from denserk.evaluation.needed_hits import first_hits
from denserk.evaluation.results import EvaluationResult, Grades, Run
from denserk.evaluation.significance import baselines_of
from denserk.evaluation.unjudged_results import BoundedValue, Interval, UnjudgedBounds
from denserk.reporting import track

JUDGED = "Judged"  # the measure of the judgments that are there, which no completion changes
DIGITS_OF_GDEVAL = 5  # to which its script rounds the value of a query
MOST_GRADES = 1000  # that a completion chooses from
NEAR = 1e-9  # a bound this near to the value by the qrels is that value


class ComparedMeasure(NamedTuple):
    """A measure, what bounds it, and the hits of all judged queries down to its depth."""

    measure: Measure
    bounded: BoundedMeasure | None  # None for Judged
    queries: Sequence[QueryHits]
    digits: int | None  # to which its provider rounds the value of a query

    @property
    def unjudged_count(self) -> int:
        """Return the number of unjudged hits of all queries."""
        return sum(int((query.grades == UNJUDGED).sum()) for query in self.queries)


class _SupportedMeasure(NamedTuple):
    """A measure, the name of its provider, and what bounds it; nothing bounds Judged."""

    measure: Measure
    provider: str
    bounded: BoundedMeasure | None


def supported_measures(measures: Sequence[Measure]) -> list[_SupportedMeasure]:
    """Return what bounds each measure; a UsageError names those that have no bounds."""
    provider_of = {}
    for provider, measures_of_provider in providers_of(measures).items():
        for measure in measures_of_provider:
            provider_of[str(measure)] = provider.NAME
    supported = []
    unsupported = []
    for measure in measures:
        provider_name = provider_of.get(str(measure), "")
        bounded = bounded_measure(measure, provider_name)
        if bounded is None and measure.NAME != JUDGED:
            unsupported.append(str(measure))
        supported.append(_SupportedMeasure(measure, provider_name, bounded))
    if unsupported:
        raise UsageError(
            f"no bounds over unjudged hits for {', '.join(unsupported)}",
            f"choose among {', '.join(SUPPORTED)}, without judged_only",
        )
    return supported


class JudgedRuns:
    """Runs, by name, and the judgments that they are evaluated by."""

    def __init__(self, runs: Mapping[str, Run], grades: Grades) -> None:
        self.runs = runs
        self.grades = grades
        self._hits: dict[tuple[_Order, float], list[QueryHits]] = {}

    @cached_property
    def highest_grade(self) -> int:
        """The highest grade of the qrels; 0 where none is above."""
        highest_grades = [max(grades_of_query.values()) for grades_of_query in self.grades.values()]
        highest = max(0, *highest_grades)
        if highest > MOST_GRADES:
            raise UsageError(
                f"the qrels' highest grade is {highest:,}; bounds over unjudged hits are computed "
                f"for grades up to {MOST_GRADES:,}",
                "map the grades to a smaller scale first",
            )
        return highest

    def compared(self, measures: Sequence[Measure]) -> list[ComparedMeasure]:
        """Return the measures with their hits; a UsageError names those that have no bounds."""
        compared_measures = []
        for supported_measure in supported_measures(measures):
            order = _ORDERS.get(supported_measure.provider, _trec_order)
            queries = self._query_hits(order, supported_measure.measure.params.get("cutoff", inf))
            digits = DIGITS_OF_GDEVAL if supported_measure.provider == "gdeval" else None
            compared_measures.append(
                ComparedMeasure(
                    supported_measure.measure, supported_measure.bounded, queries, digits
                )
            )
        return compared_measures

    def _query_hits(self, order: "_Order", depth: float) -> list[QueryHits]:
        """Return the hits of all judged queries; measures of one order and depth share them."""
        if (order, depth) not in self._hits:
            self._hits[order, depth] = [
                self._hits_of_query(qid, order, depth) for qid in self.grades
            ]
        return self._hits[order, depth]

    def _hits_of_query(self, qid: str, order: "_Order", depth: float) -> QueryHits:
        """Return the hits of a query in an order, down to a depth."""
        grades = self.grades[qid]
        positions: dict[str, int] = {}
        ranked_lists = []
        for run in self.runs.values():
            hits = run.get(qid, {})
            ranked_docids = order(hits)[: int(min(depth, len(hits)))]
            ranked_lists.append(ranked_docids)
            for docid in ranked_docids:
                positions.setdefault(docid, len(positions))
        ranks = np.full((len(ranked_lists), len(positions)), inf)
        for row, ranked_docids in enumerate(ranked_lists):
            for rank, docid in enumerate(ranked_docids, start=1):
                ranks[row, positions[docid]] = rank
        other_grades = [grade for docid, grade in grades.items() if docid not in positions]
        return QueryHits(
            qid=qid,
            docids=tuple(positions),
            ranks=ranks,
            grades=np.array([grades.get(docid, UNJUDGED) for docid in positions], np.int64),
            other_grades=np.array(other_grades, np.int64),
        )


_Order = Callable[[Mapping[str, float]], list[str]]  # passages, the first hit first


def _trec_order(hits: Mapping[str, float]) -> list[str]:
    """Return passages by score as float32, ties by id descending."""
    return list(first_hits(hits, len(hits)))


def _ascending_order(hits: Mapping[str, float]) -> list[str]:
    """Return passages by score, ties by id ascending."""
    return sorted(hits, key=lambda docid: (-hits[docid], docid))


def _gdeval_order(hits: Mapping[str, float]) -> list[str]:
    """Return passages by score as it is, ties by id descending."""
    return sorted(hits, key=lambda docid: (hits[docid], docid), reverse=True)


# by the names of the providers of ir-measures; others have trec_eval's
_ORDERS: Mapping[str, _Order] = {
    "msmarco": _ascending_order,
    "judged": _ascending_order,
    "gdeval": _gdeval_order,
}


def bound_measures(
    result: EvaluationResult,
    judged_runs: JudgedRuns,
    measures: Sequence[Measure],
    baseline: str | None = None,
) -> UnjudgedBounds:
    """Return the bounds of measures of a result, and of differences from a baseline.

    The runs of the result have the names of `judged_runs`. Without a baseline, the first run is it.
    A mean is over the queries that the result has a value for, and that of a difference over those
    that both runs have.
    """
    names = list(judged_runs.runs)
    baseline_of = baselines_of(names, baseline or names[0])
    compared_measures = judged_runs.compared(measures)
    values = {run.name: run.per_query for run in result.runs}
    runs: dict[str, dict[str, BoundedValue]] = {name: {} for name in names}
    differences: dict[str, dict[str, BoundedValue]] = {name: {} for name in baseline_of}
    with track("bounding measures", len(compared_measures), "measures") as progress:
        for compared in compared_measures:
            measure = str(compared.measure)
            for position, name in enumerate(names):
                intervals = _value_intervals(compared, position, judged_runs.highest_grade)
                runs[name][measure] = _value_of_run(compared, values[name][measure], intervals)
            for name, baseline_name in baseline_of.items():
                if compared.bounded is None:  # Judged, by which runs are not compared
                    continue
                intervals = _intervals(
                    compared.bounded,
                    compared.queries,
                    names.index(name),
                    names.index(baseline_name),
                    judged_runs.highest_grade,
                )
                differences[name][measure] = _difference_of_runs(
                    values[name][measure], values[baseline_name][measure], intervals
                )
            progress.advance()
    return UnjudgedBounds(
        highest_grade=judged_runs.highest_grade,
        hits={str(compared.measure): compared.unjudged_count for compared in compared_measures},
        runs=runs,
        differences=differences,
        baseline_of=baseline_of,
        assuming=_names_of(compared_measures, depends_on_others=True),
        not_assuming=_names_of(compared_measures, depends_on_others=False),
    )


def _names_of(
    compared_measures: Sequence[ComparedMeasure], *, depends_on_others: bool
) -> tuple[str, ...]:
    """Return the measures that do, or do not, depend on passages that no run returns."""
    names = []
    for compared in compared_measures:
        bounded = compared.bounded
        if bounded is not None and bounded.depends_on_others is depends_on_others:
            names.append(str(compared.measure))
    return tuple(names)


def _value_intervals(
    compared: ComparedMeasure, run: int, highest_grade: int
) -> dict[str, Interval] | None:
    """Return the bounds of each query's value of a run; None for Judged."""
    if compared.bounded is None:
        return None
    return _intervals(compared.bounded, compared.queries, run, None, highest_grade)


def _intervals(
    bounded: BoundedMeasure,
    queries: Sequence[QueryHits],
    run: int,
    baseline: int | None,
    highest_grade: int,
) -> dict[str, Interval]:
    """Return the bounds of each query's value of a run, or of its difference from a baseline.

    `run` and `baseline` are positions among the runs of the hits.
    """
    bounds = bounds_of(bounded, queries, run, baseline, highest_grade)
    intervals = {}
    for row, query in enumerate(queries):
        low = float(bounds.low[row])
        high = float(bounds.high[row])
        intervals[query.qid] = Interval(low, high, bool(bounds.exact[row]))
    return intervals


def _value_of_run(
    compared: ComparedMeasure,
    values: Mapping[str, float],
    intervals: Mapping[str, Interval] | None,
) -> BoundedValue:
    """Return the mean of a run's values with its bounds."""
    per_query = {}
    for qid, value in values.items():
        interval = Interval(value, value) if intervals is None else intervals[qid]
        per_query[qid] = Interval(
            _as_provided(interval.low, value, compared.digits),
            _as_provided(interval.high, value, compared.digits),
            interval.exact,
        )
    return BoundedValue(_mean(values.values()), _mean_interval(per_query), per_query)


def _as_provided(bound: float, value: float, digits: int | None) -> float:
    """Return a bound as the provider of a measure would give it, in its digits.

    `value` is the provider's, by the qrels as they are.
    """
    if digits is not None:
        bound = round(bound, digits)
    return value if abs(bound - value) < NEAR else bound


def _difference_of_runs(
    values: Mapping[str, float],
    baseline_values: Mapping[str, float],
    intervals: Mapping[str, Interval],
) -> BoundedValue:
    """Return the mean difference of two runs over the queries that both have, with its bounds."""
    differences = {
        qid: values[qid] - baseline_value
        for qid, baseline_value in baseline_values.items()
        if qid in values
    }
    per_query = {qid: intervals[qid] for qid in differences}
    return BoundedValue(_mean(differences.values()), _mean_interval(per_query), per_query)


def _mean_interval(per_query: Mapping[str, Interval]) -> Interval:
    """Return the bounds of the mean of queries, which are judged independently of each other."""
    lows = [interval.low for interval in per_query.values()]
    highs = [interval.high for interval in per_query.values()]
    is_exact = all(interval.exact for interval in per_query.values())
    return Interval(_mean(lows), _mean(highs), is_exact)


def _mean(values: Collection[float]) -> float:
    """Return the mean of values; NaN of none."""
    return fsum(values) / len(values) if values else nan
