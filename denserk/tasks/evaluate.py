"""Runs and judgements to measures: what `denserk eval` does, to call from Python."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from denserk.errors import GateError, UsageError
from denserk.evaluation.evaluator import (
    EvaluationResult,
    Evaluator,
    HitPruner,
    RunResult,
    first_hits,
    needed_hits,
    some,
    without_own_query,
)
from denserk.evaluation.inputs import short_names
from denserk.evaluation.measures import OWN, Measure, MeasureChoice, parse_measures
from denserk.evaluation.significance import compare
from denserk.formats.runs import read_kept_scores, read_run_scores, read_run_tag
from denserk.formats.sources import read_qrels_map
from denserk.settings.evaluation import (
    DEFAULT_MEASURES,
    ComparisonSettings,
    EvaluationSettings,
    RunOrder,
    parse_bound,
)

logger = logging.getLogger(__name__)

TIE_ORDER = {
    "pytrec_eval": "passage id descending",
    "gdeval": "passage id descending",
    "msmarco": "passage id ascending",
    "judged": "passage id ascending",
    "compat": "passage id ascending",
}
"""ir-measures' provider -> how it orders tied passages; the others keep the file's order."""


def evaluate(
    runs: Sequence[str],
    qrels: str,
    settings: EvaluationSettings | None = None,
) -> EvaluationResult:
    """Measures runs against judgements.

    Args:
        runs: run files; "-" is standard input.
        qrels: a file of judgements, or a collection by name.
        settings: what is measured; the default measures where None.

    Returns:
        The measures asked for, and those of the gates; `check_minimums` checks a result.

    Raises:
        UsageError: a measure or gate is not understood, or there is no such file.
        InputError: a file is not what it should be.
        MismatchError: a run has no query in common with the judgements.
    """
    settings = settings or EvaluationSettings()
    choice = _choose(settings)
    if choice.left_out:
        logger.info(f"left out, unknown to ir-measures: {', '.join(choice.left_out)}")
    judgements = read_qrels_map(qrels)
    evaluator = Evaluator(choice.measures, judgements, complete=settings.complete)
    changed = settings.remove_query or settings.max_hits is not None
    needed = needed_hits(choice.measures)
    results = []
    for name, path in zip(short_names(runs), runs, strict=True):
        result = None
        # standard input and pipes cannot be read again where a run turns out not to be grouped
        if needed and not changed and settings.order is RunOrder.SCORE and Path(path).is_file():
            pruner = HitPruner(needed, judgements)
            run = read_kept_scores(path, pruner)
            result = run and evaluator.evaluate(name, run, pruner.ties)
        results.append(result or evaluator.evaluate(name, read_hits(path, settings)))
        if choice.run_id:
            results[-1] = replace(results[-1], run_id=read_run_tag(path) or name)
        _tell(results[-1], evaluator, settings)
    return EvaluationResult(
        choice.measures,
        settings.relevance_level,
        evaluator.queries,
        tuple(results),
        evaluator.providers,
    )


def read_hits(path: str, settings: EvaluationSettings) -> dict[str, dict[str, float]]:
    """Read the hits of a run that are evaluated: query id -> passage id -> score.

    Raises:
        UsageError: there is no such file.
        InputError: a line is broken, or has no rank where ranks order the hits.
    """
    run = read_run_scores(path, by_rank=settings.order is RunOrder.RANK)
    if settings.remove_query:
        run = without_own_query(run)
    if settings.max_hits is None:
        return run
    return {qid: first_hits(hits, settings.max_hits) for qid, hits in run.items()}


def compare_runs(
    result: EvaluationResult, runs: Sequence[str], settings: ComparisonSettings
) -> EvaluationResult:
    """Return the result with every other run tested against `settings.baseline`.

    Args:
        result: of the runs.
        runs: the files it was made from, the baseline among them.
        settings: which run is the baseline, and the test.

    Raises:
        UsageError: there is no run beside the baseline.
    """
    assert settings.baseline is not None
    name = result.runs[list(runs).index(settings.baseline)].name
    values = {run.name: run.per_query for run in result.runs}
    found = compare(values, result.measures, name, settings)
    return replace(result, comparison=found)


def minimums(settings: EvaluationSettings) -> list[tuple[Measure, float]]:
    """Return the minimum values that `settings.min` asks for.

    Raises:
        UsageError: one is not understood, or a name stands for several measures.
    """
    found = []
    for bound in map(parse_bound, settings.min):
        measures = parse_measures([bound.measure], settings.relevance_level).measures
        if len(measures) != 1:
            raise UsageError(
                f"--min {bound.measure}: stands for several measures; one is expected",
                f"name one of {', '.join(map(str, measures))}",
            )
        found.append((measures[0], bound.value))
    return found


def check_minimums(result: EvaluationResult, settings: EvaluationSettings) -> None:
    """Check that every run reaches the minimum values; NaN does not.

    Raises:
        GateError: with every measure, its value, and the bound.
    """
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


def _choose(settings: EvaluationSettings) -> MeasureChoice:
    choice = parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)
    extra = [measure for measure, _ in minimums(settings)]
    return replace(choice, measures=tuple(dict.fromkeys((*choice.measures, *extra))))


def _tell(run: RunResult, evaluator: Evaluator, settings: EvaluationSettings) -> None:
    count = len(evaluator.queries)
    if run.missing:
        what = "they count as 0" if settings.complete else "they are left out of the means"
        logger.warning(
            f"{run.name}: {len(run.missing):,} of {count:,} judged queries are not in the run: "
            f"{some(run.missing)}; {what}"
        )
    if run.unjudged:
        logger.info(
            f"{run.name}: queries without judgements, which do not count: "
            f"{len(run.unjudged):,} ({some(run.unjudged)})"
        )
    tell_ties(run, evaluator.providers)


def tell_ties(run: RunResult, providers: Mapping[str, Sequence[str]]) -> None:
    """Warns of lines whose order depends on the reader.

    Args:
        run: its measures.
        providers: which of ir-measures' providers computed what: provider -> measures.
    """
    if not run.ties.lines:
        return
    orders = "; ".join(
        f"{_few(names)} by {TIE_ORDER[provider]} ({provider})"
        if provider in TIE_ORDER
        else f"{_few(names)} by order in the file ({provider})"
        for provider, names in providers.items()
        if provider != OWN
    )
    logger.warning(
        f"{run.name}: lines that tie with another of their query: {run.ties.lines:,} "
        f"({some(run.ties.queries)}); readers order ties differently: {orders}"
    )


def _few(names: Sequence[str], limit: int = 3) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
