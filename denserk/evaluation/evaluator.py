"""Measures of runs against relevance judgments, per query and in summary.

A judged query that a run lacks counts as 0, or is left out if asked for. Queries without judgments
never count. Scores are not changed, so the order of tied passages is that of each provider of
ir-measures: trec_eval's measures order them by passage id descending (scores compared as float32),
RR with a cutoff and Judged by passage id ascending.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings, RunOrder, parse_bound
from denserk.errors import DenserkError, GateError, MismatchError, UsageError
from denserk.evaluation.measures import (
    JudgmentCounts,
    Measure,
    parse_measures,
    per_query_measure,
    providers_of,
    summarize,
)
from denserk.io.files import STREAM, some
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import RankedList, read_kept_scores, read_run_scores, read_run_tag

if TYPE_CHECKING:
    from denserk.evaluation.benchmarks import PublishedRow
    from denserk.evaluation.significance import Comparison

logger = logging.getLogger(__name__)

T = TypeVar("T")
Run = Mapping[str, Mapping[str, float]]  # query id -> passage id -> score
Judgments = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade
Values = Mapping[str, float]  # measure -> value

# how ir-measures' providers order tied passages; the others keep the order of the file
TIE_ORDER = {
    "pytrec_eval": "passage id descending",
    "gdeval": "passage id descending",
    "msmarco": "passage id ascending",
    "judged": "passage id ascending",
    "compat": "passage id ascending",
}
# providers' measures that depend on the ranks of judged hits alone
RANKED = {
    "pytrec_eval": {"P", "RR", "Rprec", "AP", "nDCG", "R", "Bpref", "Success", "IPrec"},
    "msmarco": {"RR"},
}
RUN_ENDINGS = (".gz", ".txt", ".tsv", ".trec", ".run", ".jsonl")


@dataclass(frozen=True)
class RunResult:
    """The measures of one run."""

    name: str
    summary: Values
    per_query: Mapping[str, Values]  # measure -> query id -> value, in the order of the qrels
    missing: tuple[str, ...]  # judged queries that the run lacks
    unjudged: tuple[str, ...]  # queries of the run without judgments
    ties: Mapping[str, int]  # query id -> lines with the score of an earlier one, as float32
    over_relations: Values = field(default_factory=dict)  # means of EntityQuestions' relations
    run_id: str | None = None  # the tag of the run, where asked for


@dataclass(frozen=True)
class EvaluationResult:
    """Several runs against the same judgments."""

    measures: tuple[Measure, ...]  # in the order asked for; their `str` is the key of mappings
    relevance_level: int  # the lowest grade that counted as relevant, where a measure named none
    queries: tuple[str, ...]  # all that are judged, in the order of the qrels
    runs: tuple[RunResult, ...]
    providers: Mapping[str, tuple[str, ...]]  # provider of ir-measures -> measures it computed
    comparison: "Comparison | None" = None
    published: "tuple[PublishedRow, ...]" = ()


def evaluate(
    runs: Sequence[str], qrels: str, settings: EvaluationSettings | None = None
) -> EvaluationResult:
    """Evaluate run files ("-" is standard input) by a qrels file, or by those of a collection.

    The result has the measures asked for, the default ones if there are none, and those of the
    minimum values; `check_minimums` checks it.
    """
    settings = settings or EvaluationSettings()
    choice = parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)
    if choice.left_out:
        logger.info(f"left out, unknown to ir-measures: {', '.join(choice.left_out)}")
    measures = (*choice.measures, *(measure for measure, _ in minimums(settings)))
    judgments = read_qrels_map(qrels)
    evaluator = Evaluator(measures, judgments, complete=settings.complete)
    changed = settings.remove_query or settings.max_hits is not None
    needed = None if changed or settings.order is RunOrder.RANK else needed_hits(measures)
    results = []
    for name, path in zip(short_names(runs), runs, strict=True):
        ties: dict[str, int] = {}
        kept = None
        # standard input and pipes cannot be read again where a run turns out not to be grouped
        if needed is not None and Path(path).is_file():
            keep = partial(prune_hits, needed=needed, judgments=judgments, ties=ties)
            kept = read_kept_scores(path, keep)
        if kept is None:
            result = evaluator.evaluate(name, read_hits(path, settings))
        else:
            result = evaluator.evaluate(name, kept, ties)
        run_id = (read_run_tag(path) or name) if choice.run_id else None
        results.append(replace(result, run_id=run_id))
    return evaluator.result(results, settings.relevance_level)


def read_hits(path: str, settings: EvaluationSettings) -> dict[str, dict[str, float]]:
    """Read the hits of a run that are evaluated: query id -> passage id -> score."""
    run = read_run_scores(path, by_rank=settings.order is RunOrder.RANK)
    if settings.remove_query:
        run = {qid: {d: s for d, s in hits.items() if d != qid} for qid, hits in run.items()}
    if settings.max_hits is None:
        return run
    return {qid: first_hits(hits, settings.max_hits) for qid, hits in run.items()}


def minimums(settings: EvaluationSettings) -> list[tuple[Measure, float]]:
    """Return the minimum values that `settings.min` asks for."""
    found = []
    for name, value in map(parse_bound, settings.min):
        measures = parse_measures([name], settings.relevance_level).measures
        if len(measures) != 1:
            raise UsageError(
                f"--min {name}: stands for several measures; one is expected",
                f"name one of {', '.join(map(str, measures))}",
            )
        found.append((measures[0], value))
    return found


def check_minimums(result: EvaluationResult, settings: EvaluationSettings) -> None:
    """Raise a GateError unless every run reaches the minimum values; NaN does not."""
    phrases = []
    for run in result.runs:
        whose = f"{run.name}: " if len(result.runs) > 1 else ""
        for measure, least in minimums(settings):
            value = run.summary[str(measure)]
            if not value >= least:
                shown = f"{value:.4f}"
                shown = shown if float(shown) < least else repr(value)
                phrases.append(f"{whose}{measure} is {shown}, under {least:.10g}")
    if phrases:
        raise GateError("; ".join(phrases))


def remarks(run: RunResult, result: EvaluationResult, complete: bool) -> Iterator[tuple[int, str]]:
    """Yield (logging level, sentence) on missing queries, ties, and queries that do not count."""
    if run.missing:
        what = "they count as 0" if complete else "they are left out of the means"
        yield (
            logging.WARNING,
            f"{run.name}: {len(run.missing):,} of {len(result.queries):,} judged queries are not "
            f"in the run: {some(run.missing)}; {what}",
        )
    if run.unjudged:
        yield (
            logging.INFO,
            f"{run.name}: queries without judgments, which do not count: {len(run.unjudged):,} "
            f"({some(run.unjudged)})",
        )
    if run.ties:
        orders = "; ".join(
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''} "
            f"by {TIE_ORDER.get(provider, 'order in the file')} ({provider})"
            for provider, names in result.providers.items()
            if provider != JudgmentCounts.NAME
        )
        yield (
            logging.WARNING,
            f"{run.name}: lines that tie with another of their query: {sum(run.ties.values()):,} "
            f"({some(run.ties)}); readers order ties differently: {orders}",
        )


class Evaluator:
    """Measures and judgments, prepared for any number of runs.

    If `complete`, queries that a run lacks count as 0; otherwise they are left out.
    """

    def __init__(
        self, measures: Iterable[Measure], judgments: Judgments, *, complete: bool = True
    ) -> None:
        self.measures = tuple(dict.fromkeys(measures))
        self.queries = tuple(judgments)
        self.complete = complete
        # queries are numbered, as gdeval takes only whole numbers as ids
        self._numbers = {qid: str(number) for number, qid in enumerate(judgments)}
        # trec_eval's nDCG never ends for a query whose grades are all negative
        numbered = {
            qid: grades if max(grades.values()) >= 0 else dict.fromkeys(grades, 0)
            for qid, grades in self._numbered(judgments).items()
        }
        shares = providers_of(self.measures)
        self._evaluators = [provider.evaluator(mine, numbered) for provider, mine in shares.items()]
        self.providers = {provider.NAME: tuple(map(str, m)) for provider, m in shares.items()}

    def evaluate(self, name: str, run: Run, ties: Mapping[str, int] | None = None) -> RunResult:
        """Measure one run; a MismatchError says that none of its queries is judged.

        `ties` are those of the whole run, if `run` holds only the hits that the measures need.
        """
        run = {qid: hits for qid, hits in run.items() if hits}
        missing = tuple(qid for qid in self.queries if qid not in run)
        if len(missing) == len(self.queries):
            has = f"answers queries {some(run)}" if run else "holds no hit at all"
            judged = f"the judgments are for queries {some(self.queries)}"
            raise MismatchError(f"{name} {has}; {judged}{': none in common' if run else ''}")
        values = self._values(run)
        counted = [qid for qid in self.queries if self.complete or qid in run]
        per_query = {}
        for measure in self.measures:
            found = values[str(per_query_measure(measure))]
            per_query[str(measure)] = {qid: found[qid] for qid in counted if qid in found}
        summary = {str(m): summarize(m, per_query[str(m)].values()) for m in self.measures}
        unjudged = tuple(qid for qid in run if qid not in self._numbers)
        return RunResult(
            *(name, summary, per_query, missing, unjudged),
            ties=count_ties(run) if ties is None else ties,
        )

    def result(self, runs: Sequence[RunResult], relevance_level: int = 1) -> EvaluationResult:
        """Return the results of several runs as one; log what is remarkable."""
        result = EvaluationResult(
            self.measures, relevance_level, self.queries, tuple(runs), self.providers
        )
        for run in runs:
            for level, sentence in remarks(run, result, self.complete):
                logger.log(level, sentence)
        return result

    def _values(self, run: Run) -> dict[str, dict[str, float]]:
        values: dict[str, dict[str, float]] = {}
        numbered = self._numbered(run)
        for evaluator in self._evaluators:
            # ir-measures spells a measure out each time that it is hashed
            found = {id(m): values.setdefault(str(m), {}) for m in evaluator.measures}
            try:
                for metric in evaluator.iter_calc(numbered):
                    found[id(metric.measure)][self.queries[int(metric.query_id)]] = metric.value
            except ZeroDivisionError:
                raise DenserkError(
                    f"{', '.join(map(str, evaluator.measures))} cannot be computed: ir-measures "
                    "divides by zero, as Accuracy does for a query whose hits are all relevant",
                    "leave the measure out",
                ) from None
        return values

    def _numbered(self, queries: Mapping[str, T]) -> dict[str, T]:
        return {self._numbers[q]: hits for q, hits in queries.items() if q in self._numbers}


class Needed(NamedTuple):
    """Which hits of a query measures depend on."""

    depth: int | None  # only the first ones; None for all
    to_last_judged: bool  # none below the lowest judged one


def needed_hits(measures: Sequence[Measure]) -> Needed | None:
    """Return which hits of a query change a value of some measures; None where every one may.

    >>> from denserk.evaluation.measures import parse_measures
    >>> needed_hits(parse_measures(["nDCG@10 RR@20"]).measures)
    Needed(depth=20, to_last_judged=True)
    """
    depth: float = 0
    to_last_judged = True
    for provider, mine in providers_of(measures).items():
        for measure in mine if provider.NAME != JudgmentCounts.NAME else ():
            params = measure.params
            depth = max(depth, inf if params.get("judged_only") else params.get("cutoff", inf))
            ranked = measure.NAME in RANKED.get(provider.NAME, ()) and params.get("rel", 1) >= 1
            if not ranked and provider.NAME != "judged":
                return None
            to_last_judged &= ranked
    if depth == inf:
        return Needed(None, to_last_judged) if to_last_judged else None
    return Needed(int(depth), to_last_judged)


def prune_hits(
    hits: RankedList, needed: Needed, judgments: Judgments, ties: dict[str, int]
) -> dict[str, float]:
    """Return the scores of the hits of a query that are needed, at least one; count its ties.

    A measure of ranks depends on the judged hits and on how many hits stand above each; one with a
    cutoff on the first hits alone. Hits that tie with the last one stay: providers of ir-measures
    order ties differently. Scores are compared as float32, as trec_eval compares them.
    """
    with np.errstate(over="ignore"):
        scores = np.array(hits.scores, np.float32)
    ranked = np.sort(scores)  # np.unique would import numpy.ma
    if tied := int((ranked[1:] == ranked[:-1]).sum()):
        ties[hits.qid] = tied
    lowest = ranked[-min(needed.depth or len(scores), len(scores))]
    if needed.to_last_judged:
        judged = judgments.get(hits.qid, {}).keys() & hits.docids
        rows = list(map(hits.docids.index, judged))
        lowest = max(lowest, scores[rows].min() if rows else scores.max())
    kept = np.flatnonzero(scores >= lowest).tolist()
    return {hits.docids[row]: hits.scores[row] for row in kept}


def count_ties(run: Run) -> dict[str, int]:
    """Count the lines of each query whose score equals an earlier one as float32.

    >>> count_ties({"q1": {"a": 2.0, "b": 1.0, "c": 1.00000000001}, "q2": {"a": 1.0}})
    {'q1': 1}
    """
    tied = {qid: len(hits) - len(set(array("f", hits.values()))) for qid, hits in run.items()}
    return {qid: count for qid, count in tied.items() if count}


def first_hits(hits: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the first hits in trec_eval's order: by score as float32, ties by id descending.

    >>> first_hits({"a": 1.0, "b": 2.0, "c": 1.0}, 2)
    {'b': 2.0, 'c': 1.0}
    """
    ranked = sorted(zip(array("f", hits.values()), hits, strict=True), reverse=True)
    return {docid: hits[docid] for _, docid in ranked[:count]}


def short_names(paths: Sequence[str]) -> list[str]:
    """Return names for runs: the file name without endings, more of the path where two are equal.

    >>> short_names(["out/bm25.trec.gz", "run.tasb.txt", "-"])
    ['bm25', 'run.tasb', 'stdin']
    >>> short_names(["a/run.txt", "b/run.txt"])
    ['a/run', 'b/run']
    """
    stems = []
    for path in paths:
        stem = Path("stdin" if path == STREAM else path)
        while stem.suffix in RUN_ENDINGS and stem.stem:
            stem = stem.with_suffix("")
        stems.append(stem)
    for parts in range(1, 1 + max(len(stem.parts) for stem in stems)):
        short = ["/".join(stem.parts[-parts:]) for stem in stems]
        if len(set(short)) == len(short):
            return short
    return list(paths)
