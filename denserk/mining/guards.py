"""Choose which hits of a query become negatives: pure functions.

Hits are ranked by score, ties by descending passage id, regardless of the run's order and ranks.
A hit that a guard suspects of being relevant in one run is no negative from any other run either.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import shake_128
from itertools import chain
from math import inf
from typing import NamedTuple

from denserk.config.mining import MiningSettings, SamplingStrategy

Drops = Counter[str]  # hits that were dropped, by reason
WORD = 8  # bytes of a random integer
_WORD = re.compile(r"\w+")


class Hit(NamedTuple):
    """A passage that a run returned for a query: rank from 1, number of the run from 0."""

    docid: str
    rank: int
    score: float
    run: int = 0


def score_limit(best_positive: float | None, settings: MiningSettings) -> float:
    """Return the highest score of a negative, by max-score and the margins.

    It is minus infinity where a margin is set and no positive has a score.

    >>> score_limit(20.0, MiningSettings(relative_margin=0.05, absolute_margin=0.5))
    19.0
    """
    limits = [inf if settings.max_score is None else settings.max_score]
    if best_positive is None:
        return -inf if settings.has_margin else limits[0]
    if settings.absolute_margin is not None:
        limits.append(best_positive - settings.absolute_margin)
    if settings.relative_margin is not None:
        limits.append(best_positive - abs(best_positive) * settings.relative_margin)
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
    most = inf if settings.max_score is None else settings.max_score
    passed = [place for place in places if least <= scores[place] <= limit]
    above = [place for place in places if scores[place] > limit]
    over_most = sum(scores[place] > most for place in above)
    drops["max-score"] += over_most
    drops["no positive's score" if best_positive is None else "margin"] += len(above) - over_most
    drops["min-score"] += len(places) - len(passed) - len(above)
    return passed, above


def guard_hits(
    ranked: Sequence[tuple[str, float]],
    positives: Collection[str],
    settings: MiningSettings,
    drops: Drops,
) -> tuple[list[int], list[str]]:
    """Apply the guards of rank and score to a query's hits in one run; count the dropped.

    With a teacher, its scores are guarded later instead. Returns the places of the hits that pass,
    and the ids that are suspected of being relevant.
    """
    considered = ranked[: settings.depth]
    places = [place for place, (docid, _) in enumerate(considered) if docid not in positives]
    drops["positives"] += len(considered) - len(places)
    suspected = [place for place in places if place < settings.range_min]
    drops["range-min"] += len(suspected)
    places = places[len(suspected) :]
    if settings.teacher is None:
        best = max((score for docid, score in ranked if docid in positives), default=None)
        places, above = guard_scores([score for _, score in ranked], places, best, settings, drops)
        suspected += above
    return places, [ranked[place][0] for place in suspected]


def merge_hits(
    runs: Sequence[Sequence[Hit]], suspected: Collection[str], drops: Drops
) -> list[Hit]:
    """Merge the hits that passed in each run by rank, then by run; count the dropped.

    Each passage is kept once. One that is suspected in any run is dropped.

    >>> runs = [Hit("d1", 1, 9.0), Hit("d2", 2, 8.0)], [Hit("d3", 1, 0.5, 1), Hit("d1", 2, 0.4, 1)]
    >>> [(hit.docid, hit.run) for hit in merge_hits(runs, {"d2"}, Drops())]
    [('d1', 0), ('d3', 1)]
    """
    merged: dict[str, Hit] = {}
    for hit in sorted(chain.from_iterable(runs), key=lambda hit: (hit.rank, hit.run)):
        if hit.docid in suspected:
            drops["suspected in another run"] += 1
        elif merged.setdefault(hit.docid, hit) is not hit:
            drops["in several runs"] += 1
    return list(merged.values())


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


def words(text: str) -> list[str]:
    """Return the words of a text, without case and punctuation.

    >>> words("The old -- River!")
    ['the', 'old', 'river']
    """
    return _WORD.findall(text.casefold())


def _trigrams(found: Sequence[str]) -> frozenset[tuple[str, ...]]:
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
        self._trigrams = [_trigrams(found) for found in own]

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
        theirs = _trigrams(found)
        shares = (len(theirs & own) / len(theirs | own) for own in self._trigrams)
        return max(shares, default=0.0)
