"""Fusion of runs: reciprocal rank fusion, or a weighted sum of normalised scores.

Cormack, Clarke and Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
Learning Methods (2009); Fox and Shaw, Combination of Multiple Searches (1994), for the sum of
normalised scores (CombSUM).

Sums are rounded once (`math.fsum`), so they do not depend on the order of the runs: passages that
swap their ranks between runs of equal weight tie exactly. Memory grows with the queries, not with
their hits, whatever the order of the queries in each run. `--tune` reads each run once, and
computes only the sums for every choice of weights.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import FusionMethod, FusionSettings, Missing, Normalization
from denserk.index.ranking import Hits

logger = logging.getLogger(__name__)

Weights = tuple[float, ...]  # of each run


class RunContributions(NamedTuple):
    """What one run adds to the scores of a query's passages, with weight 1."""

    by_hit: dict[str, float]
    absent: float  # for a passage that the run did not return


def score_contributions(runs: Sequence[Hits], fusion: FusionSettings) -> dict[str, list[float]]:
    """Return what each run adds to the score of a passage, with weight 1, for one query.

    A run without a hit for the query adds nothing, whatever `missing` is.

    >>> run_a, run_b = [("d1", 9.0), ("d2", 8.0)], [("d2", 0.7)]
    >>> score_contributions([run_a, run_b], FusionSettings(rrf_k=0))
    {'d1': [1.0, 0.0], 'd2': [0.5, 1.0]}
    """
    contributions_of_runs = [_run_contributions(hits, fusion) for hits in runs]
    docids: dict[str, None] = {}
    for run in contributions_of_runs:
        docids |= dict.fromkeys(run.by_hit)
    contributions = {}
    for docid in docids:
        contributions[docid] = [run.by_hit.get(docid, run.absent) for run in contributions_of_runs]
    return contributions


def _run_contributions(hits: Hits, fusion: FusionSettings) -> RunContributions:
    """Return what a run adds to the scores of a query's passages, by its hits, the best first."""
    if not hits:
        return RunContributions({}, 0.0)
    if fusion.chosen is FusionMethod.RRF:
        ranked = enumerate(hits, start=1)
        return RunContributions(
            {docid: 1 / (fusion.rrf_k + rank) for rank, (docid, _) in ranked}, 0.0
        )
    docids, scores = zip(*hits, strict=True)
    by_hit = dict(zip(docids, normalized(scores, fusion.normalization), strict=True))
    absent = min(by_hit.values()) if absent_is_lowest(fusion) else 0.0
    return RunContributions(by_hit, absent)


def absent_is_lowest(fusion: FusionSettings) -> bool:
    """Return whether a passage that a run lacks has the lowest score there, and not 0."""
    if fusion.chosen is not FusionMethod.LINEAR:
        return False
    if fusion.normalization is Normalization.MIN_MAX:  # whose lowest score is 0
        return False
    if fusion.missing is None:
        return fusion.normalization is Normalization.ZMUV
    return fusion.missing is Missing.LOWEST


def weighted_scores(
    contributions: Mapping[str, Sequence[float]], weights: Sequence[float]
) -> dict[str, float]:
    """Return the score of each passage: the weighted sum of what the runs add to it.

    A sum that is too large for a number is infinite, or NaN: `write_run` names its passage.
    """
    return {docid: weighted_sum(values, weights) for docid, values in contributions.items()}


def weighted_sum(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of numbers, rounded once.

    >>> weighted_sum([1.0, 2.0], [0.5, 0.25]), weighted_sum([1e308, 1e308], [1, 1])
    (1.0, inf)
    """
    try:
        return math.fsum(map(mul, weights, values))
    except OverflowError:
        return math.inf
    except ValueError:  # both infinities
        return math.nan


def normalized(scores: Sequence[float], normalization: Normalization) -> list[float]:
    """Normalise the scores of one query in one run.

    >>> normalized([4.0, 3.0, 2.0], Normalization.MIN_MAX)
    [1.0, 0.5, 0.0]
    """
    if normalization is Normalization.NONE:
        return list(scores)
    values: list[float] = normalized_array(np.array(scores, np.float64), normalization).tolist()
    return values


def normalized_array(
    scores: NDArray[np.float64], normalization: Normalization
) -> NDArray[np.float64]:
    """Normalise the (K,) scores of one query in one run."""
    if normalization is Normalization.NONE:
        return scores
    lowest = scores.min()
    highest = scores.max()
    if lowest == highest:  # all hits are the best, and all have the mean score
        return np.full(len(scores), 1.0 if normalization is Normalization.MIN_MAX else 0.0)
    if normalization is Normalization.MIN_MAX:
        centre = lowest
        width = highest - lowest
    else:
        centre = scores.mean()
        width = scores.std()
    normalised: NDArray[np.float64] = (scores - centre) / width
    return normalised
