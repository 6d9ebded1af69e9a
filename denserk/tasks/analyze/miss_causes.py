"""The causes for which a relevant passage is missed, each a change that is tried.

A change takes missed passages and returns, for each, the rank that it has after the change; None
where the change does not apply. `everywhere` applies it to all queries, where a change is one of
the whole collection and not of a single passage.
"""

import difflib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.analysis import MissesSettings
from denserk.config.retrieval import FusionSettings
from denserk.data.sentences import split_sentences
from denserk.data.splitting import windows, word_spans
from denserk.evaluation.near_copies import NearCopies
from denserk.evaluation.results import Grades
from denserk.index.fusion import score_contributions
from denserk.index.ranking import Hits
from denserk.models.cross_encoder import PairScorer
from denserk.models.text_encoder import PASSAGE, QUERY
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
MANY_SUBWORDS = 4  # subword tokens of a word that the model hardly knows
MOST_SENTENCES = 64  # of a passage, that are tried in front
NO_LIMIT = 1 << 20  # tokens
MOVED = 0.01  # relative difference of scores from which a stored vector is another one
SIMILAR = 0.75  # of two spellings, by difflib
OUTER_PUNCTUATION = "\"'()[]{}.,;:!?\u2018\u2019\u201c\u201d\u00ab\u00bb"


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
            scores = _scores_of_texts(self._dense, "encoding absent passages", absent, self._text)
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


class FullDimensions:
    """Vectors keep all their dimensions: the first hits and the passage are encoded again.

    `whole` is the search with a model that cuts no dimension. Only passages among the hits of the
    run are compared.
    """

    cause = "approximate"
    name = "keep all dimensions"

    def __init__(self, evidence: Evidence, whole: DenseSearch) -> None:
        self._evidence = evidence
        self._whole = whole

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the first hits and the missed passages, and order them."""
        settings = self._evidence.settings
        depth = RERANKED_FACTOR * settings.k
        docids_by_query: dict[str, dict[str, None]] = {}
        for miss in misses:
            if miss.qid not in docids_by_query:
                first_hits = self._evidence.hits[miss.qid][:depth]
                docids_by_query[miss.qid] = dict.fromkeys(docid for docid, _ in first_hits)
            docids_by_query[miss.qid][miss.docid] = None
        texts = self._evidence.texts
        needed: dict[str, None] = {}
        for docids in docids_by_query.values():
            needed |= {docid: None for docid in docids if docid in texts}
        passages = [texts[docid] for docid in needed]
        vectors = self._whole.encode("encoding all dimensions", passages)
        row_of = {docid: row for row, docid in enumerate(needed)}
        hits_by_query = {}
        for qid, docids in docids_by_query.items():
            encoded = [docid for docid in docids if docid in row_of]
            rows = [row_of[docid] for docid in encoded]
            scores = self._whole.scores(qid, vectors[rows]).tolist()
            ranked = sorted(zip(encoded, scores, strict=True), key=lambda hit: hit[1], reverse=True)
            hits_by_query[qid] = ranked
        name = f"keep all dimensions (among the first {depth} hits)"
        return [Trial(name, rank_of(hits_by_query[miss.qid], miss.docid)) for miss in misses]

    def everywhere(self) -> Fix | None:
        """Hits beyond the first are not encoded again."""
        return None


class EncodedAgain:
    """The passage is encoded as it is now; its stored vector is another one."""

    cause = "outdated"
    name = "encode again"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        self._evidence = evidence
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the passages and rank them among the hits."""
        task = "encoding missed passages"
        scores = _scores_of_texts(self._dense, task, misses, self._text)
        return [self._trial(miss, scores[miss]) for miss in misses]

    def everywhere(self) -> Fix | None:
        """Which other vectors are outdated is not known."""
        return None

    def _text(self, miss: Miss) -> list[Passage]:
        """Return the passage of the corpus, if it is there."""
        passage = self._evidence.texts.get(miss.docid)
        return [] if passage is None else [passage]

    def _trial(self, miss: Miss, scores: NDArray[np.float32]) -> Trial | None:
        """Return the trial of a passage; None if its score is the one that it had."""
        if not len(scores):
            return None
        score = float(scores[0])
        rivals = self._dense.rivals[miss.qid]
        stored_scores = dict(rivals)
        lowest = rivals[-1][1] if rivals else -np.inf
        stored_score = stored_scores.get(miss.docid, lowest)
        if score - stored_score <= MOVED * abs(stored_score):
            return None
        return Trial("encode it again", self._dense.rank_with(miss.qid, miss.docid, score))


