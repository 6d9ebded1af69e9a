"""Changes of the index and of the hits: nothing is encoded but absent passages."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from denserk.evaluation.near_copies import NearCopies
from denserk.index.ranking import Hits
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage, Query
from denserk.reporting import track
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery, rank_of
from denserk.tasks.analyze.miss_trials import (
    Change,
    Evidence,
    Fix,
    Miss,
    SingleChange,
    Trial,
    scores_of_texts,
)

LEAST_QUERIES_OF_HUB = 5
DEPTH_FACTOR = 10  # duplicates are looked for among the first 10 K hits
# the first 5 K hits are scored by the reranker, and encoded again in all dimensions
RERANKED_FACTOR = 5
NOWHERE = "not in the index, and not in the corpus"


# Changes of the index


class IndexedAgain(Change):
    """The whole corpus is indexed, for passages that an index of vectors lacks.

    It is no change of all queries: which other passages the index lacks is not known.
    """

    cause = "absent"
    name = "index the whole corpus"

    def __init__(
        self, evidence: Evidence, dense: DenseSearch | None, present_docids: Collection[str]
    ) -> None:
        super().__init__(evidence)
        self._dense = dense
        self._present_docids = present_docids

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the absent passages and rank them among the hits."""
        absent = [miss for miss in misses if self._is_absent(miss)]
        scores = {}
        if self._dense is not None:
            task = "encoding absent passages"
            scores = scores_of_texts(self._dense, task, absent, self._evidence.known_text)
        return [self._trial_of_scores(miss, scores) for miss in misses]

    def _is_absent(self, miss: Miss) -> bool:
        """Return whether the index lacks a passage."""
        return miss.rank is None and miss.docid not in self._present_docids

    def _trial_of_scores(
        self, miss: Miss, scores: Mapping[Miss, NDArray[np.float32]]
    ) -> Trial | None:
        """Return the trial of a passage; None if the index has it."""
        if not self._is_absent(miss):
            return None
        if miss.docid not in self._evidence.texts:
            return Trial(NOWHERE, None)
        if self._dense is None or not len(scores[miss]):
            return Trial("index it", None)
        rank = self._dense.rank_with(miss.qid, miss.docid, float(scores[miss][0]))
        return Trial("index it", rank)


class RebuiltBm25(SingleChange):
    """The whole corpus is indexed, for passages that a BM25 index lacks.

    `search_rebuilt` builds the index and returns the hits of all queries.
    """

    cause = "absent"
    name = "index the whole corpus"

    def __init__(
        self,
        evidence: Evidence,
        present_docids: Collection[str],
        search_rebuilt: Callable[[], HitsByQuery],
    ) -> None:
        super().__init__(evidence)
        self._present_docids = present_docids
        self._search_rebuilt = search_rebuilt
        self._rebuilt_hits: HitsByQuery | None = None  # None: the index is not built yet

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of a passage; None if the index has it."""
        if miss.rank is not None or miss.docid in self._present_docids:
            return None
        if miss.docid not in self._evidence.texts:
            return Trial(NOWHERE, None)
        if self._rebuilt_hits is None:
            self._rebuilt_hits = self._search_rebuilt()
        hits = self._rebuilt_hits.get(miss.qid, [])
        return Trial("index it", rank_of(hits, miss.docid))

    def everywhere(self) -> Fix | None:
        """Return the hits of the new index."""
        return None if self._rebuilt_hits is None else Fix(self._rebuilt_hits)


class ExactSearch(SingleChange):
    """All vectors are compared, as they were before the index was built."""

    cause = "approximate"
    name = "search exactly"

    def __init__(self, evidence: Evidence, exact_hits: HitsByQuery) -> None:
        super().__init__(evidence)
        self._exact_hits = exact_hits

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the rank of a passage in the exact search."""
        rank = rank_of(self._exact_hits.get(miss.qid, []), miss.docid)
        return Trial("search exactly", rank)

    def everywhere(self) -> Fix | None:
        """Return the hits of the exact search."""
        return Fix(self._exact_hits)


# Changes of the hits


