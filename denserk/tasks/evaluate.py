"""`denserk eval`: measures of runs by qrels or answers."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings
from denserk.evaluation.evaluator import (
    Evaluator,
    _prune_by_judgments,
    minimums,
    needed_depth,
    read_hits,
    read_judgments,
    short_names,
)
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import EvaluationResult
from denserk.io.runs import read_run_tag


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
    choice = parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)
    measures = (*choice.measures, *(measure for measure, _ in minimums(settings)))
    judgments, subtopic_qrels = read_judgments(qrels, measures)
    evaluator = Evaluator(
        measures,
        judgments,
        complete=settings.complete,
        qrels=subtopic_qrels,
        source=source or qrels,
    )
    depth = needed_depth(measures)
    keep = None
    if depth is not None:
        keep = partial(_prune_by_judgments, depth=depth, judgments=judgments)
    results = []
    for name, path in zip(names or short_names(runs), runs, strict=True):
        hits = read_hits(path, settings, keep)
        run_id = (read_run_tag(path) or name) if choice.run_id else None
        results.append(replace(evaluator.evaluate(name, hits), run_id=run_id))
    return evaluator.result(results, settings.relevance_level)


logger = logging.getLogger(__name__)
