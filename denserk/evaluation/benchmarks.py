"""Evaluation on benchmarks by name, and the published results on them.

A benchmark names its qrels or answers, its measures and its rules (`recipes/benchmarks.yaml`).
Published results are one CSV file per paper beside it: a line for each printed value, with table
and row, system, setting, dataset and measure as the paper calls them.
"""

import csv
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from denserk.config import benchmarks as config
from denserk.config.evaluation import EvalSettings
from denserk.config.options import FOLDER
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.evaluator import evaluate, short_names
from denserk.evaluation.results import BenchmarksResult, EvaluationResult, PublishedRow
from denserk.io.data_sets import find_parts
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, beside, read_manifest

logger = logging.getLogger(__name__)

ENDINGS = ("", ".trec", ".txt", ".tsv", ".run", ".jsonl")  # of runs in a folder, .gz or not


def evaluate_benchmark(
    runs: Sequence[str],
    benchmark: config.Benchmark,
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> EvaluationResult:
    """Evaluate runs on one benchmark, whose measures hold unless `settings` name some.

    The measures that the papers in `against` report are computed too.
    """
    settings = settings or EvalSettings()
    corpus = benchmark.corpus.name
    own = f"{benchmark.name} (corpus {corpus})"
    for path in runs:
        recorded = path != STREAM and beside(path).is_file()
        made = read_manifest(path, Kind.RUN).made_from.get("suite") if recorded else None
        if made is not None and (other := f"{made['name']} (corpus {made['corpus']})") != own:
            hint = f"denserk benchmark {made['name']} --runs {path}"
            raise MismatchError(f"{path} was made for {other}, not for {own}", hint)
        if made is None and corpus == "msmarco-passage-titled":
            logger.info(f"{path} has no manifest: assumed to be a run on the titled corpus")
    rows = _published(against, [benchmark.name])
    reported = (measure for row in rows for measure in row.values)
    measures = settings.measures or (*benchmark.measures, *reported)
    remove = settings.remove_query or benchmark.remove_query
    regex = settings.regex or benchmark.regex
    settings = replace(settings, measures=measures, remove_query=remove, regex=regex)
    if benchmark.answers is None:
        qrels = find_parts([benchmark], ["qrels"])[benchmark.name]["qrels"]
        result = evaluate(runs, qrels, settings)
    else:
        from denserk.evaluation.answers import evaluate_answers

        parts = find_parts([benchmark], ["answers", "corpus"])[benchmark.name]
        result = evaluate_answers(runs, parts["answers"], parts["corpus"], settings)
    names = set(map(str, result.measures))
    cut = (replace(row, values={m: v for m, v in row.values.items() if m in names}) for row in rows)
    return replace(result, published=tuple(row for row in cut if row.values))


def evaluate_benchmarks(
    folders: Sequence[str],
    names: Sequence[str],
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> BenchmarksResult:
    """Evaluate folders of runs, such as scifact.trec, on several benchmarks and groups."""
    asked, called = config.find_benchmarks(names), short_names(folders)
    paths: dict[str, dict[str, str]] = {benchmark.name: {} for benchmark in asked}
    for folder, name in zip(folders, called, strict=True):
        found = {each.name: run_in_folder(folder, each) for each in asked}
        for title, path in found.items():
            if path is not None:
                paths[title][name] = str(path)
        missing = [title for title, path in found.items() if path is None]
        if len(missing) == len(asked):
            hint = f"runs are named by benchmark, for example {asked[0].short}.trec"
            raise UsageError(f"{folder} holds no run of {', '.join(names)}", hint)
        if missing:
            logger.warning(f"{folder} has no run of {', '.join(missing)}: no mean that needs them")
    asked = tuple(benchmark for benchmark in asked if paths[benchmark.name])
    find_parts(asked, ["qrels", "answers"])  # reports all missing parts at once
    results = {}
    for benchmark in asked:
        runs = paths[benchmark.name]
        result = evaluate_benchmark(list(runs.values()), benchmark, settings)
        named = (replace(run, name=name) for name, run in zip(runs, result.runs, strict=True))
        results[benchmark.name] = replace(result, runs=tuple(named))
    shown = [*results, *(group.name for group in config.groups_within(results))]
    return BenchmarksResult(tuple(called), results, _published(against, shown))


def run_in_folder(folder: str | Path, benchmark: config.Benchmark) -> Path | None:
    """Return the run of a benchmark in a folder of runs, if any; several are an error."""
    if not Path(folder).is_dir():
        hint = "name folders of runs named by benchmark, or one benchmark"
        raise UsageError(f"{folder}: several benchmarks are asked for, and a run is of one", hint)
    name = benchmark.name
    stems = dict.fromkeys((benchmark.short, name.removeprefix("beir/"), name))
    names = (f"{stem}{ending}{gz}" for stem in stems for ending in ENDINGS for gz in ("", ".gz"))
    found = [path for name in names if (path := Path(folder) / name).is_file()]
    if len(found) > 1:
        several = ", ".join(path.name for path in found)
        raise UsageError(f"{folder} holds several runs of {name}: {several}", "keep one")
    return found[0] if found else None


def _published(against: Sequence[config.Paper], names: Sequence[str]) -> tuple[PublishedRow, ...]:
    """Return what papers report on benchmarks and groups; log where they report nothing."""
    found: list[PublishedRow] = []
    for paper in dict.fromkeys(against):
        rows = [row for name in names for row in published_rows(paper, name)]
        if not rows:
            # the paper may use the same qrels on another corpus
            every = config.benchmarks().values()
            qrels = [one.qrels for one in every if one.name in names and one.qrels is not None]
            others = [o.name for of in qrels for o in every if o.qrels == of and paper in o.labels]
            instead = f"; it does on {', '.join(others)}" if others else ""
            logger.info(f"{paper} reports nothing on {', '.join(names)}{instead}")
        found += rows
    return tuple(found)


@cache
def figures(paper: config.Paper) -> tuple[Mapping[str, str], ...]:
    """Return all values of a paper, in the order of its tables, by the columns of its file."""
    return tuple(csv.DictReader((FOLDER / f"{paper}.csv").read_text("utf-8").splitlines()))


def published_rows(paper: config.Paper, name: str) -> tuple[PublishedRow, ...]:
    """Return what a paper reports on a benchmark, or as the mean of a group.

    >>> row = published_rows(config.Paper.AGGRETRIEVER, "msmarco-dev")[0]
    >>> row.system, row.values["RR@10"], row.values["R@1000"]
    ('BM25', '0.188', '0.858')
    """
    entry = config.find_benchmark(name)
    label = entry.labels.get(paper)
    member = entry
    while isinstance(member, config.Group):
        member = config.find_benchmark(member.members[0])
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for figure in figures(paper):
        metric = figure["metric"]
        measure = member.metrics.get(f"{paper} {metric}", member.metrics.get(metric))
        if figure["label"] == label and measure is not None:
            key = (figure["table"], figure["system"], figure["setting"])
            found.setdefault(key, {})[measure] = figure["value"]
    return tuple(PublishedRow(paper, entry.name, *key, values) for key, values in found.items())
