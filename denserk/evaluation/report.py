"""The page of `denserk eval --report`: what it shows of runs, and of their queries.

It is `report.html`, a Jinja template that escapes every text.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import (
    EvalSettings,
    EvaluationSettings,
    PageSettings,
    ReportSettings,
    ReportSources,
)
from denserk.errors import InputError, UsageError
from denserk.evaluation.evaluator import Evaluator, remarks
from denserk.evaluation.measures import Measure, is_count, parse_measures
from denserk.evaluation.needed_hits import first_hits, read_hits
from denserk.evaluation.pages import write_template
from denserk.evaluation.query_details import (
    Group,
    HitList,
    QueryDetails,
    QueryRow,
    ShownPassage,
    groups_in_detail,
    hit_list,
    missed_passages,
    query_rows,
    shown_passage,
)
from denserk.evaluation.report_figures import (
    Cost,
    Figure,
    Scores,
    Transfer,
    draw_cost,
    draw_recall,
    draw_scores,
    draw_transfer,
)
from denserk.evaluation.results import BenchmarksResult, EvaluationResult, Grades, Run
from denserk.evaluation.table_markup import Table
from denserk.evaluation.tables import Result, tables, tables_of_predictions
from denserk.evaluation.unjudged_tables import query_table
from denserk.extras import require
from denserk.io.corpus import find_records, read_passages
from denserk.io.data_sets import find_parts, local_copy
from denserk.io.files import STREAM
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    corpora_of,
    indexes_of,
    read_any_manifest,
    read_manifest,
)
from denserk.io.misses import TITLES, CauseCounts, read_cause_counts
from denserk.io.qrels import read_qrels_map
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries
from denserk.plots import style
from denserk.version import __version__

PAGE_NAME = "index.html"
MOST_UNJUDGED = 20  # queries with the widest bounds over unjudged hits
MISSES = "misses.csv"  # beside a run: the table of `analyze misses`
MOST_ROWS = 10_000  # rows of the table of queries; browsers become slow with more
# depths of the recall curve, as far as a run reaches
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)
# the benchmark that retrievers are trained for; the first one that has a result is taken
IN_DOMAIN = ("msmarco-dev", "beir/msmarco", "msmarco-titled-dev", "dl19", "dl20")


class Profile(NamedTuple):
    """What the page shows of a run."""

    name: str
    recall: list[tuple[float, float]]  # (depth, mean recall)
    scores: Scores
    hit_lists: Mapping[str, HitList]  # by query id, of the queries in detail


class _Relevance(NamedTuple):
    """The grades of judged passages, and the lowest grade that counts as relevant, `level`."""

    grades: Grades
    level: int

    def counts(self) -> dict[str, int]:
        """Return the number of relevant passages of each query."""
        counts = {}
        for qid, grades_of_query in self.grades.items():
            counts[qid] = sum(grade >= self.level for grade in grades_of_query.values())
        return counts


class _JudgedContent(NamedTuple):
    """What a page shows by the judgments; empty where they are not known."""

    groups: list[Group]  # of queries in detail
    profiles: list[Profile]  # of runs
    details: dict[str, QueryDetails]  # by query id, in the order of the groups


class _Figures(NamedTuple):
    """The figures of a page of runs."""

    recall: list[Figure]  # one, or none where no judgments are known
    scores: list[Figure]  # one of each run, or none
    costs: list[Figure]  # one of each cost that a run records


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Return the path of the page; raise a UsageError if no page of these inputs can be written.

    It is called before the work with the runs and qrels, so that mistakes show early.
    """
    assert settings.report is not None
    require("matplotlib", "--report")
    if Path(settings.report).exists() and not Path(settings.report).is_dir():
        raise UsageError(f"--report {settings.report}: a file; a folder is expected")
    if STREAM in inputs:
        raise UsageError(
            "--report reads runs and qrels once more, and standard input can be read only once",
            "write it to a file first",
        )
    return Path(settings.report) / PAGE_NAME


