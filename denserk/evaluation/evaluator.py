"""Measures of runs against relevance judgments, per query and in summary.

A judged query that a run lacks counts as 0, or is left out if asked for. Queries without judgments
never count. Scores are not changed, so the order of tied passages is that of each provider of
ir-measures: trec_eval's measures order them by passage id descending (scores compared as float32),
RR with a cutoff and Judged by passage id ascending.
"""

import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite, isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from denserk.config.evaluation import EvaluationSettings, parse_bound
from denserk.errors import GateError, MismatchError
from denserk.evaluation.measures import (
    Measure,
    accuracy_hint,
    needs_subtopics,
    parse_measures,
    summarize,
    underlying,
)
from denserk.evaluation.needed_hits import first_hits
from denserk.evaluation.providers import Judgments, measure_groups
from denserk.evaluation.results import EvaluationResult, Grades, Run, RunResult, Values
from denserk.io.files import STREAM
from denserk.io.qrels import grades_by_query, read_qrels, read_qrels_map
from denserk.io.short_texts import first_names
from denserk.records import Qrel, document_of

logger = logging.getLogger(__name__)

SEED = re.compile(r"[-_.](seed)?[-_.]?\d+$")  # at the end of a run's name
# of run files, which the names of runs in tables lack
HIDDEN_ENDINGS = re.compile(r"(?<=.)(\.(gz|txt|tsv|trec|run|jsonl?))+$")


def read_judgments(
    source: str, measures: Sequence[Measure]
) -> tuple[dict[str, dict[str, int]], list[Qrel]]:
    """Read grades by query and passage, and for measures of sub-topics also the qrels as a list.

    A passage may have a grade for each sub-topic only if all measures are of sub-topics.
    """
    need_subtopics = [needs_subtopics(measure) for measure in measures]
    if not any(need_subtopics):
        return read_qrels_map(source), []
    qrels = list(read_qrels(source, by_subtopic=all(need_subtopics)))
    return grades_by_query(qrels), qrels


def minimums(settings: EvaluationSettings) -> list[tuple[Measure, float]]:
    """Return the measures that `settings.min` names, each with the lowest value it may have."""
    bounds = []
    for text in settings.min:
        name, minimum = parse_bound(text)
        for measure in parse_measures([name], settings.relevance_level).measures:
            bounds.append((measure, minimum))
    return bounds


def check_minimums(result: EvaluationResult, settings: EvaluationSettings) -> None:
    """Raise a GateError unless every run reaches the minimum values; NaN does not."""
    messages = []
    for run in result.runs:
        for measure, minimum in minimums(settings):
            value = run.summary[str(measure)]
            if isnan(value) or value < minimum:
                messages.append(f"{run.name}: {measure} is {value:.6g}, under {minimum:.10g}")
    if messages:
        raise GateError("; ".join(messages))


class Remark(NamedTuple):
    """What a reader should know of a run's values."""

    severity: int  # a level of logging
    sentence: str


def remarks(run: RunResult, result: EvaluationResult, complete: bool) -> Iterator[Remark]:
    """Yield remarks on missing queries, ties, and what does not count."""
    if run.missing:
        effect = "they count as 0" if complete else "they are left out of the means"
        yield Remark(
            logging.WARNING,
            f"{run.name}: {len(run.missing):,} of {len(result.queries):,} judged queries are not "
            f"in the run: {first_names(run.missing)}; {effect}",
        )
    if run.hit_of_judged_document is not None:
        passage = run.hit_of_judged_document
        document = document_of(passage, "#")
        yield Remark(
            logging.WARNING,
            f"{run.name}: no hit is judged: hits are passages such as {passage!r}, judgments are "
            f"of documents such as {document!r}; search --max-passage writes documents",
        )
    elif run.unjudged_hit is not None:
        hit, judged = run.unjudged_hit
        yield Remark(logging.WARNING, unjudged_hit_sentence(run.name, hit, judged))
    if run.unjudged:
        yield Remark(
            logging.INFO,
            f"{run.name}: queries without judgments, which do not count: {len(run.unjudged):,} "
            f"({first_names(run.unjudged)})",
        )
    if run.ties:
        yield Remark(
            logging.WARNING,
            f"{run.name}: hits that tie with another of their query: {sum(run.ties.values()):,} "
            f"({first_names(run.ties)}); RR and Judged with a cutoff order them by passage id "
            "ascending, trec_eval's measures descending",
        )
    for measure in result.measures:
        yield from _measure_remarks(run, measure, len(result.queries))


