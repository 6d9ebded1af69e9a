"""Evaluation on benchmarks by name, and the published results on them.

A benchmark names its qrels or answers, its measures and its rules (`recipes/benchmarks.yaml`).
Published results are one CSV file per paper beside it: a line for each printed value, with table
and row, system, setting, dataset and measure as the paper calls them.
"""

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from denserk.config import benchmarks as config
from denserk.config.yaml_files import RECIPES
from denserk.errors import UsageError
from denserk.evaluation.results import PublishedRow

logger = logging.getLogger(__name__)

# of the runs that are looked for in a folder; each may be .gz, too
RUN_ENDINGS = ("", ".trec", ".txt", ".tsv", ".run", ".jsonl")


def run_in_folder(folder: str | Path, benchmark: config.Benchmark) -> Path | None:
    """Return the run of a benchmark in a folder of runs, if any; several are an error."""
    if not Path(folder).is_dir():
        hint = "name folders of runs named by benchmark, or one benchmark"
        raise UsageError(f"{folder}: several benchmarks are asked for, and a run is of one", hint)
    paths = [Path(folder) / name for name in _run_names(benchmark)]
    runs = [path for path in paths if path.is_file()]
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs)
        message = f"{folder} holds several runs of {benchmark.name}: {names}"
        raise UsageError(message, "keep one")
    return runs[0] if runs else None


def _run_names(benchmark: config.Benchmark) -> Iterator[str]:
    """Yield the names that a run of a benchmark may have in a folder of runs."""
    stems = (benchmark.short, benchmark.name.removeprefix("beir/"), benchmark.name)
    for stem in dict.fromkeys(stems):
        for ending in RUN_ENDINGS:
            yield f"{stem}{ending}"
            yield f"{stem}{ending}.gz"


def published_by(against: Sequence[config.Paper], names: Sequence[str]) -> tuple[PublishedRow, ...]:
    """Return what papers report on benchmarks and groups; log where they report nothing."""
    published: list[PublishedRow] = []
    for paper in dict.fromkeys(against):
        rows_of_paper: list[PublishedRow] = []
        for name in names:
            rows_of_paper += published_rows(paper, name)
        if not rows_of_paper:
            message = f"{paper} reports nothing on {', '.join(names)}"
            names_on_other_corpora = _on_other_corpora(paper, names)
            if names_on_other_corpora:
                message += f"; it does on {', '.join(names_on_other_corpora)}"
            logger.info(message)
        published += rows_of_paper
    return tuple(published)


def _on_other_corpora(paper: config.Paper, names: Sequence[str]) -> list[str]:
    """Return the benchmarks with the same qrels as those with `names` that a paper reports on."""
    benchmarks = config.benchmarks().values()
    reported_names = []
    for benchmark in benchmarks:
        if benchmark.name not in names or benchmark.qrels is None:
            continue
        for candidate in benchmarks:
            if candidate.qrels == benchmark.qrels and paper in candidate.labels:
                reported_names.append(candidate.name)
    return reported_names


@cache
def figures(paper: config.Paper) -> tuple[Mapping[str, str], ...]:
    """Return all values of a paper, in the order of its tables, by the columns of its file."""
    return tuple(csv.DictReader((RECIPES / f"{paper}.csv").read_text("utf-8").splitlines()))


def published_rows(paper: config.Paper, name: str) -> tuple[PublishedRow, ...]:
    """Return what a paper reports on a benchmark, or as the mean of a group.

    >>> row = published_rows(config.Paper.AGGRETRIEVER, "msmarco-dev")[0]
    >>> row.system, row.values["RR@10"], row.values["R@1000"]
    ('BM25', '0.188', '0.858')
    """
    entry = config.find_benchmark(name)
    label = entry.labels.get(paper)
    benchmark = _first_benchmark(entry)
    values_by_row: dict[tuple[str, str, str], dict[str, str]] = {}  # table, system, setting
    for figure in figures(paper):
        metric = figure["metric"]
        metric_of_paper = f"{paper} {metric}"
        measure = benchmark.metrics.get(metric_of_paper, benchmark.metrics.get(metric))
        if figure["label"] == label and measure is not None:
            row = (figure["table"], figure["system"], figure["setting"])
            values_by_row.setdefault(row, {})[measure] = figure["value"]
    return tuple(
        PublishedRow(paper, entry.name, table, system, setting, values)
        for (table, system, setting), values in values_by_row.items()
    )


def _first_benchmark(entry: config.Benchmark | config.Group) -> config.Benchmark:
    """Return a benchmark, or the first one of a group, which may consist of groups."""
    while isinstance(entry, config.Group):
        entry = config.find_benchmark(entry.members[0])
    return entry
