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

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import FusionMethod, FusionSettings, Missing, Normalization
from denserk.index.searcher import Hits

logger = logging.getLogger(__name__)

Weights = tuple[float, ...]  # of each run


def score_parts(runs: Sequence[Hits], fusion: FusionSettings) -> dict[str, list[float]]:
    """Return what each run adds to the score of a passage, with weight 1, for one query.

    A run without a hit for the query adds nothing, whatever `missing` is.
    """
    lowest = absent_is_lowest(fusion)
    columns: list[tuple[dict[str, float], float]] = []
    for hits in runs:
        own = {docid: 1 / (fusion.rrf_k + rank) for rank, (docid, _) in enumerate(hits, start=1)}
        absent = 0.0
        if hits and fusion.chosen is FusionMethod.LINEAR:
            docids, scores = zip(*hits, strict=True)
            own = dict(zip(docids, normalized(scores, fusion.normalization), strict=True))
            absent = min(own.values()) if lowest else 0.0
        columns.append((own, absent))
    every = dict.fromkeys(docid for hits in runs for docid, _ in hits)
    return {docid: [of.get(docid, absent) for of, absent in columns] for docid in every}


def absent_is_lowest(fusion: FusionSettings) -> bool:
    """Return whether a passage that a run lacks has the lowest score there, and not 0."""
    if fusion.chosen is not FusionMethod.LINEAR or fusion.normalization is Normalization.MIN_MAX:
        return False
    zmuv = fusion.normalization is Normalization.ZMUV
    missing = fusion.missing or (Missing.LOWEST if zmuv else Missing.ZERO)
    return missing is Missing.LOWEST


def weighted(parts: Mapping[str, Sequence[float]], weights: Sequence[float]) -> dict[str, float]:
    """Return the weighted sum of the parts of each passage's score.

    A sum that is too large for a number is infinite, or NaN: `write_run` names its passage.
    """
    return {docid: weighted_sum(own, weights) for docid, own in parts.items()}


def weighted_sum(parts: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of numbers, rounded once.

    >>> weighted_sum([1.0, 2.0], [0.5, 0.25]), weighted_sum([1e308, 1e308], [1, 1])
    (1.0, inf)
    """
    try:
        return math.fsum(map(mul, weights, parts))
    except OverflowError:
        return math.inf
    except ValueError:  # both infinities
        return math.nan


def normalized(scores: Sequence[float], normalization: Normalization) -> list[float]:
    """Normalise the scores of one query in one run."""
    if normalization is Normalization.NONE:
        return list(scores)
    values: list[float] = normalized_array(np.array(scores, np.float64), normalization).tolist()
    return values


def normalized_array(
    values: NDArray[np.float64], normalization: Normalization
) -> NDArray[np.float64]:
    """Normalise the (K,) scores of one query in one run."""
    low, high = values.min(), values.max()
    if normalization is Normalization.NONE:
        return values
    if low == high:
        return np.full(len(values), float(normalization is Normalization.MIN_MAX))
    is_min_max = normalization is Normalization.MIN_MAX
    centre, width = (low, high - low) if is_min_max else (values.mean(), values.std())
    normalised: NDArray[np.float64] = (values - centre) / width
    return normalised
