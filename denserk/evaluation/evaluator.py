"""Measures of runs against relevance judgments, per query and in summary.

A judged query that a run lacks counts as 0, or is left out if asked for. Queries without judgments
never count. Scores are not changed, so the order of tied passages is that of each provider of
ir-measures: trec_eval's measures order them by passage id descending (scores compared as float32),
RR with a cutoff and Judged by passage id ascending.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from ir_measures.providers import Evaluator as BaseEvaluator
from ir_measures.providers.base import NOT_PROVIDED

from denserk.errors import DenserkError, MismatchError
from denserk.evaluation.measures import (
    OWN,
    Measure,
    count_judgments,
    counts_judgments,
    is_mean,
    per_query_measure,
    providers_of,
)
from denserk.evaluation.published import PublishedRow
from denserk.evaluation.significance import Comparison
from denserk.formats.runs import RankedList

T = TypeVar("T")

RANKED = {
    "pytrec_eval": {"P", "RR", "Rprec", "AP", "nDCG", "R", "Bpref", "Success", "IPrec"},
    "msmarco": {"RR"},
}  # ir-measures' provider -> its measures that depend on the ranks of judged hits alone

Run = Mapping[str, Mapping[str, float]]
"""Query id -> passage id -> score."""
Judgements = Mapping[str, Mapping[str, int]]
"""Query id -> passage id -> grade."""


@dataclass(frozen=True)
class Ties:
    """How many lines of a run have the score of another line of their query, as float32."""

    lines: int
    queries: tuple[str, ...]


@dataclass(frozen=True)
class RunResult:
    """The measures of one run.

    Attributes:
        name: of the run in tables.
        summary: measure -> mean over queries, or sum for counts.
        per_query: measure -> query id -> value, in the order of the judgements.
        missing: judged queries that the run lacks.
        unjudged: queries of the run without judgements.
        ties: lines whose order depends on the reader.
        over_relations: measure -> mean over the means of EntityQuestions' relations.
        run_id: the tag of the run, where it was asked for.
    """

    name: str
    summary: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]
    ties: Ties
    over_relations: Mapping[str, float] = field(default_factory=dict)
    run_id: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Several runs against the same judgments.

    Attributes:
        measures: ir-measures' measures, in the order asked for; their `str` is the key of mappings.
        relevance_level: the lowest grade that counted as relevant, where a measure named none.
        queries: all judged queries, in the order of the judgements.
        runs: one result a run.
        providers: which of ir-measures' providers computed what: provider -> measures.
        comparison: the runs against one of them, where that was asked for.
        published: papers' rows to stand beside the runs'.
    """

    measures: tuple[Measure, ...]
    relevance_level: int
    queries: tuple[str, ...]
    runs: tuple[RunResult, ...]
    providers: Mapping[str, tuple[str, ...]]
    comparison: Comparison | None = None
    published: tuple[PublishedRow, ...] = ()


def count_ties(run: Run) -> Ties:
    """Count the lines that share their score with an earlier line of the same query.

    Scores are compared as float32, as trec_eval 9 and pytrec_eval do.

    >>> count_ties({"q1": {"a": 2.0, "b": 1.0, "c": 1.00000000001}, "q2": {"a": 1.0}})
    Ties(lines=1, queries=('q1',))
    """
    lines = 0
    queries = []
    for qid, hits in run.items():
        tied = len(hits) - len(set(array("f", hits.values())))
        if tied:
            lines += tied
            queries.append(qid)
    return Ties(lines, tuple(queries))


def without_own_query(run: Run) -> dict[str, dict[str, float]]:
    """Drop hits whose passage id is the query's id, and queries left empty.

    >>> without_own_query({"q1": {"q1": 9.0, "a": 1.0}, "q2": {"q2": 1.0}})
    {'q1': {'a': 1.0}}
    """
    kept = {
        qid: {docid: score for docid, score in hits.items() if docid != qid}
        for qid, hits in run.items()
    }
    return {qid: hits for qid, hits in kept.items() if hits}