def sources_of(benchmark: Benchmark, sources: ReportSources) -> ReportSources:
    """Return the parts of a benchmark; queries and passages only where they are on this disk."""
    parts = find_parts([benchmark], ["qrels"]).get(benchmark.name, {})
    return replace(
        sources,
        qrels=parts.get("qrels"),
        topics=sources.topics or local_copy(benchmark.topics),
        corpus=sources.corpus or local_copy(benchmark.corpus.source),
    )


def write_report(
    result: EvaluationResult, runs: Sequence[str], sources: ReportSources, settings: EvalSettings
) -> Path:
    """Write the page of a result, whose runs are in the files `runs`, one each; return its path."""
    names = [run.name for run in result.runs]
    paths = dict(zip(names, runs, strict=True))
    manifests = read_run_manifests(paths)
    sources = with_recorded_sources(sources, manifests)
    measure = _measure_to_compare(result.measures)
    reference = _reference_run(result)
    level = _relevance_level(result)
    relevance = _read_relevance(sources.qrels, level)
    relevant_counts = None if relevance is None else relevance.counts()
    rows = query_rows(result, str(measure), names.index(reference), relevant_counts)
    judged = _JudgedContent([], [], {})
    if relevance is not None:
        judged = _read_judged_content(paths, relevance, measure, rows, settings)
    figures = _draw_figures(result, measure, judged.profiles, manifests)
    content = {
        "title": sources.title,
        "subtitle": f"{len(result.queries):,} queries",
        "runs": names,
        "level": level,
        "measure": str(measure),
        "cutoff": measure.params.get("cutoff"),
        "reference": reference,
        "figures": [*figures.recall, *figures.costs],
        "costs": figures.costs,
        "scores": figures.scores,
        "profiles": judged.profiles,
        "queries": _query_texts(sources, result.queries),
        "passages": _listed_passages(sources, judged.details.values()),
        "groups": judged.groups,
        "details": judged.details,
        "anchors": {qid: f"query-{number}" for number, qid in enumerate(judged.details, start=1)},
        "causes": _causes_of_misses(settings, paths),
        "failing_count": sum(row.fails for row in rows),
        "unjudged": _unjudged_queries(result),
        "has_counts": relevance is not None,
        "rows": rows[:MOST_ROWS],
        "notes": _notes(result, rows, complete=settings.complete),
    }
    return _write_page(settings, result, content)


def _unjudged_queries(result: EvaluationResult) -> Table | None:
    """Return the queries whose unjudged hits matter most; None if none matters."""
    if result.unjudged is None:
        return None
    return query_table(result.unjudged, MOST_UNJUDGED)


class CauseRow(NamedTuple):
    """A cause, and how many passages were missed for it."""

    title: str
    passages: int
    share: float  # of all that were missed, in percent


class RunCauses(NamedTuple):
    """Why a run misses relevant passages, by a table of `analyze misses`."""

    run: str
    table: str  # its file
    link: str  # to the file, from the page
    total: int
    rows: list[CauseRow]


def _causes_of_misses(settings: PageSettings, paths: Mapping[str, str]) -> list[RunCauses]:
    """Return the causes in a table, or else in those beside runs, which are given by name.

    A table without a missed passage is left out.
    """
    page = page_in(settings)
    if settings.misses is not None:
        counts = read_cause_counts(settings.misses)
        return [_run_causes(settings.misses, counts, page)] if counts.total else []
    causes = []
    for path in paths.values():
        table_beside = Path(path).with_name(MISSES)
        if not table_beside.is_file():
            continue
        try:
            counts = read_cause_counts(table_beside)
        except InputError:  # a table of something else
            continue
        if counts.total and Path(counts.run).name == Path(path).name:
            causes.append(_run_causes(str(table_beside), counts, page))
    return causes


def _run_causes(table: str, counts: CauseCounts, page: Path) -> RunCauses:
    """Return what the page shows of a table of misses."""
    rows = []
    for cause, count in counts.counts.items():
        rows.append(CauseRow(TITLES[cause], count, 100 * count / counts.total))
    link = Path(os.path.relpath(table, page.parent)).as_posix()
    return RunCauses(Path(counts.run).name, table, link, counts.total, rows)


