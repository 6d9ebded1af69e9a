"""Results of an evaluation: measures of runs, comparisons with a baseline, published rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from denserk.config import benchmarks as config
from denserk.config.evaluation import ComparisonSettings, Correction
from denserk.evaluation.measures import Measure
from denserk.evaluation.prediction_powered import Gain
from denserk.evaluation.t_test_power import is_rough
from denserk.evaluation.unjudged_results import UnjudgedBounds

Run = Mapping[str, Mapping[str, float]]  # query id -> passage id -> score
Grades = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade
Values = Mapping[str, float]  # measure -> value


@dataclass(frozen=True)
class Difference:
    """How a run differs from a baseline in one measure: run minus baseline over the queries."""

    mean: float
    low: float  # of the confidence interval of the mean (Student's t), corrected like `corrected`
    high: float
    effect: float  # Cohen's d of paired samples: mean over standard deviation of the differences
    p: float  # two-sided p-value of the test, before any correction
    wins: int  # queries on which the run is better
    ties: int
    losses: int
    corrected: float  # the p-value after the correction
    # what these queries can show: see `power.with_power`
    level: float = math.nan  # of the test after the correction
    detectable: float = math.nan  # the smallest true difference that is probably significant
    roughness: float = math.nan  # of the power; above 1 it may be off by more than 3 points
    needed_queries: int | None = None  # to show the mean, if it is true and not yet significant

    @property
    def query_count(self) -> int:
        """Return the number of queries that both runs have a value for."""
        return self.wins + self.ties + self.losses

    def is_rough(self, query_count: int) -> bool:
        """Return whether the power of so many queries may be off by more than 3 points."""
        return is_rough(self.roughness, self.query_count, query_count)


@dataclass(frozen=True)
class Comparison:
    """The differences of runs from a baseline: run -> measure; counts are not compared."""

    baseline: str
    settings: ComparisonSettings
    differences: Mapping[str, Mapping[str, Difference]]
    spread: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of (run, measure)

    @property
    def test_count(self) -> int:
        """Return the number of tests that have a p-value: those that a correction counts."""
        p_values = []
        for differences in self.differences.values():
            p_values += [difference.p for difference in differences.values()]
        return sum(not math.isnan(p) for p in p_values)

    def significant(self, run: str, measure: str) -> bool:
        """Return whether a difference has a corrected p-value below alpha.

        Of systems over seeds, it is also larger than their spread: the root mean square of the
        standard deviations of both.
        """
        difference = self.differences.get(run, {}).get(measure)
        if difference is None or math.isnan(difference.corrected):
            return False
        if difference.corrected >= self.settings.alpha:
            return False
        return abs(difference.mean) > self.spread.get((run, measure), 0.0)


class Sample(StrEnum):
    """What is known of how the human-judged queries were chosen among the predicted ones."""

    DRAWN = "drawn"  # they are the first ones of a recorded random draw
    NOT_FIRST = "not the first of the draw"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MeanInterval:
    """A mean over queries and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PoweredMean:
    """A mean by human labels of few queries, without and with predicted labels of many."""

    human: MeanInterval  # by the human-judged queries alone
    powered: MeanInterval  # with predicted labels; the same as `human` where they do not help
    correlation: float  # of the values by both labels on the human-judged queries
    weight: float  # of the predictions, from 0 to 1
    effective_queries: float  # human-judged ones that alone would give the powered interval
    gain: Gain


@dataclass(frozen=True)
class PoweredDifference(PoweredMean):
    """The same of a difference: run minus baseline over the queries."""

    p: float  # two-sided p-value of the powered difference (Student's t)
    corrected: float  # after the correction, as the interval is


@dataclass(frozen=True)
class PredictedLabels:
    """Means and differences of runs by human labels of few queries and predicted ones of many."""

    human_queries: int
    predicted_queries: int  # the human-judged ones among them
    sample: Sample
    seed: int | None  # of the draw, if one is known
    alpha: float
    correction: Correction
    means: Mapping[str, Mapping[str, PoweredMean]]  # run -> measure
    baseline: str | None
    differences: Mapping[str, Mapping[str, PoweredDifference]]  # run -> measure


@dataclass(frozen=True)
class PublishedRow:
    """The published results of one system on one benchmark."""

    paper: config.Paper
    benchmark: str  # the benchmark, or the group whose mean it is
    table: str  # table and row
    system: str  # the model, as the paper calls it
    setting: str  # how it was trained or run
    values: Mapping[str, str] = field(default_factory=dict)  # measure -> value as printed
    is_evaluated: bool = False  # whether the system is a model whose runs are evaluated


@dataclass(frozen=True)
class RunResult:
    """The measures of one run."""

    name: str
    summary: Values
    per_query: Mapping[str, Values]  # measure -> query id -> value, in the order of the qrels
    missing: tuple[str, ...]  # judged queries that the run lacks
    unjudged: tuple[str, ...]  # queries of the run without judgments
    ties: Mapping[str, int]  # query id -> hits with the score of an earlier one, as float32
    hit_of_judged_document: str | None = None  # where no hit is judged itself
    # a hit and a judged passage of its query, where no hit at all is judged
    unjudged_hit: tuple[str, str] | None = None
    over_relations: Values = field(default_factory=dict)  # means of EntityQuestions' relations
    run_id: str | None = None  # the tag of the run, where asked for
    seeds: "tuple[RunResult, ...]" = ()  # the runs of a system
    spread: Values = field(default_factory=dict)  # their standard deviation by measure


@dataclass(frozen=True)
class EvaluationResult:
    """Several runs against the same judgments."""

    measures: tuple[Measure, ...]  # in the order asked for; their `str` is the key of mappings
    relevance_level: int  # the lowest grade that counted as relevant, where a measure named none
    queries: tuple[str, ...]  # all that are judged, in the order of the qrels
    runs: tuple[RunResult, ...]
    providers: Mapping[str, tuple[str, ...]]  # provider of ir-measures -> measures it computed
    comparison: Comparison | None = None
    predicted: PredictedLabels | None = None
    published: tuple[PublishedRow, ...] = ()
    unjudged: UnjudgedBounds | None = None


@dataclass(frozen=True)
class BenchmarksResult:
    """Runs, named by their folders, on benchmarks; a run that a folder lacks is not in a result."""

    runs: tuple[str, ...]
    results: Mapping[str, EvaluationResult]
    published: tuple[PublishedRow, ...] = ()

    def values(self, name: str, run: str) -> Values | None:
        """Return a run's values on a benchmark or means over a group; None if it lacks one."""
        entry = config.find_benchmark(name)
        if isinstance(entry, config.Benchmark):
            return self._values_on_benchmark(entry.name, run)
        values_of_members = []
        for member in entry.members:
            values = self.values(member, run)
            if values is None:
                return None
            values_of_members.append(values)
        return _mean_values(values_of_members)

    def _values_on_benchmark(self, benchmark: str, run: str) -> Values | None:
        """Return a run's values on one benchmark; None if it lacks it."""
        if benchmark not in self.results:
            return None
        for result in self.results[benchmark].runs:
            if result.name == run:
                return result.summary
        return None


def _mean_values(values_of_benchmarks: Sequence[Values]) -> Values:
    """Return the means of the measures that all benchmarks have."""
    means = {}
    for measure in values_of_benchmarks[0]:
        if all(measure in values for values in values_of_benchmarks):
            total = math.fsum(values[measure] for values in values_of_benchmarks)
            means[measure] = total / len(values_of_benchmarks)
    return means
