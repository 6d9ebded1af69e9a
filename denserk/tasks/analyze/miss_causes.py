"""The causes for which a relevant passage is missed, each a change that is tried.

A change takes missed passages and returns, for each, the rank that it has after the change; None
where the change does not apply. `everywhere` applies it to all queries, where a change is one of
the whole collection and not of a single passage.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.analysis import MissesSettings
from denserk.evaluation.near_copies import NearCopies
from denserk.evaluation.results import Grades
from denserk.index.ranking import Hits
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage, Query
from denserk.reporting import track
from denserk.tasks.analyze.miss_search import (
    DenseSearch,
    HitsByQuery,
    rank_of,
)

LEAST_QUERIES_OF_HUB = 5
DEPTH_FACTOR = 10  # duplicates are looked for among the first 10 K hits
RERANKED_FACTOR = 5  # the reranker reads the first 5 K hits above a passage


class Miss(NamedTuple):
    """A relevant passage of a query, and its rank in the run; None if it is not within it."""

    qid: str
    docid: str
    grade: int
    rank: int | None


class Trial(NamedTuple):
    """A change that was tried for a missed passage, and the rank that it gave it."""

    change: str
    rank: int | None  # None: not within the hits that were looked at


class Fix(NamedTuple):
    """What a change does to all queries: other hits, or other judgments."""

    hits: HitsByQuery
    grades: Grades | None = None


@dataclass
class Evidence:
    """What is known of a run and of its collection.

    `texts` are those of the relevant passages and of the first hits, as far as there is a corpus.
    """

    settings: MissesSettings
    hits: HitsByQuery  # of the analysed queries, the best first
    grades: Grades
    queries: Mapping[str, Query]
    texts: Mapping[str, Passage]
    hubs: Collection[str] = ()

    @property
    def k(self) -> int:
        """The number of first hits."""
        return self.settings.k

    def is_relevant(self, qid: str, docid: str) -> bool:
        """Return whether a passage is judged relevant for a query."""
        return self.grades[qid].get(docid, 0) >= self.settings.relevance_level

    def relevant(self, qid: str) -> list[str]:
        """Return the relevant passages of a query."""
        return [docid for docid in self.grades[qid] if self.is_relevant(qid, docid)]

    def above(self, miss: Miss) -> Hits:
        """Return the hits above a missed passage; none where its rank is not known."""
        if miss.rank is None:
            return []
        return self.hits[miss.qid][: miss.rank - 1]


class Change(Protocol):
    """A change of the collection, the search, a passage or a query."""

    cause: str  # a key of `denserk.io.misses.TITLES`
    name: str  # of the change, in the table of gains

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Return the trial of each missed passage; None where the change does not apply."""

    def everywhere(self) -> Fix | None:
        """Return what the change does to all queries; None where it is of single passages."""


# Changes of the index


class IndexedAgain:
    """The whole corpus is indexed, for passages that an index of vectors lacks."""

    cause = "absent"
    name = "index the whole corpus"

    def __init__(
        self, evidence: Evidence, dense: DenseSearch | None, present_docids: Collection[str]
    ) -> None:
        self._evidence = evidence
        self._dense = dense
        self._present_docids = present_docids

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the absent passages and rank them among the hits."""
        absent = [miss for miss in misses if self._is_absent(miss)]
        scores = {}
        if self._dense is not None:
            scores = scores_of_texts(self._dense, "encoding absent passages", absent, self._text)
        return [self._trial(miss, scores) for miss in misses]

    def everywhere(self) -> Fix | None:
        """Which other passages the index lacks is not known."""
        return None

    def _is_absent(self, miss: Miss) -> bool:
        """Return whether the index lacks a passage."""
        return miss.rank is None and miss.docid not in self._present_docids

    def _text(self, miss: Miss) -> list[Passage]:
        """Return the passage of the corpus, if it is there."""
        passage = self._evidence.texts.get(miss.docid)
        return [] if passage is None else [passage]

    def _trial(self, miss: Miss, scores: Mapping[Miss, NDArray[np.float32]]) -> Trial | None:
        """Return the trial of a passage; None if the index has it."""
        if not self._is_absent(miss):
            return None
        if miss.docid not in self._evidence.texts:
            return Trial("not in the index, and not in the corpus", None)
        if self._dense is None or not len(scores[miss]):
            return Trial("index it", None)
        rank = self._dense.rank_with(miss.qid, miss.docid, float(scores[miss][0]))
        return Trial("index it", rank)


class RebuiltBm25:
    """The whole corpus is indexed, for passages that a BM25 index lacks.

    `search` builds the index and returns the hits of all queries.
    """

    cause = "absent"
    name = "index the whole corpus"

    def __init__(
        self,
        present_docids: Collection[str],
        search: Callable[[], HitsByQuery],
    ) -> None:
        self._present_docids = present_docids
        self._search = search
        self._hits: HitsByQuery | None = None

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Build the index again if it lacks one of the passages."""
        trials: list[Trial | None] = []
        for miss in misses:
            is_absent = miss.rank is None and miss.docid not in self._present_docids
            if is_absent and self._hits is None:
                self._hits = self._search()
            if is_absent and self._hits is not None:
                hits = self._hits.get(miss.qid, [])
                trials.append(Trial("index it", rank_of(hits, miss.docid)))
            else:
                trials.append(None)
        return trials

    def everywhere(self) -> Fix | None:
        """Return the hits of the new index."""
        return None if self._hits is None else Fix(self._hits)


