"""Runs against a baseline: every run and measure tested, and the tests corrected together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from denserk.errors import UsageError
from denserk.evaluation.measures import Measure, is_mean
from denserk.evaluation.significance import Difference, compare, correct, correction_factors
from denserk.settings.comparison import ComparisonSettings

PerQuery = Mapping[str, Mapping[str, float]]
"""Measure -> query id -> value."""


@dataclass(frozen=True)
class Comparison:
    """The differences of runs from a baseline.

    Attributes:
        baseline: its name.
        settings: how they were tested.
        differences: run -> measure -> difference; counts are not compared.
    """

    baseline: str
    settings: ComparisonSettings
    differences: Mapping[str, Mapping[str, Difference]]

    def significant(self, run: str, measure: str) -> bool:
        """Whether a run's difference in a measure has a corrected p-value below alpha."""
        found = self.differences.get(run, {}).get(measure)
        return found is not None and found.corrected < self.settings.alpha


def compare_with(
    runs: Mapping[str, PerQuery],
    measures: Sequence[Measure],
    baseline: str,
    settings: ComparisonSettings,
) -> Comparison:
    """Tests every other run against one of them.

    Args:
        runs: each run's values by its name.
        measures: what they hold.
        baseline: the name of a run among them.
        settings: test, correction, level.

    Raises:
        UsageError: there is no other run.
    """
    others = [name for name in runs if name != baseline]
    if not others:
        raise UsageError(f"--baseline {baseline} is the only run", "name a run to compare with it")
    names = [str(measure) for measure in measures if is_mean(measure)]
    found = {
        (run, measure): compare(
            runs[run][measure],
            runs[baseline][measure],
            settings.test,
            confidence=1 - settings.alpha,
            permutations=settings.permutations,
            seed=settings.test_seed,
        )
        for run in others
        for measure in names
    }
    factors = correction_factors([one.p for one in found.values()], settings.correction)
    differences: dict[str, dict[str, Difference]] = {run: {} for run in others}
    for ((name, measure), difference), factor in zip(found.items(), factors, strict=True):
        differences[name][measure] = correct(difference, factor, settings.alpha)
    return Comparison(baseline, settings, differences)
