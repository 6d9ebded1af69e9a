"""Ranking of the scored passages of queries by the options of a run."""

import logging
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import RankingSettings, Ties
from denserk.index.engines import Scores
from denserk.io.run_columns import RankedWords
from denserk.records import best_first, document_of

logger = logging.getLogger(__name__)

Hits = list[tuple[str, float]]  # (passage id, score), best first
LOW_31_BITS = 0x7FFFFFFF  # of a float32
SIGN_BIT = 0x80000000


def strictly_decreasing(scores: Scores) -> Scores:
    """Lower tied scores, (K,) float32 in descending order, to the next lower float32."""
    if (scores[1:] < scores[:-1]).all():
        return scores
    # Every float32 has a whole number, by its bits: the next lower float32 has the next lower one.
    # The number of a lowered score is the lesser of its own and of that of the score above, less
    # 1: the least of its own and of those of all scores above, each less the distance in rows.
    bits = scores.view(np.int32).astype(np.int64)
    numbers = np.where(bits < 0, -(bits & LOW_31_BITS), bits)
    rows = np.arange(len(scores))
    lowered_numbers = np.minimum.accumulate(numbers + rows) - rows
    is_negative = lowered_numbers < 0
    lowered_bits = np.where(is_negative, -lowered_numbers - SIGN_BIT, lowered_numbers)
    lowered = lowered_bits.astype(np.int32).view(np.float32)
    return np.where(lowered_numbers == numbers, scores, lowered)


class Ranking:
    """Ranks the scored passages of queries by the options of a run, and counts tied scores.

    Equal scores are ordered by descending id, or left in the `engine_order`, as its scores are.
    """

    def __init__(self, settings: RankingSettings, *, engine_order: bool = False) -> None:
        self._settings = settings
        self._engine_order = engine_order
        default_ties = Ties.KEEP if engine_order else Ties.BREAK
        self.ties = settings.ties or default_ties
        self.tied_hits = 0
        self.tied_queries = 0

    def best(self, qid: str, docids: Iterable[str], scores: Iterable[float]) -> Hits:
        """Return every passage once, or with --max-passage every document, the best first."""
        best_scores: dict[str, float] = {}  # by passage or document
        for name, score in zip(docids, scores, strict=True):
            if self._settings.max_passage:
                name = document_of(name, self._settings.max_passage_delimiter)
            if name not in best_scores or score > best_scores[name]:
                best_scores[name] = score
        if self._settings.remove_query:
            best_scores.pop(qid, None)
        if self._engine_order:
            return list(best_scores.items())
        return best_first(best_scores.items())

    def final(self, hits: Hits) -> Hits:
        """Return the hits of a query that its run lists, with tied scores lowered."""
        hits = hits[: self._settings.kept]
        scores = np.array([score for _, score in hits])
        self._count_ties(scores)
        if self.ties is Ties.KEEP:
            return hits
        lowered = strictly_decreasing(scores.astype(np.float32)).tolist()
        return [(name, score) for (name, _), score in zip(hits, lowered, strict=True)]

    def final_columns(self, hits: RankedWords) -> RankedWords:
        """Return the hits of `final` for hits that are columns."""
        hits = hits.first(self._settings.kept)
        self._count_ties(hits.scores)
        if self.ties is Ties.KEEP:
            return hits
        lowered = strictly_decreasing(hits.scores.astype(np.float32))
        return RankedWords(hits.words, lowered.astype(np.float64))

    def _count_ties(self, scores: NDArray[np.float64]) -> None:
        """Count the scores of a query's hits that are equal to the one above."""
        tied_hits = int(np.count_nonzero(scores[1:] == scores[:-1]))
        self.tied_hits += tied_hits
        if tied_hits:
            self.tied_queries += 1

    def report(self) -> None:
        """Log in which order hits of equal scores stand, if there are any."""
        if not self.tied_hits:
            return
        hits = f"{self.tied_hits:,} hits of {self.tied_queries:,} queries"
        if self._engine_order:
            message = f"equal scores: {hits} score as the hit above, and stand in Lucene's order"
        else:
            message = f"equal scores: {hits} score as the hit above, and stand by descending id"
        if self.ties is Ties.BREAK:
            message += (
                "; each is written with the next lower score, so that all tools read one order"
            )
        logger.info(message)
