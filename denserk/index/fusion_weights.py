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
from denserk.index.searcher import Ranking
from denserk.io.files import some
from denserk.io.run_columns import RankedList
from denserk.records import best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

MOST_WEIGHTS = 100  # choices of weights that are tried
SHOWN = 5  # of them are logged
BLOCK = 256  # queries that are measured at once


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
            f"{some(fused.queries)}, the qrels judge {some(judgments)}"
        )
    means = means_by_weights(fused, measure, judgments, judged_queries)
    ranked_weights = sorted(means, key=lambda weights: (-means[weights], math.hypot(*weights)))
    log_best_weights(measure, len(judged_queries), means, ranked_weights)
    return ranked_weights[0]


def means_by_weights(
    fused: FusedRuns, measure: Measure, judgments: Grades, queries: Sequence[str]
) -> dict[Weights, float]:
    """Return the mean of a measure over queries for each choice of weights."""
    ranking = Ranking(fused.settings)  # what it counts is not the run's
    values: dict[Weights, list[float]] = {}
    for weights in weight_grid(len(fused.runs)):
        values[weights] = []
    with track("tuning weights", len(queries), "queries") as progress:
        for first in range(0, len(queries), BLOCK):
            block = queries[first : first + BLOCK]
            answered = _queries_with_passages(fused, block)
            if answered:
                judged = {query.qid: judgments[query.qid] for query in answered}
                evaluator = Evaluator([measure], judged, complete=False)
                for weights, values_of_weights in values.items():
                    run = _run_with_weights(answered, weights, measure, ranking)
                    result = evaluator.evaluate("fusion", run)
                    values_of_weights += result.per_query[str(measure)].values()
            progress.advance(len(block))
    if not any(values.values()):
        raise MismatchError(f"--tune {fused.fusion.tune}: no judged query has a passage left")
    return {weights: summarize(measure, values[weights]) for weights in values}


def weight_grid(runs: int) -> list[Weights]:
    """Return weights of sum 1 in equal steps, as fine as `MOST_WEIGHTS` allows, and equal ones.

    >>> [len(weight_grid(runs)) for runs in (2, 3, 4)], weight_grid(2)[16]
    ([21, 67, 57], (0.2, 0.8))
    """
    steps = _steps_of_weights(runs)
    choices: dict[Weights, None] = {}
    for run_of_step in combinations_with_replacement(range(runs), steps):
        counts = [run_of_step.count(run) for run in range(runs)]
        choices[tuple(round(count / steps, 4) for count in counts)] = None
    choices[(round(1 / runs, 4),) * runs] = None
    return list(choices)


def _steps_of_weights(runs: int) -> int:
    """Return into how many steps a sum of 1 is divided, so that not too many choices are tried."""
    for steps in (20, 10, 5, 4, 3, 2):
        if math.comb(steps + runs - 1, steps) <= MOST_WEIGHTS:
            return steps
    return 1


@dataclass(frozen=True)
class QueryParts:
    """The P passages of a query, and what each of R runs adds to their scores: (P, R)."""

    qid: str
    docids: list[str]
    scores: NDArray[np.float64]

    @classmethod
    def of(cls, qid: str, parts: Mapping[str, Sequence[float]]) -> "QueryParts":
        """Take what `FusedRuns.parts_of` returns."""
        return cls(qid, list(parts), np.array(list(parts.values())))


def _queries_with_passages(fused: FusedRuns, qids: Sequence[str]) -> list[QueryParts]:
    """Return the queries that have a passage; `remove_query` may leave one without."""
    queries = []
    for qid in qids:
        parts = fused.parts_of(qid)
        if parts:
            queries.append(QueryParts.of(qid, parts))
    return queries


def _run_with_weights(
    queries: Sequence[QueryParts], weights: Weights, measure: Measure, ranking: Ranking
) -> dict[str, dict[str, float]]:
    """Return the hits of queries, fused with some weights, that a measure needs."""
    depth = needed_depth([measure]) or math.inf
    run = {}
    for query in queries:
        sums = (query.scores * weights).sum(1, np.longdouble).astype(float).tolist()
        kept = prune_hits(RankedList(query.qid, query.docids, sums, ()), depth)
        run[query.qid] = dict(ranking.final(best_first(kept.scores.items())))
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
    one_run_alone = [weights for weights in ranked_weights[SHOWN:] if 1 in weights]
    for weights in (*ranked_weights[:SHOWN], *one_run_alone):
        text = ",".join(f"{weight:g}" for weight in weights)
        logger.info(f"  {means[weights]:.4f}  --weights {text}")
