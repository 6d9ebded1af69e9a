"""Which hits of a query may become negatives, and which of them do: pure functions.

A run's hits are ranked by score, ties by passage id, whatever the file's order and rank column
say. A guard that suspects a hit of being relevant counts in all runs of a query: what stands too
high in one run is no negative for standing lower in another.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import shake_128
from typing import NamedTuple

from denserk.settings.mining import MiningSettings, SamplingStrategy

Drops = Counter[str]
"""Why hits were dropped -> how many."""
WORD = 8
"""Bytes of a random word."""


class Hit(NamedTuple):
    """A passage that a run holds for a query: rank from 1, and which of the runs, from 0."""

    docid: str
    rank: int
    score: float
    run: int = 0


class Pool(NamedTuple):
    """What one run leaves for a query: candidates, best first, and the ids it is suspicious of."""

    hits: list[Hit]
    suspected: list[str]


def rank_hits(docids: Sequence[str], scores: Sequence[float], run: int = 0) -> list[Hit]:
    """Hits by score, ties by passage id, ranks from 1.

    >>> [hit.docid for hit in rank_hits(["d2", "d1", "d3"], [1.0, 1.0, 2.0])]
    ['d3', 'd1', 'd2']
    """
    pairs = list(zip(docids, scores, strict=True))
    if not all(map(float.__gt__, scores, scores[1:])):
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return [Hit(docid, rank, score, run) for rank, (docid, score) in enumerate(pairs, start=1)]


def score_limit(best_positive: float | None, settings: MiningSettings) -> float:
    """The score that a negative may not exceed, by --max-score and the margins.

    Where the margins have no positive's score to count from, every hit beats the positives, and
    the limit is minus infinity.

    >>> score_limit(20.0, MiningSettings(relative_margin=0.05, absolute_margin=0.5))
    19.0
    """
    limit = float("inf") if settings.max_score is None else settings.max_score
    if settings.absolute_margin is None and settings.relative_margin is None:
        return limit
    if best_positive is None:
        return float("-inf")
    if settings.absolute_margin is not None:
        limit = min(limit, best_positive - settings.absolute_margin)
    if settings.relative_margin is not None:
        limit = min(limit, best_positive - abs(best_positive) * settings.relative_margin)
    return limit


def guard_hits(
    ranked: Sequence[Hit], positives: Collection[str], settings: MiningSettings, drops: Drops
) -> Pool:
    """What the guards of rank and score leave of one run's hits of a query.

    With a teacher the scores are its own, and looked at later (`guard_scores`).

    Args:
        ranked: all hits, best first.
        positives: ids that are never negatives.
        settings: the guards.
        drops: counts what is dropped.
    """
    others = [hit for hit in ranked[: settings.depth] if hit.docid not in positives]
    drops["positives"] += min(len(ranked), settings.depth) - len(others)
    kept = (
        [hit for hit in others if hit.rank > settings.range_min] if settings.range_min else others
    )
    drops["range-min"] += len(others) - len(kept)
    if settings.teacher is None:
        best = max((hit.score for hit in ranked if hit.docid in positives), default=None)
        kept = guard_scores(kept, best, settings, drops)
    if len(kept) == len(others):
        return Pool(kept, [])
    left = {hit.docid for hit in kept}
    too_low = float("-inf") if settings.min_score is None else settings.min_score
    suspected = [hit.docid for hit in others if hit.docid not in left and hit.score >= too_low]
    return Pool(kept, suspected)


def guard_scores(
    hits: Sequence[Hit], best_positive: float | None, settings: MiningSettings, drops: Drops
) -> list[Hit]:
    """Hits whose scores are within --min-score, --max-score and the margins."""
    limit = score_limit(best_positive, settings)
    low = float("-inf") if settings.min_score is None else settings.min_score
    if limit == float("inf") and low == float("-inf"):
        return list(hits)
    kept = []
    for hit in hits:
        if settings.max_score is not None and hit.score > settings.max_score:
            drops["max-score"] += 1
        elif hit.score > limit:
            drops["margin"] += 1
        elif hit.score < low:
            drops["min-score"] += 1
        else:
            kept.append(hit)
    return kept


def merge_pools(pools: Sequence[Pool], drops: Drops) -> list[Hit]:
    """The candidates of all runs, by rank, then in the order of the runs, each passage once.

    >>> pools = [
    ...     Pool([Hit("d1", 1, 9.0), Hit("d2", 2, 8.0)], []),
    ...     Pool([Hit("d3", 1, 0.5, 1), Hit("d1", 2, 0.4, 1)], ["d2"]),
    ... ]
    >>> [(hit.docid, hit.run) for hit in merge_pools(pools, Drops())]
    [('d1', 0), ('d3', 1)]
    """
    if len(pools) == 1:
        return pools[0].hits
    suspected = {docid for pool in pools for docid in pool.suspected}
    merged: dict[str, Hit] = {}
    for hit in sorted((hit for pool in pools for hit in pool.hits), key=_by_rank):
        if hit.docid in suspected:
            drops["suspected in another run"] += 1
        elif merged.setdefault(hit.docid, hit) is not hit:
            drops["in several runs"] += 1
    return list(merged.values())


def _by_rank(hit: Hit) -> tuple[int, int]:
    return hit.rank, hit.run


def choose(hits: Sequence[Hit], qid: str, settings: MiningSettings) -> list[Hit]:
    """The hits that become negatives, best first.

    The draw is a function of the seed, the query's id and the number of hits: SHAKE-128 of seed and
    id gives each place a random word, and the places with the least words are drawn.

    >>> hits = rank_hits([f"d{n}" for n in range(9)], [-float(n) for n in range(9)])
    >>> [hit.rank for hit in choose(hits, "q1", MiningSettings(num_negatives=3))]
    [1, 5, 8]
    """
    wanted = settings.num_negatives
    if len(hits) <= wanted:
        return list(hits)
    if settings.sampling_strategy is SamplingStrategy.TOP:
        return list(hits[:wanted])
    words = shake_128(f"{settings.seed} {qid}".encode()).digest(WORD * len(hits))
    order = sorted(range(len(hits)), key=lambda place: words[WORD * place : WORD * (place + 1)])
    return [hits[place] for place in sorted(order[:wanted])]


def count_ties(scores: Sequence[float]) -> int:
    """How many hits share their score with another one that counts already.

    >>> count_ties([3.0, 2.0, 2.0, 2.0])
    2
    """
    return len(scores) - len(set(scores))
