"""Guards: functions that return why a hit is no negative, or None if it may be one.

Hits are ranked by score, ties by descending passage id, regardless of the run's order and ranks.
A hit that a guard suspects of being relevant in one run is no negative from any other run either.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import NamedTuple

from denserk.config.mining import MiningSettings

# reasons that do not make a hit suspected of being relevant
UNSUSPICIOUS = ("positives", "min-score")
WORD = re.compile(r"\w+")
NO_WORDS = "  "  # what `_padded_words` returns of a text without a word
Drops = Counter[str]  # hits that were dropped, by reason
Ranking = Sequence[tuple[str, float]]  # the hits of a query in a run, with scores, the best first
ScoreGuard = Callable[[float], str | None]
HitGuard = Callable[["Hit"], str | None]
TextGuard = Callable[[str], str | None]


class Hit(NamedTuple):
    """A passage that a run returned for a query: rank from 1, number of the run from 0."""

    docid: str
    rank: int
    score: float
    run: int


def score_guard(best_positive: float | None, settings: MiningSettings) -> ScoreGuard:
    """Return the guard of scores; `best_positive` is None where no positive has a score.

    >>> guard = score_guard(20.0, MiningSettings(relative_margin=0.05, min_score=3))
    >>> guard(19.1), guard(19.0), guard(2.0)
    ('margin', None, 'min-score')
    """
    lowest = -inf if settings.min_score is None else settings.min_score
    highest = inf if settings.max_score is None else settings.max_score
    limit = inf
    reason_of_limit = "margin"
    if best_positive is not None:
        limit = _limit_below_positive(best_positive, settings)
    elif settings.has_margin:
        limit = -inf
        reason_of_limit = "no positive's score"

    def guard(score: float) -> str | None:
        if score > highest:
            return "max-score"
        if score > limit:
            return reason_of_limit
        if score < lowest:
            return "min-score"
        return None

    return guard


def _limit_below_positive(best_positive: float, settings: MiningSettings) -> float:
    """Return the highest score of a negative by the margins to the best positive."""
    limits = [inf]
    if settings.absolute_margin is not None:
        limits.append(best_positive - settings.absolute_margin)
    if settings.relative_margin is not None:
        limits.append(best_positive - abs(best_positive) * settings.relative_margin)
    return min(limits)


def hit_guard(ranking: Ranking, positives: Collection[str], settings: MiningSettings) -> HitGuard:
    """Return the guard of rank and score for a query's hits in one run.

    With a teacher, its scores are guarded later instead.
    """
    scores_of_positives = [score for docid, score in ranking if docid in positives]
    guard_of_scores = score_guard(max(scores_of_positives, default=None), settings)

    def guard(hit: Hit) -> str | None:
        if hit.docid in positives:
            return "positives"
        if hit.rank <= settings.range_min:
            return "range-min"
        if settings.teacher is not None:
            return None
        return guard_of_scores(hit.score)

    return guard


def guard_hits(
    rankings: Iterable[Ranking],
    positives: Collection[str],
    settings: MiningSettings,
    drops: Drops,
) -> list[Hit]:
    """Return a query's hits in all runs that the guards of rank and score let pass.

    They are merged by rank, then by run, each passage once; one that is suspected of being relevant
    in any run is dropped. The dropped hits are counted.
    """
    passed_hits: list[Hit] = []
    suspected_docids: set[str] = set()
    for run, ranking in enumerate(rankings):
        guard = hit_guard(ranking, positives, settings)
        for rank, (docid, score) in enumerate(ranking[: settings.depth], start=1):
            hit = Hit(docid, rank, score, run)
            reason = guard(hit)
            if reason is None:
                passed_hits.append(hit)
                continue
            drops[reason] += 1
            if reason not in UNSUSPICIOUS:
                suspected_docids.add(docid)
    hit_by_docid: dict[str, Hit] = {}
    for hit in sorted(passed_hits, key=lambda hit: (hit.rank, hit.run)):
        if hit.docid in suspected_docids:
            drops["suspected in another run"] += 1
        elif hit.docid in hit_by_docid:
            drops["in several runs"] += 1
        else:
            hit_by_docid[hit.docid] = hit
    return list(hit_by_docid.values())


def text_guard(
    positives: Sequence[str], settings: MiningSettings, *, known_by_text: bool = False
) -> TextGuard:
    """Return the guard of texts that repeat a positive; a text without a word repeats nothing.

    Case and punctuation do not count. `known_by_text`: a hit with the words of a positive is that
    positive.

    >>> guard = text_guard(["the old river"], MiningSettings(drop_literal=True))
    >>> guard("See: The old -- River!"), guard("old rivers")
    ('literal', None)
    """
    positive_words = {_padded_words(text) for text in positives}
    positive_words.discard(NO_WORDS)

    def guard(text: str) -> str | None:
        words = _padded_words(text)
        if words == NO_WORDS:
            return None
        if known_by_text and words in positive_words:
            return "positives"
        if settings.drop_literal and _repeats(words, positive_words):
            return "literal"
        return None

    return guard


def _padded_words(text: str) -> str:
    """Return the words of a text between blanks, so that whole words are found in it.

    >>> _padded_words("The old -- River!"), _padded_words("...") == NO_WORDS
    (' the old river ', True)
    """
    return f" {' '.join(WORD.findall(text.casefold()))} "


def _repeats(words: str, positive_words: Iterable[str]) -> bool:
    """Return whether words contain those of a positive, or are contained in them."""
    return any(words in positive or positive in words for positive in positive_words)
