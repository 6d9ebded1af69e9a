"""Which hits of a query may become negatives, and which of them do: pure functions.

A run's hits are ranked by score, ties by descending passage id, whatever the file's order and rank
column say. A guard that suspects a hit of being relevant counts in all runs of a query: what stands
too high in one run is no negative for standing lower in another.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import shake_128
from math import inf
from typing import NamedTuple

from denserk.records import best_first
from denserk.settings.mining import MiningSettings, SamplingStrategy

Drops = Counter[str]
"""Why hits were dropped -> how many."""
WORD = 8  # bytes of a random word
Trigrams = frozenset[tuple[str, ...]]
_WORD = re.compile(r"\w+")


class Hit(NamedTuple):
    """A passage that a run holds for a query: rank from 1, and which of the runs, from 0."""

    docid: str
    rank: int
    score: float
    run: int = 0


class Ranked(NamedTuple):
    """All hits of a query in one run, best first; ranks are places, from 1."""

    docids: Sequence[str]
    scores: Sequence[float]


class Pool(NamedTuple):
    """What is left of a query's hits in one run, best first, and the ids that are suspected."""

    docids: list[str]
    ranks: list[int]
    scores: list[float]
    suspected: list[str]


def rank_hits(docids: Sequence[str], scores: Sequence[float]) -> Ranked:
    """Sort hits by score, equal scores by passage id, both descending.

    >>> rank_hits(["d2", "d1", "d3"], [1.0, 1.0, 2.0]).docids
    ('d3', 'd2', 'd1')
    """
    if not scores or (not count_ties(scores) and sorted(scores, reverse=True) == scores):
        return Ranked(docids, scores)
    return Ranked(*zip(*best_first(zip(docids, scores, strict=True)), strict=True))


def count_ties(scores: Sequence[float]) -> int:
    """How many hits share their score with another one that counts already.

    >>> count_ties([3.0, 2.0, 2.0, 2.0])
    2
    """
    return len(scores) - len(set(scores))


def score_limit(best_positive: float | None, settings: MiningSettings) -> float:
    """The score that a negative may not exceed, by --set max-score and the margins.

    Where the margins have no positive's score to count from, every hit beats the positives, and
    the limit is minus infinity.

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
    """The places whose scores the guards let pass, and those that score too much.

    Args:
        scores: of all hits.
        places: the hits that are looked at, as places in `scores`.
        best_positive: the score of the best positive, None where it is not among the hits.
        settings: the guards.
        drops: counts what is dropped.

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
    """What the guards of rank and score leave of a query's hits in one run.

    With a teacher the scores are its own, and looked at later.

    Args:
        ranked: all hits, best first.
        positives: ids that are never negatives.
        settings: the guards.
        drops: counts what is dropped.

    Returns:
        The places of the hits that pass, and the ids that are suspected of being relevant.
    """
    docids = ranked.docids[: settings.depth]
    places = [place for place, docid in enumerate(docids) if docid not in positives]
    drops["positives"] += len(docids) - len(places)
    high = 0
    while high < len(places) and places[high] < settings.range_min:
        high += 1
    drops["range-min"] += high
    suspected, places = places[:high], places[high:]
    if settings.teacher is None:
        best = None
        if settings.has_margin:
            scored = zip(ranked.docids, ranked.scores, strict=True)
            best = max((score for docid, score in scored if docid in positives), default=None)
        places, above = guard_scores(ranked.scores, places, best, settings, drops)
        suspected += above
    return places, [docids[place] for place in suspected]


def choose(count: int, qid: str, settings: MiningSettings) -> list[int]:
    """Which of `count` hits become negatives, as places in their order.

    The draw is a function of the seed, the query's id and the count: the first steps of Fisher and
    Yates's shuffle, with the random words that SHAKE-128 makes of seed and id.

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
    """The candidates of all runs, by rank, then in the order of the runs, each passage once.

    Args:
        pools: numbers of runs, and what each left.
        drops: counts what is dropped.

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
    """The words of a text, without cases and signs.

    >>> words("The old -- River!")
    ['the', 'old', 'river']
    """
    return _WORD.findall(text.casefold())


def trigrams(found: Sequence[str]) -> Trigrams:
    """The runs of three words; fewer words are one run.

    >>> sorted(trigrams(words("The old river runs.")))
    [('old', 'river', 'runs'), ('the', 'old', 'river')]
    """
    if len(found) < 3:
        return frozenset([tuple(found)] if found else [])
    return frozenset(zip(found, found[1:], found[2:], strict=False))


def share(one: Trigrams, other: Trigrams) -> float:
    """Jaccard's coefficient of two sets; 0 where both are empty.

    >>> share(trigrams("abcd"), trigrams("xabc"))
    0.3333333333333333
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0


def _between_blanks(found: Sequence[str]) -> str:
    return f" {' '.join(found)} "


class Likeness:
    """Texts made ready to be compared with the words of many others.

    Args:
        texts: the texts, of positives say; those without a word are like nothing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        own = [found for found in map(words, texts) if found]
        self._texts = {_between_blanks(found) for found in own}
        self._trigrams = [trigrams(found) for found in own]

    def equals(self, found: Sequence[str]) -> bool:
        """Whether they are the words of one of the texts."""
        return _between_blanks(found) in self._texts

    def literal(self, found: Sequence[str]) -> bool:
        """Whether one of the texts stands in them word for word, or they stand in it.

        >>> Likeness(["the old river"]).literal(words("See: The old  river."))
        True
        """
        text = _between_blanks(found)
        return bool(found) and any(text in own or own in text for own in self._texts)

    def most_shared(self, found: Sequence[str]) -> float:
        """The largest share of trigrams that they have in common with one of the texts."""
        theirs = trigrams(found)
        return max((share(theirs, own) for own in self._trigrams), default=0.0)
