"""Counts over the judgements alone, as a provider of ir-measures: NumQ, and NumRel at any grade.

ir-measures' own providers count NumRel at grade 1 only, and count nothing for a query that a run
lacks; but such a query is judged all the same (`trec_eval -c` counts it, too).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ir_measures import Measure, Metric, NumQ, NumRel
from ir_measures.providers import Evaluator, Provider


class JudgementCounts(Provider):
    """NumQ: 1 for each judged query. NumRel(rel=r): its judgements of grade r and above."""

    NAME = "denserk"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def supports(self, measure: Measure) -> bool:
        """Whether this is one of the two."""
        return measure.NAME in (NumQ.NAME, NumRel.NAME)

    def _evaluator(self, measures: Iterable[Measure], qrels: Any) -> Evaluator:
        return _Counter(measures, qrels)


class _Counter(Evaluator):
    def __init__(self, measures: Iterable[Measure], qrels: Mapping[str, Mapping[str, int]]) -> None:
        super().__init__(measures, set(qrels))
        self._judgements = qrels

    def _iter_calc(self, run: Any) -> Iterator[Metric]:
        for measure in self.measures:
            for qid, judged in self._judgements.items():
                value = 1
                if measure.NAME == NumRel.NAME:
                    value = sum(grade >= measure["rel"] for grade in judged.values())
                yield Metric(qid, measure, value)