def first_hits(hits: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the first hits in trec_eval's order: by score as float32, ties by id descending.

    >>> first_hits({"a": 1.0, "b": 2.0, "c": 1.0}, 2)
    {'b': 2.0, 'c': 1.0}
    """
    ranked = sorted(zip(array("f", hits.values()), hits, strict=True), reverse=True)
    return {docid: hits[docid] for _, docid in ranked[:count]}


class Evaluator:
    """Measures and judgments, prepared for any number of runs.

    Args:
        measures: what is measured.
        judgements: grades; every query in them counts.
        complete: queries that a run lacks count as 0; otherwise they are left out.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        judgements: Judgements,
        *,
        complete: bool = True,
    ) -> None:
        self.measures = tuple(measures)
        self.queries = tuple(judgements)
        self.complete = complete
        self._numbers = {qid: str(number) for number, qid in enumerate(judgements)}
        self._evaluators: list[tuple[BaseEvaluator, bool]] = []
        self._counts: dict[str, dict[str, float]] = {}
        providers: dict[str, tuple[str, ...]] = {}
        for measure in dict.fromkeys(measures):
            if counts_judgments(measure):
                self._counts[str(measure)] = {
                    qid: count_judgments(measure, grades) for qid, grades in judgements.items()
                }
        if self._counts:
            providers[OWN] = tuple(self._counts)
        for provider, mine in providers_of(measures).items():
            numbered = provider.NAME == "gdeval"  # it takes only whole numbers as query ids
            given = self._numbered(judgements) if numbered else judgements
            self._evaluators.append((provider.evaluator(mine, given), numbered))
            providers[provider.NAME] = tuple(map(str, mine))
        self.providers: Mapping[str, tuple[str, ...]] = providers

    def evaluate(self, name: str, run: Run, ties: Ties | None = None) -> RunResult:
        """Measure one run.

        Args:
            name: of the run in tables.
            run: scores; higher is better.
            ties: those of the whole run, if `run` holds only the hits that the measures need.

        Raises:
            MismatchError: none of its queries is judged.
        """
        run = {q: hits if type(hits) is dict else dict(hits) for q, hits in run.items() if hits}
        missing = tuple(qid for qid in self.queries if qid not in run)
        if len(missing) == len(self.queries):
            raise MismatchError(_nothing_in_common(name, run, self.queries))
        values = self._values(run)
        counted = [qid for qid in self.queries if self.complete or qid in run]
        per_query = {
            str(measure): {qid: found[qid] for qid in counted if qid in found}
            for measure in self.measures
            for found in [values[str(per_query_measure(measure))]]
        }
        return RunResult(
            name,
            {str(measure): _summary(measure, per_query[str(measure)]) for measure in self.measures},
            per_query,
            missing,
            tuple(qid for qid in run if qid not in self._numbers),
            count_ties(run) if ties is None else ties,
        )

    def _values(self, run: Run) -> dict[str, dict[str, float]]:
        """Return measure -> query id -> value."""
        values = dict(self._counts)
        for evaluator, numbered in self._evaluators:
            names = {id(measure): str(measure) for measure in evaluator.measures}
            found: dict[str, dict[str, float]] = {name: {} for name in names.values()}
            try:
                for metric in evaluator.iter_calc(self._numbered(run) if numbered else run):
                    qid = self.queries[int(metric.query_id)] if numbered else metric.query_id
                    found[names[id(metric.measure)]][qid] = metric.value
            except ZeroDivisionError:
                raise DenserkError(
                    f"{', '.join(found)} cannot be computed: ir-measures divides by zero, as "
                    "Accuracy does for a query whose hits are all relevant",
                    "leave the measure out",
                ) from None
            values |= found
        return values

    def _numbered(self, queries: Mapping[str, T]) -> dict[str, T]:
        """Replace the ids of judged queries by their numbers."""
        return {self._numbers[q]: hits for q, hits in queries.items() if q in self._numbers}


