"""Means and differences of runs by human labels of few queries and predicted labels of many."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from denserk.config.evaluation import ComparisonSettings
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.intervals import DIGITS
from denserk.evaluation.measures import Measure, is_mean
from denserk.evaluation.prediction_powered import (
    LEAST_QUERIES,
    Floats,
    MeanEstimate,
    PoweredEstimate,
    confidence_interval,
    effective_queries,
    p_value_of_mean,
    prediction_powered_mean,
)
from denserk.evaluation.results import (
    Comparison,
    EvaluationResult,
    MeanInterval,
    PoweredDifference,
    PoweredMean,
    PredictedLabels,
    RunResult,
    Sample,
)
from denserk.evaluation.significance import correction_factors
from denserk.io.draws import Draw, draw_order
from denserk.io.short_texts import first_names

# means over queries that say nothing of how good a run is, or have no value for some queries
UNSUITABLE = ("Accuracy", "Judged")


class _ValuesOfQueries(NamedTuple):
    """The values of a run, or its differences from another one, by both kinds of labels."""

    human: Floats  # (n,) of the human-judged queries
    predicted: Floats  # (n,) of the same queries
    all_predicted: Floats  # (N,) of all queries with predicted labels

    def minus(self, baseline: "_ValuesOfQueries") -> "_ValuesOfQueries":
        """Return the differences from a baseline, query by query."""
        return _ValuesOfQueries(
            (self.human - baseline.human).round(DIGITS),
            (self.predicted - baseline.predicted).round(DIGITS),
            (self.all_predicted - baseline.all_predicted).round(DIGITS),
        )

    def estimate(self) -> PoweredEstimate:
        """Return the estimates of the mean without and with predicted labels."""
        return prediction_powered_mean(self.human, self.predicted, self.all_predicted)


def check_measures(measures: Sequence[Measure]) -> None:
    """Raise a UsageError for measures that predicted labels do not estimate."""
    unsuitable = [
        str(measure) for measure in measures if not is_mean(measure) or measure.NAME in UNSUITABLE
    ]
    if unsuitable:
        raise UsageError(
            f"--predicted cannot estimate {', '.join(unsuitable)}: counts, geometric means, and "
            "means of some queries only",
            "choose measures such as nDCG@10, RR@10, AP, R@100, P@10 or Success@5",
        )


def check_queries(human_qids: Sequence[str], predicted_qids: Sequence[str]) -> None:
    """Raise a MismatchError unless at least four queries are human-judged, all of them predicted.

    Query ids are those of the two qrels.
    """
    known_qids = set(predicted_qids)
    absent_qids = [qid for qid in human_qids if qid not in known_qids]
    if absent_qids:
        raise MismatchError(
            f"{len(absent_qids):,} of {len(human_qids):,} human-judged queries have no predicted "
            f"label: {first_names(absent_qids)}",
            "predicted labels are needed for every query of the collection, as grade 0 where "
            "nothing is relevant",
        )
    if len(human_qids) < LEAST_QUERIES:
        raise MismatchError(
            f"{len(human_qids)} human-judged queries: --predicted needs at least {LEAST_QUERIES}",
            "judge more queries; intervals are worth reading from about 20",
        )


def sample_of(
    human_qids: Sequence[str], predicted_qids: Sequence[str], draw: Draw | None
) -> Sample:
    """Return whether the human-judged queries are the first ones of a draw from the predicted ones.

    >>> draw = Draw(seed=1, queries=4, queries_sha256="", drawn=2, drawn_sha256="")
    >>> sample_of(["q3", "q4"], ["q1", "q2", "q3", "q4"], draw).value
    'drawn'
    """
    if draw is None:
        return Sample.UNKNOWN
    first_qids = draw_order(predicted_qids, draw.seed)[: len(human_qids)]
    if set(first_qids) == set(human_qids):
        return Sample.DRAWN
    return Sample.NOT_FIRST


def estimate_with_predictions(
    human: EvaluationResult,
    predicted: EvaluationResult,
    settings: ComparisonSettings,
    draw: Draw | None = None,
) -> PredictedLabels:
    """Return the means of runs, and their differences from a baseline if there is a comparison.

    Both results have the same runs and measures in the same order: `human` those by human labels,
    with the comparison, and `predicted` those by predicted labels.
    """
    check_queries(human.queries, predicted.queries)
    measures = [str(measure) for measure in human.measures]
    values: dict[tuple[str, str], _ValuesOfQueries] = {}  # by run and measure
    for run, predicted_run in zip(human.runs, predicted.runs, strict=True):
        for measure in measures:
            values[run.name, measure] = _values_of_queries(run, predicted_run, measure)
    means: dict[str, dict[str, PoweredMean]] = {run.name: {} for run in human.runs}
    for (run_name, measure), values_of_run in values.items():
        means[run_name][measure] = _powered_mean(values_of_run.estimate(), settings.alpha)
    differences: Mapping[str, Mapping[str, PoweredDifference]] = {}
    if human.comparison is not None:
        run_names = [run.name for run in human.runs]
        differences = _powered_differences(values, human.comparison, run_names)
    return PredictedLabels(
        human_queries=len(human.queries),
        predicted_queries=len(predicted.queries),
        sample=sample_of(human.queries, predicted.queries, draw),
        seed=None if draw is None else draw.seed,
        alpha=settings.alpha,
        correction=settings.correction,
        means=means,
        baseline=None if human.comparison is None else human.comparison.baseline,
        differences=differences,
    )


def _values_of_queries(
    human_run: RunResult, predicted_run: RunResult, measure: str
) -> _ValuesOfQueries:
    """Return the values of a run by both labels."""
    human_values = human_run.per_query[measure]
    predicted_values = predicted_run.per_query[measure]
    human = np.array([*human_values.values()])
    all_predicted = np.array([*predicted_values.values()])
    if not np.isfinite(human).all() or not np.isfinite(all_predicted).all():
        raise UsageError(
            f"--predicted: {measure} of {human_run.name} is undefined for some queries",
            "leave this measure out",
        )
    predicted = np.array([predicted_values[qid] for qid in human_values])
    return _ValuesOfQueries(human, predicted, all_predicted)


def _powered_mean(estimate: PoweredEstimate, alpha: float) -> PoweredMean:
    """Return the intervals of a mean."""
    return PoweredMean(
        human=_interval(estimate.human, alpha),
        powered=_interval(estimate.powered, alpha),
        correlation=estimate.correlation,
        weight=estimate.weight,
        effective_queries=effective_queries(estimate),
        gain=estimate.gain,
    )


def _interval(estimate: MeanEstimate, alpha: float) -> MeanInterval:
    """Return an estimate with the interval of level 1 - alpha."""
    low, high = confidence_interval(estimate, alpha)
    return MeanInterval(estimate.mean, low, high)


def _powered_differences(
    values: Mapping[tuple[str, str], _ValuesOfQueries],
    comparison: Comparison,
    run_names: Sequence[str],
) -> dict[str, dict[str, PoweredDifference]]:
    """Return the differences of a comparison, with predicted labels, corrected together."""
    estimates: dict[tuple[str, str], PoweredEstimate] = {}  # by run and measure
    for run_name, differences_of_run in comparison.differences.items():
        baseline = _baseline_of(run_name, comparison, run_names)
        for measure in differences_of_run:
            differences = values[run_name, measure].minus(values[baseline, measure])
            estimates[run_name, measure] = differences.estimate()
    p_values = [p_value_of_mean(estimate.powered) for estimate in estimates.values()]
    factors = correction_factors(p_values, comparison.settings.correction)
    powered: dict[str, dict[str, PoweredDifference]] = {name: {} for name in comparison.differences}
    for (key, estimate), p, factor in zip(estimates.items(), p_values, factors, strict=True):
        run_name, measure = key
        human = comparison.differences[run_name][measure]
        powered[run_name][measure] = PoweredDifference(
            human=MeanInterval(human.mean, human.low, human.high),
            powered=_interval(estimate.powered, comparison.settings.alpha / factor),
            correlation=estimate.correlation,
            weight=estimate.weight,
            effective_queries=effective_queries(estimate),
            gain=estimate.gain,
            p=p,
            corrected=math.nan if math.isnan(p) else min(1.0, factor * p),
        )
    return powered


def _baseline_of(run_name: str, comparison: Comparison, run_names: Sequence[str]) -> str:
    """Return the run that a run is compared with: the baseline, or else the run before it.

    The baseline is not among the runs where --baseline previous compares each run with another one.
    """
    if comparison.baseline in run_names:
        return comparison.baseline
    return run_names[run_names.index(run_name) - 1]