def _scores_of_texts(
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


# Changes of passages


@dataclass
class LongPassages:
    """The passages that are longer than the limit of the model."""

    evidence: Evidence
    dense: DenseSearch
    limit: int = field(init=False)  # tokens
    lengths: dict[str, int] = field(init=False, default_factory=dict)  # of those that were counted

    def __post_init__(self) -> None:
        self.limit = self.dense.passage_encoder.text.passage_max_length

    def length(self, passage: Passage) -> int:
        """Return the number of tokens of a whole passage, special tokens included."""
        if passage.docid not in self.lengths:
            tokenizer = self.dense.passage_encoder.sides[PASSAGE].tokenizer
            (ids,) = tokenizer.passages([passage], NO_LIMIT)
            self.lengths[passage.docid] = len(ids)
        return self.lengths[passage.docid]

    def is_long(self, passage: Passage) -> bool:
        """Return whether a passage is cut."""
        return self.length(passage) > self.limit

    def long_ones(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return which of some passages are cut."""
        tokenizer = self.dense.passage_encoder.sides[PASSAGE].tokenizer
        ids_of_passages = tokenizer.passages(passages, NO_LIMIT)
        long = []
        for passage, ids in zip(passages, ids_of_passages, strict=True):
            if len(ids) > self.limit:
                self.lengths[passage.docid] = len(ids)
                long.append(passage)
        return long


class LongerLimit:
    """Passages are encoded with as many tokens as the model has positions for.

    `long_passages` are all of the collection that are cut, in the order of the corpus; None: too
    many to encode again.
    """

    cause = "length"

    def __init__(
        self, passages: LongPassages, new_limit: int, long_passages: Sequence[Passage] | None
    ) -> None:
        self._passages = passages
        self._new_limit = new_limit
        self._long_passages = long_passages
        self.name = f"encode {new_limit} tokens of a passage"

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the long ones among the passages, and rank them among the hits."""
        texts = self._passages.evidence.texts
        dense = self._passages.dense
        long: dict[str, Passage] = {}
        for miss in misses:
            passage = texts.get(miss.docid)
            if passage is not None and self._passages.is_long(passage):
                long[miss.docid] = passage
        passages = list(long.values())
        task = f"encoding {self._new_limit} tokens"
        vectors = dense.encode_longer(task, passages, self._new_limit)
        row_of = {docid: row for row, docid in enumerate(long)}
        trials: list[Trial | None] = []
        for miss in misses:
            if miss.docid not in row_of:
                trials.append(None)
                continue
            row = row_of[miss.docid]
            (score,) = dense.scores(miss.qid, vectors[row : row + 1])
            limit = min(self._new_limit, self._passages.length(long[miss.docid]))
            rank = dense.rank_with(miss.qid, miss.docid, float(score))
            trials.append(Trial(f"encode {limit} tokens of it", rank))
        return trials

    def everywhere(self) -> Fix | None:
        """Encode all long passages of the collection."""
        if self._long_passages is None:
            return None
        dense = self._passages.dense
        task = f"encoding {self._new_limit} tokens of all long passages"
        vectors = dense.encode_longer(task, self._long_passages, self._new_limit)
        docids = [passage.docid for passage in self._long_passages]
        return Fix(dense.merged(docids, vectors))


class Windows:
    """Passages are cut into windows as long as the limit, each half a window behind the last."""

    cause = "length"
    name = "cut long passages into windows"

    def __init__(self, passages: LongPassages, long_passages: Sequence[Passage] | None) -> None:
        self._passages = passages
        self._long_passages = long_passages

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Rank the best window of each long passage among the hits."""
        dense = self._passages.dense
        task = "encoding windows of long passages"
        scores = _scores_of_texts(dense, task, misses, self._windows_of_miss)
        trials: list[Trial | None] = []
        for miss in misses:
            if not len(scores[miss]):
                trials.append(None)
                continue
            best = int(scores[miss].argmax())
            rank = dense.rank_with(miss.qid, miss.docid, float(scores[miss][best]))
            # the first window, which the vector of the whole passage is of, is not tried
            trials.append(Trial(f"window {best + 2} of {len(scores[miss]) + 1}", rank))
        return trials

    def _windows_of_miss(self, miss: Miss) -> list[Passage]:
        """Return the windows of a long passage but the first one; of others none."""
        passage = self._passages.evidence.texts.get(miss.docid)
        if passage is None or not self._passages.is_long(passage):
            return []
        return self._windows(passage)[1:]

    def _windows(self, passage: Passage) -> list[Passage]:
        """Return the windows of a passage, as passages with its title."""
        length = self._passages.length(passage)
        spans = list(word_spans(passage.text))
        # a little less than the limit, as words differ in their tokens
        size = max(1, int(0.9 * len(spans) * self._passages.limit / length))
        stride = ceil(size / 2)
        return [
            passage._replace(text=passage.text[start:end])
            for start, end in windows(spans, size, stride)
        ]

    def everywhere(self) -> Fix | None:
        """Cut all long passages of the collection; each counts with its best window."""
        if self._long_passages is None:
            return None
        parts = []
        for passage in self._long_passages:
            parts += self._windows(passage)
        dense = self._passages.dense
        vectors = dense.encode("encoding windows of all long passages", parts)
        return Fix(dense.merged([part.docid for part in parts], vectors))


class SentenceInFront:
    """One sentence of the passage is moved to its front; each is tried."""

    cause = "position"
    name = "move a sentence to the front"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        self._evidence = evidence
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Rank the best order of each passage among the hits."""
        task = "encoding passages with a sentence in front"
        scores = _scores_of_texts(self._dense, task, misses, self._orders)
        trials: list[Trial | None] = []
        for miss in misses:
            if not len(scores[miss]):
                trials.append(None)
                continue
            best = int(scores[miss].argmax())
            rank = self._dense.rank_with(miss.qid, miss.docid, float(scores[miss][best]))
            trials.append(Trial(f"sentence {best + 2} first", rank))
        return trials

    def _orders(self, miss: Miss) -> list[Passage]:
        """Return the passage with its second sentence in front, its third, and so on."""
        passage = self._evidence.texts.get(miss.docid)
        if passage is None:
            return []
        sentences = split_sentences(passage.text)[:MOST_SENTENCES]
        return [
            passage._replace(text=" ".join(with_item_first(sentences, position)))
            for position in range(1, len(sentences))
        ]

    def everywhere(self) -> Fix | None:
        """Which sentence answers, a search does not know."""
        return None


def with_item_first(items: Sequence[str], position: int) -> list[str]:
    """Return items with one of them moved to the front.

    >>> with_item_first(["a", "b", "c"], 2)
    ['c', 'a', 'b']
    """
    return [items[position], *items[:position], *items[position + 1 :]]


# Changes of the search


class WeightOfWords:
    """BM25 has a share in the score, with each weight of a grid.

    `runs_by_query` holds the hits of the two runs that are fused, that of BM25 second.
    """

    cause = "words"

    def __init__(
        self,
        evidence: Evidence,
        runs_by_query: Mapping[str, tuple[Hits, Hits]],
        fusion: FusionSettings,
        current_weight: float,
    ) -> None:
        self._evidence = evidence
        self._current_weight = current_weight
        weights = evidence.settings.word_weights
        # the smallest change of the weight comes first
        self.weights = sorted(weights, key=lambda weight: abs(weight - current_weight))
        self.name = "fuse with BM25" if not current_weight else "another weight of BM25"
        self._fused = {
            qid: _fuse(runs, fusion, self.weights) for qid, runs in runs_by_query.items()
        }

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Return the trial of the weight nearest to the present one that brings a passage in."""
        return [self._trial(miss) for miss in misses]

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of a passage; None if neither run has it."""
        fused = self._fused.get(miss.qid)
        if fused is None or miss.docid not in fused.docids:
            return None
        row = fused.docids.index(miss.docid)
        own_scores = fused.scores[:, row : row + 1]  # (W, 1)
        ties_above = (fused.scores[:, :row] == own_scores).sum(axis=1)
        ranks = (fused.scores > own_scores).sum(axis=1) + ties_above + 1  # (W,)
        within = np.flatnonzero(ranks <= self._evidence.k)
        best = int(within[0]) if len(within) else int(ranks.argmin())
        change = f"fuse with weight {self.weights[best]:g} of BM25"
        return Trial(change, int(ranks[best]))

    def hits_with(self, weight: float) -> dict[str, Hits]:
        """Return the hits of all queries with a weight of the grid."""
        position = self.weights.index(weight)
        hits_by_query = {}
        for qid, fused in self._fused.items():
            scores = fused.scores[position].tolist()
            ranked = sorted(
                zip(fused.docids, scores, strict=True),
                key=lambda hit: (hit[1], hit[0]),
                reverse=True,
            )
            hits_by_query[qid] = ranked
        return hits_by_query

    def everywhere(self) -> Fix | None:
        """The weight is to be chosen first: see `cross_validated`."""
        return None


class _FusedScores(NamedTuple):
    """The fused scores of a query's passages for W weights."""

    docids: list[str]  # in the order of hits with equal scores
    scores: NDArray[np.float64]  # (W, N)


def _fuse(
    runs: tuple[Hits, Hits], fusion: FusionSettings, weights: Sequence[float]
) -> _FusedScores:
    """Return the scores of two runs' passages for each weight of the second."""
    contributions = score_contributions(runs, fusion)
    docids = sorted(contributions, reverse=True)
    values = np.array([contributions[docid] for docid in docids]).reshape(-1, 2)  # (N, 2)
    second = np.array(weights)
    scores = np.outer(1 - second, values[:, 0]) + np.outer(second, values[:, 1])
    return _FusedScores(docids, scores)


class RespelledQuery:
    """Words of the query that the model reads as many subword tokens are spelled otherwise."""

    cause = "subwords"
    name = "spell broken words otherwise"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        self._evidence = evidence
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Search with each spelling of the queries, and return the best rank of each passage."""
        spellings_of_miss = {miss: self._spellings(miss) for miss in misses}
        queries: dict[str, Query] = {}  # by id: a spelling is searched once for each query
        for miss, spellings in spellings_of_miss.items():
            for text in spellings:
                qid = f"{miss.qid}\t{text}"
                queries[qid] = Query(qid, text)
        hits_by_spelling = self._dense.search(list(queries.values())) if queries else {}
        trials: list[Trial | None] = []
        for miss in misses:
            best: Trial | None = None
            for text, change in spellings_of_miss[miss].items():
                rank = rank_of(hits_by_spelling.get(f"{miss.qid}\t{text}", []), miss.docid)
                trial = Trial(change, rank)
                if best is None or _is_better(trial, best):
                    best = trial
            trials.append(best)
        return trials

    def _spellings(self, miss: Miss) -> dict[str, str]:
        """Return other texts of the query, each with what was changed; none if no word is broken.

        The cheapest rewriting comes first.
        """
        query = self._evidence.queries[miss.qid]
        broken = self._broken_words(query.text)
        if not broken:
            return {}
        passage = self._evidence.texts.get(miss.docid)
        passage_words: set[str] = set()
        if passage is not None:
            text = f"{passage.title} {passage.text}"
            passage_words = {word.strip(OUTER_PUNCTUATION) for word in text.split()}
        rewritings: dict[str, Callable[[str], str]] = {
            "in lower case": str.lower,
            "without accents": without_accents,
            "split": split_word,
            "in one word": joined_word,
            "as the passage spells it": lambda word: nearest_word(word, passage_words),
        }
        spellings: dict[str, str] = {}
        for name, rewrite in rewritings.items():
            new_words = {word: rewrite(word) for word in broken}
            text = replace_words(query.text, new_words)
            if text.strip() and text != query.text and text not in spellings:
                changed = [f"{old} to {new}" for old, new in new_words.items() if old != new]
                spellings[text] = f"{name}: {', '.join(changed)}"
        return spellings

    def _broken_words(self, text: str) -> list[str]:
        """Return the words of a query that are many subword tokens."""
        words = [word.strip(OUTER_PUNCTUATION) for word in text.split()]
        words = [word for word in dict.fromkeys(words) if word]
        tokenizer = self._dense.passage_encoder.sides[QUERY].tokenizer
        ids_of_words = tokenizer.subword_tokens([f" {word}" for word in words])
        return [
            word for word, ids in zip(words, ids_of_words, strict=True) if len(ids) >= MANY_SUBWORDS
        ]

    def everywhere(self) -> Fix | None:
        """One of the spellings is that of the passage, which a search does not know."""
        return None


def _is_better(trial: Trial, other: Trial) -> bool:
    """Return whether a trial has a better rank than another."""
    if trial.rank is None:
        return False
    return other.rank is None or trial.rank < other.rank


def without_accents(word: str) -> str:
    """Return a word without diacritical marks.

    >>> without_accents("Curaçao")
    'Curacao'
    """
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def split_word(word: str) -> str:
    """Split a word at hyphens and the like, before capitals, and between letters and digits.

    >>> split_word("getFileName"), split_word("HTTP-Server/v2"), split_word("snake_case")
    ('get File Name', 'HTTP Server v 2', 'snake case')
    """
    text = re.sub(r"[-_/.\u2010-\u2015+:@#]+", " ", word)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    text = re.sub(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])", " ", text)
    return " ".join(text.split())


def joined_word(word: str) -> str:
    """Return a word without hyphens, dots and underscores.

    >>> joined_word("e-mail")
    'email'
    """
    return re.sub(r"[-_.\u2010-\u2015]+", "", word)


def nearest_word(word: str, words: Collection[str]) -> str:
    """Return the word of a text that is spelled most alike; the word itself if none is.

    >>> nearest_word("fotosynthesis", {"photosynthesis", "light"})
    'photosynthesis'
    """
    lowered = {candidate.lower(): candidate for candidate in sorted(words)}
    matches = difflib.get_close_matches(word.lower(), sorted(lowered), n=1, cutoff=SIMILAR)
    return lowered[matches[0]] if matches else word


def replace_words(text: str, new_words: Mapping[str, str]) -> str:
    """Replace whole words of a text.

    >>> replace_words("what is getFileName?", {"getFileName": "get File Name"})
    'what is get File Name?'
    """
    for word, new_word in new_words.items():
        pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
        literal = new_word.replace("\\", r"\\")
        text = re.sub(pattern, literal, text)
    return text


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> _counted(1, "hub"), _counted(2, "copy", "copies")
    ('1 hub', '2 copies')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {plural or noun + 's'}"
