"""Rerank a run with a cross-encoder.

Memory holds some bytes for each passage that the run names: their texts are copied to a temporary
folder (TMPDIR says where) as the corpus streams by, and read from there.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import RerankPaths, RerankSettings
from denserk.errors import InputError
from denserk.index.searcher import Hits, TieCount, ordered
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import STREAM, some
from denserk.io.manifest import Kind, describe_file, file_sha256, forget_manifest, queries_sha256
from denserk.io.outputs import scratch_folder
from denserk.io.runs import read_run, write_run
from denserk.io.topics import read_queries
from denserk.models.cross_encoder import PairScorer
from denserk.models.text_encoder import NOTHING
from denserk.records import Passage, Query, best_first
from denserk.reporting import Progress, track

_Group = tuple[str, list[str]]  # a query id, and the ids of its hits, best first
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
    scorer = PairScorer.load(paths.model, text, settings.pair_max_length, compute)
    result = RerankResult()
    with scratch_folder("rerank") as scratch:
        topics, run = (_on_disk(source, scratch) for source in (paths.topics, paths.run))
        queries = {query.qid: query for query in read_queries(topics, paths.topics_format)}
        with closing(PassageTexts(scratch / "passages", scorer.text.fields)) as texts:
            passages = read_passages(paths.corpus, corpus, text.get("fields"))
            count = _find_texts(texts, passages, lambda: _groups(run, settings), queries, paths)
            forget_manifest(paths.output)
            with track("reranking", count, "pairs") as progress:
                groups = _groups(run, settings)
                answers = _answers(groups, queries, texts, scorer, settings, result, progress)
                form, tag = settings.output_format, settings.tag
                result.hits = write_run(paths.output, answers, form, tag)
        made_from = {
            "model": scorer.description(),
            "run": {"name": paths.run, "sha256": file_sha256(run)},
            "topics": {"name": paths.topics, "sha256": queries_sha256(queries.values())},
            "corpus": {"name": paths.corpus, **as_json(corpus)},
        }
        counts = {name: getattr(result, name) for name in ("queries", "pairs", "hits")}
        describe_file(paths.output, Kind.RUN, as_json(settings), made_from, counts)
    return result


def _on_disk(source: str, scratch: Path) -> str:
    """Return a path that can be read twice: standard input is written to a file first."""
    if source != STREAM:
        return source
    target = scratch / "standard-input"
    with target.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out)
    return str(target)


def _groups(run: str, settings: RerankSettings) -> Iterator[_Group]:
    """Yield each query of a run with the hits that are scored, best first."""
    for hits in read_run(run):
        docids = [docid for docid, _ in best_first(zip(hits.docids, hits.scores, strict=True))]
        if settings.remove_query:
            docids = [docid for docid in docids if docid != hits.qid]
        yield hits.qid, docids[: settings.depth]


def _find_texts(
    texts: PassageTexts,
    passages: Iterable[Passage],
    groups: Callable[[], Iterator[_Group]],
    queries: Mapping[str, Query],
    paths: RerankPaths,
) -> int:
    """Copy the passages that are hit to the disk; return the number of hits."""
    unknown, hits = [], 0
    for qid, docids in groups():
        texts.refer(docids)
        hits += len(docids)
        if qid not in queries:
            unknown.append(qid)
    if unknown:
        raise InputError(
            paths.run,
            None,
            f"{len(unknown):,} queries that {paths.topics} does not hold ({some(unknown)})",
            "queries that are there",
            "name the --topics that the run was made from",
        )
    if not hits:
        raise InputError(paths.run, None, "no hits", "at least one")
    texts.find(passages, paths.corpus)
    hint = "name the --corpus that the run was made from"
    texts.require_all(paths.corpus, "the run's hits", hint)
    return hits


def _answers(
    groups: Iterator[_Group],
    queries: Mapping[str, Query],
    texts: PassageTexts,
    scorer: PairScorer,
    settings: RerankSettings,
    result: RerankResult,
    progress: Progress,
) -> Iterator[tuple[str, Hits]]:
    """Score a few queries at a time, in the order of the run; count in `result` on the way."""
    ties = TieCount()
    for batch in _batches(groups):
        start = time.perf_counter()
        tokens = scorer.tokenizer.queries([queries[qid] for qid, _ in batch])
        docids = list(dict.fromkeys(docid for _, group in batch for docid in group))
        found = [passage for passage in texts.get(docids) if passage is not None]
        passages = dict(zip(docids, scorer.tokenizer.passages(found), strict=True))
        pairs = [
            scorer.joiner.join(query, passages[docid])
            for query, (_, group) in zip(tokens, batch, strict=True)
            for docid in group
        ]
        scores = scorer.score_pairs(pairs)
        result.scoring_seconds += time.perf_counter() - start
        result.queries += len(batch)
        result.pairs += len(pairs)
        ends = np.cumsum([len(group) for _, group in batch])
        for (qid, group), own in zip(batch, np.split(scores, ends[:-1]), strict=True):
            yield qid, ordered(group, own.tolist(), settings, ties)
        progress.advance(len(pairs))
    ties.report(settings)


def _batches(groups: Iterable[_Group]) -> Iterator[list[_Group]]:
    held: list[_Group] = []
    pairs = 0
    for group in groups:
        held.append(group)
        pairs += len(group[1])
        if pairs >= SCORED_TOGETHER:
            yield held
            held, pairs = [], 0
    if held:
        yield held
