"""Rerank a run with a cross-encoder.

Memory holds some bytes for each passage that the run names: their texts are copied to a temporary
folder (TMPDIR says where) as the corpus streams by, and read from there.
"""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import RerankPaths, RerankSettings
from denserk.errors import InputError
from denserk.index.searcher import Hits, TieCount, ordered
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM
from denserk.io.manifest import (
    Kind,
    Manifest,
    file_sha256,
    forget_manifest,
    has_manifest,
    queries_sha256,
    write_manifest,
)
from denserk.io.outputs import scratch_folder
from denserk.io.passage_texts import PassageTexts
from denserk.io.runs import read_run, write_run
from denserk.io.topics import read_queries
from denserk.models.cross_encoder import PairScorer
from denserk.records import Query, best_first
from denserk.reporting import Progress, track

NOTHING: Mapping[str, Any] = {}
_Group = tuple[str, list[str]]  # a query id, and the ids of its hits, best first
SCORED_TOGETHER = 8192  # Pairs, of one query or several, that are sorted by length into batches
NAMED = 5  # Ids of a fault that are named


@dataclass
class RerankResult:
    """What came out: queries, pairs that were scored, the seconds that took; lines of the run."""

    queries: int = 0
    pairs: int = 0
    hits: int = 0
    scoring_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Pairs scored a second."""
        return self.pairs / self.scoring_seconds if self.scoring_seconds else 0.0


def rerank(
    paths: RerankPaths,
    settings: RerankSettings = RerankSettings(),  # noqa: B008  (frozen)
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> RerankResult:
    """Score the hits of a run with a cross-encoder, and write the new run.

    Args:
        paths: the cross-encoder, the run, queries and passages, and where the new run goes.
        settings: how deep, and the shape of the run.
        text: fields of TextSettings that replace the cross-encoder's own.
        compute: where and how.
        corpus: how the passages are read.

    Raises:
        UsageError: something named is not there.
        InputError: an input is broken; a passage or a query of the run has no text.
        ModelError: the cross-encoder cannot be loaded.
    """
    scorer = PairScorer.load(paths.model, text, settings.pair_max_length, compute)
    with scratch_folder("rerank") as name:
        scratch = Path(name)
        topics, run = (_spooled(source, scratch) for source in (paths.topics, paths.run))
        queries = {q.qid: q for q in read_queries(topics, paths.topics_format)}
        with closing(PassageTexts(scratch / "passages", scorer.tokenizer.settings.fields)) as texts:
            count = _find_texts(run, paths, settings, queries, texts, (corpus, text.get("fields")))
            forget_manifest(paths.output)
            result = RerankResult()
            with track("reranking", count, "pairs") as progress:
                ties = TieCount()
                groups = _batched(_groups(run, settings))
                answers = _answers(groups, queries, texts, scorer, settings, result, ties, progress)
                form, tag = settings.output_format, settings.tag
                result.hits = write_run(paths.output, answers, form, tag)
        ties.report(settings)
        _write_manifest(paths, settings, corpus, scorer, (run, queries), result)
    return result


def _spooled(source: str, scratch: Path) -> str:
    """A path that can be read twice: standard input is written to a file first."""
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
    run: str,
    paths: RerankPaths,
    settings: RerankSettings,
    queries: Mapping[str, Query],
    texts: PassageTexts,
    reading: tuple[CorpusSettings, Sequence[str] | None],
) -> int:
    """Copy the passages that are hit to the disk; return the number of hits."""
    unknown: list[str] = []
    count = 0
    for qid, docids in _groups(run, settings):
        if qid not in queries:
            unknown.append(qid)
        texts.refer(docids)
        count += len(docids)
    if unknown:
        raise _nowhere(paths.run, "queries", unknown, len(unknown), paths.topics)
    if not count:
        raise InputError(paths.run, None, "no hits", "at least one")
    with track("reading the corpus", None, "passages") as progress:
        texts.find(read_passages(paths.corpus, *reading), paths.corpus, progress)
    if texts.missing:
        names = (docid for _, docids in _groups(run, settings) for docid in texts.lacking(docids))
        first = list(islice(dict.fromkeys(names), NAMED + 1))
        raise _nowhere(paths.run, "passages", first, texts.missing, paths.corpus)
    return count


def _nowhere(run: str, what: str, missing: Sequence[str], count: int, where: str) -> InputError:
    names = list(dict.fromkeys(missing))
    named = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return InputError(
        run,
        None,
        f"{what} that {where} does not hold: {count:,} ({named})",
        f"{what} that are there",
        f"name the {'--topics' if what == 'queries' else '--corpus'} that the run was made from",
    )


def _answers(
    batches: Iterable[list[_Group]],
    queries: Mapping[str, Query],
    texts: PassageTexts,
    scorer: PairScorer,
    settings: RerankSettings,
    result: RerankResult,
    ties: TieCount,
    progress: Progress,
) -> Iterator[tuple[str, Hits]]:
    """Scores a few queries at a time, in the order of the run; counts on the way."""
    for groups in batches:
        start = time.perf_counter()
        tokens = scorer.tokenizer.queries([queries[qid] for qid, _ in groups])
        docids = list(dict.fromkeys(docid for _, group in groups for docid in group))
        found = [passage for passage in texts.get(docids) if passage is not None]
        passages = dict(zip(docids, scorer.tokenizer.passages(found), strict=True))
        scores = scorer.score_pairs(
            [
                scorer.joiner.join(query, passages[docid])
                for query, (_, group) in zip(tokens, groups, strict=True)
                for docid in group
            ]
        )
        result.scoring_seconds += time.perf_counter() - start
        result.queries += len(groups)
        result.pairs += len(scores)
        ends = np.cumsum([len(group) for _, group in groups])
        for (qid, group), own in zip(groups, np.split(scores, ends[:-1]), strict=True):
            yield qid, ordered(group, own.tolist(), settings, ties)
        progress.advance(len(scores))


def _batched(source: Iterable[_Group]) -> Iterator[list[_Group]]:
    groups: list[_Group] = []
    pairs = 0
    for group in source:
        groups.append(group)
        pairs += len(group[1])
        if pairs >= SCORED_TOGETHER:
            yield groups
            groups, pairs = [], 0
    if groups:
        yield groups


def _write_manifest(
    paths: RerankPaths,
    settings: RerankSettings,
    corpus: CorpusSettings,
    scorer: PairScorer,
    inputs: tuple[str, Mapping[str, Query]],
    result: RerankResult,
) -> None:
    if not has_manifest(paths.output):
        return
    run, queries = inputs
    made_from = {
        "model": scorer.description(),
        "run": {"name": paths.run, "sha256": file_sha256(run)},
        "topics": {"name": paths.topics, "sha256": queries_sha256(queries.values())},
        "corpus": {"name": paths.corpus, **as_json(corpus)},
    }
    contents = {
        "queries": result.queries,
        "pairs": result.pairs,
        "hits": result.hits,
        "sha256": file_sha256(paths.output),
    }
    write_manifest(paths.output, Manifest(Kind.RUN, True, as_json(settings), made_from, contents))
