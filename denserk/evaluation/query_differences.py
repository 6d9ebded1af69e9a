"""Queries in the order of how much runs differ on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.measures import is_count


@dataclass(frozen=True)
class QueryRow:
    """One query.

    Attributes:
        qid: its id.
        values: each run's value, NaN where it has none.
        difference: from the reference, of the run that differs most; NaN where there is one run.
    """

    qid: str
    values: tuple[float, ...]
    difference: float


def main_measure(result: EvaluationResult) -> str:
    """The first measure that is no count, or the first one."""
    compared = [measure for measure in result.measures if not is_count(measure)]
    return str((compared or result.measures)[0])


def reference_of(result: EvaluationResult) -> int:
    """The run that others are compared with: the baseline, or the first one."""
    names = [run.name for run in result.runs]
    return 0 if result.comparison is None else names.index(result.comparison.baseline)


def widest(values: Sequence[float], reference: int) -> float:
    """The difference of largest size from one of the values; NaN where there is none.

    >>> widest([0.5, 0.75, 0.0], 0), widest([0.5], 0)
    (-0.5, nan)
    """
    others = (value - values[reference] for n, value in enumerate(values) if n != reference)
    return max((d for d in others if not math.isnan(d)), key=abs, default=math.nan)


def query_rows(result: EvaluationResult, measure: str, reference: int) -> list[QueryRow]:
    """All queries: those that moved most first; of a single run, those with the lowest values."""
    rows = []
    for qid in result.queries:
        values = tuple(run.per_query[measure].get(qid, math.nan) for run in result.runs)
        rows.append(QueryRow(qid, values, widest(values, reference)))

    def place(row: QueryRow) -> tuple[bool, float]:
        key = row.values[0] if len(row.values) == 1 else -abs(row.difference)
        return math.isnan(key), key

    return sorted(rows, key=place)
