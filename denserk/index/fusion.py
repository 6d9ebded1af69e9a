"""Fusion of runs: reciprocal rank fusion, or a weighted sum of normalised scores.

Cormack, Clarke and Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
Learning Methods (2009); Fox and Shaw, Combination of Multiple Searches (1994), for the sum of
normalised scores (CombSUM).

Sums are rounded once (`math.fsum`), so they do not depend on the order of the runs: passages that
swap their ranks between runs of equal weight tie exactly. Memory grows with the queries, not with
their hits, whatever the order of the queries in each run.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from denserk.config.formats import RunFormat
from denserk.config.options import as_json
from denserk.config.retrieval import (
    FusionMethod,
    FusionSettings,
    Missing,
    Normalization,
    RankingSettings,
)
from denserk.errors import InputError, UsageError
from denserk.index.searcher import Hits, Ranking
from denserk.io.files import STREAM, ScratchRecords, some
from denserk.io.manifest import Kind, describe_file, file_sha256, forget_manifest
from denserk.io.outputs import scratch_folder
from denserk.io.runs import RunLookup, write_run
from denserk.records import best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)


@dataclass
class FusionResult:
    """Number of queries and of lines of the fused run."""

    queries: int
    hits: int


def fuse(
    paths: Sequence[str],
    output: str,
    fusion: FusionSettings = FusionSettings(),  # noqa: B008  (frozen)
    settings: RankingSettings = RankingSettings(),  # noqa: B008
) -> FusionResult:
    """Fuse runs into one; queries keep the order of the first run, then of the others."""
    if len(paths) < 2:
        raise UsageError("two runs or more are needed", "for example denserk fuse a.trec b.trec")
    if paths.count(STREAM) > 1:
        raise UsageError("standard input (-) can be only one of the runs")
    weights = fusion.weights_of(len(paths))
    forget_manifest(output)
    with scratch_folder("fuse") as scratch, closing(ScratchRecords(scratch / "hits")) as copy:
        runs = [RunLookup(path, copy) for path in paths]
        for run in runs:
            if run.format is None:
                raise InputError(run.path, None, "an empty run", "at least one hit")
            if run.format is RunFormat.MSMARCO and fusion.method is FusionMethod.LINEAR:
                raise InputError(run.path, None, "ranks, no scores", "scores", "give --method rrf")
        qids = list(dict.fromkeys(qid for run in runs for qid in run.queries))
        for run in runs:
            has = set(run.queries)
            if missing := [qid for qid in qids if qid not in has]:
                logger.warning(
                    f"{run.path} lacks {len(missing):,} of {len(qids):,} queries, which the other "
                    f"runs answer alone ({some(missing)})"
                )
        ranking = Ranking(settings)

        def answers() -> Iterator[tuple[str, Hits]]:
            for qid in qids:  # by score, not by the rank column
                hits = [ranking.best(qid, *run.hits(qid))[: fusion.depth] for run in runs]
                progress.advance()
                yield qid, ranking.final(best_first(fused(hits, weights, fusion).items()))

        with track("fusing", len(qids), "queries") as progress:
            lines = write_run(output, answers(), settings.output_format, settings.tag)
        ranking.report()
        made_from = [
            {
                "name": str(run.path),
                "sha256": file_sha256(run.path) if Path(run.path).is_file() else None,
                "queries": len(run.queries),
            }
            for run in runs
        ]
        chosen = {**as_json(settings), "fusion": as_json(fusion)}
        result = FusionResult(len(qids), lines)
        describe_file(output, Kind.RUN, chosen, {"runs": made_from}, asdict(result))
    return result


def fused(
    runs: Sequence[Hits], weights: Sequence[float], fusion: FusionSettings
) -> dict[str, float]:
    """Return the fused score of each passage, from the hits of one query in each run."""
    if fusion.method is FusionMethod.RRF:
        return reciprocal_ranks(runs, weights, fusion.rrf_k)
    zmuv = fusion.normalization is Normalization.ZMUV
    missing = fusion.missing or (Missing.LOWEST if zmuv else Missing.ZERO)
    return weighted_scores(runs, weights, fusion.normalization, missing)


def reciprocal_ranks(
    runs: Sequence[Hits], weights: Sequence[float], k: float = 60
) -> dict[str, float]:
    """Sum weight / (k + rank) of each passage over the runs that have it; ranks count from 1."""
    parts: dict[str, list[float]] = {}
    for hits, weight in zip(runs, weights, strict=True):
        for rank, (docid, _) in enumerate(hits, start=1):
            parts.setdefault(docid, []).append(weight / (k + rank))
    return {docid: math.fsum(terms) for docid, terms in parts.items()}


def weighted_scores(
    runs: Sequence[Hits],
    weights: Sequence[float],
    normalization: Normalization = Normalization.MIN_MAX,
    missing: Missing = Missing.ZERO,
) -> dict[str, float]:
    """Sum weight x normalised score of each passage over the runs.

    A run without a hit for the query adds nothing, whatever `missing` is.
    """
    parts: dict[str, list[float]] = {docid: [] for hits in runs for docid, _ in hits}
    for hits, weight in zip(runs, weights, strict=True):
        if not hits:
            continue
        docids, scores = zip(*hits, strict=True)
        own = dict(zip(docids, normalized(scores, normalization), strict=True))
        lowest = missing is Missing.LOWEST and normalization is not Normalization.MIN_MAX
        absent = min(own.values()) if lowest else 0.0
        for docid, terms in parts.items():
            terms.append(weight * own.get(docid, absent))
    return {docid: math.fsum(terms) for docid, terms in parts.items()}


def normalized(scores: Sequence[float], normalization: Normalization) -> list[float]:
    """Normalise the scores of one query in one run."""
    values = np.array(scores, np.float64)
    low, high = values.min(), values.max()
    if normalization is Normalization.NONE:
        return list(scores)
    if low == high:
        return [float(normalization is Normalization.MIN_MAX)] * len(scores)
    if normalization is Normalization.MIN_MAX:
        return list(((values - low) / (high - low)).tolist())
    return list(((values - values.mean()) / values.std()).tolist())
