"""What changes add to the measure of a run."""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import NamedTuple

import numpy as np

from denserk.config.evaluation import ComparisonSettings
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure
from denserk.evaluation.results import Grades
from denserk.evaluation.significance import describe, p_value
from denserk.index.ranking import Hits
from denserk.tasks.analyze.miss_queries import WeightOfWords
from denserk.tasks.analyze.miss_search import HitsByQuery
from denserk.tasks.analyze.miss_trials import Change, Evidence, Fix, Miss, Trial

FOLDS = 5  # in which the weight of BM25 is chosen
ALL_QUERIES = "all queries"
ORACLE = "oracle"  # only where the change helps: what nobody knows before the search
Trials = Mapping[Change, Sequence[Trial | None]]  # of each missed passage


class Gain(NamedTuple):
    """What a change adds to the measure: mean over queries, with its paired t interval of 95 %.

    The interval is nan for a single query.
    """

    cause: str
    change: str
    scope: str  # `ALL_QUERIES` or `ORACLE`
    mean: float
    low: float
    high: float


class Evaluation:
    """Measures the queries of the evidence, with their hits as they are and after changes."""

    def __init__(self, measure: Measure, evidence: Evidence) -> None:
        self._measure = measure
        self._evidence = evidence
        self.base = self._values(evidence.hits)

    def _values(self, hits: HitsByQuery, grades: Grades | None = None) -> Mapping[str, float]:
        """Return the measure of each query; 0 where there are no hits."""
        grades = grades or self._evidence.grades
        run = {}
        for qid, hits_of_query in hits.items():
            ranked = {docid: -float(rank) for rank, (docid, _) in enumerate(hits_of_query, start=1)}
            if ranked:
                run[qid] = ranked
        if not run:
            return dict.fromkeys(grades, 0.0)
        evaluator = Evaluator([self._measure], grades)
        return evaluator.evaluate("run", run, ties={}).per_query[str(self._measure)]

    def gains(self, misses: Sequence[Miss], trials: Trials) -> Iterator[Gain]:
        """Yield the gain of each change that brings a passage in."""
        k = self._evidence.k
        for change, trials_of_change in trials.items():
            ranks: dict[Miss, int] = {}
            for miss, trial in zip(misses, trials_of_change, strict=True):
                if trial is not None and trial.rank is not None and trial.rank <= k:
                    ranks[miss] = trial.rank
            if not ranks:
                continue
            if isinstance(change, WeightOfWords):
                yield self._gain_of_words(change)
                continue
            fix = change.change_all_queries()
            if fix is None:
                values = self._values(self._moved(ranks))
                yield self._gain(change.cause, change.name, ORACLE, values)
            else:
                yield self._gain_of_fix(change, fix)

    def _gain_of_fix(self, change: Change, fix: Fix) -> Gain:
        """Return the gain of a change of all queries."""
        return self._gain(
            change.cause, change.name, ALL_QUERIES, self._values(fix.hits, fix.grades)
        )

    def _gain(self, cause: str, name: str, scope: str, values: Mapping[str, float]) -> Gain:
        """Return a gain from the values of queries after a change."""
        differences = np.array([values[qid] - self.base[qid] for qid in self.base])
        settings = ComparisonSettings()
        if len(differences) < 2:
            return Gain(cause, name, scope, float(differences.mean()), nan, nan)
        difference = describe(differences, p_value(differences, settings), 1.0, settings.alpha)
        return Gain(cause, name, scope, difference.mean, difference.low, difference.high)

    def _moved(self, ranks: Mapping[Miss, int]) -> dict[str, Hits]:
        """Return the hits with missed passages at the ranks that a change gives each of them.

        Of several in a query, those of better ranks are moved first.
        """
        hits_by_query = dict(self._evidence.hits)
        for miss, rank in sorted(ranks.items(), key=lambda item: item[1]):
            others = [hit for hit in hits_by_query[miss.qid] if hit[0] != miss.docid]
            others.insert(rank - 1, (miss.docid, 0.0))
            hits_by_query[miss.qid] = others
        return hits_by_query

    def _gain_of_words(self, words: WeightOfWords) -> Gain:
        """Return the gain of the weight of BM25, which is chosen by cross-validation."""
        weights = sorted(words.weights)
        qids = sorted(self.base)
        rows = []
        for weight in weights:
            value_by_qid = self._values(words.hits_with(weight))
            rows.append([value_by_qid[qid] for qid in qids])
        values, chosen_rows = cross_validated(np.array(rows), FOLDS)
        chosen_weights = sorted({weights[row] for row in chosen_rows})
        names = ", ".join(f"{weight:g}" for weight in chosen_weights)
        name = f"{words.name} (weight {names} by {FOLDS}-fold cross-validation)"
        value_by_qid = dict(zip(qids, values, strict=True))
        return self._gain(words.cause, name, ALL_QUERIES, value_by_qid)


def cross_validated(table: np.ndarray, folds: int) -> tuple[list[float], list[int]]:
    """Choose a row of a table for each fold of its columns, by the mean over the other folds.

    (W, Q) values -> the values (Q,) of the chosen rows, and the row of each fold. Column q is of
    fold q modulo `folds`.

    >>> table = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    >>> cross_validated(table, 2)
    ([1.0, 1.0, 1.0, 0.0], [0, 0])
    """
    column_count = table.shape[1]
    fold_of_column = np.arange(column_count) % folds
    values = np.zeros(column_count)
    chosen_rows = []
    for fold in range(min(folds, column_count)):
        in_fold = fold_of_column == fold
        other_folds = table[:, ~in_fold]
        if not other_folds.size:  # a single column: nothing to choose by but itself
            other_folds = table
        row = int(other_folds.mean(axis=1).argmax())
        chosen_rows.append(row)
        values[in_fold] = table[row, in_fold]
    return values.tolist(), chosen_rows
