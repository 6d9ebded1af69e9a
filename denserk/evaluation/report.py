"""The plot (`--plot`) and the HTML report (`--report`) of runs.

The page is `report.html`, a Jinja template that escapes every text; plots are SVG by matplotlib.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvalSettings, PageSettings, ReportSettings, ReportSources
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator, first_hits, read_hits, remarks
from denserk.evaluation.measures import Measure, is_count, parse_measures
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
from denserk.evaluation.results import (
    BenchmarksResult,
    Comparison,
    EvaluationResult,
    Grades,
    RunResult,
)
from denserk.evaluation.significance import interval
from denserk.evaluation.table_markup import DAGGER
from denserk.evaluation.tables import LEAST_P, Result, difference_note, number, tables
from denserk.extras import require
from denserk.io.corpus import find_records, read_passages
from denserk.io.data_sets import find_parts, local_copy
from denserk.io.files import STREAM, some, whole_text, write_errors
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    corpora_of,
    indexes_of,
    read_any_manifest,
    read_manifest,
)
from denserk.io.topics import read_qrels_map, read_queries
from denserk.plots import INKS, TEXT, as_image, draw_lines, new_axes, style
from denserk.version import __version__

MOST_COLUMNS = 3  # panels of a plot in a row
LONGEST = 30  # characters in a line of a run's name
FEW = 4  # curves in a plot of one column
NAME = "index.html"
BINS = 30  # of the scores
MOST_ROWS = 10_000  # rows of the table of queries; browsers become slow with more
# depths of the recall curve, as far as a run reaches
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)
Figure = dict[str, str]  # a plot: `image` and `caption`
# (title, unit) of a cost -> run -> cost, 0 if it is not known
Costs = Mapping[tuple[str, str], Mapping[str, float]]
# the benchmark that retrievers are trained for; the first one that has a result is taken
IN_DOMAIN = ("msmarco-dev", "beir/msmarco", "msmarco-titled-dev", "dl19", "dl20")


class Profile(NamedTuple):
    """What the page shows of a run."""

    name: str
    recall: list[tuple[int, float]]  # by depth
    scores: tuple[list[float], list[float]]  # of relevant hits, and of others
    lists: Mapping[str, HitList]  # by query, of those that are shown


def draw(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a point per run and measure, or a curve per run over the cut-offs of one measure."""
    is_over_depths = _is_over_depths(result.measures)
    axes = draw_curves(result, settings) if is_over_depths else draw_points(result, settings)
    level = f"{1 - settings.alpha:.0%}"
    notes = f"Means over {len(result.queries):,} queries with their {level} intervals"
    if result.comparison is not None:
        note = difference_note(result.comparison)
        if is_over_depths:  # a dagger marks values, not points of a curve
            note = note.replace(f"{DAGGER} differs", "all but hollow marks differ")
        notes += f"; {note}"
    figure = axes.figure
    lines = fill(notes, int(20 * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=6.5, x=0.01, ha="left")
    return axes


def _is_over_depths(measures: Sequence[Measure]) -> bool:
    """Return whether measures are one at three or more ascending cut-offs.

    >>> from ir_measures import RR, R
    >>> _is_over_depths([R @ 1, R @ 10, R @ 100]), _is_over_depths([R @ 1, R @ 10, RR @ 100])
    (True, False)
    """
    without_cutoffs = [(m.NAME, {**m.params, "cutoff": None}) for m in measures]
    depths = [m.params.get("cutoff", 0) for m in measures]
    is_one_measure = all(measure == without_cutoffs[0] for measure in without_cutoffs)
    return len(depths) > 2 and is_one_measure and depths == sorted(depths)


def draw_points(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a panel per measure: means and intervals, runs below each other, values beside them."""
    names = [fill(run.name, LONGEST) for run in result.runs]
    columns = min(MOST_COLUMNS, len(result.measures))
    rows = math.ceil(len(result.measures) / columns)
    width = 3.4 if columns == 1 else 7.0
    lines = sum(name.count("\n") + 1.35 for name in names)
    height = 0.35 + rows * (0.55 + 0.135 * lines)
    grid = np.ravel(new_axes(width, height, rows, columns, sharex=False))
    for axes, measure in zip_longest(grid, result.measures):
        if measure is None:
            axes.set_visible(False)
            continue
        for row, run in enumerate(result.runs):
            _draw_point(axes, row, run, measure, settings.alpha, result.comparison)
        axes.set_title(measure, fontsize=8.5 if len(str(measure)) < 22 else 6.5, loc="left")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.tick_params(length=0, labelsize=7.5)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(visible=False, axis="y")
    return grid[0]


def _draw_point(
    axes: Any,
    row: int,
    run: RunResult,
    measure: Measure,
    alpha: float,
    comparison: Comparison | None,
) -> None:
    """Draw the mean of a run and its interval in a row, and a line through that of a baseline."""
    mean = run.summary[str(measure)]
    is_baseline = comparison is not None and run.name == comparison.baseline
    ink = TEXT if is_baseline else INKS[0]
    axes.plot(interval(run, measure, alpha), (row, row), color=ink, lw=1.1)
    axes.plot(mean, row, "o", color=ink, ms=4)
    if is_baseline:
        axes.axvline(mean, color=TEXT, lw=0.7, ls=(0, (4, 3)))
    label = number(measure, mean, 3)
    if comparison is not None:
        label += _test_result(comparison, run.name, str(measure))
    right_of_axes = axes.get_yaxis_transform()  # x in widths of the panel, y in rows
    axes.text(1.02, row, label, transform=right_of_axes, va="center", fontsize=7)


def _test_result(comparison: Comparison, run: str, measure: str) -> str:
    """Return the p-value of a difference and its dagger; nothing for a run that was not tested."""
    difference = comparison.differences.get(run, {}).get(measure)
    if difference is None:
        return ""
    p = f"p={difference.corrected:.3f}"
    if difference.corrected < LEAST_P:
        p = "p<0.001"
    if comparison.significant(run, measure):
        return f"{DAGGER} {p}"
    return f" {p}"


def draw_curves(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a measure over its cut-offs: a curve per run with the band of its intervals."""
    are_few = len(result.runs) <= FEW
    axes = new_axes(3.4, 2.8 + 0.16 * len(result.runs)) if are_few else new_axes(7, 3.2)
    depths = [int(measure["cutoff"]) for measure in result.measures]
    curves = {}
    for run in result.runs:
        means = [run.summary[str(measure)] for measure in result.measures]
        curves[fill(run.name, LONGEST)] = list(zip(depths, means, strict=True))
    draw_lines(axes, curves, "upper left" if are_few else "right upper")
    for line, run in zip(list(axes.lines), result.runs, strict=True):
        intervals = [interval(run, measure, settings.alpha) for measure in result.measures]
        lows, highs = zip(*intervals, strict=True)
        color = line.get_color()
        axes.fill_between(depths, lows, highs, color=color, alpha=0.13 if are_few else 0.05, lw=0)
        if result.comparison is not None:
            _draw_hollow_marks(axes, line, run, result.measures, result.comparison)
    axes.set(xscale="log", xlabel="depth", ylabel=str(result.measures[0]).partition("@")[0])
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    return axes


def _draw_hollow_marks(
    axes: Any, line: Any, run: RunResult, measures: Sequence[Measure], comparison: Comparison
) -> None:
    """Draw hollow marks on the curve of a run where it does not differ from the baseline."""
    tested_measures = comparison.differences.get(run.name, {})
    for measure in measures:
        name = str(measure)
        if name in tested_measures and not comparison.significant(run.name, name):
            depth = int(measure["cutoff"])
            mean = run.summary[name]
            marker = line.get_marker()
            axes.plot(depth, mean, marker, ms=4, color=line.get_color(), mfc="white")


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
    return Path(settings.report) / NAME


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
    """Write the page of runs, the files of `result` in its order; return its path."""
    names = [run.name for run in result.runs]
    measure = _first_compared(result.measures)
    level = _relevance_level(result)
    reference = 0
    if result.comparison is not None and result.comparison.baseline in names:
        reference = names.index(result.comparison.baseline)
    paths = dict(zip(names, runs, strict=True))
    manifests = _read_manifests(paths)
    sources = _with_recorded_sources(sources, manifests)
    grades = None if sources.qrels is None else read_qrels_map(sources.qrels)
    relevant_counts = None if grades is None else _relevant_counts(grades, level)
    rows = query_rows(result, str(measure), reference, relevant_counts)
    judged = _Judged([], [], {})
    if grades is not None:
        judged = _judged_queries(paths, grades, level, measure, rows, settings)
    with style():
        recall = [_draw_recall(judged.profiles, level)] if judged.profiles else []
        scores = [_draw_scores(profile) for profile in judged.profiles]
        costs = list(_draw_costs(result, str(measure), _recorded_costs(manifests)))
    content = {
        "title": sources.title,
        "subtitle": f"{len(result.queries):,} queries",
        "runs": names,
        "level": level,
        "measure": str(measure),
        "cutoff": measure.params.get("cutoff"),
        "reference": names[reference],
        "figures": [*recall, *costs],
        "costs": costs,
        "scores": scores,
        "profiles": judged.profiles,
        "queries": _query_texts(sources, result.queries),
        "passages": _passages(sources, judged.details.values()),
        "groups": judged.groups,
        "details": judged.details,
        "anchors": {qid: f"query-{number}" for number, qid in enumerate(judged.details, start=1)},
        "failing_count": sum(row.fails for row in rows),
        "has_counts": grades is not None,
        "rows": rows[:MOST_ROWS],
        "notes": _notes(result, rows, complete=settings.complete),
    }
    return _write(settings, result, content)


class _Judged(NamedTuple):
    """What a page shows of runs where the judgments are there; empty without them."""

    groups: list[Group]  # of queries in detail
    profiles: list[Profile]  # of runs
    details: dict[str, QueryDetails]  # by query id, in the order of the groups


def _judged_queries(
    paths: Mapping[str, str],
    grades: Grades,
    level: int,
    measure: Measure,
    rows: Sequence[QueryRow],
    settings: EvalSettings,
) -> _Judged:
    """Choose the queries that are shown in detail, and read the runs, whose `paths` are by name."""
    groups = groups_in_detail(rows, settings.report_ids, settings.report_queries, str(measure))
    shown_rows = [row for group in groups for row in group.rows]
    profiles = list(_profiles(paths, grades, level, shown_rows, settings))
    details = {}
    for row in shown_rows:
        details[row.qid] = _query_details(row, profiles, grades[row.qid], level, measure, settings)
    return _Judged(groups, profiles, details)


def _relevant_counts(grades: Grades, level: int) -> dict[str, int]:
    """Return the number of relevant passages of each query."""
    counts = {}
    for qid, grades_of_query in grades.items():
        counts[qid] = sum(grade >= level for grade in grades_of_query.values())
    return counts


def _first_compared(measures: Sequence[Measure]) -> Measure:
    """Return the first measure that is no count, if there is one."""
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
    """Return the texts of the queries that are in the topics."""
    if sources.topics is None:
        return {}
    judged = set(qids)
    return {query.qid: query.text for query in read_queries(sources.topics) if query.qid in judged}


def _query_details(
    row: QueryRow,
    profiles: Sequence[Profile],
    grades: Mapping[str, int],
    level: int,
    measure: Measure,
    settings: EvalSettings,
) -> QueryDetails:
    """Return what the runs made of a query, of which `grades` are the judgments."""
    hit_lists = {profile.name: profile.lists[row.qid] for profile in profiles}
    missed = missed_passages(grades, hit_lists, level, measure.params.get("cutoff"))
    return QueryDetails(row, hit_lists, missed[: settings.report_passages], len(missed))


def _passages(sources: ReportSources, details: Iterable[QueryDetails]) -> dict[str, ShownPassage]:
    """Return the texts of all passages that are listed, by their ids, in one pass of the corpus."""
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
        notes += [text for _, text in remarks(run, result, complete)]
    unanswerable = [row.qid for row in rows if row.relevant == 0]
    if unanswerable:
        notes.append(
            f"No relevant passage is known for {len(unanswerable):,} queries: {some(unanswerable)}."
        )
    computed = [f"{', '.join(names)} by {who}" for who, names in result.providers.items()]
    notes.append(f"Computed through ir-measures: {'; '.join(computed)}.")
    return notes


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path."""
    figures = []
    transfer = _transfer(result)
    if transfer is not None and any(transfer.points.values()):
        with style():
            figures.append(_draw_transfer(transfer))
    content = {
        "title": "Runs on several benchmarks",
        "in_domain": IN_DOMAIN,
        "subtitle": f"{len(result.results):,} benchmarks",
        "runs": result.runs,
        "figures": figures,
    }
    return _write(settings, result, content)


class Transfer(NamedTuple):
    """In-domain against zero-shot effectiveness."""

    home: str  # the benchmark that retrievers are trained for
    away: list[str]
    home_measure: str
    away_measure: str
    points: Mapping[str, list[tuple[float, float]]]  # one of each run that has all values, or none


def _transfer(result: BenchmarksResult) -> Transfer | None:
    """Return the values of runs in and out of their domain; None without benchmarks of both."""
    home = next((name for name in IN_DOMAIN if name in result.results), None)
    away = [name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN]
    if home is None or not away:
        return None
    home_measure = str(result.results[home].measures[0])
    away_measure = _shared_measure([result.results[name].measures for name in away])
    points: dict[str, list[tuple[float, float]]] = {}
    for run in result.runs:
        home_value = _value(result, home, run, home_measure)
        mean = float(np.mean([_value(result, name, run, away_measure) for name in away]))
        points[run] = []
        if not math.isnan(home_value) and not math.isnan(mean):
            points[run] = [(home_value, mean)]
    return Transfer(home, away, home_measure, away_measure, points)


def _shared_measure(measures_of_benchmarks: Sequence[Sequence[Measure]]) -> str:
    """Return the first measure that all benchmarks have; "" if there is none."""
    for measure in measures_of_benchmarks[0]:
        if all(measure in measures for measures in measures_of_benchmarks):
            return str(measure)
    return ""


def _value(result: BenchmarksResult, benchmark: str, run: str, measure: str) -> float:
    """Return a value of a run, or NaN."""
    values = result.values(benchmark, run)
    if values is None:
        return math.nan
    return values.get(measure, math.nan)


def _draw_transfer(transfer: Transfer) -> Figure:
    """Draw a mark per run: how well it does out of its domain, against in it."""
    axes = _named_lines(transfer.points)
    axes.set(
        xlabel=f"{transfer.home_measure} on {transfer.home}",
        ylabel=f"mean {transfer.away_measure} on BEIR datasets",
    )
    image = as_image(axes, "Zero-shot against in-domain effectiveness, a mark per run")
    caption = f"In-domain ({transfer.home}) against zero-shot ({', '.join(transfer.away)})."
    return {"image": image, "caption": caption}


def _write(settings: PageSettings, result: Result, content: Mapping[str, Any]) -> Path:
    """Fill the template with the content and the tables of a result; return the page's path."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denserk", "evaluation"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    page = template.render(content, tables=tables(result, ReportSettings()), version=__version__)
    path = page_in(settings)
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
    return path


def _profiles(
    runs: Mapping[str, str],
    grades_by_query: Grades,
    level: int,
    rows: Sequence[QueryRow],
    settings: EvalSettings,
) -> Iterator[Profile]:
    """Yield the profile of each run, with the lists of some queries."""
    for name, path in runs.items():
        run = read_hits(path, settings).run
        ranked = {}
        for qid, hits in run.items():
            if qid in grades_by_query:
                ranked[qid] = first_hits(hits, len(hits))
        deepest = max(map(len, ranked.values()))
        depths = [*(depth for depth in DEPTHS if depth < deepest), deepest]
        measures = parse_measures([f"R(rel={level})@{depth}" for depth in depths]).measures
        evaluator = Evaluator(measures, grades_by_query, complete=settings.complete)
        recalls = evaluator.evaluate(name, run).summary.values()
        lists = {}
        for row in rows:
            hits = ranked.get(row.qid, {})
            grades = grades_by_query[row.qid]
            lists[row.qid] = hit_list(hits, grades, level, settings.report_passages)
        yield Profile(
            name=name,
            recall=list(zip(depths, recalls, strict=True)),
            scores=_scores_by_relevance(ranked, grades_by_query, level),
            lists=lists,
        )


def _scores_by_relevance(
    ranked: Mapping[str, Mapping[str, float]],
    grades_by_query: Grades,
    level: int,
) -> tuple[list[float], list[float]]:
    """Return the scores of relevant hits and of all others."""
    relevant_scores: list[float] = []
    other_scores: list[float] = []
    for qid, hits in ranked.items():
        grades = grades_by_query[qid]
        for docid, score in hits.items():
            if grades.get(docid, level - 1) >= level:
                relevant_scores.append(score)
            else:
                other_scores.append(score)
    return relevant_scores, other_scores


def _read_manifests(paths: Mapping[str, str]) -> dict[str, Manifest]:
    """Return the manifests of the runs that have one, by the names of the runs."""
    manifests = {}
    for name, path in paths.items():
        if beside(path).is_file():
            manifests[name] = read_manifest(path, Kind.RUN)
    return manifests


def _with_recorded_sources(
    sources: ReportSources, manifests: Mapping[str, Manifest]
) -> ReportSources:
    """Return the sources; topics and corpus, if not given, are the first ones that runs record."""
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


def _recorded_costs(manifests: Mapping[str, Manifest]) -> Costs:
    """Return the size of each run's indexes, and the time of a query."""
    sizes: dict[str, float] = {}
    times: dict[str, float] = {}
    for name, manifest in manifests.items():
        sizes[name] = sum(index.get("bytes") or 0 for index in indexes_of(manifest.made_from))
        times[name] = _seconds_of_query(manifest)
    return {("index size", "B"): sizes, ("latency of a query", "s"): times}


def _seconds_of_query(manifest: Manifest) -> float:
    """Return the mean time of a query that the manifest of a run records; 0 if it records none."""
    seconds = manifest.contents.get("seconds")
    query_count = manifest.contents.get("queries")
    if not seconds or not query_count:
        return 0
    return float(sum(seconds.values()) / query_count)


def _first_existing(names: Sequence[str | None]) -> str | None:
    """Return the first name of a file or folder that is there."""
    for name in names:
        if name and name != STREAM and Path(name).exists():
            return name
    return None


def _draw_recall(profiles: Sequence[Profile], level: int) -> Figure:
    """Draw the recall of runs by depth."""
    axes = _named_lines({profile.name: profile.recall for profile in profiles})
    axes.set(xlabel="depth", ylabel="recall", ylim=(0, 1.02), xscale="log")
    axes.xaxis.set_major_formatter("{x:,g}")
    image = as_image(axes, "Recall by depth, a line per run")
    grades = "" if level == 1 else f" of grade {level} or higher"
    caption = (
        f"Recall by depth: the share of the relevant passages{grades} among the first hits, mean "
        "over queries."
    )
    return {"image": image, "caption": caption}


def _draw_costs(result: EvaluationResult, measure: str, costs: Costs) -> Iterator[Figure]:
    """Draw effectiveness against index size and against latency, where manifests know them."""
    from matplotlib.ticker import EngFormatter

    for (title, unit), cost_by_run in costs.items():
        costs_of_runs = {name: cost for name, cost in cost_by_run.items() if cost}
        if not costs_of_runs:
            continue
        points: dict[str, list[tuple[float, float]]] = {}
        for run in result.runs:
            points[run.name] = []
            if run.name in costs_of_runs:
                points[run.name] = [(costs_of_runs[run.name], run.summary[measure])]
        axes = _named_lines(points)
        axes.set(xlabel=title, ylabel=measure)
        formatter = EngFormatter(unit)
        axes.xaxis.set_major_formatter(formatter)
        image = as_image(axes, f"{measure} against {title}, a mark per run")
        texts = []
        for name, cost in costs_of_runs.items():
            rounded = float(f"{cost:.3g}")
            texts.append(f"{name} {formatter(rounded)}")
        caption = f"{measure} against {title}, from the manifests: {', '.join(texts)}."
        yield {"image": image, "caption": caption}


def _draw_scores(profile: Profile) -> Figure:
    """Draw how the scores of relevant hits and of others are distributed, each in per cent."""
    axes = new_axes(4.4, 2.6)
    axes.hist(
        profile.scores,
        BINS,
        weights=[np.full(len(scores), 100 / max(len(scores), 1)) for scores in profile.scores],
        label=["relevant", "not relevant or not judged"],
        color=list(INKS[:2]),
        histtype="step",
        lw=1.4,
    )
    axes.figure.legend(loc="outside upper center", ncols=2)
    axes.set_xlabel("score")
    axes.yaxis.set_major_formatter("{x:g} %")
    image = as_image(axes, f"Scores of {profile.name}, relevant hits and others")
    relevant_scores, other_scores = profile.scores
    counts = f"{len(relevant_scores):,} relevant and {len(other_scores):,} other hits"
    return {"image": image, "caption": f"{profile.name}: scores of {counts}."}


def _named_lines(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    """Draw a line for each run, or a mark if it has one point, with the runs' names below."""
    axes = new_axes(4.4, 2.7 + 0.19 * len(lines))
    draw_lines(axes, lines, "lower center")
    return axes
