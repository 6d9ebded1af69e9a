"""`denserk eval --unjudged`: what judgments of unjudged hits could change, and which to make."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from denserk.config.evaluation import EvaluationSettings, ReportSources
from denserk.errors import UsageError
from denserk.evaluation.evaluator import short_names
from denserk.evaluation.judging import ComparedNames, JudgedDifference, plan_judging
from denserk.evaluation.measures import Measure
from denserk.evaluation.needed_hits import Keep, prune_hits, read_hits, select_hits
from denserk.evaluation.results import EvaluationResult, Run
from denserk.evaluation.unjudged import JUDGED, JudgedRuns, bound_measures, supported_measures
from denserk.evaluation.unjudged_results import JudgingPlan, UnjudgedBounds
from denserk.io.pool import PoolRow
from denserk.reporting import track
from denserk.tasks.evaluate import (
    NamedRun,
    RelevanceJudgments,
    computed_measures,
    evaluate_runs,
    parsed_measures,
    read_relevance_judgments,
)
from denserk.tasks.pool_texts import write_pool_with_texts


def evaluate_unjudged(
    runs: Sequence[str],
    qrels: str,
    settings: EvaluationSettings,
    baseline: str | None = None,
    to_judge: int | None = None,
) -> EvaluationResult:
    """Evaluate run files, and bound their measures over all judgments of unjudged hits.

    `baseline` is one of the runs, or `previous`; without it the first run is the baseline.
    """
    names = short_names(runs)
    name_by_file = dict(zip(runs, names, strict=True))
    if baseline is not None:
        baseline = name_by_file.get(baseline, baseline)
    judgments = read_relevance_judgments(qrels, settings)
    sources = list(zip(names, runs, strict=True))
    return bound_runs(sources, judgments, settings, baseline, to_judge)


def bound_runs(
    sources: Sequence[tuple[str, str | Run]],
    judgments: RelevanceJudgments,
    settings: EvaluationSettings,
    baseline: str | None = None,
    to_judge: int | None = None,
) -> EvaluationResult:
    """Evaluate runs, each a name with a file or hits, and bound their measures.

    With `to_judge`, the result has at most so many hits whose judgments would decide the sign of
    the first difference that is open.
    """
    measures = parsed_measures(settings).measures
    supported_measures(measures)  # rejects others before a run is read
    if to_judge is not None:
        _check_choice(measures[0], len(sources))
    keep = _hits_above_cutoffs(computed_measures(settings))
    named_runs = [_read_run(name, source, settings, keep) for name, source in sources]
    result = evaluate_runs(named_runs, judgments, settings)
    judged_runs = JudgedRuns({run.name: run.hits for run in named_runs}, judgments.grades)
    bounds = bound_measures(result, judged_runs, measures, baseline)
    if to_judge is not None:
        with track("choosing hits to judge", None, "hits"):
            plan = _plan(measures, judged_runs, bounds, to_judge)
        bounds = replace(bounds, plan=plan)
    return replace(result, unjudged=bounds)


def _check_choice(measure: Measure, run_count: int) -> None:
    """Raise a UsageError if there is no difference by the first measure to choose hits for."""
    if run_count < 2:
        raise UsageError(
            "--to-judge chooses hits that decide a difference of two runs, and there is one run",
            "give two runs or more",
        )
    if measure.NAME == JUDGED:
        raise UsageError(
            f"--to-judge chooses hits by the first measure, and {measure} depends on no grade",
            "name another one first, for example -m 'nDCG@10 Judged@10'",
        )


def _hits_above_cutoffs(measures: Sequence[Measure]) -> Keep | None:
    """Return what chooses the hits above all cut-offs; None if a measure looks at all hits."""
    depth = max(measure.params.get("cutoff", inf) for measure in measures)
    if any(measure.params.get("judged_only") for measure in measures):
        return None
    if depth == inf:
        return None
    return partial(prune_hits, depth=depth)


def _read_run(
    name: str, source: str | Run, settings: EvaluationSettings, keep: Keep | None
) -> NamedRun:
    """Return the hits of a run down to the depth of the measures, judged or not."""
    if isinstance(source, str):
        selected = read_hits(source, settings, keep)
    else:
        selected = select_hits(source, settings, keep)
    return NamedRun(name, selected.run, ties=selected.ties)


def _plan(
    measures: Sequence[Measure], judged_runs: JudgedRuns, bounds: UnjudgedBounds, count: int
) -> JudgingPlan:
    """Return what to judge for the first difference that is open, by the first measure.

    If none is open, the plan is that of the first difference, without pairs.
    """
    compared = judged_runs.compared(measures)[0]
    assert compared.bounded is not None  # see _check_choice
    measure = str(compared.measure)
    run = _first_open_run(bounds, measure)
    counted_qids = bounds.differences[run][measure].per_query
    baseline = bounds.baseline_of[run]
    if not counted_qids:
        raise UsageError(
            f"--to-judge: no query counts for both {run} and {baseline}",
            "leave out --no-complete; queries that a run lacks count as 0",
        )
    positions = {name: position for position, name in enumerate(judged_runs.runs)}
    difference = JudgedDifference(
        compared.bounded,
        [query for query in compared.queries if query.qid in counted_qids],
        positions[run],
        positions[baseline],
        bounds.highest_grade,
    )
    return plan_judging(difference, ComparedNames(run, baseline, measure), count)


def _first_open_run(bounds: UnjudgedBounds, measure: str) -> str:
    """Return the first run whose difference is open; the first one of all if none is."""
    for run, differences in bounds.differences.items():
        if differences[measure].interval.is_open:
            return run
    return next(iter(bounds.differences))


def write_pairs(path: str, plan: JudgingPlan, sources: ReportSources, runs: Sequence[str]) -> int:
    """Write the pairs of a plan to a pool, with their texts where these are known."""
    rows = [PoolRow(pair.qid, pair.docid) for pair in plan.pairs]
    return write_pool_with_texts(path, rows, sources, runs)
