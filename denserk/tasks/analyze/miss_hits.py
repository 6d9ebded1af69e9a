"""Changes of the index and of the hits: nothing is encoded but absent passages."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

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
SCORED_AT_ONCE = 1024  # pairs that are sorted by length into batches of the reranker
INDEX_IT = "index it"
NOWHERE = "not in the index, and not in the corpus"
NOT_INDEXED = "not in the index"  # and perhaps in a corpus that was not read


# Changes of the index


class AbsentIndexed(Change):
    """The whole corpus is indexed, for passages that an index lacks."""

    cause = "absent"
    name = "index the whole corpus"

    def __init__(self, evidence: Evidence, present_docids: Collection[str]) -> None:
        super().__init__(evidence)
        self._present_docids = present_docids

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Index the absent passages that the corpus has; None for those that the index has."""
        absent = [miss for miss in misses if self._is_absent(miss)]
        rank_by_miss = self._ranks([miss for miss in absent if self._evidence.texts_of(miss)])
        trials: list[Trial | None] = []
        for miss in misses:
            if not self._is_absent(miss):
                trials.append(None)
            elif miss in rank_by_miss:
                trials.append(Trial(INDEX_IT, rank_by_miss[miss]))
            else:
                trials.append(Trial(NOWHERE if self._evidence.texts else NOT_INDEXED, None))
        return trials

    def _is_absent(self, miss: Miss) -> bool:
        """Return whether the index lacks a passage."""
        return miss.rank is None and miss.docid not in self._present_docids

    @abstractmethod
    def _ranks(self, misses: Sequence[Miss]) -> Mapping[Miss, int | None]:
        """Return the ranks of passages of the corpus once they are indexed; None: not known."""


class IndexedAgain(AbsentIndexed):
    """The whole corpus is indexed as vectors.

    It is no change of all queries: which other passages the index lacks is not known.
    """

    def __init__(
        self, evidence: Evidence, dense: DenseSearch | None, present_docids: Collection[str]
    ) -> None:
        super().__init__(evidence, present_docids)
        self._dense = dense

    def _ranks(self, misses: Sequence[Miss]) -> Mapping[Miss, int | None]:
        """Encode the passages, and return their ranks among the hits."""
        if self._dense is None:
            return dict.fromkeys(misses)
        task = "encoding absent passages"
        scores = scores_of_texts(self._dense, task, misses, self._evidence.texts_of)
        ranks = {}
        for miss in misses:
            (score,) = scores[miss]
            ranks[miss] = self._dense.rank_with(miss.qid, miss.docid, float(score))
        return ranks


class RebuiltBm25(AbsentIndexed):
    """The whole corpus is indexed for BM25.

    `search_rebuilt` builds the index and returns the hits of all queries.
    """

    def __init__(
        self,
        evidence: Evidence,
        present_docids: Collection[str],
        search_rebuilt: Callable[[], HitsByQuery],
    ) -> None:
        super().__init__(evidence, present_docids)
        self._search_rebuilt = search_rebuilt
        self._rebuilt_hits: HitsByQuery | None = None  # None: the index is not built

    def _ranks(self, misses: Sequence[Miss]) -> Mapping[Miss, int | None]:
        """Build the index if it is needed, and return the ranks of the passages in it."""
        if not misses:
            return {}
        self._rebuilt_hits = self._search_rebuilt()
        ranks = {}
        for miss in misses:
            ranks[miss] = rank_of(self._rebuilt_hits.get(miss.qid, []), miss.docid)
        return ranks

    def change_all_queries(self) -> Fix | None:
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

    def change_all_queries(self) -> Fix | None:
        """Return the hits of the exact search."""
        return Fix(self._exact_hits)


# Changes of the hits


