"""Results of evaluations, as tables, reports and Python callers take them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from denserk.config.benchmarks import Benchmark, Paper, find_benchmark, groups_within
from denserk.evaluation.measures import Measure

if TYPE_CHECKING:
    from denserk.evaluation.significance import Comparison

Run = Mapping[str, Mapping[str, float]]  # query id -> passage id -> score
Judgments = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade
Values = Mapping[str, float]  # measure -> value


@dataclass(frozen=True)
class PublishedRow:
    """The published results of one system on one benchmark.

    Attributes:
        paper: the source.
        suite: the benchmark, or the group whose mean it is.
        table: table and row.
        system: the model, as the paper calls it.
        setting: how it was trained or run.
        values: measure -> value as printed.
    """

    paper: Paper
    suite: str
    table: str
    system: str
    setting: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ties:
    """How many lines of a run have the score of another line of their query, as float32."""

    lines: int
    queries: tuple[str, ...]


@dataclass(frozen=True)
class RunResult:
    """The measures of one run.

    Attributes:
        name: of the run in tables.
        summary: measure -> mean over queries, or sum for counts.
        per_query: measure -> query id -> value, in the order of the qrels.
        missing: judged queries that the run lacks.
        unjudged: queries of the run without judgments.
        ties: lines whose order depends on the reader.
        over_relations: measure -> mean over the means of EntityQuestions' relations.
        run_id: the tag of the run, where asked for.
    """

    name: str
    summary: Values
    per_query: Mapping[str, Mapping[str, float]]
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]
    ties: Ties
    over_relations: Values = field(default_factory=dict)
    run_id: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Several runs against the same judgments.

    Attributes:
        measures: ir-measures' measures, in the order asked for; their `str` is the key of mappings.
        relevance_level: the lowest grade that counted as relevant, where a measure named none.
        queries: all judged queries, in the order of the qrels.
        runs: one result a run.
        providers: which of ir-measures' providers computed what: provider -> measures.
        comparison: significance tests against a baseline, where asked for.
        published: published results to show beside the runs.
    """

    measures: tuple[Measure, ...]
    relevance_level: int
    queries: tuple[str, ...]
    runs: tuple[RunResult, ...]
    providers: Mapping[str, tuple[str, ...]]
    comparison: "Comparison | None" = None
    published: tuple[PublishedRow, ...] = ()


@dataclass(frozen=True)
class BenchmarksResult:
    """Runs on several benchmarks.

    Attributes:
        runs: names of the folders of runs.
        results: benchmark -> its result; a run that a folder lacks is not in it.
        published: published results to show beside them.
    """

    runs: tuple[str, ...]
    results: Mapping[str, EvaluationResult]
    published: tuple[PublishedRow, ...] = ()

    def values(self, name: str, run: str) -> Values | None:
        """Return the values of a run on a benchmark, or its mean over a group.

        None where the run lacks a benchmark. A measure that some members do not have has no mean.
        """
        entry = find_benchmark(name)
        if isinstance(entry, Benchmark):
            runs = self.results[entry.name].runs if entry.name in self.results else ()
            return next((one.summary for one in runs if one.name == run), None)
        members = [self.values(member, run) for member in entry.members]
        present = [values for values in members if values is not None]
        if len(present) < len(members):
            return None
        return {
            measure: math.fsum(values[measure] for values in present) / len(present)
            for measure in present[0]
            if all(measure in values for values in present)
        }

    def rows(self) -> Iterator[tuple[str, list[Values | None]]]:
        """Yield benchmarks and then the known means: (name, values of each run)."""
        groups = [group.name for group in groups_within(self.results)]
        for name in (*self.results, *groups):
            values = [self.values(name, run) for run in self.runs]
            if any(values):
                yield name, values


def published_measures(rows: Sequence[PublishedRow]) -> list[str]:
    """Return the measures that rows report, each once, in order."""
    return list(dict.fromkeys(measure for row in rows for measure in row.values))
