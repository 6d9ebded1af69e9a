"""Answers to requests: search, fusion, reranking and excerpts, for several requests together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denserk.config.retrieval import SearchSettings
from denserk.config.serving import AnswerSettings
from denserk.index.excerpts import SpansOf, excerpt_of, marked_spans, query_terms
from denserk.index.fusion import score_contributions, weighted_scores
from denserk.index.ranking import Hits, Ranking
from denserk.io.short_texts import with_single_spaces
from denserk.records import Passage, Query, best_first
from denserk.serving.indexes import OpenIndex, ServedIndex
from denserk.serving.requests import AnsweredHit, SearchRequest

if TYPE_CHECKING:
    from denserk.models.cross_encoder import PairScorer

LONGEST_TEXT = 10_000  # characters of a passage in which the best excerpt is looked for
HitsByIndex = dict[str, Hits]  # of one request


class SearchService:
    """Answers requests by the indexes that are served; used by one thread at a time."""

    def __init__(
        self,
        indexes: Sequence[ServedIndex],
        answers: AnswerSettings,
        reranker: "PairScorer | None" = None,
    ) -> None:
        self.indexes = {index.name: index for index in indexes}
        self.reranker = reranker
        self._answers = answers

    def answer(self, requests: Sequence[SearchRequest]) -> list[list[AnsweredHit]]:
        """Return the answer of each request; their queries are encoded together."""
        indexes = {name: index.current for name, index in self.indexes.items()}
        rankings = []
        for request, hits_by_index in zip(requests, self._search(requests, indexes), strict=True):
            hits = self._fused(request, hits_by_index)
            rankings.append(_RankedPassages(request, hits, _passages_of(request, hits, indexes)))
        self._rerank([ranking for ranking in rankings if ranking.request.rerank])
        return [_answer_of(ranking, indexes) for ranking in rankings]

    def passage(self, indexes: Iterable[str], docid: str) -> Passage | None:
        """Return a passage by its id, from the first of the indexes that has it."""
        for name in indexes:
            (passage,) = self.indexes[name].current.passages.get([docid])
            if passage is not None:
                return passage
        return None

    def _search(
        self, requests: Sequence[SearchRequest], indexes: Mapping[str, OpenIndex]
    ) -> list[HitsByIndex]:
        """Return the hits of each request in each of its indexes.

        Requests that need the same number of hits are searched together: an approximate index may
        find others for another number.
        """
        numbers_by_search: dict[tuple[str, int], list[int]] = {}
        for number, request in enumerate(requests):
            depth = self._depth_of(request)
            for name in request.indexes:
                numbers_by_search.setdefault((name, depth), []).append(number)
        hits_of_requests: list[HitsByIndex] = [{} for _ in requests]
        for (name, depth), numbers in numbers_by_search.items():
            queries = [requests[number].query for number in numbers]
            hits_of_queries = indexes[name].search(queries, depth)
            for number, hits in zip(numbers, hits_of_queries, strict=True):
                hits_of_requests[number][name] = hits
        return hits_of_requests

    def _depth_of(self, request: SearchRequest) -> int:
        """Return how many hits of each index a request needs."""
        depth = request.hits
        if request.rerank:
            depth = max(depth, self._answers.rerank_depth)
        if len(request.indexes) > 1:
            depth = max(depth, self._answers.fusion_depth)
        return depth

    def _fused(self, request: SearchRequest, hits_by_index: HitsByIndex) -> Hits:
        """Return the hits of a request: those to rerank, or those of its answer."""
        kept = self._answers.rerank_depth if request.rerank else request.hits
        hits_of_indexes = [hits_by_index[name] for name in request.indexes]
        if len(hits_of_indexes) == 1:
            return hits_of_indexes[0][:kept]
        contributions = score_contributions(hits_of_indexes, request.fusion)
        weights = request.fusion.weights_of(len(hits_of_indexes))
        scores = weighted_scores(contributions, weights)
        return Ranking(SearchSettings(hits=kept)).final(best_first(scores.items()))

    def _rerank(self, rankings: "Sequence[_RankedPassages]") -> None:
        """Order the passages of requests by the cross-encoder, which scores them together."""
        if self.reranker is None:
            return
        queries: list[Query] = []
        passages: list[Passage] = []
        passages_of_rankings = [ranking.known_passages() for ranking in rankings]
        for ranking, known_passages in zip(rankings, passages_of_rankings, strict=True):
            queries += [Query("", ranking.request.query)] * len(known_passages)
            passages += known_passages
        scores = iter(self.reranker.score(queries, passages).tolist() if passages else ())
        for ranking, known_passages in zip(rankings, passages_of_rankings, strict=True):
            ranking.order_by([(passage, next(scores)) for passage in known_passages])


@dataclass
class _RankedPassages:
    """The hits of a request, and their passages in the same order."""

    request: SearchRequest
    hits: Hits
    passages: list[Passage | None]  # None where the corpus has none

    def known_passages(self) -> list[Passage]:
        """Return the passages whose texts are there: no others can be reranked."""
        return [passage for passage in self.passages if passage is not None]

    def order_by(self, scored_passages: Sequence[tuple[Passage, float]]) -> None:
        """Keep the best of some passages with their scores, as many as the request asks for."""
        passage_by_id = {passage.docid: passage for passage, _ in scored_passages}
        scored_ids = [(passage.docid, score) for passage, score in scored_passages]
        ranking = Ranking(SearchSettings(hits=self.request.hits))
        self.hits = ranking.final(best_first(scored_ids))
        self.passages = [passage_by_id[docid] for docid, _ in self.hits]


def _passages_of(
    request: SearchRequest, hits: Hits, indexes: Mapping[str, OpenIndex]
) -> list[Passage | None]:
    """Return the passages of hits, each from the first index of the request that has it."""
    docids = [docid for docid, _ in hits]
    passages: list[Passage | None] = [None] * len(docids)
    for name in request.indexes:
        missing_rows = [row for row, passage in enumerate(passages) if passage is None]
        passages_of_index = indexes[name].passages.get([docids[row] for row in missing_rows])
        for row, passage in zip(missing_rows, passages_of_index, strict=True):
            passages[row] = passage
    return passages


def _answer_of(ranking: _RankedPassages, indexes: Mapping[str, OpenIndex]) -> list[AnsweredHit]:
    """Return the answer of a request, with an excerpt of each passage if it asks for them."""
    request = ranking.request
    if not request.has_excerpts:
        return [
            AnsweredHit(docid, score, passage)
            for (docid, score), passage in zip(ranking.hits, ranking.passages, strict=True)
        ]
    spans_of = indexes[request.indexes[0]].opened.spans
    terms = query_terms(request.query, spans_of)
    return [
        _hit_with_excerpt(docid, score, passage, terms, spans_of)
        for (docid, score), passage in zip(ranking.hits, ranking.passages, strict=True)
    ]


def _hit_with_excerpt(
    docid: str, score: float, passage: Passage | None, terms: set[str], spans_of: SpansOf
) -> AnsweredHit:
    """Return a hit with an excerpt of its passage, in which the terms of the query are marked."""
    if passage is None:
        return AnsweredHit(docid, score, None)
    title = with_single_spaces(passage.title)
    beginning = passage.text[:LONGEST_TEXT]
    excerpt = with_single_spaces(excerpt_of(beginning, terms, spans_of))
    return AnsweredHit(
        docid,
        score,
        passage,
        title=title,
        title_marks=marked_spans(title, terms, spans_of),
        excerpt=excerpt,
        marks=marked_spans(excerpt, terms, spans_of),
    )
