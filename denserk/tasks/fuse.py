"""`denserk fuse`: several runs become one."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from denserk.config.formats import RunFormat
from denserk.config.options import as_json, given_fields, spelled
from denserk.config.retrieval import FusionMethod, FusionSettings, RankingSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.fusion import Weights, score_parts, weighted
from denserk.index.searcher import Hits, Ranking
from denserk.io.files import STREAM, ScratchRecords, some
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import file_sha256, forget_file
from denserk.io.outputs import scratch_folder
from denserk.io.runs import RankedList, RunLookup, write_run
from denserk.io.topics import read_qrels_map
from denserk.io.versions import reading
from denserk.records import best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)
MOST_WEIGHTS = 100  # choices of weights that are tried
SHOWN = 5  # of them are logged
BLOCK = 256  # queries that are measured at once
PartsOf = Callable[[str], Mapping[str, Sequence[float]]]  # `score_parts` by query id


@dataclass
class FusionResult:
    """Number of queries and of lines of the fused run, and how runs are fused alike again."""

    queries: int
    hits: int
    weights: Weights
    options: str


def fuse(
    paths: Sequence[str],
    output: str,
    fusion: FusionSettings = FusionSettings(),  # noqa: B008  (frozen)
    settings: RankingSettings = RankingSettings(),  # noqa: B008
) -> FusionResult:
    """Fuse runs into one; queries keep the order of the first run, then of the others.

    With `tune`, the weights are chosen first, and an `output` of "" is not written.
    """
    if len(paths) < 2:
        raise UsageError("two runs or more are needed", "for example denserk fuse a.trec b.trec")
    if paths.count(STREAM) > 1:
        raise UsageError("standard input (-) can be only one of the runs")
    weights = fusion.weights_of(len(paths))
    if output:
        forget_file(output)
    with scratch_folder("fuse") as scratch, closing(ScratchRecords(scratch / "hits")) as copy:
        with reading(paths):
            runs, qids = open_runs(paths, copy, fusion)
            digests = [file_sha256(path) if Path(path).is_file() else None for path in paths]
        ranking = Ranking(settings)

        def parts_of(qid: str) -> dict[str, list[float]]:
            # by score, not by the rank column
            hits = [ranking.best(qid, *run.hits(qid))[: fusion.depth] for run in runs]
            return score_parts(hits, fusion)

        def answers() -> Iterator[tuple[str, Hits]]:
            for qid in qids:
                progress.advance()
                yield qid, ranking.final(best_first(weighted(parts_of(qid), weights).items()))

        if fusion.tune is not None:
            weights = best_weights(parts_of, qids, fusion, Ranking(settings), len(runs))
        result = FusionResult(len(qids), 0, weights, options_of(fusion, weights))
        if not output:
            return result
        with track("fusing", len(qids), "queries") as progress:
            result.hits = write_run(output, answers(), settings.output_format, settings.tag)
        ranking.report()
        made_from = []
        for run, digest in zip(runs, digests, strict=True):
            made_from.append({"name": str(run.path), "sha256": digest, "queries": len(run.queries)})
        used = as_json(fusion) | {"method": fusion.chosen.value}
        used |= {"weights": weights} if fusion.tune else {}
        counts = {"queries": result.queries, "hits": result.hits}
        describe_run(output, settings, {"runs": made_from}, counts, fusion=used)
    return result


def open_runs(
    paths: Sequence[str], copy: ScratchRecords, fusion: FusionSettings
) -> tuple[list[RunLookup], list[str]]:
    """Open runs that can be fused, and list their queries; warn of those that some runs lack."""
    runs = [RunLookup(path, copy) for path in paths]
    for run in runs:
        if run.format is None:
            raise InputError(run.path, None, "an empty run", "at least one hit")
        if run.format is RunFormat.MSMARCO and fusion.chosen is FusionMethod.LINEAR:
            raise InputError(run.path, None, "ranks, no scores", "scores", "give --method rrf")
    check_common_queries(runs)
    qids = list(dict.fromkeys(qid for run in runs for qid in run.queries))
    for run in runs:
        has = set(run.queries)
        if missing := [qid for qid in qids if qid not in has]:
            alone = f"which the other runs answer alone ({some(missing)})"
            logger.warning(f"{run.path} lacks {len(missing):,} of {len(qids):,} queries, {alone}")
    return runs, qids


def check_common_queries(runs: Sequence[RunLookup]) -> None:
    """Raise a MismatchError for a run that answers none of the queries of the other runs."""
    for run in runs:
        others = [other for other in runs if other is not run]
        queries_of_others = dict.fromkeys(qid for other in others for qid in other.queries)
        if queries_of_others.keys().isdisjoint(run.queries):
            raise MismatchError(
                f"{run.path} answers queries {some(run.queries)}; the other runs answer queries "
                f"{some(queries_of_others)}: none in common",
                "fuse runs of the same queries",
            )


def options_of(fusion: FusionSettings, weights: Weights) -> str:
    """Return the options that fuse by these settings with some weights."""
    given = ",".join(f"{weight:g}" for weight in weights)
    values = as_json(fusion) | {"method": fusion.chosen.value, "weights": given}
    names = {"method", "weights", *given_fields(fusion)} - {"tune", "measure"}
    return " ".join(f"{spelled(name, FusionSettings)} {values[name]}" for name in sorted(names))


def weight_grid(runs: int) -> list[Weights]:
    """Return weights of sum 1 in equal steps, as fine as `MOST_WEIGHTS` allows, and equal ones.

    >>> [len(weight_grid(runs)) for runs in (2, 3, 4)], weight_grid(2)[16]
    ([21, 67, 57], (0.2, 0.8))
    """
    fits = (n for n in (20, 10, 5, 4, 3, 2) if math.comb(n + runs - 1, n) <= MOST_WEIGHTS)
    steps = next(fits, 1)
    choices = combinations_with_replacement(range(runs), steps)
    found = [tuple(round(each.count(r) / steps, 4) for r in range(runs)) for each in choices]
    return list(dict.fromkeys([*found, (round(1 / runs, 4),) * runs]))


def best_weights(
    parts_of: PartsOf, qids: Sequence[str], fusion: FusionSettings, ranking: Ranking, runs: int
) -> Weights:
    """Return the weights whose fused run is best by the measure; of equals, the most even ones."""
    from denserk.evaluation.evaluator import Evaluator, needed_depth, prune_hits
    from denserk.evaluation.measures import needs_subtopics, parse_measures, summarize

    measures = parse_measures([fusion.measure]).measures
    if len(measures) > 1:
        raise UsageError(f"--measure {fusion.measure}: one measure is expected")
    if needs_subtopics(measures[0]):
        message = f"--measure {fusion.measure}: a measure of sub-topics does not choose weights"
        raise UsageError(message, "for example --measure nDCG@10")
    depth, name = needed_depth(measures) or math.inf, str(measures[0])
    judgments = read_qrels_map(str(fusion.tune))
    judged = [qid for qid in qids if qid in judgments]
    if not judged:
        answered = f"the runs answer {some(qids)}, the qrels judge {some(judgments)}"
        raise MismatchError(f"--tune {fusion.tune}: no query of the runs is judged: {answered}")
    values: dict[Weights, list[float]] = {weights: [] for weights in weight_grid(runs)}
    with track("tuning weights", len(judged), "queries") as progress:
        for first in range(0, len(judged), BLOCK):
            block = judged[first : first + BLOCK]
            parts = [(qid, parts_of(qid)) for qid in block]
            scored = [(qid, [*of], np.array([*of.values()])) for qid, of in parts]
            evaluator = Evaluator(measures, {q: judgments[q] for q in block}, complete=False)
            for weights, found in values.items():
                run = {}
                for qid, docids, scores in scored:
                    sums = (scores * weights).sum(1, np.longdouble).astype(float).tolist()
                    kept = prune_hits(RankedList(qid, docids, sums, ()), depth)
                    run[qid] = dict(ranking.final(best_first(kept.items())))
                found += evaluator.evaluate("fusion", run).per_query[name].values()
            progress.advance(len(block))
    means = {weights: summarize(measures[0], found) for weights, found in values.items()}
    order = sorted(means, key=lambda weights: (-means[weights], math.hypot(*weights)))
    logger.info(f"{name} of {len(judged):,} queries with each of {len(order)} choices of weights:")
    alone = [weights for weights in order[SHOWN:] if 1 in weights]
    for weights in (*order[:SHOWN], *alone):
        given = ",".join(f"{weight:g}" for weight in weights)
        logger.info(f"  {means[weights]:.4f}  --weights {given}")
    return order[0]