class WithoutHubs(SingleChange):
    """Passages that stand among the first hits of very many queries are left out."""

    cause = "hub"
    name = "leave hubs out"

    def _trial(self, miss: Miss) -> Trial | None:
        """Count the hubs above a passage that are not relevant for its query.

        None without any, and for a passage that is a hub itself: it would be left out, too.
        """
        if miss.docid in self._evidence.hubs:
            return None
        count = sum(self._is_hub(miss.qid, docid) for docid, _ in self._evidence.above(miss))
        if not count:
            return None
        assert miss.rank is not None  # there are hits above it
        return Trial(f"leave out {_counted(count, 'hub')}", miss.rank - count)

    def _is_hub(self, qid: str, docid: str) -> bool:
        """Return whether a hit is a hub that is not relevant for its query."""
        return docid in self._evidence.hubs and not self._evidence.is_relevant(qid, docid)

    def change_all_queries(self) -> Fix | None:
        """Return all hits without hubs, relevant ones, too."""
        hits_by_query = {}
        for qid, hits in self._evidence.hits.items():
            hits_by_query[qid] = [hit for hit in hits if hit[0] not in self._evidence.hubs]
        return Fix(hits_by_query)


def find_hubs(first_hits: Iterable[Sequence[str]], percent: float) -> set[str]:
    """Return the passages among the first hits of more than a percentage of the queries.

    They are among those of `LEAST_QUERIES_OF_HUB` queries at least.

    >>> sorted(find_hubs([["d1", "d2"]] * 5 + [["d1"]] * 10, 40))
    ['d1']
    """
    counts: Counter[str] = Counter()
    query_count = 0
    for docids in first_hits:
        query_count += 1
        counts.update(docids)
    limit = percent / 100 * query_count
    return {
        docid for docid, count in counts.items() if count > limit and count >= LEAST_QUERIES_OF_HUB
    }