class WithoutHubs(SingleChange):
    """Passages that stand among the first hits of very many queries are left out."""

    cause = "hub"
    name = "leave hubs out"

    def _trial(self, miss: Miss) -> Trial | None:
        """Count the hubs above a passage that are not relevant for its query; None without any."""
        count = sum(self._is_hub(miss.qid, docid) for docid, _ in self._evidence.above(miss))
        if not count or miss.rank is None:
            return None
        return Trial(f"leave out {_counted(count, 'hub')}", miss.rank - count)

    def _is_hub(self, qid: str, docid: str) -> bool:
        """Return whether a hit is a hub that is not relevant for its query."""
        return docid in self._evidence.hubs and not self._evidence.is_relevant(qid, docid)

    def everywhere(self) -> Fix | None:
        """Return all hits without hubs, relevant ones, too."""
        hits_by_query = {}
        for qid, hits in self._evidence.hits.items():
            hits_by_query[qid] = [hit for hit in hits if hit[0] not in self._evidence.hubs]
        return Fix(hits_by_query)


def find_hubs(first_hits: Iterable[Sequence[str]], percent: float) -> set[str]:
    """Return the passages among the first hits of more than a percentage of the queries.

    They are among those of 5 queries at least.

    >>> sorted(find_hubs([["d1", "d2"]] * 5 + [["d1"]] * 10, 40))
    ['d1']
    """
    counts: dict[str, int] = {}
    query_count = 0
    for docids in first_hits:
        query_count += 1
        for docid in docids:
            counts[docid] = counts.get(docid, 0) + 1
    limit = percent / 100 * query_count
    return {
        docid for docid, count in counts.items() if count > limit and count >= LEAST_QUERIES_OF_HUB
    }


class WithoutCopies(Change):
    """Of passages that are copies of each other, the first alone stays.

    Copies of a relevant passage that nobody judged are left to `CopiesJudged`.
    """

    cause = "copies"
    name = "collapse copies"

    def __init__(self, evidence: Evidence, copies: NearCopies) -> None:
        super().__init__(evidence)
        self._copies = copies

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Collapse the hits above the passages."""
        with track("comparing hits", len(misses), "passages") as progress:
            trials = []
            for miss in misses:
                trials.append(self._trial(miss))
                progress.advance()
        return trials

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of a passage; None if no hit above it is a copy."""
        relevant = self._evidence.relevant(miss.qid)
        different: list[str] = []  # hits of which none is a copy of another
        collapsed = 0
        for docid, _ in self._evidence.above(miss):
            if len(different) >= self._evidence.k:
                return None
            if is_unjudged_copy(self._evidence, self._copies, miss.qid, docid, relevant):
                different.append(docid)
            elif self._copies.are_copies(docid, miss.docid):
                change = f"collapse it with its copy {docid}"
                return Trial(change, len(different) + 1)
            elif any(self._copies.are_copies(docid, other) for other in different):
                collapsed += 1
            else:
                different.append(docid)
        if not collapsed:
            return None
        return Trial(f"collapse {_counted(collapsed, 'copy', 'copies')}", len(different) + 1)

    def everywhere(self) -> Fix | None:
        """Return the first hits of all queries without copies."""
        depth = DEPTH_FACTOR * self._evidence.k
        hits_by_query = {}
        with track("collapsing copies", len(self._evidence.hits), "queries") as progress:
            for qid, hits in self._evidence.hits.items():
                different: Hits = []
                for docid, score in hits[:depth]:
                    is_copy = any(self._copies.are_copies(docid, other) for other, _ in different)
                    if not is_copy:
                        different.append((docid, score))
                    if len(different) == self._evidence.k:
                        break
                hits_by_query[qid] = different
                progress.advance()
        return Fix(hits_by_query)


def is_unjudged_copy(
    evidence: Evidence, copies: NearCopies, qid: str, docid: str, relevant: Iterable[str]
) -> bool:
    """Return whether a hit is a copy of a relevant passage, and has no judgment itself."""
    if docid in evidence.grades[qid]:
        return False
    return any(copies.are_copies(docid, other) for other in relevant)


