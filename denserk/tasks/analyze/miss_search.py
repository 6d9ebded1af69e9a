"""Search again for the passages that a run missed: other passages, other queries, full vectors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Metric, SearchSettings
from denserk.index.opening import OpenedIndex
from denserk.index.query_encoder import QueryEncoder
from denserk.index.ranking import Hits
from denserk.models.text_encoder import PASSAGE, TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import track

ENCODED_AT_ONCE = 2048  # passages that are sorted by length into batches
IDS_AT_ONCE = 1 << 16  # ids of an index that are compared at once

Vectors = NDArray[np.float32]
HitsByQuery = Mapping[str, Hits]  # by query id, the best first


def rank_of(hits: Hits, docid: str) -> int | None:
    """Return the rank of a passage; None if it is not among the hits.

    >>> rank_of([("d1", 2.0), ("d2", 1.0)], "d2")
    2
    """
    for rank, (hit, _) in enumerate(hits, start=1):
        if hit == docid:
            return rank
    return None


def rank_of_score(hits: Hits, docid: str, score: float, depth: int) -> int | None:
    """Return the rank that a passage would have with a score, among other hits.

    A hit with the same score stands above it. None: it would stand below all of the `depth` hits
    that a search returns, where other passages may be better.

    >>> hits = [("d1", 3.0), ("d2", 2.0), ("d3", 1.0)]
    >>> rank_of_score(hits, "d3", 2.5, depth=3), rank_of_score(hits, "d4", 0.5, depth=3)
    (2, None)
    """
    other_scores = [hit_score for hit, hit_score in hits if hit != docid]
    rank = 1 + sum(other_score >= score for other_score in other_scores)
    is_last_of_cut_list = rank > len(other_scores) and len(hits) >= depth
    return None if is_last_of_cut_list else rank


def with_scores(hits: Hits, new_scores: Mapping[str, float]) -> Hits:
    """Return hits with new scores of some passages, which may be hits or not.

    >>> with_scores([("d1", 3.0), ("d2", 2.0)], {"d2": 4.0, "d3": 1.0})
    [('d2', 4.0), ('d1', 3.0), ('d3', 1.0)]
    """
    scores = {**dict(hits), **new_scores}
    return sorted(scores.items(), key=lambda hit: hit[1], reverse=True)


def indexed_docids(opened: OpenedIndex, docids: Iterable[str]) -> set[str]:
    """Return which of some passages an index has."""
    requested_docids = set(docids)
    present_docids: set[str] = set()
    if not requested_docids:
        return present_docids
    passage_count = len(opened.index) // opened.vectors_per_passage
    with track(f"reading ids of {opened.name}", passage_count, "passages") as progress:
        for first in range(0, passage_count, IDS_AT_ONCE):
            numbers = np.arange(first, min(first + IDS_AT_ONCE, passage_count))
            present_docids.update(requested_docids.intersection(opened.ids(numbers)))
            progress.advance(len(numbers))
    return present_docids


@dataclass
class DenseSearch:
    """The search of a run by vectors, which can be repeated with other passages and queries.

    `exact` is the same collection in full vectors, where the index is approximate; None where the
    index is exact, or where these vectors are not known.
    """

    opened: OpenedIndex
    exact: OpenedIndex | None
    settings: SearchSettings  # of the run, as deep as the run
    query_encoder: QueryEncoder
    passage_encoder: TextEncoder
    queries: Sequence[Query]  # that are analysed
    hits: HitsByQuery  # of these, in the run
    exact_depth: int  # least number of hits of the exact search
    query_vectors: Vectors = field(init=False)  # (Q, D)
    # hits that a changed passage is compared with: their scores are of full vectors
    rivals: HitsByQuery = field(init=False)
    exact_hits: HitsByQuery | None = field(init=False)

    def __post_init__(self) -> None:
        self._rows = {query.qid: row for row, query in enumerate(self.queries)}
        self.query_vectors = self.query_encoder.encode_queries(self.queries)
        self.exact_hits = None
        self.rivals = self.hits
        if self.exact is not None:
            exact_settings = SearchSettings(hits=max(self.settings.hits, self.exact_depth))
            self.exact_hits = self.search_in(self.exact, exact_settings, self.queries)
            self.rivals = {
                qid: _with_exact_scores(hits, self.exact_hits.get(qid, []))
                for qid, hits in self.hits.items()
            }

    def search_in(
        self, opened: OpenedIndex, settings: SearchSettings, queries: Sequence[Query]
    ) -> dict[str, Hits]:
        """Return the hits of queries in an index, by query id; no two queries share an id."""
        if queries is self.queries:
            vectors = self.query_vectors
        else:
            vectors = self.query_encoder.encode_queries(queries)
        qids = [query.qid for query in queries]
        searcher = opened.searcher(settings)
        with track("searching", len(queries), "queries") as progress:
            hits_by_query = {}
            for qid, hits in searcher.search(qids, vectors):
                hits_by_query[qid] = list(hits)
                progress.advance()
        return hits_by_query

    def search(self, queries: Sequence[Query]) -> dict[str, Hits]:
        """Return the hits of other queries in the run's index, by query id."""
        return self.search_in(self.opened, self.settings, queries)

    def encode(self, task: str, passages: Sequence[Passage]) -> Vectors:
        """Encode passages as the index was encoded: (P, S, D)."""
        ids = self.passage_encoder.sides[PASSAGE].tokenizer.passages(passages)
        return self.encode_ids(task, ids)

    def encode_longer(self, task: str, passages: Sequence[Passage], max_length: int) -> Vectors:
        """Encode passages with another limit of length: (P, S, D)."""
        tokenizer = self.passage_encoder.sides[PASSAGE].tokenizer
        return self.encode_ids(task, tokenizer.passages(passages, max_length))

    def encode_ids(self, task: str, ids: Sequence[list[int]]) -> Vectors:
        """Encode passages by their token ids: (P, S, D)."""
        encoder = self.passage_encoder
        vectors = []
        with track(task, len(ids), "passages") as progress:
            for first in range(0, len(ids), ENCODED_AT_ONCE):
                block = ids[first : first + ENCODED_AT_ONCE]
                block_vectors = encoder.encode_tokens(PASSAGE, block)
                vectors.append(block_vectors.reshape(len(block), -1, encoder.dimension))
                progress.advance(len(block))
        if not vectors:
            return np.empty((0, 1, encoder.dimension), np.float32)
        return np.concatenate(vectors)

    def scores(self, qid: str, passage_vectors: Vectors) -> NDArray[np.float32]:
        """Return the scores of passages for a query: (P, S, D) -> (P,)."""
        query = self.query_vectors[self._rows[qid]]
        products = passage_vectors @ query  # (P, S)
        if self.opened.metric is Metric.L2:
            lengths = np.square(passage_vectors).sum(axis=2) + np.square(query).sum()
            products = 2 * products - lengths
        scores: NDArray[np.float32] = products.max(axis=1)
        return scores

    def rank_with(self, qid: str, docid: str, score: float) -> int | None:
        """Return the rank of a passage that would have a score; see `rank_of_score`."""
        return rank_of_score(self.rivals[qid], docid, score, self.settings.hits)

    def merged(self, docids: Sequence[str], passage_vectors: Vectors) -> dict[str, Hits]:
        """Return the hits of all queries if some passages had other vectors.

        passage_vectors: (P, S, D), of the P passages that `docids` names. A passage that it names
        several times has the best of its scores.
        """
        hits_by_query = {}
        for qid, hits in self.rivals.items():
            new_scores: dict[str, float] = {}
            for docid, score in zip(docids, self.scores(qid, passage_vectors), strict=True):
                new_scores[docid] = max(float(score), new_scores.get(docid, -np.inf))
            hits_by_query[qid] = with_scores(hits, new_scores)[: self.settings.hits]
        return hits_by_query


def _with_exact_scores(hits: Hits, exact_hits: Hits) -> Hits:
    """Return hits with the scores of an exact search.

    A hit that the exact search did not return gets the lowest score that it returned.
    """
    exact_scores = dict(exact_hits)
    lowest = min(exact_scores.values(), default=-np.inf)
    rescored = [(docid, exact_scores.get(docid, lowest)) for docid, _ in hits]
    return sorted(rescored, key=lambda hit: hit[1], reverse=True)
