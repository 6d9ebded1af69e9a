"""Compute measures by the providers of ir-measures; what they raise is the user's input.

A provider is a package or a script behind one interface, and each fails in its own way on
judgments that it does not know: gdeval's Perl ends with an error, others divide by zero. Here is
the one place that calls them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ir_measures import Qrel as IrMeasuresQrel
from ir_measures.providers import Provider

from denserk.errors import DenserkError, InputError, MeasureError, reason_of
from denserk.evaluation.measures import (
    Measure,
    accuracy_hint,
    computed_together,
    needs_subtopics,
    providers_of,
)
from denserk.io.files import read_text_lines
from denserk.records import Qrel

HIGHEST_OF_GDEVAL = 4  # its script ends at a higher grade
# trec_eval counts the passages of every possible grade: above, it fills the memory, or fails for
# all queries without a word
HIGHEST_OF_TREC_EVAL = 10_000_000
HIGHEST_OF_WHOLE_NDCG = 10_000  # the time of nDCG without a cut-off grows with its square


@dataclass(frozen=True)
class Judgments:
    """Relevance judgments, and where they are from.

    `qrels` are those of all sub-topics, if there are any; their ids are those of `grades`.
    """

    grades: Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade
    qrels: Sequence[Qrel] = ()
    source: str = "the qrels"


class MeasureGroup:
    """Measures that a provider computes in one pass over a run.

    `all_measures` are those of the evaluation, which a hint names without the failing ones. Queries
    are numbered, as gdeval takes only whole numbers as ids.
    """

    def __init__(
        self,
        provider: Provider,
        measures: Sequence[Measure],
        judgments: Judgments,
        all_measures: Sequence[Measure],
    ) -> None:
        self.provider = provider
        self.measures = tuple(measures)
        self._all_measures = tuple(all_measures)
        self._queries = tuple(judgments.grades)
        self._number_of = {qid: str(number) for number, qid in enumerate(self._queries)}
        self._check(judgments)
        with self._errors_named():
            self._evaluator = provider.evaluator(self.measures, self._provider_qrels(judgments))

    def values(self, run: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Return measure -> query id -> value, for the judged queries of a run."""
        number_of = self._number_of
        numbered_run = {number_of[qid]: hits for qid, hits in run.items() if qid in number_of}
        # ir-measures spells a measure out each time that it is hashed
        values: dict[int, dict[str, float]] = {id(measure): {} for measure in self.measures}
        with self._errors_named():
            for metric in self._evaluator.iter_calc(numbered_run):
                qid = self._queries[int(metric.query_id)]
                values[id(metric.measure)][qid] = metric.value
        return {str(measure): values[id(measure)] for measure in self.measures}

    def _check(self, judgments: Judgments) -> None:
        """Raise an error for judgments of which it is known that the provider fails on them."""
        if any(map(needs_subtopics, self.measures)):
            check_subtopics(self.measures, judgments)
        highest = min(highest_grade(self.provider, measure) for measure in self.measures)
        for qid, grades in judgments.grades.items():
            for docid, grade in grades.items():
                if grade > highest:
                    raise self._too_high(judgments.source, qid, docid, grade, highest)

    def _too_high(
        self, source: str, qid: str, docid: str, grade: int, highest: float
    ) -> InputError:
        """Return the error of a grade above the highest one that all measures are computed for."""
        failing = [
            measure for measure in self.measures if grade > highest_grade(self.provider, measure)
        ]
        names = ", ".join(map(str, failing))
        return InputError(
            source,
            line_of_judgment(source, qid, docid),
            f"relevance {grade} for query {qid}, passage {docid}",
            f"a grade up to {highest:,}, the highest that {self.provider.NAME} "
            f"computes {names} for",
            self._hint(failing),
        )

    def _provider_qrels(self, judgments: Judgments) -> Any:
        """Return the judgments as the provider takes them."""
        if any(map(needs_subtopics, self.measures)):
            return [
                IrMeasuresQrel(self._number_of[qrel.qid], qrel.docid, qrel.relevance, qrel.subtopic)
                for qrel in judgments.qrels
            ]
        numbered_grades: dict[str, Mapping[str, int]] = {}
        for qid, grades in judgments.grades.items():
            if self.provider.NAME == "pytrec_eval" and max(grades.values()) < 0:
                # trec_eval's nDCG never ends for a query whose grades are all negative
                grades = dict.fromkeys(grades, 0)
            numbered_grades[self._number_of[qid]] = grades
        return numbered_grades

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Turn whatever the provider raises into an error that names the measures."""
        names = ", ".join(map(str, self.measures))
        try:
            yield
        except DenserkError:
            raise
        except ZeroDivisionError as error:
            if self.provider.NAME != "accuracy":
                raise self._failed(error) from error
            message = (
                f"{names} is undefined for a query whose hits are all relevant. "
                f"{accuracy_hint(self.measures[0])}"
            )
            raise MeasureError(message, self._hint(self.measures)) from error
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MeasureError:
        names = ", ".join(map(str, self.measures))
        reason = reason_of(error)
        message = f"{names}: {self.provider.NAME} cannot compute it from these files ({reason})"
        return MeasureError(message, self._hint(self.measures))

    def _hint(self, failing: Sequence[Measure]) -> str | None:
        """Return what to type for the other measures, if there are any."""
        names = [str(measure) for measure in self._all_measures if measure not in failing]
        if not names:
            return None
        return f"-m '{' '.join(names)}' computes the other measures"


def measure_groups(measures: Sequence[Measure], judgments: Judgments) -> list[MeasureGroup]:
    """Return the measures in groups that their providers compute in one pass."""
    groups = []
    for provider, measures_of_provider in providers_of(measures).items():
        for measures_of_group in computed_together(provider, measures_of_provider):
            groups.append(MeasureGroup(provider, measures_of_group, judgments, measures))
    return groups


def highest_grade(provider: Provider, measure: Measure) -> float:
    """Return the highest grade that a provider computes a measure for; infinite without a limit."""
    if provider.NAME == "gdeval":
        return HIGHEST_OF_GDEVAL
    if provider.NAME != "pytrec_eval":
        return inf
    if measure.NAME == "nDCG" and "cutoff" not in measure.params:
        return HIGHEST_OF_WHOLE_NDCG
    return HIGHEST_OF_TREC_EVAL


def check_subtopics(measures: Sequence[Measure], judgments: Judgments) -> None:
    """Raise an error that names the measures of sub-topics, if the judgments have none."""
    subtopics: dict[str, set[str]] = {}
    for qrel in judgments.qrels:
        subtopics.setdefault(qrel.qid, set()).add(qrel.subtopic)
    if any(len(subtopics_of_query) > 1 for subtopics_of_query in subtopics.values()):
        return
    names = ", ".join(str(measure) for measure in measures if needs_subtopics(measure))
    raise InputError(
        judgments.source,
        None,
        f"judgments without sub-topics, which {names} is computed on",
        "sub-topics in the second column: query, sub-topic, passage, relevance",
        "nDCG@10, AP and P@10 are measures of judgments without sub-topics",
    )


def line_of_judgment(source: str, qid: str, docid: str) -> int | None:
    """Return the line of a judgment in a file of columns; None if it is elsewhere."""
    if not Path(source).is_file():
        return None
    for line, text in read_text_lines(source):
        columns = text.split()
        if len(columns) in (3, 4) and (columns[0], columns[-2]) == (qid, docid):
            return line
    return None
