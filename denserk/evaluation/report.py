"""Report of runs as a page (`--report`): its content, computed from runs, qrels and manifests."""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvaluationSettings, PageSettings, ReportSources
from denserk.errors import UsageError
from denserk.evaluation.evaluator import first_hits, read_hits
from denserk.evaluation.measures import is_count
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.extras import require
from denserk.io.corpus import read_passages
from denserk.io.data_sets import find_parts, is_here
from denserk.io.files import STREAM, whole_text, write_errors
from denserk.io.manifest import Kind, Manifest, beside, read_manifest
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.records import Passage
from denserk.reporting import track

logger = logging.getLogger(__name__)

NAME = "index.html"
BINS = 30  # of the scores
# depths of the recall curve, as far as a run reaches
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)


@dataclass(frozen=True)
class Hit:
    """One passage in a ranked list; `grade` is None where it was not judged."""

    docid: str
    score: float
    grade: int | None


@dataclass(frozen=True)
class TopList:
    """The first of a query's `hits` hits, and the rank of its first relevant one, if any."""

    top: tuple[Hit, ...]
    first_relevant: int | None
    hits: int


@dataclass(frozen=True)
class Scores:
    """Counts of scores in the same bins.

    Attributes:
        edges: (n + 1,), ascending.
        relevant: (n,), relevant hits.
        others: (n,), hits judged not relevant, or not judged.
    """

    edges: NDArray[np.float64]
    relevant: NDArray[np.int64]
    others: NDArray[np.int64]


@dataclass(frozen=True)
class RunProfile:
    """A run against relevance judgments.

    Attributes:
        name: of the run in tables.
        level: the lowest grade that counted as relevant.
        recall: (depth, mean recall) for each of `DEPTHS` that the run reaches, and its own depth.
        scores: None where all scores are equal.
        lists: the ranked lists of the queries asked for.
    """

    name: str
    level: int
    recall: tuple[tuple[int, float], ...]
    scores: Scores | None
    lists: Mapping[str, TopList]


@dataclass(frozen=True)
class QueryRow:
    """The values of the runs on one query, and the largest difference from the reference run.

    `values` and `difference` are NaN where there is none.
    """

    qid: str
    values: tuple[float, ...]
    difference: float


@dataclass(frozen=True)
class Cost:
    """What the manifest of a run says about its cost; None where it says nothing."""

    index_bytes: int | None = None
    query_milliseconds: float | None = None


