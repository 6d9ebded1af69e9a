"""Questions whose hits were matched with answers -> measures, a few questions at a time.

A hit that holds an answer is a relevant passage, one that does not is a passage of grade 0; the
measures are ir-measures' own. MASTER's hit rate is the same Success@k, with judgements in place of
answers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from denserk.evaluation.evaluator import Evaluator, RunResult, Ties, count_ties
from denserk.evaluation.measures import Measure, providers_of
from denserk.records import Query

Hits = Mapping[str, float]
"""Passage id -> score."""


class JudgedQuestion(NamedTuple):
    """A question, the best hits of each run, and those of all hits that hold an answer."""

    query: Query
    hits: tuple[Hits, ...]
    matches: frozenset[str]


class AnswerEvaluator:
    """Takes judged questions; gives each run's measures.

    Args:
        names: what tables call the runs.
        measures: such that need no passage but the hits.
        complete: questions that a run lacks count as 0; otherwise they are left out.
    """

    def __init__(
        self, names: Sequence[str], measures: Sequence[Measure], *, complete: bool = True
    ) -> None:
        self._names, self._measures, self._complete = tuple(names), tuple(measures), complete
        self.providers = {
            provider.NAME: tuple(map(str, mine))
            for provider, mine in providers_of(measures).items()
        }
        self.queries: list[str] = []
        self._relations: dict[str, str] = {}
        self._values: list[dict[str, dict[str, float]]] = [
            {str(measure): {} for measure in measures} for _ in names
        ]
        self._missing: list[list[str]] = [[] for _ in names]
        self._tied: list[list[str]] = [[] for _ in names]
        self._tied_lines = [0] * len(names)

    def add(self, questions: Sequence[JudgedQuestion]) -> None:
        """Takes further questions, which are all others than before."""
        self.queries += [question.query.qid for question in questions]
        for question in questions:
            if (relation := question.query.extra.get("relation")) is not None:
                self._relations[question.query.qid] = str(relation)
        judgements = {
            question.query.qid: {
                docid: int(docid in question.matches) for hits in question.hits for docid in hits
            }
            for question in questions
            if any(question.hits)
        }
        evaluator = Evaluator(self._measures, judgements)
        for number in range(len(self._names)):
            self._add(number, questions, evaluator)

    def _add(self, number: int, questions: Sequence[JudgedQuestion], evaluator: Evaluator) -> None:
        name, values = self._names[number], self._values[number]
        hits = {question.query.qid: question.hits[number] for question in questions}
        run = {qid: found for qid, found in hits.items() if found}
        measured = evaluator.evaluate(name, run).per_query if run else {}
        ties = count_ties(run)
        self._tied[number] += ties.queries
        self._tied_lines[number] += ties.lines
        self._missing[number] += [qid for qid in hits if qid not in run]
        for measure, of in values.items():
            for qid in hits:
                if qid in run:
                    of[qid] = measured[measure][qid]
                elif self._complete:
                    of[qid] = 0.0

    def results(self, unanswered: Sequence[Sequence[str]]) -> tuple[RunResult, ...]:
        """The measures of every run.

        Args:
            unanswered: of each run, the queries that are not among the questions.
        """
        return tuple(
            RunResult(
                name,
                {measure: _mean(of.values()) for measure, of in values.items()},
                values,
                tuple(missing),
                tuple(others),
                Ties(lines, tuple(tied)),
                self._over_relations(values),
            )
            for name, values, missing, others, lines, tied in zip(
                self._names,
                self._values,
                self._missing,
                unanswered,
                self._tied_lines,
                self._tied,
                strict=True,
            )
        )

    def _over_relations(self, values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Measure -> mean over the means of relations; nothing where questions have none."""
        if not self._relations:
            return {}
        return {measure: mean_of_means(of, self._relations) for measure, of in values.items()}


def mean_of_means(values: Mapping[str, float], groups: Mapping[str, str]) -> float:
    """The mean of the means of groups, each counting once whatever its size.

    Args:
        values: query -> value.
        groups: query -> the group it belongs to.

    >>> mean_of_means({"a": 1.0, "b": 0.0, "c": 1.0}, {"a": "P17", "b": "P17", "c": "P20"})
    0.75
    """
    parts: dict[str, list[float]] = {}
    for qid, value in values.items():
        parts.setdefault(groups[qid], []).append(value)
    return _mean([_mean(part) for part in parts.values()])


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
