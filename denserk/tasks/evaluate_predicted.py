"""`denserk eval --predicted`: measures by few human labels and many predicted ones."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from denserk.config.evaluation import Correction, EvalSettings, PredictedSettings
from denserk.errors import UsageError
from denserk.evaluation.predicted import check_measures, estimate_with_predictions
from denserk.evaluation.predicted_tables import sample_note
from denserk.evaluation.results import EvaluationResult, Sample
from denserk.io.draws import Draw, draw_beside, read_draw
from denserk.io.files import STREAM
from denserk.io.qrels import read_qrels
from denserk.tasks.evaluate import computed_measures, evaluate

logger = logging.getLogger(__name__)


def check_inputs(runs: Sequence[str], predicted: PredictedSettings, settings: EvalSettings) -> None:
    """Raise an error for what predicted labels cannot be used with, before the work begins."""
    check_settings(settings)
    if STREAM in runs:
        raise UsageError(
            "--predicted reads runs twice, and standard input can be read only once",
            "write it to a file first",
        )
    if predicted.predicted is not None and predicted.predicted != STREAM:
        _check_labels(predicted.predicted)
    if predicted.drawn is not None:
        read_draw(predicted.drawn)


def _check_labels(qrels: str) -> None:
    """Raise an error for qrels that are missing, empty or no qrels: read the first label."""
    next(read_qrels(qrels), None)


def check_settings(settings: EvalSettings) -> None:
    """Raise a UsageError for measures and tests that predicted labels cannot be used with."""
    if not settings.complete:
        raise UsageError(
            "--predicted and --no-complete exclude each other: a run is evaluated on the same "
            "queries by both labels",
            "leave out --no-complete; queries that a run lacks count as 0",
        )
    if settings.correction is Correction.TUKEY:
        raise UsageError(
            "--predicted and --correction tukey exclude each other: with predicted labels, "
            "differences are tested pair by pair",
            "choose --correction holm",
        )
    check_measures(computed_measures(settings))


def with_predicted_labels(
    result: EvaluationResult,
    runs: Sequence[str],
    qrels: str | None,
    predicted: PredictedSettings,
    settings: EvalSettings,
) -> EvaluationResult:
    """Return the result of runs by human labels with what predicted labels add to it.

    `runs` are the files of the result's runs, and `qrels` has the human labels.
    """
    assert predicted.predicted is not None
    names = [f"{run.name} by predicted labels" for run in result.runs]
    predicted_result = evaluate(runs, predicted.predicted, settings, names)
    draw = find_draw(qrels, predicted.drawn)
    return with_estimates(result, predicted_result, settings, draw)


def with_estimates(
    result: EvaluationResult,
    predicted_result: EvaluationResult,
    settings: EvalSettings,
    draw: Draw | None,
) -> EvaluationResult:
    """Return a result by human labels with estimates that use one by predicted labels.

    Logs what a reader should know before believing them.
    """
    labels = estimate_with_predictions(result, predicted_result, settings, draw)
    if labels.sample is not Sample.DRAWN:
        logger.warning(f"--predicted: {sample_note(labels)}")
    if labels.human_queries == labels.predicted_queries:
        logger.warning(
            "--predicted: every query with predicted labels is human-judged, so that these add "
            "nothing"
        )
    return replace(result, predicted=labels)


def find_draw(qrels: str | None, drawn: str | None) -> Draw | None:
    """Return the record of the draw of the human-judged queries; None if there is none.

    It stands beside the file that `drawn` names, or else beside the qrels, if --draw wrote these.
    """
    if drawn is not None:
        return read_draw(drawn)
    if qrels is None or qrels == STREAM:
        return None
    return draw_beside(qrels)