@dataclass(frozen=True)
class Texts:
    """The known texts: query id -> text, passage id -> passage."""

    queries: Mapping[str, str] = field(default_factory=dict)
    passages: Mapping[str, Passage] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Content of the page.

    Attributes:
        title: of the page.
        result: the measures.
        rows: the queries, those with the largest differences first.
        shown: number of queries that are shown with their ranked lists.
        profiles: the runs against relevance judgments; empty without judgments.
        costs: of each run.
        texts: of the queries and passages that are shown.
        lacking: what is not on the page and why, one sentence each.
    """

    title: str
    result: EvaluationResult
    rows: Sequence[QueryRow]
    shown: int
    profiles: Sequence[RunProfile] = ()
    costs: Sequence[Cost] = ()
    texts: Texts = field(default_factory=Texts)
    lacking: Sequence[str] = ()


def profile(
    name: str,
    run: Mapping[str, Mapping[str, float]],
    judgments: Mapping[str, Mapping[str, int]],
    queries: Collection[str],
    level: int,
    shown: Collection[str],
    top: int,
) -> RunProfile:
    """Compute recall by depth, the distribution of scores and the ranked lists of a run.

    Args:
        name: of the run in tables.
        run: query -> passage -> score.
        judgments: query -> passage -> grade.
        queries: recall is the mean over these; it is 0 for a query without a relevant passage.
        level: the lowest grade that is relevant.
        shown: queries whose ranked lists are kept.
        top: hits kept of each of these lists.
    """
    lists = {qid: first_hits(run[qid], len(run[qid])) for qid in queries if qid in run}
    relevant = {
        qid: {docid for docid, grade in judgments.get(qid, {}).items() if grade >= level}
        for qid in queries
    }
    scores: tuple[list[float], list[float]] = ([], [])
    for qid, hits in lists.items():
        for docid, score in hits.items():
            scores[docid in relevant[qid]].append(score)
    kept = {}
    for qid in shown:
        hits, grades = lists.get(qid, {}), judgments.get(qid, {})
        ranks = (rank for rank, d in enumerate(hits, start=1) if grades.get(d, 0) >= level)
        best = tuple(Hit(d, score, grades.get(d)) for d, score in list(hits.items())[:top])
        kept[qid] = TopList(best, next(ranks, None), len(hits))
    return RunProfile(name, level, mean_recall(lists, relevant), bin_scores(*scores[::-1]), kept)


def mean_recall(
    lists: Mapping[str, Collection[str]], relevant: Mapping[str, Collection[str]]
) -> tuple[tuple[int, float], ...]:
    """Return (depth, mean recall).

    Args:
        lists: query -> passages, best first.
        relevant: query -> its relevant passages; the mean is over these queries.

    >>> mean_recall({"q": ["a", "b", "c"]}, {"q": {"b", "x"}, "r": {"a"}})
    ((1, 0.0), (2, 0.25), (3, 0.25))
    """
    deepest = max(map(len, lists.values()), default=0)
    depths = [*(depth for depth in DEPTHS if depth < deepest), *([deepest] if deepest else [])]
    total = np.zeros(len(depths))
    for qid, docids in lists.items():
        if wanted := relevant[qid]:
            found = np.cumsum([0, *(docid in wanted for docid in docids)])
            total += found[np.minimum(depths, len(docids))] / len(wanted)
    return tuple(zip(depths, (total / len(relevant)).tolist(), strict=True))


def bin_scores(relevant: Sequence[float], others: Sequence[float]) -> Scores | None:
    """Count scores in `BINS` bins of equal width; None where no two scores differ.

    >>> found = bin_scores([3.0], [0.0, 0.0])
    >>> float(found.edges[-1]), int(found.relevant[-1]), int(found.others[0])
    (3.0, 1, 2)
    """
    together = np.array([*relevant, *others])
    if not len(together) or not np.ptp(together) > 0:
        return None
    edges = np.linspace(together.min(), together.max(), BINS + 1)
    if not (np.diff(edges) > 0).all():  # the scores differ by less than float64 can divide
        return None
    counts = [np.histogram(scores, edges)[0] for scores in (relevant, others)]
    return Scores(edges, *counts)


def main_measure(result: EvaluationResult) -> str:
    """Return the first measure that is not a count, or the first one."""
    compared = [measure for measure in result.measures if not is_count(measure)]
    return str((compared or result.measures)[0])


def reference_of(result: EvaluationResult) -> int:
    """Return the number of the run that others are compared with: the baseline, or the first."""
    names = [run.name for run in result.runs]
    return 0 if result.comparison is None else names.index(result.comparison.baseline)


def query_rows(result: EvaluationResult, measure: str, reference: int) -> list[QueryRow]:
    """Return all queries: the largest differences first; for one run, the lowest values first."""
    rows = []
    for qid in result.queries:
        values = [run.per_query[measure].get(qid, math.nan) for run in result.runs]
        others = (value - values[reference] for n, value in enumerate(values) if n != reference)
        widest = max((d for d in others if not math.isnan(d)), key=abs, default=math.nan)
        rows.append(QueryRow(qid, tuple(values), widest))

    def place(row: QueryRow) -> tuple[bool, float]:
        key = row.values[0] if len(row.values) == 1 else -abs(row.difference)
        return math.isnan(key), key

    return sorted(rows, key=place)


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Return the path of the page; called before the work, so that mistakes show early.

    Raises:
        UsageError: it cannot be there, or an input is a stream, which a report reads twice.
        MissingExtraError: a package for reports is not installed.
    """
    assert settings.report is not None
    for package in ("jinja2", "matplotlib"):
        require(package, "--report")
    if Path(settings.report).exists() and not Path(settings.report).is_dir():
        raise UsageError(f"--report {settings.report}: a file; a folder is expected")
    if STREAM in inputs:
        raise UsageError(
            "--report reads runs and qrels once more, and standard input can be read only once",
            "write it to a file first",
        )
    return Path(settings.report) / NAME


def sources_of(suite: Benchmark, given: ReportSources) -> ReportSources:
    """Return the parts of a benchmark; queries and passages only where they are on this disk."""
    shown = [part for part in ("topics", "corpus") if is_here(suite, part)]
    parts = find_parts([suite], ["qrels", *shown]).get(suite.name, {})
    return replace(
        given,
        title=suite.title,
        qrels=parts.get("qrels"),
        topics=given.topics or parts.get("topics"),
        corpus=given.corpus or parts.get("corpus"),
    )


