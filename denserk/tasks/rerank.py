"""`denserk rerank`: the hits of a run are scored with a cross-encoder.

Memory holds some bytes for each passage that the run names: their texts are copied to a temporary
folder (TMPDIR says where) as the corpus streams by, and read from there.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import NOTHING, as_json
from denserk.config.retrieval import RerankPaths, RerankSettings
from denserk.errors import InputError
from denserk.index.ranking import Hits, Ranking
from denserk.io.corpus import PassageTexts, as_searched, read_passages, with_used_fields
from denserk.io.files import STREAM
from denserk.io.ir_metadata import describe_run
from denserk.io.outputs import scratch_folder
from denserk.io.runs import read_run, write_run
from denserk.io.short_texts import first_names
from denserk.io.topics import describe_topics, read_queries
from denserk.io.unchanged import changed, checksum
from denserk.io.versions import Version
from denserk.models.cross_encoder import PairScorer
from denserk.records import Query, best_first
from denserk.reporting import track

SCORED_TOGETHER = 8192  # pairs, of one query or several, that are sorted by length into batches


class Candidates(NamedTuple):
    """The passages of a query that are scored, best first."""

    qid: str
    docids: list[str]


@dataclass
class RerankResult:
    """The size of a reranked run, and the work."""

    queries: int = 0
    pairs: int = 0  # of query and passage that were scored, in `scoring_seconds`
    hits: int = 0  # lines of the run
    scoring_seconds: float = 0.0


def rerank(
    paths: RerankPaths,
    settings: RerankSettings = RerankSettings(),  # noqa: B008  (frozen)
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> RerankResult:
    """Score the hits of a run with a cross-encoder, and write the new run.

    `text` holds fields of `TextSettings` that replace those of the cross-encoder.
    """
    run_format = settings.format_of_run(paths.output)
    corpus = with_used_fields(paths.corpus, as_searched(paths.corpus, corpus, [paths.run]))
    scorer = PairScorer(paths.model, text, settings.pair_max_length, compute)
    with scratch_folder("rerank") as scratch:
        queries = _read_queries(paths)
        run = RereadRun(paths.run, scratch, settings)
        reranker = RunReranker(scorer, queries, settings, paths.run)
        with closing(PassageTexts(scratch / "passages", scorer.text.fields)) as texts:
            pair_count = note_passages(texts, run.candidates(), queries, paths)
            given_fields = text.get("fields")  # also those inside Anserini's `contents`
            texts.find(read_passages(paths.corpus, corpus, given_fields), paths.corpus)
            hint = "name the --corpus that the run was made from"
            texts.require_all(paths.corpus, "the run's hits", hint)
            with track("reranking", pair_count, "pairs") as progress:
                rankings = reranker.rankings(run.candidates(), texts, progress.advance)
                hits = write_run(paths.output, rankings, run_format, settings.tag)
    result = reranker.result
    result.hits = hits
    reranker.ranking.report()
    corpus_description = {"name": paths.corpus, **as_json(corpus)}
    if given_fields is not None:
        corpus_description["fields"] = list(given_fields)
    origin = {
        "model": scorer.description(),
        "run": {"name": paths.run, "sha256": run.sha256},
        "topics": describe_topics(paths.topics, paths.topics_field, queries.values()),
        "corpus": corpus_description,
    }
    counts = {"queries": result.queries, "pairs": result.pairs, "hits": result.hits}
    describe_run(paths.output, settings, origin, counts)
    return result


def _read_queries(paths: RerankPaths) -> dict[str, Query]:
    """Return the queries of --topics by their ids."""
    queries = read_queries(paths.topics, paths.topics_format, fields=paths.topics_field)
    return {query.qid: query for query in queries}


class RereadRun:
    """A run that is read twice: it must be the same both times, and a stream is copied."""

    def __init__(self, name: str, scratch: Path, settings: RerankSettings) -> None:
        self._settings = settings
        self._path = name
        if name == STREAM:  # cannot be read twice
            self._path = str(scratch / "standard-input")
            with Path(self._path).open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        self._version = Version.of(self._path)
        with self._version.reading():
            self.sha256 = checksum(self._path)

    def candidates(self) -> Iterator[Candidates]:
        """Yield the passages of each query that are scored, in the order of the run."""
        settings = self._settings
        for hits in self._version.guard(read_run(self._path)):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            docids = [docid for docid, _ in ranked]
            if settings.remove_query:
                docids = [docid for docid in docids if docid != hits.qid]
            yield Candidates(hits.qid, docids[: settings.depth])


def note_passages(
    texts: PassageTexts,
    candidates: Iterable[Candidates],
    queries: Mapping[str, Query],
    paths: RerankPaths,
) -> int:
    """Note in `texts` the passages whose texts are needed; return the number of pairs.

    Raise an InputError if there are none, or if `queries` lack a query of the run.
    """
    pair_count = 0
    unknown_qids = []
    for qid, docids in candidates:
        texts.refer(docids)
        pair_count += len(docids)
        if qid not in queries:
            unknown_qids.append(qid)
    if unknown_qids:
        message = (
            f"{len(unknown_qids):,} queries that {paths.topics} does not hold "
            f"({first_names(unknown_qids)})"
        )
        hint = "name the --topics that the run was made from"
        raise InputError(paths.run, None, message, "queries that are there", hint)
    if not pair_count:
        raise InputError(paths.run, None, "no hits", "at least one")
    return pair_count


class RunReranker:
    """Scores a few queries at a time, in the order of the run; `result` counts on the way."""

    def __init__(
        self,
        scorer: PairScorer,
        queries: Mapping[str, Query],
        settings: RerankSettings,
        run_name: str,
    ) -> None:
        self._scorer = scorer
        self._queries = queries
        self._run_name = run_name
        self.ranking = Ranking(settings)
        self.result = RerankResult()

    def rankings(
        self,
        candidates: Iterable[Candidates],
        texts: PassageTexts,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, Hits]]:
        """Yield the new hits of each query; `advance` is called with numbers of scored pairs."""
        for batch in batches(candidates):
            scores = self._score(batch, texts)
            ends = np.cumsum([len(docids) for _, docids in batch])
            scores_by_query = np.split(scores, ends[:-1])
            for (qid, docids), query_scores in zip(batch, scores_by_query, strict=True):
                hits = self.ranking.best(qid, docids, query_scores.tolist())
                yield qid, self.ranking.final(hits)
            advance(len(scores))

    def _score(self, batch: Sequence[Candidates], texts: PassageTexts) -> NDArray[np.float32]:
        """Return the scores (P,) of a batch's pairs of query and passage.

        `note_passages` has required all queries and passages: where one is missing, the run has
        changed since.
        """
        started = time.perf_counter()
        queries = []
        docids = []
        for candidates in batch:
            query = self._queries.get(candidates.qid)
            if query is None:
                raise changed(self._run_name)
            queries += [query] * len(candidates.docids)
            docids += candidates.docids
        passages = [passage for passage in texts.get(docids) if passage is not None]
        if len(passages) < len(docids):
            raise changed(self._run_name)
        scores = self._scorer.score(queries, passages)
        self.result.scoring_seconds += time.perf_counter() - started
        self.result.queries += len(batch)
        self.result.pairs += len(docids)
        return scores


def batches(candidates: Iterable[Candidates]) -> Iterator[list[Candidates]]:
    """Yield the candidates of several queries together, until there are enough pairs.

    >>> few = Candidates("q1", ["d1"])
    >>> many = Candidates("q2", ["d1"] * SCORED_TOGETHER)
    >>> [len(batch) for batch in batches([few, many, few])]
    [2, 1]
    """
    batch: list[Candidates] = []
    pair_count = 0
    for candidates_of_query in candidates:
        batch.append(candidates_of_query)
        pair_count += len(candidates_of_query.docids)
        if pair_count >= SCORED_TOGETHER:
            yield batch
            batch = []
            pair_count = 0
    if batch:
        yield batch
