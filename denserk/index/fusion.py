"""Several runs -> one: what a passage of several lists of hits scores in all.

Cormack, Clarke and Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
Learning Methods (2009); Fox and Shaw, Combination of Multiple Searches (1994), for the sum of
normalised scores (CombSUM).

Sums are rounded once (`math.fsum`), so that they do not depend on the order of the runs: passages
that swap their ranks between runs of one weight tie exactly.
"""

import math
from collections.abc import Callable, Sequence

from denserk.settings.fusion import Missing, Normalization

Hits = Sequence[tuple[str, float]]
"""(passage id, score) of one query in one run, best first."""


def reciprocal_ranks(
    runs: Sequence[Hits], weights: Sequence[float], k: float = 60
) -> dict[str, float]:
    """Each passage's sum of weight / (k + rank) over the runs that have it; ranks count from 1.

    >>> fused = reciprocal_ranks([[("d1", 9.0), ("d2", 5.0)], [("d2", 0.3)]], [1, 1])
    >>> fused == {"d1": 1 / 61, "d2": 1 / 62 + 1 / 61}
    True
    """
    parts: dict[str, list[float]] = {}
    for hits, weight in zip(runs, weights, strict=True):
        for rank, (docid, _) in enumerate(hits, start=1):
            parts.setdefault(docid, []).append(weight / (k + rank))
    return {docid: math.fsum(terms) for docid, terms in parts.items()}


def weighted_scores(
    runs: Sequence[Hits],
    weights: Sequence[float],
    normalization: Normalization = Normalization.MIN_MAX,
    missing: Missing = Missing.ZERO,
) -> dict[str, float]:
    """Each passage's sum of weight x normalised score over the runs.

    A run without a hit for the query adds nothing, whatever `missing` says.

    >>> weighted_scores([[("d1", 9.0), ("d2", 5.0)], [("d2", 0.3)]], [0.5, 0.25])
    {'d1': 0.5, 'd2': 0.25}
    """
    parts: dict[str, list[float]] = {docid: [] for hits in runs for docid, _ in hits}
    for hits, weight in zip(runs, weights, strict=True):
        if not hits:
            continue
        docids, scores = zip(*hits, strict=True)
        own = dict(zip(docids, normalized(scores, normalization), strict=True))
        absent = 0.0
        if missing is Missing.LOWEST and normalization is not Normalization.MIN_MAX:
            absent = min(own.values())
        for docid, terms in parts.items():
            terms.append(weight * own.get(docid, absent))
    return {docid: math.fsum(terms) for docid, terms in parts.items()}


def normalized(scores: Sequence[float], normalization: Normalization) -> list[float]:
    """A query's scores in one run, made comparable with those in another.

    >>> normalized([3.0, 2.0, 1.0], Normalization.MIN_MAX)
    [1.0, 0.5, 0.0]
    """
    return NORMALIZERS[normalization](scores)


def _min_max(scores: Sequence[float]) -> list[float]:
    low, high = min(scores), max(scores)
    if high == low:
        return [1.0] * len(scores)
    return [(score - low) / (high - low) for score in scores]


def _zmuv(scores: Sequence[float]) -> list[float]:
    mean = math.fsum(scores) / len(scores)
    spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    if max(scores) == min(scores):
        return [0.0] * len(scores)
    return [(score - mean) / spread for score in scores]


NORMALIZERS: dict[Normalization, Callable[[Sequence[float]], list[float]]] = {
    Normalization.MIN_MAX: _min_max,
    Normalization.ZMUV: _zmuv,
    Normalization.NONE: list,
}
