"""`denserk eval --draw`: queries drawn at random for people to judge, with the hits of runs."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.evaluation import DrawSettings, ReportSources
from denserk.config.formats import Kind
from denserk.errors import UsageError
from denserk.evaluation.needed_hits import first_hits
from denserk.evaluation.results import Run
from denserk.io.detection import detect_run_or_qrels
from denserk.io.draws import describe_draw, draw_order, record_draw
from denserk.io.manifest import file_sha256
from denserk.io.pool import PoolRow
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries
from denserk.reporting import track
from denserk.tasks.pool_texts import write_pool_with_texts

logger = logging.getLogger(__name__)

Pairs = Mapping[str, Sequence[str]]  # query id -> ids of the passages to judge


class DrawResult(NamedTuple):
    """Numbers of queries that were drawn from, of drawn ones, and of passages to judge for them."""

    queries: int
    drawn: int
    pairs: int


def draw_queries(
    runs: Sequence[str],
    output: str,
    settings: DrawSettings,
    sources: ReportSources,
    predicted: str | None = None,
) -> DrawResult:
    """Draw queries, and write the first hits of all runs for them as a pool to judge.

    The queries are those of the qrels `predicted`, or else of the topics, or else of the runs.
    """
    assert settings.draw is not None
    check_runs(runs)
    hits_of_runs = _read_first_hits(runs, settings.draw_depth)
    query_source = predicted or sources.topics or " and ".join(runs)
    qids = _queries_to_draw_from(hits_of_runs, predicted, sources.topics)
    inputs = [*runs, *filter(None, [predicted, sources.topics])]
    drawn_qids = draw_first(qids, settings.draw, settings.seed, query_source)
    pairs = _pairs_to_judge(drawn_qids, hits_of_runs)
    rows = []
    for qid, docids in pairs.items():
        rows += [PoolRow(qid, docid) for docid in docids]
    pair_count = write_pool_with_texts(output, rows, sources, runs)
    describe_draw(
        output,
        record_draw(qids, drawn_qids, settings.seed),
        {"files": [_described(path) for path in inputs]},
    )
    return DrawResult(len(qids), len(drawn_qids), pair_count)


def check_runs(runs: Sequence[str]) -> None:
    """Raise a UsageError unless there are runs, and nothing else."""
    if not runs:
        raise UsageError(
            "--draw needs runs, whose hits are to be judged",
            "for example denserk eval a.trec b.trec --draw 50 --output draw.tsv",
        )
    for run in runs:
        if detect_run_or_qrels(run) is Kind.QRELS:
            raise UsageError(
                f"--draw: {run} has relevance judgments, and runs are expected",
                "give predicted labels by --predicted; human labels come after the draw",
            )


def draw_first(qids: Iterable[str], count: int, seed: int, source: str) -> list[str]:
    """Return the first `count` queries in the random order of a seed.

    >>> draw_first(["q1", "q2", "q3", "q4"], 2, seed=1, source="queries.tsv")
    ['q4', 'q3']
    """
    ordered_qids = draw_order(qids, seed)
    if len(ordered_qids) < count:
        raise UsageError(
            f"--draw {count}: only {len(ordered_qids):,} queries to draw from ({source})",
            "draw fewer queries",
        )
    return ordered_qids[:count]


def _read_first_hits(runs: Sequence[str], depth: int) -> list[Run]:
    """Return the first hits of each run."""
    hits_of_runs: list[Run] = []
    with track("reading runs", len(runs), "runs") as progress:
        for path in runs:
            scores = read_run_scores(path)
            hits_of_runs.append({qid: first_hits(hits, depth) for qid, hits in scores.items()})
            progress.advance()
    return hits_of_runs


def _queries_to_draw_from(
    hits_of_runs: Sequence[Run], predicted: str | None, topics: str | None
) -> list[str]:
    """Return the ids of the queries of predicted qrels, or else of topics, or else of runs."""
    if predicted is not None:
        return list(read_qrels_map(predicted))
    if topics is not None:
        return [query.qid for query in read_queries(topics)]
    qids: dict[str, None] = {}
    for hits_by_qid in hits_of_runs:
        qids |= dict.fromkeys(hits_by_qid)
    return list(qids)


def _pairs_to_judge(drawn_qids: Sequence[str], hits_of_runs: Sequence[Run]) -> Pairs:
    """Return the hits of all runs for drawn queries, by id: their order says nothing of ranks."""
    pairs = {}
    for qid in drawn_qids:
        docids: set[str] = set()
        for hits_by_qid in hits_of_runs:
            docids.update(hits_by_qid.get(qid, ()))
        pairs[qid] = sorted(docids)
    queries_without_hits = [qid for qid, docids in pairs.items() if not docids]
    if queries_without_hits:
        logger.warning(
            f"{len(queries_without_hits):,} drawn queries have no hit in any run, and are not in "
            f"the output: {first_names(queries_without_hits)}; add a line for each with any "
            "passage and its grade, or they are left out of the means"
        )
    return pairs


def _described(path: str) -> dict[str, Any]:
    """Return the name and the checksum of an input."""
    digest = file_sha256(path) if Path(path).is_file() else None
    return {"name": path, "sha256": digest}