class Needed(NamedTuple):
    """Which hits of a query measures depend on.

    Attributes:
        depth: only the first ones; None for all.
        to_last_judged: none below the lowest judged one.
    """

    depth: int | None
    to_last_judged: bool


def needed_hits(measures: Sequence[Measure]) -> Needed | None:
    """Return which hits of a query change a value of some measures; None where every one may.

    >>> from denserk.evaluation.measures import parse_measures
    >>> needed_hits(parse_measures(["nDCG@10 RR@20"]).measures)
    Needed(depth=20, to_last_judged=True)
    """
    needed = [
        _needed_by(provider.NAME, measure)
        for provider, mine in providers_of(measures).items()
        for measure in mine
    ]
    depths = [each.depth or 0 for each in needed]
    depth = max(depths, default=0) if all(depths) else None
    to_last_judged = all(each.to_last_judged for each in needed)
    return Needed(depth, to_last_judged) if depth is not None or to_last_judged else None


def _needed_by(provider: str, measure: Measure) -> Needed:
    given = {name: measure[name] for name in measure.SUPPORTED_PARAMS}
    depth = given.get("cutoff")
    if depth is NOT_PROVIDED or given.get("judged_only") is True:
        depth = None
    if provider == "judged":
        return Needed(depth, to_last_judged=False)
    level = given.get("rel", 1)
    if measure.NAME not in RANKED.get(provider, ()) or (level is not NOT_PROVIDED and level < 1):
        return Needed(None, to_last_judged=False)
    return Needed(depth, to_last_judged=True)


class HitPruner:
    """Reduces the hits of a query to those that change a value of some measures.

    A measure of ranks depends on the judged hits and on how many hits stand above each; one with a
    cutoff on the first hits alone. Hits that tie with the last one stay: providers of ir-measures
    order ties differently. Scores are compared as float32, as trec_eval compares them.

    Attributes:
        tied: query -> how many of its lines share their score with another one.
    """

    def __init__(self, needed: Needed, judgements: Judgements) -> None:
        self._needed, self._judgements = needed, judgements
        self.tied: dict[str, int] = {}

    @property
    def ties(self) -> Ties:
        """The ties of the whole run, pruned hits among them."""
        return Ties(sum(self.tied.values()), tuple(self.tied))

    def __call__(self, hits: RankedList) -> dict[str, float]:
        """Return the scores of the hits that are needed; at least one a query."""
        with np.errstate(over="ignore"):
            scores = np.array(hits.scores, np.float32)
        if tied := len(scores) - len(np.unique(scores)):
            self.tied[hits.qid] = tied
        depth = min(self._needed.depth or len(scores), len(scores))
        lowest = np.partition(scores, -depth)[-depth]
        if self._needed.to_last_judged:
            judged = self._judgements.get(hits.qid, {}).keys() & set(hits.docids)
            rows = list(map(hits.docids.index, judged))
            lowest = max(lowest, scores[rows].min() if rows else scores.max())
        kept = np.flatnonzero(scores >= lowest).tolist()
        return {hits.docids[row]: hits.scores[row] for row in kept}


def _summary(measure: Measure, values: Mapping[str, float]) -> float:
    if is_mean(measure):
        return math.fsum(values.values()) / len(values) if values else math.nan
    aggregator = measure.aggregator()
    for value in values.values():
        aggregator.add(value)
    return float(aggregator.result())


def some(names: Iterable[str], limit: int = 3) -> str:
    """Return the first few names, quoted, for a message.

    >>> some(["q1", "q2", "q3", "q4"])
    "'q1', 'q2', 'q3', ..."
    """
    names = list(names)
    return ", ".join(map(repr, names[:limit])) + (", ..." if len(names) > limit else "")


def _nothing_in_common(name: str, run: Run, queries: Sequence[str]) -> str:
    if not run:
        return f"{name} holds no hit at all; the judgements are for queries {some(queries)}"
    return (
        f"{name} answers queries {some(run)}; the judgements are for {some(queries)}: "
        "none in common"
    )