class ExactSearch:
    """All vectors are compared, as they were before the index was built."""

    cause = "approximate"
    name = "search exactly"

    def __init__(self, exact_hits: HitsByQuery) -> None:
        self._exact_hits = exact_hits

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Look the passages up in the hits of the exact search."""
        trials: list[Trial | None] = []
        for miss in misses:
            rank = rank_of(self._exact_hits.get(miss.qid, []), miss.docid)
            trials.append(Trial("search exactly", rank))
        return trials

    def everywhere(self) -> Fix | None:
        """Return the hits of the exact search."""
        return Fix(self._exact_hits)


def scores_of_texts(
    dense: DenseSearch,
    task: str,
    misses: Iterable[Miss],
    texts_of: Callable[[Miss], Sequence[Passage]],
) -> dict[Miss, NDArray[np.float32]]:
    """Return the scores of texts, several or none of each miss; equal texts are encoded once."""
    misses = list(misses)
    row_of_text: dict[tuple[str, str], int] = {}
    passages: list[Passage] = []
    rows_of_miss = {}
    for miss in misses:
        rows = []
        for passage in texts_of(miss):
            key = (passage.title, passage.text)
            if key not in row_of_text:
                row_of_text[key] = len(passages)
                passages.append(passage)
            rows.append(row_of_text[key])
        rows_of_miss[miss] = rows
    vectors = dense.encode(task, passages)
    return {miss: dense.scores(miss.qid, vectors[rows]) for miss, rows in rows_of_miss.items()}


# Changes of the hits


class WithoutHubs:
    """Passages that stand among the first hits of very many queries are left out."""

    cause = "hub"
    name = "leave hubs out"

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Count the hubs above the passages that are not relevant for their queries."""
        trials: list[Trial | None] = []
        for miss in misses:
            count = sum(self._is_hub(miss.qid, docid) for docid, _ in self._evidence.above(miss))
            if count and miss.rank is not None:
                trials.append(Trial(f"leave out {_counted(count, 'hub')}", miss.rank - count))
            else:
                trials.append(None)
        return trials

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
    most = percent / 100 * query_count
    return {
        docid for docid, count in counts.items() if count > most and count >= LEAST_QUERIES_OF_HUB
    }


class WithoutCopies:
    """Of passages that are copies of each other, the first alone stays.

    Copies of a relevant passage that nobody judged are left to `CopiesJudged`.
    """

    cause = "copies"
    name = "collapse copies"

    def __init__(self, evidence: Evidence, copies: NearCopies) -> None:
        self._evidence = evidence
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
        different: list[str] = []  # of which none is a copy of another
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
    """Return whether nobody judged a hit, which is a copy of a relevant passage."""
    if docid in evidence.grades[qid]:
        return False
    return any(copies.are_copies(docid, other) for other in relevant)


class CopiesJudged:
    """Copies of a relevant passage that nobody judged count as relevant."""

    cause = "unjudged"
    name = "judge copies of relevant passages"

    def __init__(self, evidence: Evidence, copies: NearCopies) -> None:
        self._evidence = evidence
        self._copies = copies

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Leave out unjudged copies of relevant passages above the missed ones."""
        return [self._trial(miss) for miss in misses]

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


class RerankerPositives:
    """Unjudged hits that a reranker scores as high as the relevant passage count as relevant."""

    cause = "unjudged"
    name = "judge hits that the reranker prefers"

    def __init__(self, evidence: Evidence, scorer: PairScorer) -> None:
        self._evidence = evidence
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

    def everywhere(self) -> Fix | None:
        """The reranker compares hits with a relevant passage, which searches do not know."""
        return None


def _trial_of_reranker(miss: Miss, scores: Mapping[str, float]) -> Trial | None:
    """Return the trial of a passage by the scores of it and of hits above it, by their ids."""
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
