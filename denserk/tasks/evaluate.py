"""`denserk eval`: measures of runs by qrels or answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings
from denserk.evaluation.evaluator import Evaluator, minimums, read_judgments, short_names
from denserk.evaluation.measures import Measure, MeasureChoice, parse_measures
from denserk.evaluation.needed_hits import (
    Keep,
    needed_depth,
    ordered_depth,
    prune_by_judgments,
    read_hits,
    select_hits,
)
from denserk.evaluation.results import EvaluationResult, Grades, Run
from denserk.io.runs import read_run_tag
from denserk.records import Qrel


@dataclass(frozen=True)
class NamedRun:
    """The hits of a run that are evaluated, and what the run is called in results and messages."""

    name: str
    hits: Run
    tag: str | None = None  # the last column of TREC's format, for the measure runid
    ties: Mapping[str, int] | None = None  # hits that tie with another; None: counted in `hits`
    is_any_judged: bool | None = None  # whether a hit of the run is; None: seen in `hits`


@dataclass(frozen=True)
class RelevanceJudgments:
    """The judgments that runs are evaluated by."""

    grades: Grades
    source: str = "the qrels"  # in messages
    qrels: Sequence[Qrel] = ()  # for measures of sub-topics


def evaluate(
    runs: Sequence[str],
    qrels: str,
    settings: EvaluationSettings | None = None,
    names: Sequence[str] | None = None,
    source: str | None = None,
) -> EvaluationResult:
    """Evaluate run files ("-" is standard input) by a qrels file, or by those of a collection.

    The result has the measures asked for, the default ones if there are none, and those of the
    minimum values; `check_minimums` checks it. Messages call the runs `names` and the qrels
    `source`, or by their files.
    """
    settings = settings or EvaluationSettings()
    judgments = read_relevance_judgments(qrels, settings, source)
    sources = zip(names or short_names(runs), runs, strict=True)
    named_runs = read_runs(sources, judgments.grades, settings)
    return evaluate_runs(named_runs, judgments, settings)


def read_relevance_judgments(
    qrels: str, settings: EvaluationSettings, source: str | None = None
) -> RelevanceJudgments:
    """Read a qrels file, or the judgments of a collection, as the measures need them."""
    grades, qrels_by_subtopic = read_judgments(qrels, computed_measures(settings))
    return RelevanceJudgments(grades, source or qrels, qrels_by_subtopic)


def read_runs(
    sources: Iterable[tuple[str, str | Run]], grades: Grades, settings: EvaluationSettings
) -> Iterator[NamedRun]:
    """Read runs, each a name with a file or hits; memory holds the hits that the measures need."""
    keep = _needed_hits(grades, settings)
    reads_tags = parsed_measures(settings).has_run_id
    for name, source in sources:
        if isinstance(source, str):
            tag = read_run_tag(source) if reads_tags else None
            selected = read_hits(source, settings, keep)
        else:
            tag = None
            selected = select_hits(source, settings, keep)
        yield NamedRun(name, selected.run, tag, selected.ties, selected.is_any_judged)


def _needed_hits(grades: Grades, settings: EvaluationSettings) -> Keep | None:
    """Return what chooses the hits of a query that the measures need; None: they need all."""
    measures = computed_measures(settings)
    depth = needed_depth(measures)
    if depth is None:
        return None
    ordered = ordered_depth(measures, depth)
    return partial(prune_by_judgments, depth=depth, judgments=grades, ordered=ordered)


def evaluate_runs(
    runs: Iterable[NamedRun], judgments: RelevanceJudgments, settings: EvaluationSettings
) -> EvaluationResult:
    """Evaluate runs, of which only the hits that the measures need must be there.

    >>> judgments = RelevanceJudgments({"q1": {"d1": 1}, "q2": {"d1": 1}})
    >>> run = NamedRun("bm25", {"q1": {"d2": 3.0, "d1": 2.0}})
    >>> evaluate_runs([run], judgments, EvaluationSettings(measures=("RR@10",))).runs[0].summary
    {'RR@10': 0.25}
    """
    evaluator = Evaluator(
        computed_measures(settings),
        judgments.grades,
        complete=settings.complete,
        qrels=judgments.qrels,
        source=judgments.source,
    )
    reports_tags = parsed_measures(settings).has_run_id
    results = []
    for run in runs:
        result = evaluator.evaluate(run.name, run.hits, run.ties, is_any_judged=run.is_any_judged)
        run_id = (run.tag or run.name) if reports_tags else None
        results.append(replace(result, run_id=run_id))
    return evaluator.result(results, settings.relevance_level)


def parsed_measures(settings: EvaluationSettings) -> MeasureChoice:
    """Return the measures that are asked for, or the default ones."""
    return parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)


def computed_measures(settings: EvaluationSettings) -> tuple[Measure, ...]:
    """Return the measures that are asked for, and those of the minimum values."""
    of_minimums = [measure for measure, _ in minimums(settings)]
    return (*parsed_measures(settings).measures, *of_minimums)
