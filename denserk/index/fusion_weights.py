"""Weights of fusion that are chosen by relevance judgments (`denserk fuse --tune`)."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import FusionSettings
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure, needs_subtopics, parse_measures, summarize
from denserk.evaluation.needed_hits import needed_depth, prune_hits
from denserk.evaluation.results import Grades
from denserk.index.fused_runs import FusedRuns
from denserk.index.fusion import Weights
from denserk.index.ranking import Ranking
from denserk.io.run_columns import RankedList
from denserk.io.short_texts import first_names
from denserk.records import best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

MOST_CHOICES = 100  # of weights, that are tried
LOGGED_CHOICES = 5  # the best ones
BLOCK = 256  # queries that are measured at once


@dataclass(frozen=True)
class QueryContributions:
    """The P passages of a query, and what each of R runs adds to their scores."""

    qid: str
    docids: list[str]
    contributions: NDArray[np.float64]  # (P, R)


def tuning_measure(fusion: FusionSettings) -> Measure:
    """Return the measure that chooses weights: one, and not of sub-topics."""
    measures = parse_measures([fusion.measure]).measures
    if len(measures) > 1:
        raise UsageError(f"--measure {fusion.measure}: one measure is expected")
    if needs_subtopics(measures[0]):
        message = f"--measure {fusion.measure}: a measure of sub-topics does not choose weights"
        raise UsageError(message, "for example --measure nDCG@10")
    return measures[0]


def best_weights(fused: FusedRuns, measure: Measure, judgments: Grades) -> Weights:
    """Return the weights whose fused run is best by a measure; of equals, the most even ones."""
    judged_queries = [qid for qid in fused.queries if qid in judgments]
    if not judged_queries:
        raise MismatchError(
            f"--tune {fused.fusion.tune}: no query of the runs is judged: the runs answer "
            f"{first_names(fused.queries)}, the qrels judge {first_names(judgments)}"
        )
    means = means_by_weights(fused, measure, judgments, judged_queries)
    ranked_weights = sorted(means, key=lambda weights: (-means[weights], math.hypot(*weights)))
    log_best_weights(measure, len(judged_queries), means, ranked_weights)
    return ranked_weights[0]


def means_by_weights(
    fused: FusedRuns, measure: Measure, judgments: Grades, queries: Sequence[str]
) -> dict[Weights, float]:
    """Return the mean of a measure over queries for each choice of weights."""
    ranking = Ranking(fused.settings)  # `fused.ranking` counts the ties of the final run alone
    values_of_weights: dict[Weights, list[float]] = {}
    for weights in weight_grid(len(fused.runs)):
        values_of_weights[weights] = []
    with track("tuning weights", len(queries), "queries") as progress:
        for start in range(0, len(queries), BLOCK):
            qids = queries[start : start + BLOCK]
            block = _queries_with_passages(fused, qids)
            if block:
                values_of_block = values_by_weights(block, measure, judgments, ranking)
                for weights, values in values_of_block.items():
                    values_of_weights[weights] += values
            progress.advance(len(qids))
    if not any(values_of_weights.values()):
        raise MismatchError(f"--tune {fused.fusion.tune}: no judged query has a passage left")
    return {weights: summarize(measure, values) for weights, values in values_of_weights.items()}


def values_by_weights(
    block: Sequence[QueryContributions], measure: Measure, judgments: Grades, ranking: Ranking
) -> dict[Weights, list[float]]:
    """Return the values of a measure on one query or more for each choice of weights."""
    judged = {query.qid: judgments[query.qid] for query in block}
    evaluator = Evaluator([measure], judged, complete=False)
    values = {}
    for weights in weight_grid(block[0].contributions.shape[1]):
        run = _run_with_weights(block, weights, measure, ranking)
        result = evaluator.evaluate("fusion", run)
        values[weights] = list(result.per_query[str(measure)].values())
    return values


def weight_grid(runs: int) -> list[Weights]:
    """Return weights of sum 1 in equal steps, as fine as `MOST_CHOICES` allows, and equal ones.

    >>> [len(weight_grid(runs)) for runs in (2, 3, 4)], weight_grid(2)[16]
    ([21, 67, 57], (0.2, 0.8))
    """
    steps = _steps_of_weights(runs)
    choices: list[Weights] = []
    for run_of_step in combinations_with_replacement(range(runs), steps):
        steps_of_runs = [run_of_step.count(run) for run in range(runs)]
        choices.append(tuple(round(count / steps, 4) for count in steps_of_runs))
    equal_weights = (round(1 / runs, 4),) * runs
    if equal_weights not in choices:
        choices.append(equal_weights)
    return choices


def _steps_of_weights(runs: int) -> int:
    """Return into how many steps a sum of 1 is divided, so that not too many choices are tried."""
    for steps in (20, 10, 5, 4, 3, 2):
        if math.comb(steps + runs - 1, steps) <= MOST_CHOICES:
            return steps
    return 1


def _queries_with_passages(fused: FusedRuns, qids: Sequence[str]) -> list[QueryContributions]:
    """Return the queries that have a passage; `remove_query` may leave one without."""
    queries = []
    for qid in qids:
        by_passage = fused.contributions_of(qid)
        if by_passage:
            contributions = np.array(list(by_passage.values()))
            queries.append(QueryContributions(qid, list(by_passage), contributions))
    return queries


def _run_with_weights(
    queries: Sequence[QueryContributions], weights: Weights, measure: Measure, ranking: Ranking
) -> dict[str, dict[str, float]]:
    """Return the hits of queries, fused with some weights, that a measure needs."""
    depth = needed_depth([measure]) or math.inf
    run = {}
    for query in queries:
        scores = (query.contributions * weights).sum(1, np.longdouble).astype(float).tolist()
        needed_hits = prune_hits(RankedList(query.qid, query.docids, scores, ()), depth)
        run[query.qid] = dict(ranking.final(best_first(needed_hits.scores.items())))
    return run


def log_best_weights(
    measure: Measure,
    queries: int,
    means: Mapping[Weights, float],
    ranked_weights: Sequence[Weights],
) -> None:
    """Log the best choices of weights, and those of one run alone."""
    count = len(ranked_weights)
    logger.info(f"{measure} of {queries:,} queries with each of {count} choices of weights:")
    one_run_alone = [weights for weights in ranked_weights[LOGGED_CHOICES:] if 1 in weights]
    for weights in (*ranked_weights[:LOGGED_CHOICES], *one_run_alone):
        text = ",".join(f"{weight:g}" for weight in weights)
        logger.info(f"  {means[weights]:.4f}  --weights {text}")