def _reference_run(result: EvaluationResult) -> str:
    """Return the run that others are compared with: the baseline, or else the first one."""
    names = [run.name for run in result.runs]
    if result.comparison is not None and result.comparison.baseline in names:
        return result.comparison.baseline
    return names[0]


def _read_relevance(qrels: str | None, level: int) -> _Relevance | None:
    """Read the judgments of a page; None where they are not known."""
    if qrels is None:
        return None
    return _Relevance(read_qrels_map(qrels), level)


def _read_judged_content(
    paths: Mapping[str, str],
    relevance: _Relevance,
    measure: Measure,
    rows: Sequence[QueryRow],
    settings: EvalSettings,
) -> _JudgedContent:
    """Choose the queries that are shown in detail, and read the hits of the runs.

    `paths` are those of the runs, by name; `rows` are all queries.
    """
    groups = groups_in_detail(rows, settings.report_ids, settings.report_queries, str(measure))
    rows_in_detail: list[QueryRow] = []
    for group in groups:
        rows_in_detail += group.rows
    qids = [row.qid for row in rows_in_detail]
    passage_count = settings.report_passages
    profiles = [
        _read_profile(name, path, relevance, qids, passage_count, settings)
        for name, path in paths.items()
    ]
    details = _query_details(rows_in_detail, profiles, relevance, measure, passage_count)
    return _JudgedContent(groups, profiles, details)


def _query_details(
    rows: Iterable[QueryRow],
    profiles: Sequence[Profile],
    relevance: _Relevance,
    measure: Measure,
    passage_count: int,
) -> dict[str, QueryDetails]:
    """Return the hits of all runs for each query, and the first relevant passages they missed."""
    cutoff = measure.params.get("cutoff")
    details = {}
    for row in rows:
        hit_lists = {profile.name: profile.hit_lists[row.qid] for profile in profiles}
        missed = missed_passages(relevance.grades[row.qid], hit_lists, relevance.level, cutoff)
        details[row.qid] = QueryDetails(row, hit_lists, missed[:passage_count], len(missed))
    return details


def _draw_figures(
    result: EvaluationResult,
    measure: Measure,
    profiles: Sequence[Profile],
    manifests: Mapping[str, Manifest],
) -> _Figures:
    """Draw recall and scores from the profiles of runs, and their costs from the manifests."""
    recall = []
    value_by_run = {run.name: run.summary[str(measure)] for run in result.runs}
    with style():
        if profiles:
            recall_by_run = {profile.name: profile.recall for profile in profiles}
            recall.append(draw_recall(recall_by_run, _relevance_level(result)))
        scores = [draw_scores(profile.name, profile.scores) for profile in profiles]
        costs = [draw_cost(cost, str(measure), value_by_run) for cost in _recorded_costs(manifests)]
    return _Figures(recall, scores, costs)


def _measure_to_compare(measures: Sequence[Measure]) -> Measure:
    """Return the measure that compares runs and queries: the first one that is no count, if any."""
    for measure in measures:
        if not is_count(measure):
            return measure
    return measures[0]


def _relevance_level(result: EvaluationResult) -> int:
    """Return the lowest grade that counts as relevant: in recall, or else in the first measure.

    Measures without a level of their own count from that of the result.
    """
    measures = [measure for measure in result.measures if "rel" in measure.params]
    for measure in measures:
        if measure.NAME == "R":
            return int(measure.params["rel"])
    if measures:
        return int(measures[0].params["rel"])
    return result.relevance_level


def _query_texts(sources: ReportSources, qids: Sequence[str]) -> dict[str, str]:
    """Return the texts of the queries that are in the topics, by id."""
    if sources.topics is None:
        return {}
    shown_qids = set(qids)
    texts = {}
    for query in read_queries(sources.topics):
        if query.qid in shown_qids:
            texts[query.qid] = query.text
    return texts


