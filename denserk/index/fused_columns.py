"""Fusion of a query's hits as columns of NumPy, with the scores of `fusion.py`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import FusionMethod, FusionSettings
from denserk.index.fusion import absent_is_lowest, normalized_array, weighted_sum
from denserk.io.run_columns import RankedWords, Words, join_words

Scores = NDArray[np.float64]


def fuse_columns(
    runs: Sequence[RankedWords], fusion: FusionSettings, weights: Sequence[float]
) -> RankedWords | None:
    """Return the fused hits of R runs for one query, best first; None if a score is not finite.

    A run without a hit for the query adds nothing. Equal scores are ordered by descending id.
    """
    ranked = [hits.best_first().first(fusion.depth) for hits in runs]
    words, passages = distinct_ids([hits.words for hits in ranked])
    contributions = np.zeros((len(runs), words.shape[1]))  # (R, P)
    first_hit = 0
    for run, hits in enumerate(ranked):
        if not len(hits):
            continue
        passages_of_run = passages[first_hit : first_hit + len(hits)]
        first_hit += len(hits)
        of_hits = _contributions(hits, fusion)
        with np.errstate(over="ignore"):
            weighted = weights[run] * of_hits
        if absent_is_lowest(fusion):  # for all passages; those of the run follow
            contributions[run] = weighted[of_hits.argmin()]
        contributions[run, passages_of_run] = weighted
    scores = exact_sums(contributions)
    if not np.isfinite(scores).all():
        return None
    # ids are in ascending order, and a stable sort leaves those of equal scores so
    order = np.argsort(scores, kind="stable")[::-1]
    return RankedWords(words[:, order], scores[order])


def distinct_ids(words_of_runs: Sequence[Words]) -> tuple[Words, NDArray[np.int64]]:
    """Return the words of the P distinct ids in ascending order, and each hit's number among them.

    Hits are those of all runs, one run behind the other.
    """
    words = join_words(words_of_runs)
    # of several words the first one counts most, which lexsort takes as the last key
    order = np.argsort(words[0]) if len(words) == 1 else np.lexsort(words[::-1])
    ascending = words[:, order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (ascending[:, 1:] != ascending[:, :-1]).any(axis=0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return ascending[:, is_new], numbers


def _contributions(hits: RankedWords, fusion: FusionSettings) -> Scores:
    """Return what a run adds to the scores of its (K,) hits, with weight 1."""
    if fusion.chosen is FusionMethod.LINEAR:
        return normalized_array(hits.scores, fusion.normalization)
    ranks = np.arange(1, len(hits) + 1)
    return np.reciprocal((fusion.rrf_k + ranks).astype(np.float64))


def exact_sums(terms: Scores) -> Scores:
    """Return the sums of (R, P) terms over R, each rounded once, as `math.fsum` rounds them.

    What an addition rounds away is a double, too, which is added up beside the sum. Where these
    additions were rounded themselves, so that another sum may be the nearest, and where numbers
    overflow, `weighted_sum` computes the sum.

    >>> exact_sums(np.array([[1e16], [1.0], [1e-16]])), sum([1e16, 1.0, 1e-16])
    (array([1.e+16]), 1e+16)
    >>> exact_sums(np.array([[0.1], [0.2], [0.3]])), 0.1 + 0.2 + 0.3
    (array([0.6]), 0.6000000000000001)
    """
    totals = terms[0].copy()
    errors = np.zeros_like(totals)
    error_sizes = np.zeros_like(totals)
    is_exact = np.ones(len(totals), bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for term in terms[1:]:
            totals, error = _sum_and_error(totals, term)
            errors, second_error = _sum_and_error(errors, error)
            error_sizes += np.abs(error)
            is_exact &= second_error == 0
        sums: Scores = totals + errors
        # a bound of what the additions of errors have rounded away
        slack = len(terms) * np.finfo(float).eps * error_sizes
        is_certain = totals + (errors - slack) == totals + (errors + slack)
        is_certain |= is_exact
        is_certain &= np.isfinite(sums)
    weights = [1.0] * len(terms)
    for column in np.flatnonzero(~is_certain).tolist():
        sums[column] = weighted_sum(terms[:, column].tolist(), weights)
    return sums


def _sum_and_error(augend: Scores, addend: Scores) -> tuple[Scores, Scores]:
    """Return the rounded sum, and what is missing to the exact one (Knuth's TwoSum)."""
    total = augend + addend
    rounded_addend = total - augend
    rounded_augend = total - rounded_addend
    error = (augend - rounded_augend) + (addend - rounded_addend)
    return total, error