class WithoutCopies(Change):
    """Of hits that are copies of each other, one stays, at the rank of the first.

    It is a relevant one, if there is one: who removes copies from a corpus lets the judged passage
    stay, or judges what stays in its place. Unjudged copies of relevant passages stay, as they are
    left to `CopiesJudged`.
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

    def change_all_queries(self) -> Fix | None:
        """Return the hits of all queries, without copies among the first."""
        hits_by_query = {}
        with track("collapsing copies", len(self._evidence.hits), "queries") as progress:
            for qid, hits in self._evidence.hits.items():
                hits_by_query[qid] = self._without_copies(qid, hits)
                progress.advance()
        return Fix(hits_by_query)

    def _without_copies(self, qid: str, hits: Hits) -> Hits:
        """Return the hits of a query without copies, until K are different; the rest as it is.

        Each relevant hit stays: where it is, or in place of the first hit above it that is a copy
        of it, judged and not relevant.
        """
        depth = DEPTH_FACTOR * self._evidence.k
        unplaced = [docid for docid, _ in hits[:depth] if self._evidence.is_relevant(qid, docid)]
        different: Hits = []
        seen_count = 0
        for docid, score in hits[:depth]:
            if len(different) == self._evidence.k:
                break
            seen_count += 1
            remaining = self._remaining_passage(qid, docid, different, unplaced)
            if remaining is not None:
                different.append((remaining, score))
            if remaining in unplaced:
                unplaced.remove(remaining)
        placed_docids = {docid for docid, _ in different}
        rest = [hit for hit in hits[seen_count:] if hit[0] not in placed_docids]
        return different + rest

    def _remaining_passage(
        self, qid: str, docid: str, different: Hits, unplaced: Sequence[str]
    ) -> str | None:
        """Return the passage that stays in place of a hit; None if the hit is left out.

        `different` are the hits above that stay, `unplaced` the relevant ones that are not among
        them.
        """
        if self._evidence.is_relevant(qid, docid):
            return docid if docid in unplaced else None
        relevant = self._evidence.relevant(qid)
        if is_unjudged_copy(self._evidence, self._copies, qid, docid, relevant):
            return docid
        for relevant_docid in unplaced:
            if self._copies.are_copies(docid, relevant_docid):
                return relevant_docid
        if any(self._copies.are_copies(docid, other) for other, _ in different):
            return None
        return docid


def is_unjudged_copy(
    evidence: Evidence, copies: NearCopies, qid: str, docid: str, relevant: Iterable[str]
) -> bool:
    """Return whether a hit is a copy of a relevant passage, and has no judgment itself."""
    if docid in evidence.grades[qid]:
        return False
    return any(copies.are_copies(docid, other) for other in relevant)


class CopiesJudged(SingleChange):
    """Unjudged copies of relevant passages count as relevant."""

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
        if not copies:
            return None
        assert miss.rank is not None  # there are hits above it
        change = f"judge {_counted(len(copies), 'copy', 'copies')} of relevant passages"
        return Trial(change, miss.rank - len(copies))

    def change_all_queries(self) -> Fix | None:
        """Return the judgments with those copies, which have the grades of their originals."""
        depth = DEPTH_FACTOR * self._evidence.k
        completed = {}
        for qid, grades in self._evidence.grades.items():
            relevant = self._evidence.relevant(qid)
            new_grades = dict(grades)
            for docid, _ in self._evidence.hits.get(qid, [])[:depth]:
                if docid in grades:
                    continue
                originals = [other for other in relevant if self._copies.are_copies(docid, other)]
                if originals:
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
        docids_by_miss = {miss: self._compared_docids(miss) for miss in misses}
        for miss, docids in docids_by_miss.items():
            for docid in docids:
                if (miss.qid, docid) not in row_of_pair:
                    row_of_pair[miss.qid, docid] = len(queries)
                    queries.append(self._evidence.queries[miss.qid])
                    passages.append(self._evidence.texts[docid])
        scores = self._score(queries, passages)
        trials = []
        for miss in misses:
            scores_of_miss = {
                docid: scores[row_of_pair[miss.qid, docid]] for docid in docids_by_miss[miss]
            }
            trials.append(_trial_of_reranker(miss, scores_of_miss))
        return trials

    def _score(self, queries: Sequence[Query], passages: Sequence[Passage]) -> list[float]:
        """Return the reranker's score of each pair of a query and a passage."""
        scores: list[float] = []
        with track("scoring with the reranker", len(queries), "pairs") as progress:
            for first in range(0, len(queries), SCORED_AT_ONCE):
                last = first + SCORED_AT_ONCE
                block = self._scorer.score(queries[first:last], passages[first:last])
                scores += block.tolist()
                progress.advance(len(block))
        return scores

    def _compared_docids(self, miss: Miss) -> list[str]:
        """Return a passage and the unjudged first hits above it.

        None if the run does not have the passage, or the corpus does not.
        """
        texts = self._evidence.texts
        if miss.rank is None or miss.docid not in texts:
            return []
        depth = RERANKED_FACTOR * self._evidence.k
        judged = self._evidence.grades[miss.qid]
        docids = [miss.docid]
        for docid, _ in self._evidence.above(miss)[:depth]:
            if docid not in judged and docid in texts:
                docids.append(docid)
        return docids


def _trial_of_reranker(miss: Miss, scores: Mapping[str, float]) -> Trial | None:
    """Return the trial of a passage from the scores, by id, of it and of unjudged hits above it.

    None without scores, and if the reranker prefers no hit.
    """
    if not scores:
        return None
    assert miss.rank is not None  # else nothing was scored
    own_score = scores[miss.docid]
    preferred = [
        docid for docid, score in scores.items() if docid != miss.docid and score >= own_score
    ]
    if not preferred:
        return None
    change = f"judge {_counted(len(preferred), 'hit')} that the reranker prefers"
    return Trial(change, miss.rank - len(preferred))


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> _counted(1, "hub"), _counted(2, "copy", "copies")
    ('1 hub', '2 copies')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {plural or noun + 's'}"
