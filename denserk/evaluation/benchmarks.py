"""Evaluation on benchmarks by name, and the published results on them.

A benchmark names its qrels or answers, its measures and its rules (`recipes/benchmarks.yaml`).
Published results are one CSV file per paper beside it: a line for each printed value, with table
and row, system, setting, dataset and measure as the paper calls them.
"""

import csv
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from denserk.config import benchmarks as config
from denserk.config.options import FOLDER
from denserk.errors import UsageError
from denserk.evaluation.results import PublishedRow

logger = logging.getLogger(__name__)

ENDINGS = ("", ".trec", ".txt", ".tsv", ".run", ".jsonl")  # of runs in a folder, .gz or not


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


def published_by(against: Sequence[config.Paper], names: Sequence[str]) -> tuple[PublishedRow, ...]:
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
