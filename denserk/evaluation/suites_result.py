"""Several suites' results side by side, and the means that are reported of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.published import PublishedRow
from denserk.settings.suite import Group, Suite
from denserk.settings.suites import find_suite, groups_within

Values = Mapping[str, float]
"""Measure -> value."""


@dataclass(frozen=True)
class SuitesResult:
    """Runs on several suites.

    Attributes:
        runs: what the folders of runs are called.
        results: suite -> its result; a run that a folder lacks is not in it.
        published: the papers' rows beside them.
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
        """The values of a run on a suite, or its mean over a group; None where a set is missing.

        A measure that some members do not have has no mean.
        """
        entry = find_suite(name)
        if isinstance(entry, Suite):
            result = self.results.get(entry.name)
            found = [one.summary for one in result.runs if one.name == run] if result else []
            return found[0] if found else None
        return self._mean(entry, run)

    def _mean(self, group: Group, run: str) -> Values | None:
        members = [self.values(member, run) for member in group.members]
        present = [values for values in members if values is not None]
        if len(present) < len(members):
            return None
        return {
            measure: math.fsum(values[measure] for values in present) / len(present)
            for measure in present[0]
            if all(measure in values for values in present)
        }

    def rows(self) -> Iterator[tuple[str, list[Values | None]]]:
        """Suites and then the means that can be told: (name, each run's values)."""
        groups = [group.name for group in groups_within(self.results)]
        for name in (*self.results, *groups):
            values = [self.values(name, run) for run in self.runs]
            if any(values):
                yield name, values