def _measure_remarks(run: RunResult, measure: Measure, query_count: int) -> Iterator[Remark]:
    """Yield remarks on a measure that is not what it may be taken for."""
    values = run.per_query[str(measure)]
    if measure.NAME == "Accuracy":
        yield Remark(
            logging.WARNING,
            f"{run.name}: {measure} is the mean of {len(values):,} of {query_count:,} judged "
            f"queries, those with a relevant hit. {accuracy_hint(measure)}",
        )
    if not isfinite(run.summary[str(measure)]):
        undefined = [qid for qid, value in values.items() if not isfinite(value)]
        queries = f"the queries {first_names(undefined)}" if undefined else "every query"
        yield Remark(logging.WARNING, f"{run.name}: {measure} is undefined for {queries}")


class Evaluator:
    """Measures and judgments, prepared for any number of runs.

    If `complete`, queries that a run lacks count as 0; otherwise they are left out. Measures of
    sub-topics are computed on `qrels`, all others on `judgments`; `source` names both in messages.
    """

    def __init__(
        self,
        measures: Iterable[Measure],
        judgments: Grades,
        *,
        complete: bool = True,
        qrels: Sequence[Qrel] = (),
        source: str = "the qrels",
    ) -> None:
        self.measures = tuple(dict.fromkeys(measures))
        self.queries = tuple(judgments)
        self._judgments = judgments
        self.complete = complete
        # measures of the judgments alone, as `trec_eval -c` counts them: the same for every run
        self._counts: dict[str, dict[str, float]] = {}  # measure -> query id -> count
        for measure in self.measures:
            if measure.NAME == "NumQ":
                self._counts[str(measure)] = dict.fromkeys(judgments, 1)
            elif measure.NAME == "NumRel":
                self._counts[str(measure)] = _count_relevant(judgments, measure["rel"])
        self._groups = measure_groups(self.measures, Judgments(judgments, qrels, source))
        self.providers: dict[str, tuple[str, ...]] = {}
        for group in self._groups:  # a provider may have several
            provider = group.provider.NAME
            names = [str(measure) for measure in group.measures]
            self.providers[provider] = (*self.providers.get(provider, ()), *names)

    def evaluate(
        self,
        name: str,
        run: Run,
        ties: Mapping[str, int] | None = None,
        *,
        is_any_judged: bool | None = None,
    ) -> RunResult:
        """Measure one run; a MismatchError says that none of its queries is judged.

        `ties` are how many hits of each query score as one above, and `is_any_judged` whether a hit
        is judged, for runs that lack hits which no measure needs. By default all hits are there.
        """
        run = {qid: hits for qid, hits in run.items() if hits}
        missing = tuple(qid for qid in self.queries if qid not in run)
        if len(missing) == len(self.queries):
            raise self._no_common_query(name, run)
        per_query = self._values_by_query(run)
        summary = {}
        for measure in self.measures:
            summary[str(measure)] = summarize(measure, per_query[str(measure)].values())
        judged_queries = set(self.queries)
        return RunResult(
            name=name,
            summary=summary,
            per_query=per_query,
            missing=missing,
            unjudged=tuple(qid for qid in run if qid not in judged_queries),
            ties=_count_ties(run) if ties is None else ties,
            hit_of_judged_document=None if is_any_judged else self._hit_of_judged_document(run),
            unjudged_hit=None if is_any_judged else unjudged_hit(run, self._judgments),
        )

    def _no_common_query(self, name: str, run: Run) -> MismatchError:
        """Return the error of a run that has no hit for any judged query."""
        judged = first_names(self.queries)
        if not run:
            return MismatchError(
                f"{name} holds no hit at all; the judgments are for queries {judged}"
            )
        return MismatchError(
            f"{name} answers queries {first_names(run)}; the judgments are for queries {judged}: "
            "none in common"
        )

    def _values_by_query(self, run: Run) -> dict[str, dict[str, float]]:
        """Return measure -> query id -> value, of the queries that count.

        A measure may lack a value: Accuracy has none for a query without a relevant hit.
        """
        values = dict(self._counts)
        for group in self._groups:
            values |= group.values(run)
        counted_qids = [qid for qid in self.queries if self.complete or qid in run]
        per_query = {}
        for measure in self.measures:
            value_by_qid = values[str(underlying(measure))]
            per_query[str(measure)] = {
                qid: value_by_qid[qid] for qid in counted_qids if qid in value_by_qid
            }
        return per_query

    def _hit_of_judged_document(self, run: Run) -> str | None:
        """Return a hit whose document is judged, up to a "#", if no hit of a run is judged itself.

        Such a run is one of passages, and the judgments are those of documents.
        """
        passage = None
        for qid, hits in run.items():
            judged = self._judgments.get(qid, {})
            for docid in hits:
                if docid in judged:
                    return None
                if passage is None and document_of(docid, "#") in judged:
                    passage = docid
        return passage

    def result(self, runs: Sequence[RunResult], level: int = 1) -> EvaluationResult:
        """Return the results of several runs as one, and log the remarks on them.

        `level` is the lowest grade that counted as relevant.
        """
        result = EvaluationResult(self.measures, level, self.queries, tuple(runs), self.providers)
        for run in runs:
            for remark in remarks(run, result, self.complete):
                logger.log(remark.severity, remark.sentence)
        return result