def _listed_passages(
    sources: ReportSources, details: Iterable[QueryDetails]
) -> dict[str, ShownPassage]:
    """Return the texts of the missed passages and the hits of queries, by id.

    The corpus is read once.
    """
    if sources.corpus is None:
        return {}
    docids: set[str] = set()
    for query in details:
        docids.update(passage.docid for passage in query.missed)
        for hits in query.hit_lists.values():
            docids.update(hit.docid for hit in hits.shown)
    corpus = read_passages(sources.corpus, sources.reading)
    records = find_records(corpus, docids, sources.corpus)
    return {docid: shown_passage(passage) for docid, passage in records.items()}


def _notes(result: EvaluationResult, rows: Sequence[QueryRow], *, complete: bool) -> list[str]:
    """Return what a reader should know of the values, and who computed them."""
    notes = []
    for run in result.runs:
        notes += [remark.sentence for remark in remarks(run, result, complete)]
    unanswerable = [row.qid for row in rows if row.relevant == 0]
    if unanswerable:
        notes.append(
            f"No relevant passage is known for {len(unanswerable):,} queries: "
            f"{first_names(unanswerable)}."
        )
    computed = []
    for provider, measures in result.providers.items():
        computed.append(f"{', '.join(measures)} by {provider}")
    notes.append(f"Computed through ir-measures: {'; '.join(computed)}.")
    return notes


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path."""
    figures = []
    transfer = _transfer(result)
    if transfer is not None and any(transfer.points.values()):
        with style():
            figures.append(draw_transfer(transfer))
    content = {
        "title": "Runs on several benchmarks",
        "in_domain": IN_DOMAIN,
        "subtitle": f"{len(result.results):,} benchmarks",
        "runs": result.runs,
        "figures": figures,
    }
    return _write_page(settings, result, content)


def _transfer(result: BenchmarksResult) -> Transfer | None:
    """Return the values of runs in and out of their domain.

    Returns None without benchmarks of both, or without a measure that all zero-shot ones have.
    """
    in_domain = next((name for name in IN_DOMAIN if name in result.results), None)
    zero_shot = [
        name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN
    ]
    if in_domain is None or not zero_shot:
        return None
    in_domain_measure = str(result.results[in_domain].measures[0])
    zero_shot_measure = _shared_measure([result.results[name].measures for name in zero_shot])
    if zero_shot_measure is None:
        return None
    points: dict[str, list[tuple[float, float]]] = {}
    for run in result.runs:
        in_domain_value = _value(result, in_domain, run, in_domain_measure)
        zero_shot_values = [_value(result, name, run, zero_shot_measure) for name in zero_shot]
        zero_shot_mean = float(np.mean(zero_shot_values))  # NaN where one of them is
        has_all_values = not math.isnan(in_domain_value) and not math.isnan(zero_shot_mean)
        points[run] = [(in_domain_value, zero_shot_mean)] if has_all_values else []
    return Transfer(in_domain, in_domain_measure, zero_shot, zero_shot_measure, points)


def _shared_measure(measures_of_benchmarks: Sequence[Sequence[Measure]]) -> str | None:
    """Return the first measure that all benchmarks have; None if there is none."""
    for measure in measures_of_benchmarks[0]:
        if all(measure in measures for measures in measures_of_benchmarks):
            return str(measure)
    return None


def _value(result: BenchmarksResult, benchmark: str, run: str, measure: str) -> float:
    """Return the value of a run on a benchmark; NaN where it has none."""
    values = result.values(benchmark, run)
    if values is None:
        return math.nan
    return values.get(measure, math.nan)


def _write_page(settings: PageSettings, result: Result, content: Mapping[str, Any]) -> Path:
    """Fill the template with the content and the tables of a result; return the page's path."""
    path = page_in(settings)
    page_content = {
        **content,
        "tables": tables(result, ReportSettings(), with_predictions=False),
        "predicted_tables": tables_of_predictions(result, ReportSettings()),
        "version": __version__,
    }
    write_template(path, "report.html", page_content)
    return path


