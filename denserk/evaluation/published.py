"""The papers' own figures, and the rows of them that belong beside a suite's results.

One CSV file a paper under `denserk/recipes/`: a line for each printed value, with the table and row
it stands in, the system, its setting, the data set and the measure as the paper calls them.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from denserk.settings.benchmarks import Benchmark, Group, Paper, find_benchmark
from denserk.settings.recipes import FOLDER


class Figure(NamedTuple):
    """One value that a paper prints.

    `table` names table and row (T2.3), `label` the data set, `metric` the measure, in the paper's
    words; `value` is as printed.
    """

    table: str
    system: str
    setting: str
    label: str
    metric: str
    value: str


@dataclass(frozen=True)
class PublishedRow:
    """What one paper says of one system on one suite.

    Attributes:
        paper: whose table it is.
        suite: the suite, or the group whose mean it is.
        table: table and row.
        system: the model, in the paper's words.
        setting: how it was trained or run, in few words.
        values: measure -> value as printed.
    """

    paper: Paper
    suite: str
    table: str
    system: str
    setting: str
    values: Mapping[str, str] = field(default_factory=dict)


@cache
def figures(paper: Paper) -> tuple[Figure, ...]:
    """Every value that is kept of a paper, in the order of its tables."""
    text = (FOLDER / f"{paper}.csv").read_text("utf-8")
    rows = csv.reader(text.splitlines())
    assert tuple(next(rows)) == Figure._fields
    return tuple(Figure(*row) for row in rows)


def published_rows(paper: Paper, suite: str) -> tuple[PublishedRow, ...]:
    """The rows of a paper that report a suite, or the mean of a group.

    >>> row = published_rows(Paper.AGGRETRIEVER, "msmarco-dev")[0]
    >>> row.system, row.values["RR@10"], row.values["R@1000"]
    ('BM25', '0.188', '0.858')
    """
    entry = find_benchmark(suite)
    label = entry.labels.get(paper)
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for figure in figures(paper) if label is not None else ():
        measure = _measure(entry, paper, figure.metric)
        if figure.label == label and measure is not None:
            key = (figure.table, figure.system, figure.setting)
            found.setdefault(key, {})[measure] = figure.value
    return tuple(PublishedRow(paper, entry.name, *key, values) for key, values in found.items())


def _measure(entry: Benchmark | Group, paper: Paper, metric: str) -> str | None:
    suite = entry
    while isinstance(suite, Group):
        suite = find_benchmark(suite.members[0])
    return suite.measure_of(paper, metric)


def published_measures(rows: Sequence[PublishedRow]) -> list[str]:
    """The measures that rows report, each once, in order."""
    return list(dict.fromkeys(measure for row in rows for measure in row.values))
