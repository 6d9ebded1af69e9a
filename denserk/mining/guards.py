"""Choose which hits of a query become negatives: pure functions.

Hits are ranked by score, ties by descending passage id, regardless of the run's order and ranks.
A hit that a guard suspects of being relevant in one run is no negative from any other run either.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import shake_128
from math import inf
from typing import NamedTuple

from denserk.config.mining import MiningSettings, SamplingStrategy
from denserk.records import best_first

Drops = Counter[str]  # hits that were dropped, by reason
WORD = 8  # bytes of a random integer
Trigrams = frozenset[tuple[str, ...]]
_WORD = re.compile(r"\w+")


class Hit(NamedTuple):
    """A passage that a run returned for a query: rank from 1, number of the run from 0."""

    docid: str
    rank: int
    score: float
    run: int = 0


class Ranked(NamedTuple):
    """All hits of a query in one run, best first."""

    docids: list[str]
    scores: list[float]


class Pool(NamedTuple):
    """The hits of a query in one run that pass, best first, and the ids that are suspected."""

    docids: list[str]
    ranks: list[int]
    scores: list[float]
    suspected: list[str]


def rank_hits(docids: Sequence[str], scores: Sequence[float]) -> Ranked:
    """Sort hits by score, equal scores by passage id, both descending.

    >>> rank_hits(["d2", "d1", "d3"], [1.0, 1.0, 2.0]).docids
    ['d3', 'd2', 'd1']
    """
    ranked = best_first(zip(docids, scores, strict=True))
    return Ranked([docid for docid, _ in ranked], [score for _, score in ranked])


def count_ties(scores: Sequence[float]) -> int:
    """Return how many hits have the score of another hit that is already counted.

    >>> count_ties([3.0, 2.0, 2.0, 2.0])
    2
    """
    return len(scores) - len(set(scores))


def score_limit(best_positive: float | None, settings: MiningSettings) -> float:
    """Return the highest score of a negative, by max-score and the margins.

    It is minus infinity where a margin is set and no positive has a score.

    >>> score_limit(20.0, MiningSettings(relative_margin=0.05, absolute_margin=0.5))
    19.0
    """
    limits = [inf if settings.max_score is None else settings.max_score]
    absolute, relative = settings.absolute_margin, settings.relative_margin
    if absolute is not None:
        limits.append(-inf if best_positive is None else best_positive - absolute)
    if relative is not None:
        lower = -inf if best_positive is None else best_positive - abs(best_positive) * relative
        limits.append(lower)
    return min(limits)


def guard_scores(
    scores: Sequence[float],
    places: Sequence[int],
    best_positive: float | None,
    settings: MiningSettings,
    drops: Drops,
) -> tuple[list[int], list[int]]:
    """Return the places in `scores` that pass, and those that score too much; count the dropped.

    `best_positive` is the score of the best positive, None where it is not among the hits.

    >>> guard_scores([9.0, 8.0, 1.0], [0, 1, 2], 10.0, MiningSettings(absolute_margin=2), Drops())
    ([1, 2], [0])
    """
    limit = score_limit(best_positive, settings)
    least = -inf if settings.min_score is None else settings.min_score
    passed = [place for place in places if least <= scores[place] <= limit]
    if len(passed) == len(places):
        return passed, []
    most = inf if settings.max_score is None else settings.max_score
    above = [place for place in places if scores[place] > limit]
    drops["max-score"] += sum(scores[place] > most for place in above)
    reason = "no positive's score" if best_positive is None else "margin"
    drops[reason] += sum(scores[place] <= most for place in above)
    drops["min-score"] += len(places) - len(passed) - len(above)
    return passed, above


def guard_hits(
    ranked: Ranked, positives: Collection[str], settings: MiningSettings, drops: Drops
) -> tuple[list[int], list[str]]:
    """Apply the guards of rank and score to a query's hits in one run, and count the dropped.

    With a teacher, its scores are guarded later instead.

    Returns:
        The places of the hits that pass, and the ids that are suspected of being relevant.
    """
    docids = ranked.docids[: settings.depth]
    places = [place for place, docid in enumerate(docids) if docid not in positives]
    drops["positives"] += len(docids) - len(places)
    suspected = [place for place in places if place < settings.range_min]
    drops["range-min"] += len(suspected)
    places = places[len(suspected) :]
    if settings.teacher is None:
        best = None
        if settings.has_margin:
            scored = zip(ranked.docids, ranked.scores, strict=True)
            best = max((score for docid, score in scored if docid in positives), default=None)
        places, above = guard_scores(ranked.scores, places, best, settings, drops)
        suspected += above
    return places, [docids[place] for place in suspected]


def choose(count: int, qid: str, settings: MiningSettings) -> list[int]:
    """Choose which of `count` hits become negatives, as ascending places.

    The draw depends on the seed, the query's id and the count alone: a partial Fisher-Yates shuffle
    with random integers from SHAKE-128 of seed and id.

    >>> choose(9, "q1", MiningSettings(num_negatives=3))
    [1, 2, 4]
    """
    wanted = settings.num_negatives
    if count <= wanted:
        return list(range(count))
    if settings.sampling_strategy is SamplingStrategy.TOP:
        return list(range(wanted))
    stream = shake_128(f"{settings.seed} {qid}".encode()).digest(WORD * wanted)
    places = list(range(count))
    for step in range(wanted):
        word = int.from_bytes(stream[WORD * step : WORD * (step + 1)])
        other = step + word % (count - step)
        places[step], places[other] = places[other], places[step]
    return sorted(places[:wanted])


def merge_pools(pools: Sequence[tuple[int, Pool]], drops: Drops) -> list[Hit]:
    """Merge (run, hits that passed) by rank, then by run; each passage once; count the dropped.

    >>> pools = [
    ...     (0, Pool(["d1", "d2"], [1, 2], [9.0, 8.0], [])),
    ...     (1, Pool(["d3", "d1"], [1, 2], [0.5, 0.4], ["d2"])),
    ... ]
    >>> [(hit.docid, hit.run) for hit in merge_pools(pools, Drops())]
    [('d1', 0), ('d3', 1)]
    """
    suspected = {docid for _, pool in pools for docid in pool.suspected}
    hits = [
        Hit(docid, rank, score, run)
        for run, (docids, ranks, scores, _) in pools
        for docid, rank, score in zip(docids, ranks, scores, strict=True)
    ]
    if len(pools) == 1:
        return hits
    merged: dict[str, Hit] = {}
    for hit in sorted(hits, key=lambda hit: (hit.rank, hit.run)):
        if hit.docid in suspected:
            drops["suspected in another run"] += 1
        elif merged.setdefault(hit.docid, hit) is not hit:
            drops["in several runs"] += 1
    return list(merged.values())


def words(text: str) -> list[str]:
    """Return the words of a text, without case and punctuation.

    >>> words("The old -- River!")
    ['the', 'old', 'river']
    """
    return _WORD.findall(text.casefold())


def trigrams(found: Sequence[str]) -> Trigrams:
    """Return the trigrams of words; fewer than three words are one.

    >>> sorted(trigrams(words("The old river runs.")))
    [('old', 'river', 'runs'), ('the', 'old', 'river')]
    """
    if len(found) < 3:
        return frozenset([tuple(found)] if found else [])
    return frozenset(zip(found, found[1:], found[2:], strict=False))


class TextOverlap:
    """Compares texts, for example a query's positives, with the words of many others.

    Texts without a word match nothing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        own = [found for found in map(words, texts) if found]
        self._texts = {f" {' '.join(found)} " for found in own}
        self._trigrams = [trigrams(found) for found in own]

    def equals(self, found: Sequence[str]) -> bool:
        """Return whether the words are those of one of the texts."""
        return f" {' '.join(found)} " in self._texts

    def contains(self, found: Sequence[str]) -> bool:
        """Return whether one of the texts contains the words in sequence, or the reverse.

        >>> TextOverlap(["the old river"]).contains(words("See: The old  river."))
        True
        """
        text = f" {' '.join(found)} "
        return bool(found) and any(text in own or own in text for own in self._texts)

    def most_shared(self, found: Sequence[str]) -> float:
        """Return the largest Jaccard coefficient of trigrams with one of the texts."""
        theirs = trigrams(found)
        shares = (len(theirs & own) / len(theirs | own) for own in self._trigrams)
        return max(shares, default=0.0)