def write_report(
    result: EvaluationResult,
    runs: Sequence[str],
    sources: ReportSources,
    settings: PageSettings,
    evaluation: EvaluationSettings | None = None,
) -> Path:
    """Write the page of runs and return its path.

    Args:
        result: of the runs.
        runs: the files it was made from, in its order.
        sources: the qrels, and where the texts are.
        settings: where the page goes, and how much it shows.
        evaluation: how missing queries and queries' own passages were treated.
    """
    path = page_in(settings, [*runs, *filter(None, [sources.qrels])])
    evaluation = evaluation or EvaluationSettings()
    rows = query_rows(result, main_measure(result), reference_of(result))
    moved = [row.qid for row in rows[: settings.report_queries]]
    manifests = [read_manifest(r, Kind.RUN) if beside(r).is_file() else None for r in runs]
    sources = _completed(sources, manifests)
    profiles = []
    if sources.qrels is not None:
        judgments = read_qrels_map(sources.qrels)
        for run, measured in zip(runs, result.runs, strict=True):
            missing = () if evaluation.complete else frozenset(measured.missing)
            queries = [qid for qid in result.queries if qid not in missing]
            shown = (_level(result), moved, settings.report_passages)
            hits = read_hits(run, evaluation)
            profiles.append(profile(measured.name, hits, judgments, queries, *shown))
    texts = Texts()
    if sources.topics is not None:
        asked = {row.qid for row in rows}
        queries_found = {q.qid: q.text for q in read_queries(sources.topics) if q.qid in asked}
        texts = replace(texts, queries=queries_found)
    wanted = {hit.docid for one in profiles for many in one.lists.values() for hit in many.top}
    if sources.corpus is not None and wanted:
        texts = replace(texts, passages=_passages(sources, wanted))
    report = Report(
        *(sources.title, result, rows, len(moved), profiles, list(map(_cost, manifests)), texts)
    )
    report = replace(report, lacking=list(_lacking(report)))
    for sentence in report.lacking:
        logger.info(sentence)
    from denserk.evaluation.page import as_page

    return _write(path, as_page(report))


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path.

    Raises:
        UsageError: it cannot be there.
    """
    from denserk.evaluation.page import as_benchmarks_page

    return _write(page_in(settings), as_benchmarks_page(result))


def _write(path: Path, page: str) -> Path:
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
    return path


def _level(result: EvaluationResult) -> int:
    """Return the lowest grade that counts as relevant: that of recall, or of another measure."""
    levels = {m.NAME: int(m.params["rel"]) for m in reversed(result.measures) if "rel" in m.params}
    return levels.get("R", next(iter(reversed(levels.values())), result.relevance_level))


def _cost(manifest: Manifest | None) -> Cost:
    if manifest is None:
        return Cost()
    index = manifest.made_from.get("index") or {}
    seconds, queries = manifest.contents.get("seconds"), manifest.contents.get("queries")
    spent = 1000 * sum(seconds.values()) / queries if seconds and queries else None
    return Cost(index.get("bytes"), spent)


def _completed(sources: ReportSources, manifests: Sequence[Manifest | None]) -> ReportSources:
    """Add the queries and passages that the manifests of the runs name, where they still exist."""
    made = [manifest.made_from for manifest in manifests if manifest is not None]
    topics = [(one.get("topics") or {}).get("name") for one in made]
    indexes = [(one.get("index") or {}).get("name") for one in made]
    corpora = [corpus for index in indexes if index for corpus in _corpus_of(index)]

    def exists(name: str | None) -> bool:
        return name is not None and name != STREAM and Path(name).exists()

    return replace(
        sources,
        topics=sources.topics or next(filter(exists, topics), None),
        corpus=sources.corpus or next(filter(exists, corpora), None),
    )


def _corpus_of(index: str) -> Iterator[str]:
    """Yield the corpora that an index names, directly or through its vector folders."""
    if not beside(index).is_file():
        return
    made = read_manifest(index, Kind.INDEX).made_from
    if made.get("texts"):
        yield made["texts"]
    for vectors in made.get("vectors") or ():
        if Path(vectors).is_dir() and beside(vectors).is_file():
            texts = read_manifest(vectors, Kind.VECTORS).made_from.get("texts")
            if texts:
                yield texts


def _passages(sources: ReportSources, wanted: set[str]) -> dict[str, Passage]:
    """Read the wanted passages; the corpus is streamed until the last one is found."""
    assert sources.corpus is not None
    found: dict[str, Passage] = {}
    with (
        track("reading the corpus", None, "passages") as progress,
        closing(read_passages(sources.corpus, sources.reading)) as stream,  # type: ignore[type-var]
    ):
        for passage in stream:
            progress.advance()
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    return found


def _lacking(report: Report) -> Iterator[str]:
    """Yield what is not on the page, and which option would add it."""
    if not report.profiles:
        yield "Recall by depth, scores and ranked lists need qrels, and answers were matched here."
    without = [] if report.texts.queries else ["queries (--topics)"]
    if report.profiles and not report.texts.passages:
        without.append("passages (--corpus)")
    if without:
        yield f"The texts of {' and '.join(without)} are not known."
    if not any(cost.index_bytes or cost.query_milliseconds for cost in report.costs):
        yield "No manifest beside the runs records index size or query latency."
