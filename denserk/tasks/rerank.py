"""Rerank a run with a cross-encoder.

Memory holds some bytes for each passage that the run names: their texts are copied to a temporary
folder (TMPDIR says where) as the corpus streams by, and read from there.
"""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import NOTHING, as_json
from denserk.config.retrieval import RerankPaths, RerankSettings
from denserk.errors import InputError
from denserk.index.searcher import Hits, Ranking
from denserk.io.blocks import texts_sha256
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import STREAM, some
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import forget_file
from denserk.io.outputs import scratch_folder
from denserk.io.runs import read_run, write_run
from denserk.io.topics import read_queries
from denserk.io.unchanged import changed, checksum
from denserk.io.versions import Version
from denserk.models.cross_encoder import PairScorer
from denserk.records import Query, best_first
from denserk.reporting import track

Group = tuple[str, list[str]]  # a query id, and the ids of its hits, best first
SCORED_TOGETHER = 8192  # pairs, of one query or several, that are sorted by length into batches


@dataclass
class RerankResult:
    """Queries, pairs that were scored, the seconds that took, and lines of the run."""

    queries: int = 0
    pairs: int = 0
    hits: int = 0
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
    scorer = PairScorer(paths.model, text, settings.pair_max_length, compute)
    result = RerankResult()
    ranking = Ranking(settings)
    with scratch_folder("rerank") as scratch:
        queries = {query.qid: query for query in read_queries(paths.topics, paths.topics_format)}
        run = paths.run
        if run == STREAM:  # cannot be read twice
            run = str(scratch / "standard-input")
            with Path(run).open("wb") as out:
                shutil.copyfileobj(sys.stdin.buffer, out)
        version = Version.of(run)  # of the run as it is read the first time, and again
        with version.reading():
            run_sha256 = checksum(run)

        def groups() -> Iterator[Group]:
            for hits in version.guard(read_run(run)):
                left_out = hits.qid if settings.remove_query else None
                ranked = best_first(zip(hits.docids, hits.scores, strict=True))
                docids = [docid for docid, _ in ranked if docid != left_out]
                yield hits.qid, docids[: settings.depth]

        def answers(texts: PassageTexts) -> Iterator[tuple[str, Hits]]:
            """Score a few queries at a time, in the order of the run; count on the way."""
            for batch in _batches(groups()):
                start = time.perf_counter()
                # the first reading has required all queries and passages
                if not queries.keys() >= {qid for qid, _ in batch}:
                    raise changed(paths.run)
                pairs = [(queries[qid], docid) for qid, docids in batch for docid in docids]
                passages = [passage for passage in texts.get([d for _, d in pairs]) if passage]
                if len(passages) < len(pairs):
                    raise changed(paths.run)
                scores = scorer.score([query for query, _ in pairs], passages)
                result.scoring_seconds += time.perf_counter() - start
                result.queries += len(batch)
                result.pairs += len(pairs)
                ends = np.cumsum([len(docids) for _, docids in batch])
                scores_by_query = np.split(scores, ends[:-1])
                for (qid, docids), of_query in zip(batch, scores_by_query, strict=True):
                    yield qid, ranking.final(ranking.best(qid, docids, of_query.tolist()))
                progress.advance(len(pairs))

        with closing(PassageTexts(scratch / "passages", scorer.text.fields)) as texts:
            count = _refer(texts, groups(), queries, paths)
            texts.find(read_passages(paths.corpus, corpus, text.get("fields")), paths.corpus)
            hint = "name the --corpus that the run was made from"
            texts.require_all(paths.corpus, "the run's hits", hint)
            forget_file(paths.output)
            with track("reranking", count, "pairs") as progress:
                result.hits = write_run(
                    paths.output, answers(texts), settings.output_format, settings.tag
                )
        ranking.report()
        topics_sha256 = texts_sha256(query[:2] for query in queries.values())
        made_from = {
            "model": scorer.description(),
            "run": {"name": paths.run, "sha256": run_sha256},
            "topics": {"name": paths.topics, "sha256": topics_sha256},
            "corpus": {"name": paths.corpus, **as_json(corpus)},
        }
        counts = {name: getattr(result, name) for name in ("queries", "pairs", "hits")}
        describe_run(paths.output, settings, made_from, counts)
    return result


def _refer(
    texts: PassageTexts, groups: Iterable[Group], queries: Mapping[str, Query], paths: RerankPaths
) -> int:
    """Note the passages that are hit, and return the number of hits."""
    unknown, hits = [], 0
    for qid, docids in groups:
        texts.refer(docids)
        hits += len(docids)
        if qid not in queries:
            unknown.append(qid)
    if unknown:
        found = f"{len(unknown):,} queries that {paths.topics} does not hold ({some(unknown)})"
        hint = "name the --topics that the run was made from"
        raise InputError(paths.run, None, found, "queries that are there", hint)
    if not hits:
        raise InputError(paths.run, None, "no hits", "at least one")
    return hits


def _batches(groups: Iterable[Group]) -> Iterator[list[Group]]:
    batch: list[Group] = []
    for group in groups:
        batch.append(group)
        if sum(len(docids) for _, docids in batch) >= SCORED_TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch
