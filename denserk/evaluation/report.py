"""The plot (`--plot`) and the HTML report (`--report`) of runs.

The page is `report.html`, a Jinja template that escapes every text; plots are SVG by matplotlib.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvalSettings, PageSettings, ReportSettings, ReportSources
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator, first_hits, read_hits, remarks
from denserk.evaluation.measures import is_count, parse_measures
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.evaluation.significance import interval
from denserk.evaluation.tables import DAGGER, Result, difference_note, number, tables
from denserk.extras import require
from denserk.io.corpus import find_records, read_passages
from denserk.io.data_sets import find_parts, local_copy
from denserk.io.files import STREAM, whole_text, write_errors
from denserk.io.manifest import (
    Kind,
    beside,
    corpora_of,
    indexes_of,
    read_any_manifest,
    read_manifest,
)
from denserk.io.plots import INKS, TEXT, as_image, draw_lines, new_axes, style
from denserk.io.topics import read_qrels_map, read_queries
from denserk.version import __version__

ACROSS, LONGEST = 3, 30  # panels of a plot in a row; characters in a line of a run's name
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


def draw(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a point per run and measure, or a curve per run over the cut-offs of one measure."""
    bases = [(m.NAME, {**m.params, "cutoff": None}) for m in result.measures]
    depths = [m.params.get("cutoff", 0) for m in result.measures]
    # one measure at three or more ascending cut-offs
    family = len(depths) > 2 and bases.count(bases[0]) == len(bases) and depths == sorted(depths)
    axes = draw_curves(result, settings) if family else draw_points(result, settings)
    count, level = len(result.queries), 1 - settings.alpha
    notes = f"Means over {count:,} queries with their {level:.0%} intervals"
    if result.comparison is not None:
        known, said = f"{DAGGER} differs", "all but hollow marks differ"
        note = difference_note(result.comparison)
        notes += f"; {note.replace(known, said) if family else note}"
    figure = axes.figure
    lines = fill(notes, int(20 * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=6.5, x=0.01, ha="left")
    return axes


def draw_points(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a panel per measure: means and intervals, runs below each other, values beside them."""
    runs, compared = result.runs, result.comparison
    names = [fill(run.name, LONGEST) for run in runs]
    across = min(ACROSS, len(result.measures))
    down = math.ceil(len(result.measures) / across)
    lines = sum(name.count("\n") + 1.35 for name in names)
    size = (3.4 if across == 1 else 7.0, 0.35 + down * (0.55 + 0.135 * lines))
    grid = np.ravel(new_axes(*size, down, across, sharex=False))
    for axes, measure in zip_longest(grid, result.measures):
        if measure is None:
            axes.set_visible(False)
            continue
        for row, run in enumerate(runs):
            value, name = run.summary[str(measure)], str(measure)
            ink = TEXT if compared and run.name == compared.baseline else INKS[0]
            axes.plot(interval(run, measure, settings.alpha), (row, row), color=ink, lw=1.1)
            axes.plot(value, row, "o", color=ink, ms=4)
            label = number(measure, value, 3)
            if compared and (found := compared.differences.get(run.name, {}).get(name)):
                p = f"={found.corrected:.3f}" if found.corrected >= 5e-4 else "<0.001"
                label += f"{DAGGER * compared.significant(run.name, name)} p{p}"
            if compared and run.name == compared.baseline:
                axes.axvline(value, color=TEXT, lw=0.7, ls=(0, (4, 3)))
            side = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 7}
            axes.text(1.02, row, label, **side)
        axes.set_title(measure, fontsize=8.5 if len(str(measure)) < 22 else 6.5, loc="left")
        axes.set_yticks(range(len(runs)), names)
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.tick_params(length=0, labelsize=7.5)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(visible=False, axis="y")
    return grid[0]


def draw_curves(result: EvaluationResult, settings: EvalSettings) -> Any:
    """Draw a measure over its cut-offs: a curve per run with the band of its intervals."""
    compared, few = result.comparison, len(result.runs) <= FEW
    axes = new_axes(3.4, 2.8 + 0.16 * len(result.runs)) if few else new_axes(7, 3.2)
    depths = [int(measure["cutoff"]) for measure in result.measures]
    means = {run.name: [run.summary[str(m)] for m in result.measures] for run in result.runs}
    points = {name: list(zip(depths, values, strict=True)) for name, values in means.items()}
    lines = {fill(name, LONGEST): line for name, line in points.items()}
    draw_lines(axes, lines, "upper left" if few else "right upper")
    for line, run in zip(list(axes.lines), result.runs, strict=True):
        bands = zip(*(interval(run, m, settings.alpha) for m in result.measures), strict=True)
        axes.fill_between(depths, *bands, color=line.get_color(), alpha=0.13 if few else 0.05, lw=0)
        for (depth, value), measure in zip(points[run.name], result.measures, strict=True):
            tested = compared and str(measure) in compared.differences.get(run.name, {})
            if compared and tested and not compared.significant(run.name, str(measure)):
                marker, color = line.get_marker(), line.get_color()
                axes.plot(depth, value, marker, ms=4, color=color, mfc="white")
    axes.set(xscale="log", xlabel="depth", ylabel=str(result.measures[0]).partition("@")[0])
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    return axes


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Return the path of the page; called before the work, so that mistakes show early."""
    assert settings.report is not None
    require("matplotlib", "--report")
    if Path(settings.report).exists() and not Path(settings.report).is_dir():
        raise UsageError(f"--report {settings.report}: a file; a folder is expected")
    if STREAM in inputs:
        why = "--report reads runs and qrels once more, and standard input can be read only once"
        raise UsageError(why, "write it to a file first")
    return Path(settings.report) / NAME


def sources_of(benchmark: Benchmark, given: ReportSources) -> ReportSources:
    """Return the parts of a benchmark; queries and passages only where they are on this disk."""
    return replace(
        given,
        qrels=find_parts([benchmark], ["qrels"]).get(benchmark.name, {}).get("qrels"),
        topics=given.topics or local_copy(benchmark.topics),
        corpus=given.corpus or local_copy(benchmark.corpus.source),
    )


def write_report(
    result: EvaluationResult, runs: Sequence[str], sources: ReportSources, settings: EvalSettings
) -> Path:
    """Write the page of runs, the files of `result` in its order; return its path."""
    names = [run.name for run in result.runs]
    compared = [measure for measure in result.measures if not is_count(measure)]
    measure = str((compared or result.measures)[0])
    # the lowest grade that counts as relevant: that of recall, or of the first measure with one
    levels = {m.NAME: int(m.params["rel"]) for m in reversed(result.measures) if "rel" in m.params}
    level = levels.get("R", next(iter(reversed(levels.values())), result.relevance_level))
    baseline = result.comparison.baseline if result.comparison else None
    reference = names.index(baseline) if baseline in names else 0
    rows = query_rows(result, measure, reference)
    paths = dict(zip(names, runs, strict=True))
    sources, recorded = _recorded(paths, sources)
    profiles, moved = [], rows[:0]
    if sources.qrels is not None:
        moved = rows[: settings.report_queries]
        shown = [row["qid"] for row in moved]
        profiles = list(_profiles(paths, sources.qrels, level, shown, settings))
    queries, passages = {}, {}
    if sources.topics is not None:
        known = set(result.queries)
        queries = {q.qid: q.text for q in read_queries(sources.topics) if q.qid in known}
    if sources.corpus is not None:
        lists = (many for one in profiles for many in one["lists"].values())
        wanted = {docid for many in lists for docid, *_ in many["top"]}
        corpus = read_passages(sources.corpus, sources.reading)
        passages = find_records(corpus, wanted, sources.corpus)
    with style():
        recall = [_recall(profiles, level)] if profiles else []
        scores = list(map(_scores, profiles))
        costs = list(_costs(result, measure, recorded))
    said = [text for run in result.runs for _, text in remarks(run, result, settings.complete)]
    computed = (f"{', '.join(known)} by {who}" for who, known in result.providers.items())
    page: dict[str, Any] = {"title": sources.title, "subtitle": f"{len(result.queries):,} queries"}
    page |= {"runs": names, "level": level, "measure": measure, "reference": names[reference]}
    page |= {"figures": [*recall, *costs], "costs": costs, "scores": scores, "profiles": profiles}
    page |= {"queries": queries, "passages": passages, "moved": moved, "rows": rows[:MOST_ROWS]}
    page["notes"] = [*said, f"Computed through ir-measures: {'; '.join(computed)}."]
    return _write(settings, result, page)


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path."""
    home = next((name for name in IN_DOMAIN if name in result.results), None)
    away = [name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN]
    figures = []
    points: dict[str, list[tuple[float, float]]] = {}
    if home is not None and away:  # in-domain against zero-shot, of the runs that have all
        measures = [list(map(str, result.results[name].measures)) for name in away]
        shared = [m for m in measures[0] if all(m in others for others in measures)]
        inside, outside = str(result.results[home].measures[0]), (shared or [""])[0]
        wanted = [(home, inside), *((name, outside) for name in away)]
        for run in result.runs:
            values = [(result.values(name, run) or {}).get(m, math.nan) for name, m in wanted]
            mean = float(np.mean(values[1:]))
            points[run] = [] if math.isnan(mean + values[0]) else [(values[0], mean)]
    if any(points.values()):
        with style():
            axes = _named_lines(points)
            axes.set(xlabel=f"{inside} on {home}", ylabel=f"mean {outside} on BEIR datasets")
            image = as_image(axes, "Zero-shot against in-domain effectiveness, a mark per run")
        caption = f"In-domain ({home}) against zero-shot ({', '.join(away)})."
        figures.append({"image": image, "caption": caption})
    page: dict[str, Any] = {"title": "Runs on several benchmarks", "in_domain": IN_DOMAIN}
    page |= {"subtitle": f"{len(result.results):,} benchmarks", "runs": result.runs}
    page["figures"] = figures
    return _write(settings, result, page)


def _write(settings: PageSettings, result: Result, content: Mapping[str, Any]) -> Path:
    import jinja2

    loader = jinja2.PackageLoader("denserk", "evaluation")
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    shown = tables(result, ReportSettings())
    page = pages.get_template("report.html").render(content, tables=shown, version=__version__)
    path = page_in(settings)
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
    return path


def query_rows(result: EvaluationResult, measure: str, reference: int) -> list[dict[str, Any]]:
    """Return all queries, the largest `difference` first; of one run, the lowest value first."""
    rows = []
    for qid in result.queries:
        values = [run.per_query[measure].get(qid, math.nan) for run in result.runs]
        others = (value - values[reference] for n, value in enumerate(values) if n != reference)
        widest = max((d for d in others if not math.isnan(d)), key=abs, default=math.nan)
        key = values[0] if len(values) == 1 else -abs(widest)
        row = {"qid": qid, "values": values, "difference": widest}
        rows.append(((math.isnan(key), key), row))
    return [row for _, row in sorted(rows, key=itemgetter(0))]


def _profiles(
    runs: Mapping[str, str], qrels: str, level: int, qids: Sequence[str], settings: EvalSettings
) -> Iterator[dict[str, Any]]:
    """Yield recall by depth, scores of relevant hits and of others, first hits of some queries."""
    judged = read_qrels_map(qrels)
    for name, path in runs.items():
        run = read_hits(path, settings)
        ranked = {qid: first_hits(hits, len(hits)) for qid, hits in run.items() if qid in judged}
        deepest = max(map(len, ranked.values()))
        depths = [*(depth for depth in DEPTHS if depth < deepest), deepest]
        measures = parse_measures([f"R(rel={level})@{depth}" for depth in depths]).measures
        measured = Evaluator(measures, judged, complete=settings.complete).evaluate(name, run)
        scores: tuple[list[float], list[float]] = ([], [])
        for qid, hits in ranked.items():
            for docid, score in hits.items():
                scores[judged[qid].get(docid, level - 1) < level].append(score)
        lists = {}
        for qid in qids:
            hits, grades = ranked.get(qid, {}), judged[qid]
            first = islice(hits.items(), settings.report_passages)
            best = [(d, score, grades.get(d)) for d, score in first]
            ranks = (n for n, d in enumerate(hits, start=1) if grades.get(d, level - 1) >= level)
            lists[qid] = {"top": best, "first_relevant": next(ranks, None), "hits": len(hits)}
        recall = list(zip(depths, measured.summary.values(), strict=True))
        yield {"name": name, "recall": recall, "scores": scores, "lists": lists}


def _recorded(runs: Mapping[str, str], sources: ReportSources) -> tuple[ReportSources, Costs]:
    """Complete the sources from the manifests of runs, and return the costs that these record."""
    topics: list[str | None] = []
    corpora: list[str | None] = []
    sizes: dict[str, float] = {}
    times: dict[str, float] = {}
    for run, path in runs.items():
        if not beside(path).is_file():
            continue
        manifest = read_manifest(path, Kind.RUN)
        topics.append((manifest.made_from.get("topics") or {}).get("name"))
        indexes = list(indexes_of(manifest.made_from))
        for index in indexes:
            index_manifest = beside(index["name"])
            if index_manifest.is_file():
                sources_of_index = corpora_of(read_any_manifest(index_manifest))
                corpora += [source.name for source in sources_of_index]
        sizes[run] = sum(index.get("bytes") or 0 for index in indexes)
        seconds = manifest.contents.get("seconds")
        queries = manifest.contents.get("queries")
        times[run] = sum(seconds.values()) / queries if seconds and queries else 0
    completed = replace(
        sources,
        topics=sources.topics or _first_existing(topics),
        corpus=sources.corpus or _first_existing(corpora),
    )
    return completed, {("index size", "B"): sizes, ("latency of a query", "s"): times}


def _first_existing(names: Sequence[str | None]) -> str | None:
    """Return the first name of a file or folder that is there."""
    for name in names:
        if name and name != STREAM and Path(name).exists():
            return name
    return None


def _recall(profiles: Sequence[Mapping[str, Any]], level: int) -> Figure:
    axes = _named_lines({one["name"]: one["recall"] for one in profiles})
    axes.set(xlabel="depth", ylabel="recall", ylim=(0, 1.02), xscale="log")
    axes.xaxis.set_major_formatter("{x:,g}")
    grades = "" if level == 1 else f" of grade {level} or higher"
    what = f"the share of the relevant passages{grades} among the first hits, mean over queries"
    image = as_image(axes, "Recall by depth, a line per run")
    return {"image": image, "caption": f"Recall by depth: {what}."}


def _costs(result: EvaluationResult, measure: str, costs: Costs) -> Iterator[Figure]:
    """Draw effectiveness against index size and against latency, where manifests know them."""
    from matplotlib.ticker import EngFormatter

    for (title, unit), of in costs.items():
        known = {name: cost for name, cost in of.items() if cost}
        if not known:
            continue
        points = {
            run.name: [(known[run.name], run.summary[measure])] if run.name in known else []
            for run in result.runs
        }
        axes, shown = _named_lines(points), EngFormatter(unit)
        axes.set(xlabel=title, ylabel=measure)
        axes.xaxis.set_major_formatter(shown)
        listed = ", ".join(f"{name} {shown(float(f'{cost:.3g}'))}" for name, cost in known.items())
        image = as_image(axes, f"{measure} against {title}, a mark per run")
        caption = f"{measure} against {title}, from the manifests: {listed}."
        yield {"image": image, "caption": caption}


def _scores(profile: Mapping[str, Any]) -> Figure:
    name, scores, axes = profile["name"], profile["scores"], new_axes(4.4, 2.6)
    shares = [np.full(len(values), 100 / max(len(values), 1)) for values in scores]
    kinds, looks = ["relevant", "not relevant or not judged"], {"histtype": "step", "lw": 1.4}
    axes.hist(scores, BINS, weights=shares, label=kinds, color=list(INKS[:2]), **looks)
    axes.figure.legend(loc="outside upper center", ncols=2)
    axes.set_xlabel("score")
    axes.yaxis.set_major_formatter("{x:g} %")
    image = as_image(axes, f"Scores of {name}, relevant hits and others")
    counts = f"{len(scores[0]):,} relevant and {len(scores[1]):,} other hits"
    return {"image": image, "caption": f"{name}: scores of {counts}."}


def _named_lines(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    axes = new_axes(4.4, 2.7 + 0.19 * len(lines))
    draw_lines(axes, lines, "lower center")
    return axes