def unjudged_hit(run: Run, judgments: Grades) -> tuple[str, str] | None:
    """Return a query's first hit and a judged passage of it, if no hit of a run is judged.

    >>> unjudged_hit({"q1": {"a": 1.0}}, {"q1": {"b.txt": 1}})
    ('a', 'b.txt')
    """
    example = None
    for qid, hits in run.items():
        judged = judgments.get(qid, {})
        if not judged.keys().isdisjoint(hits):
            return None
        if judged and hits and example is None:
            [first_hit] = first_hits(hits, 1)
            example = (first_hit, next(iter(judged)))
    return example


def unjudged_hit_sentence(name: str, hit: str, judged: str) -> str:
    """Return the warning of a run without any judged hit, by a hit and a judged passage."""
    return (
        f"{name}: no hit is judged: hits are passages such as {hit!r}, judgments are of "
        f"passages such as {judged!r}; are these ids of the same corpus?"
    )


def _count_relevant(judgments: Grades, level: int) -> dict[str, float]:
    """Return how many passages of each query have at least a grade."""
    counts: dict[str, float] = {}
    for qid, grades in judgments.items():
        counts[qid] = sum(grade >= level for grade in grades.values())
    return counts


def _count_ties(run: Run) -> dict[str, int]:
    """Return how many hits of queries have the score of an earlier one, as float32."""
    ties = {}
    for qid, hits in run.items():
        tied_hits = len(hits) - len(set(array("f", hits.values())))
        if tied_hits:
            ties[qid] = tied_hits
    return ties


def over_seeds(result: EvaluationResult) -> EvaluationResult:
    """Return one result for each system: means over its runs, whose names end in their seeds."""
    runs_by_system: dict[str, list[RunResult]] = {}
    for run in result.runs:
        system = SEED.sub("", run.name) or run.name  # a name may be nothing but a seed: "-1"
        runs_by_system.setdefault(system, []).append(run)
    systems = [_mean_of_runs(name, runs) for name, runs in runs_by_system.items()]
    return replace(result, runs=tuple(systems))


def _mean_of_runs(name: str, runs: Sequence[RunResult]) -> RunResult:
    """Return the result of a system: means over its runs, and their standard deviations."""
    summary = {}
    spread = {}
    per_query = {}
    for measure in runs[0].summary:
        summaries = [run.summary[measure] for run in runs]
        summary[measure] = fmean(summaries)
        if len(runs) > 1:
            spread[measure] = stdev(summaries)
        per_query[measure] = _means_by_query([run.per_query[measure] for run in runs])
    ties: Counter[str] = Counter()
    for run in runs:
        ties.update(run.ties)
    return RunResult(
        name=name,
        summary=summary,
        per_query=per_query,
        missing=_in_any(run.missing for run in runs),
        unjudged=_in_any(run.unjudged for run in runs),
        ties=ties,
        run_id=None if runs[0].run_id is None else name,
        seeds=tuple(runs),
        spread=spread,
    )


def _in_any(qids_of_runs: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the queries of any run, each once.

    >>> _in_any([("q1", "q2"), ("q2", "q3")])
    ('q1', 'q2', 'q3')
    """
    return tuple(dict.fromkeys(chain.from_iterable(qids_of_runs)))


def _means_by_query(values_of_runs: Sequence[Values]) -> dict[str, float]:
    """Return the mean over runs of each query's values, for the queries that all runs have.

    >>> _means_by_query([{"q1": 0.0, "q2": 1.0}, {"q1": 0.5}])
    {'q1': 0.25}
    """
    means = {}
    for qid in values_of_runs[0]:
        if all(qid in values for values in values_of_runs):
            means[qid] = fmean(values[qid] for values in values_of_runs)
    return means


def short_names(paths: Sequence[str]) -> list[str]:
    """Return names for runs: the file names without endings, or the paths if two are equal.

    >>> short_names(["out/bm25.trec.gz", "run.tasb.txt", "-"])
    ['bm25', 'run.tasb', 'stdin']
    >>> short_names(["a/run.txt", "b/run.txt"])
    ['a/run.txt', 'b/run.txt']
    """
    names = [_short_name(path) for path in paths]
    if len(set(names)) < len(names):
        return list(paths)
    return names


def _short_name(path: str) -> str:
    """Return a run's file name without its endings."""
    if path == STREAM:
        return "stdin"
    return HIDDEN_ENDINGS.sub("", Path(path).name)
