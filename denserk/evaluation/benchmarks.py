"""Results on several benchmarks, and the means over groups of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.published import PublishedRow
from denserk.settings.benchmarks import Benchmark, find_benchmark, groups_within

Values = Mapping[str, float]  # measure -> value


@dataclass(frozen=True)
class BenchmarksResult:
    """Runs on several benchmarks.

    Attributes:
        runs: names of the folders of runs.
        results: benchmark -> its result; a run that a folder lacks is not in it.
        published: the rows of papers beside them.
    """

    runs: tuple[str, ...]
    results: Mapping[str, EvaluationResult]
    published: tuple[PublishedRow, ...] = ()

    @property
    def measures(self) -> tuple[str, ...]:
        """All measures, each once, in order."""
        found = (str(m) for result in self.results.values() for m in result.measures)
        return tuple(dict.fromkeys(found))

    def values(self, name: str, run: str) -> Values | None:
        """Return the values of a run on a benchmark, or its mean over a group.

        None where the run lacks a benchmark. A measure that some members do not have has no mean.
        """
        entry = find_benchmark(name)
        if isinstance(entry, Benchmark):
            result = self.results.get(entry.name)
            return next((r.summary for r in result.runs if r.name == run), None) if result else None
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