def _read_profile(
    name: str,
    path: str,
    relevance: _Relevance,
    shown_qids: Sequence[str],
    hit_count: int,
    settings: EvaluationSettings,
) -> Profile:
    """Read a run, and return what the page shows of it.

    `hit_count` hits are shown of each of the `shown_qids`.
    """
    run = read_hits(path, settings).run
    judged_hits = {}  # of judged queries, the best first
    for qid, hits in run.items():
        if qid in relevance.grades:
            judged_hits[qid] = first_hits(hits, len(hits))
    deepest = max(map(len, judged_hits.values()))
    hit_lists = {}
    for qid in shown_qids:
        hits = judged_hits.get(qid, {})
        hit_lists[qid] = hit_list(hits, relevance.grades[qid], relevance.level, hit_count)
    return Profile(
        name=name,
        recall=_recall_by_depth(name, run, relevance, deepest, complete=settings.complete),
        scores=_scores_by_relevance(judged_hits, relevance),
        hit_lists=hit_lists,
    )


def _recall_by_depth(
    name: str, run: Run, relevance: _Relevance, deepest: int, *, complete: bool
) -> list[tuple[float, float]]:
    """Return (depth, mean recall) of a run, for the DEPTHS above the deepest one, and for that."""
    depths = [depth for depth in DEPTHS if depth < deepest]
    depths.append(deepest)
    measures = parse_measures([f"R(rel={relevance.level})@{depth}" for depth in depths]).measures
    evaluator = Evaluator(measures, relevance.grades, complete=complete)
    recalls = evaluator.evaluate(name, run).summary.values()
    return list(zip(depths, recalls, strict=True))


def _scores_by_relevance(judged_hits: Run, relevance: _Relevance) -> Scores:
    """Return the scores of the relevant hits and of all others of judged queries."""
    scores = Scores([], [])
    for qid, hits in judged_hits.items():
        grades = relevance.grades[qid]
        for docid, score in hits.items():
            if docid in grades and grades[docid] >= relevance.level:
                scores.relevant.append(score)
            else:
                scores.others.append(score)
    return scores


def read_run_manifests(paths: Mapping[str, str]) -> dict[str, Manifest]:
    """Return the manifests of the runs that have one, by the names of the runs."""
    manifests = {}
    for name, path in paths.items():
        if beside(path).is_file():
            manifests[name] = read_manifest(path, Kind.RUN)
    return manifests


def with_recorded_sources(
    sources: ReportSources, manifests: Mapping[str, Manifest]
) -> ReportSources:
    """Return the sources with topics and corpus.

    Where these are not given, they are the first ones that runs record and that still exist.
    """
    topics: list[str | None] = []
    corpora: list[str | None] = []
    for manifest in manifests.values():
        topics_of_run = manifest.made_from.get("topics")
        if topics_of_run:
            topics.append(topics_of_run.get("name"))
        for index in indexes_of(manifest.made_from):
            index_manifest = beside(index["name"])
            if index_manifest.is_file():
                corpora += [corpus.name for corpus in corpora_of(read_any_manifest(index_manifest))]
    return replace(
        sources,
        topics=sources.topics or _first_existing(topics),
        corpus=sources.corpus or _first_existing(corpora),
    )


def _recorded_costs(manifests: Mapping[str, Manifest]) -> list[Cost]:
    """Return the size of each run's indexes and the time of a query, if a run records them."""
    sizes: dict[str, float] = {}
    times: dict[str, float] = {}
    for name, manifest in manifests.items():
        size = sum(index.get("bytes") or 0 for index in indexes_of(manifest.made_from))
        if size:
            sizes[name] = size
        seconds = _seconds_of_query(manifest)
        if seconds:
            times[name] = seconds
    costs = [Cost("index size", "B", sizes), Cost("latency of a query", "s", times)]
    return [cost for cost in costs if cost.cost_by_run]


def _seconds_of_query(manifest: Manifest) -> float:
    """Return the mean time of a query that the manifest of a run records; 0 if it records none."""
    seconds = manifest.contents.get("seconds")
    query_count = manifest.contents.get("queries")
    if not seconds or not query_count:
        return 0
    return float(sum(seconds.values()) / query_count)


def _first_existing(names: Sequence[str | None]) -> str | None:
    """Return the first name of a file or folder that exists; None if there is none."""
    for name in names:
        if name and name != STREAM and Path(name).exists():
            return name
    return None
