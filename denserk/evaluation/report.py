"""The HTML report of runs (`--report`): tables, curves, differences by query and passages.

The page is `report.html`, a Jinja template that escapes every text; plots are SVG by matplotlib.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from denserk import __version__
from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvalSettings, PageSettings, ReportSettings, ReportSources
from denserk.errors import UsageError
from denserk.evaluation.benchmarks import BenchmarksResult
from denserk.evaluation.evaluator import (
    EvaluationResult,
    Evaluator,
    Judgments,
    Run,
    first_hits,
    read_hits,
    remarks,
)
from denserk.evaluation.measures import is_count, parse_measures
from denserk.evaluation.tables import tables
from denserk.extras import require
from denserk.io.corpus import find_records, read_passages
from denserk.io.data_sets import find_parts, local_copy
from denserk.io.files import STREAM, read_file, whole_text, write_errors
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    corpora_of,
    decoded,
    indexes_of,
    read_manifest,
)
from denserk.io.plots import INKS, as_image, draw_lines, new_axes, style
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries

NAME = "index.html"
BINS = 30  # of the scores
MOST_ROWS = 10_000  # rows of the table of queries; browsers become slow with more
# depths of the recall curve, as far as a run reaches
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)
Figure = dict[str, str]  # a plot: `image` and `caption`
# the benchmark that retrievers are trained for; the first one that has a result is taken
IN_DOMAIN = ("msmarco-dev", "beir/msmarco", "msmarco-titled-dev", "dl19", "dl20")


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Return the path of the page; called before the work, so that mistakes show early."""
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
    measure, level = str((compared or result.measures)[0]), _level(result)
    baseline = result.comparison.baseline if result.comparison else None
    reference = names.index(baseline) if baseline in names else 0
    rows = query_rows(result, measure, reference)
    manifests = [read_manifest(r, Kind.RUN) if beside(r).is_file() else None for r in runs]
    sources = _completed(sources, filter(None, manifests))
    profiles, moved = [], rows[:0]
    if sources.qrels is not None:
        judgments, moved = read_qrels_map(sources.qrels), rows[: settings.report_queries]
        for path, name in zip(runs, names, strict=True):
            shown = [row["qid"] for row in moved]
            run = read_hits(path, settings)
            profiles.append(_profile(name, run, judgments, level, shown, settings))
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
        costs = list(_costs(result, measure, manifests))
    said = [text for run in result.runs for _, text in remarks(run, result, settings.complete)]
    computed = (f"{', '.join(known)} by {who}" for who, known in result.providers.items())
    return _write(
        page_in(settings),
        title=sources.title,
        subtitle=f"{len(result.queries):,} queries",
        runs=names,
        tables=tables(result, ReportSettings()),
        figures=[*recall, *costs],
        costs=costs,
        scores=scores,
        notes=[*said, f"Computed through ir-measures: {'; '.join(computed)}."],
        profiles=profiles,
        queries=queries,
        passages=passages,
        level=level,
        measure=measure,
        reference=names[reference],
        moved=moved,
        rows=rows[:MOST_ROWS],
    )


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path."""
    with style():
        figures = list(_transfer(result))
    return _write(
        page_in(settings),
        title="Runs on several benchmarks",
        subtitle=f"{len(result.results):,} benchmarks",
        runs=result.runs,
        tables=tables(result, ReportSettings()),
        figures=figures,
        in_domain=IN_DOMAIN,
    )


def _write(path: Path, **content: Any) -> Path:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader("denserk", "evaluation"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(content, version=__version__)
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


def _profile(
    name: str, run: Run, judged: Judgments, level: int, qids: Sequence[str], settings: EvalSettings
) -> dict[str, Any]:
    """Return recall by depth, scores of relevant hits and of others, first hits of some queries."""
    ranked = {qid: first_hits(hits, len(hits)) for qid, hits in run.items() if qid in judged}
    deepest = max(map(len, ranked.values()))
    depths = [*(depth for depth in DEPTHS if depth < deepest), deepest]
    measures = parse_measures([f"R(rel={level})@{depth}" for depth in depths]).measures
    evaluator = Evaluator(measures, judged, complete=settings.complete)
    scores: tuple[list[float], list[float]] = ([], [])
    for qid, hits in ranked.items():
        for docid, score in hits.items():
            scores[judged[qid].get(docid, level - 1) < level].append(score)
    lists = {}
    for qid in qids:
        hits, grades = ranked.get(qid, {}), judged[qid]
        ranks = (rank for rank, d in enumerate(hits, start=1) if grades.get(d, level - 1) >= level)
        first = islice(hits.items(), settings.report_passages)
        best = [(d, score, grades.get(d)) for d, score in first]
        lists[qid] = {"top": best, "first_relevant": next(ranks, None), "hits": len(hits)}
    recall = list(zip(depths, evaluator.evaluate(name, run).summary.values(), strict=True))
    return {"name": name, "recall": recall, "scores": scores, "lists": lists}


def _level(result: EvaluationResult) -> int:
    """Return the lowest grade that counts as relevant: that of recall, or of another measure."""
    levels = {m.NAME: int(m.params["rel"]) for m in reversed(result.measures) if "rel" in m.params}
    return levels.get("R", next(iter(reversed(levels.values())), result.relevance_level))


def _completed(sources: ReportSources, manifests: Iterable[Manifest]) -> ReportSources:
    """Add the queries and passages that the manifests of the runs name, where they still exist."""
    topics: list[str | None] = []
    corpora: list[str | None] = []
    for manifest in manifests:
        topics.append((manifest.made_from.get("topics") or {}).get("name"))
        for index in indexes_of(manifest.made_from):
            if (where := beside(index["name"])).is_file():
                corpora += [name for name, _ in corpora_of(decoded(read_file(where), where))]
    found = [
        next((name for name in names if name and name != STREAM and Path(name).exists()), None)
        for names in (topics, corpora)
    ]
    return replace(sources, topics=sources.topics or found[0], corpus=sources.corpus or found[1])


def _recall(profiles: Sequence[Mapping[str, Any]], level: int) -> Figure:
    axes = _named_lines({one["name"]: one["recall"] for one in profiles})
    axes.set(xlabel="depth", ylabel="recall", ylim=(0, 1.02), xscale="log")
    axes.xaxis.set_major_formatter("{x:,g}")
    grades = "" if level == 1 else f" of grade {level} or higher"
    return {
        "image": as_image(axes, "Recall by depth, a line per run"),
        "caption": f"Recall by depth: the share of the relevant passages{grades} among the first "
        "hits, mean over queries.",
    }


def _costs(
    result: EvaluationResult, measure: str, manifests: Sequence[Manifest | None]
) -> Iterator[Figure]:
    """Draw effectiveness against index size and against latency, where manifests know them."""
    from matplotlib.ticker import EngFormatter

    sizes, times = {}, {}
    for run, manifest in zip(result.runs, manifests, strict=True):
        if manifest is not None:
            sizes[run.name] = sum(
                index.get("bytes") or 0 for index in indexes_of(manifest.made_from)
            )
            seconds, queries = manifest.contents.get("seconds"), manifest.contents.get("queries")
            times[run.name] = sum(seconds.values()) / queries if seconds and queries else None
    for title, unit, costs in (("index size", "B", sizes), ("latency of a query", "s", times)):
        known = {name: cost for name, cost in costs.items() if cost}
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


def _transfer(result: BenchmarksResult) -> Iterator[Figure]:
    """Draw in-domain against zero-shot effectiveness, of the runs that have all benchmarks."""
    home = next((name for name in IN_DOMAIN if name in result.results), None)
    away = [name for name in result.results if name.startswith("beir/") and name not in IN_DOMAIN]
    if home is None or not away:
        return
    measures = [list(map(str, result.results[name].measures)) for name in away]
    shared = [m for m in measures[0] if all(m in others for others in measures)]
    inside, outside = str(result.results[home].measures[0]), (shared or [""])[0]
    points: dict[str, list[tuple[float, float]]] = {}
    for run in result.runs:
        values = [
            (result.values(name, run) or {}).get(measure, math.nan)
            for name, measure in ((home, inside), *((name, outside) for name in away))
        ]
        points[run] = [] if math.isnan(sum(values)) else [(values[0], float(np.mean(values[1:])))]
    if any(points.values()):
        axes = _named_lines(points)
        axes.set(xlabel=f"{inside} on {home}", ylabel=f"mean {outside} on BEIR datasets")
        image = as_image(axes, "Zero-shot against in-domain effectiveness, a mark per run")
        caption = f"In-domain ({home}) against zero-shot ({', '.join(away)})."
        yield {"image": image, "caption": caption}


def _named_lines(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    axes = new_axes(4.4, 2.7 + 0.19 * len(lines))
    draw_lines(axes, lines, "lower center")
    return axes