class CopiesJudged(SingleChange):
    """Copies of a relevant passage that nobody judged count as relevant."""

    cause = "unjudged"
    name = "judge copies of relevant passages"

    def __init__(self, evidence: Evidence, copies: NearCopies) -> None:
        super().__init__(evidence)
        self._copies = copies

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of a passage; None if no hit above it is such a copy."""
        relevant = self._evidence.relevant(miss.qid)
        depth = DEPTH_FACTOR * self._evidence.k
        above = self._evidence.above(miss)
        copies: list[str] = []
        for rank, (docid, _) in enumerate(above[:depth], start=1):
            if not is_unjudged_copy(self._evidence, self._copies, miss.qid, docid, relevant):
                continue
            if self._copies.are_copies(docid, miss.docid):
                return Trial(f"judge its copy {docid}", rank - len(copies))
            copies.append(docid)
        if not copies or miss.rank is None:
            return None
        change = f"judge {_counted(len(copies), 'copy', 'copies')} of relevant passages"
        return Trial(change, miss.rank - len(copies))

    def everywhere(self) -> Fix | None:
        """Return the judgments with those copies, which have the grades of their originals."""
        depth = DEPTH_FACTOR * self._evidence.k
        completed = {}
        for qid, grades in self._evidence.grades.items():
            relevant = self._evidence.relevant(qid)
            new_grades = dict(grades)
            for docid, _ in self._evidence.hits.get(qid, [])[:depth]:
                originals = [other for other in relevant if self._copies.are_copies(docid, other)]
                if docid not in grades and originals:
                    new_grades[docid] = max(grades[original] for original in originals)
            completed[qid] = new_grades
        return Fix(self._evidence.hits, completed)


class RerankerPositives(Change):
    """Unjudged hits that a reranker scores as high as the relevant passage count as relevant.

    It is no change of all queries: the reranker compares hits with a relevant passage,
    which searches do not know.
    """

    cause = "unjudged"
    name = "judge hits that the reranker prefers"

    def __init__(self, evidence: Evidence, scorer: PairScorer) -> None:
        super().__init__(evidence)
        self._scorer = scorer

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Score the passages, and the unjudged ones among the first hits above them."""
        queries: list[Query] = []
        passages: list[Passage] = []
        row_of_pair: dict[tuple[str, str], int] = {}
        for miss in misses:
            for docid in self._compared(miss):
                if (miss.qid, docid) not in row_of_pair:
                    row_of_pair[miss.qid, docid] = len(queries)
                    queries.append(self._evidence.queries[miss.qid])
                    passages.append(self._evidence.texts[docid])
        if not queries:
            return [None] * len(misses)
        with track("scoring with the reranker", len(queries), "pairs") as progress:
            scores = self._scorer.score(queries, passages)
            progress.advance(len(queries))
        trials = []
        for miss in misses:
            pair_scores = {
                docid: float(scores[row_of_pair[miss.qid, docid]]) for docid in self._compared(miss)
            }
            trials.append(_trial_of_reranker(miss, pair_scores))
        return trials

    def _compared(self, miss: Miss) -> list[str]:
        """Return a passage and the unjudged first hits above it; none where texts are lacking."""
        texts = self._evidence.texts
        if miss.docid not in texts or miss.rank is None:
            return []
        if miss.qid not in self._evidence.queries:
            return []
        depth = RERANKED_FACTOR * self._evidence.k
        judged = self._evidence.grades[miss.qid]
        docids = [miss.docid]
        for docid, _ in self._evidence.above(miss)[:depth]:
            if docid in texts and docid not in judged:
                docids.append(docid)
        return docids


def _trial_of_reranker(miss: Miss, scores: Mapping[str, float]) -> Trial | None:
    """Return the trial of a passage from the scores, by id, of it and of unjudged hits above it."""
    if miss.docid not in scores or miss.rank is None:
        return None
    preferred = [docid for docid, score in scores.items() if score >= scores[miss.docid]]
    count = len(preferred) - 1  # without the passage
    if not count:
        return None
    change = f"judge {_counted(count, 'hit')} that the reranker prefers"
    return Trial(change, miss.rank - count)


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> _counted(1, "hub"), _counted(2, "copy", "copies")
    ('1 hub', '2 copies')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {plural or noun + 's'}"
