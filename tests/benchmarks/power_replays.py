"""Whether `eval` keeps what it promises: power within 3 points of 80 %, and Tukey's error of 5 %.

    python -m tests.benchmarks.power_replays [RUNS] [--replays 10000] [--replays-of-tukey 2000]

Paired differences are simulated: normal, skewed, and of few values as those of reciprocal ranks.
With RUNS, a folder that `docs/results.sh --runs RUNS` has filled (RUNS/COLLECTION/SYSTEM.trec and
qrels.txt), they are also those of the real runs, of which queries are drawn with replacement. Each
replay draws queries, shifted so that the true mean is the stated one, and tests them. A row is
marked where the share of significant replays is off by more than 3 points.
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import Correction, EvaluationSettings
from denserk.evaluation.significance import correction_factors
from denserk.evaluation.t_test_power import POWER, needed_queries, roughness, smallest_difference
from denserk.evaluation.tukey import permuted_ranges, range_p_value
from denserk.reporting import print_table
from denserk.tasks.evaluate import evaluate

Floats = NDArray[np.float64]

ALPHA = 0.05
TOLERANCE = 0.03
BLOCK = 1 << 21  # differences in memory at once
MEASURES = ("nDCG@10", "RR@10", "R@100")
QUERY_COUNTS = (5, 10, 25, 50, 100, 400)
TEST_COUNTS = (1, 12)
LARGEST_SAMPLE = 5000  # queries of a replay of `needed_queries`
NULL_SYSTEMS = 5
PERMUTATIONS = 1000


class Row(NamedTuple):
    """A line of the table: what was replayed, and how often the test was significant."""

    group: str  # of rows that are summarised together
    name: str
    statement: str  # whose promise is replayed
    query_count: int
    test_count: int
    difference: float
    share: float
    is_rough: bool  # as `eval` says where it does not trust the power

    @property
    def is_kept(self) -> bool:
        """Return whether the power is the promised one."""
        return abs(self.share - POWER) <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the line."""
        return (
            self.name,
            self.statement,
            f"{self.query_count:,}",
            str(self.test_count),
            f"{self.difference:.4f}",
            f"{100 * self.share:.1f}",
            "rough" if self.is_rough else "",
            "" if self.is_kept else "off",
        )


HEADER = (
    "differences",
    "promise",
    "queries",
    "tests",
    "true mean",
    "significant %",
    "eval says",
    "replays say",
)


def is_rough(population: Floats, query_count: int) -> bool:
    """Return whether `eval` calls the power of so many queries rough."""
    return roughness(population) * math.sqrt(len(population) / query_count) > 1


def populations(random: np.random.Generator) -> dict[str, Floats]:
    """Return simulated paired differences of a million queries each."""
    count = 1_000_000
    ranks = random.geometric(0.4, (2, count))
    reciprocal = np.where(ranks <= 10, 1 / ranks, 0.0)
    is_changed = random.random(count) < 0.3  # most queries have the same rank in both runs
    return {
        "normal": random.normal(0.0, 0.3, count),
        "skewed (gamma, skewness 2)": random.exponential(0.3, count),
        "reciprocal ranks, 30 % changed": np.where(is_changed, reciprocal[0] - reciprocal[1], 0.0),
        "success, 10 % changed, 9 of 10 won": random.choice(
            [0.0, 1.0, -1.0], count, p=[0.9, 0.09, 0.01]
        ),
    }


def share_significant(
    population: Floats,
    mean: float,
    query_count: int,
    level: float,
    replays: int,
    random: np.random.Generator,
) -> float:
    """Return the share of samples, of a population with that mean, that a t test rejects."""
    from scipy.stats import t

    shifted = population - population.mean() + mean
    critical_value = t.isf(level / 2, query_count - 1)
    significant_count = 0
    block_size = max(1, BLOCK // query_count)
    for start in range(0, replays, block_size):
        shape = (min(block_size, replays - start), query_count)
        samples = shifted[random.integers(0, len(shifted), shape)]
        statistics = t_statistics(samples)
        significant_count += int((np.abs(statistics) > critical_value).sum())
    return significant_count / replays


def t_statistics(samples: Floats) -> Floats:
    """Return Student's statistic of each sample: (replays, queries) -> (replays,)."""
    means = samples.mean(1)
    errors = samples.std(1, ddof=1) / np.sqrt(samples.shape[1])
    statistics = np.zeros(len(samples))
    np.divide(means, errors, out=statistics, where=errors > 0)
    equal_samples = (errors == 0) & (means != 0)
    statistics[equal_samples] = np.inf
    return statistics


def replay_smallest(
    name: str,
    population: Floats,
    query_count: int,
    test_count: int,
    replays: int,
    random: np.random.Generator,
) -> Row:
    """Replay the smallest difference that so many queries show."""
    level = ALPHA / test_count
    difference = smallest_difference(float(population.std()), query_count, level)
    share = share_significant(population, difference, query_count, level, replays, random)
    rough = is_rough(population, query_count)
    return Row(group_of(name), name, "smallest", query_count, test_count, difference, share, rough)


def replay_needed(
    name: str,
    population: Floats,
    difference: float,
    test_count: int,
    replays: int,
    random: np.random.Generator,
) -> Row:
    """Replay the number of queries that show a difference."""
    level = ALPHA / test_count
    query_count = needed_queries(difference, float(population.std()), level)
    share = share_significant(population, difference, query_count, level, replays, random)
    rough = is_rough(population, query_count)
    size = abs(difference)
    return Row(group_of(name), name, "needed", query_count, test_count, size, share, rough)


def group_of(name: str) -> str:
    """Return the group of differences: a simulated distribution, or the real runs."""
    return "real runs" if any(f" {measure} " in name for measure in MEASURES) else name


SUMMARY_HEADER = ("differences", "eval says", "rows", "within 3 points", "significant %")


def summary_rows(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    """Yield how many rows of a group keep the promise, where `eval` trusts it and where not."""
    for group in dict.fromkeys(row.group for row in rows):
        for rough in (False, True):
            members = [row for row in rows if row.group == group and row.is_rough == rough]
            if not members:
                continue
            shares = [100 * row.share for row in members]
            kept_count = sum(row.is_kept for row in members)
            yield (
                group,
                "rough" if rough else "",
                str(len(members)),
                str(kept_count),
                f"{min(shares):.1f} to {max(shares):.1f}",
            )


def simulated_rows(replays: int) -> Iterator[Row]:
    """Yield replays of simulated differences."""
    random = np.random.default_rng(1)
    for name, population in populations(random).items():
        for test_count in TEST_COUNTS:
            for query_count in QUERY_COUNTS:
                yield replay_smallest(name, population, query_count, test_count, replays, random)
            for effect in (0.5, 0.2):
                difference = effect * float(population.std())
                yield replay_needed(name, population, difference, test_count, replays, random)


class Runs(NamedTuple):
    """The values of a collection's runs by one measure."""

    collection: str
    measure: str
    systems: tuple[str, ...]
    values: Floats  # (systems, queries)


def read_runs(folder: Path) -> Iterator[Runs]:
    """Yield the runs of every collection that has at least two."""
    for qrels in sorted(folder.glob("*/qrels.txt")):
        paths = sorted(qrels.parent.glob("*.trec"))
        if len(paths) < 2:
            continue
        settings = EvaluationSettings(measures=MEASURES)
        result = evaluate([str(path) for path in paths], str(qrels), settings)
        for measure in MEASURES:
            rows = [list(run.per_query[measure].values()) for run in result.runs]
            systems = tuple(path.stem for path in paths)
            yield Runs(qrels.parent.name, measure, systems, np.array(rows))


def pair_differences(runs: Runs) -> Iterator[tuple[str, Floats]]:
    """Yield a name and the paired differences, (queries,), of each pair of runs that differ."""
    for first, second in combinations(range(len(runs.systems)), 2):
        differences = runs.values[second] - runs.values[first]
        if np.ptp(differences) > 0:
            pair = f"{runs.systems[second]}-{runs.systems[first]}"
            yield f"{runs.collection} {runs.measure} {pair}", differences


def real_rows(all_runs: list[Runs], replays: int) -> Iterator[Row]:
    """Yield replays of the differences of real runs."""
    random = np.random.default_rng(2)
    for runs in all_runs:
        test_count = len(MEASURES) * (len(runs.systems) - 1)
        for name, differences in pair_differences(runs):
            for query_count in sorted({50, len(differences)}):
                yield replay_smallest(name, differences, query_count, test_count, replays, random)
            mean = float(differences.mean())
            level = ALPHA / test_count
            if mean == 0:
                continue
            if needed_queries(mean, float(differences.std()), level) <= LARGEST_SAMPLE:
                yield replay_needed(name, differences, mean, test_count, replays, random)


def holm_rows(all_runs: list[Runs], replays: int) -> Iterator[Row]:
    """Yield replays in which one of several systems differs, and Holm's correction is over all.

    The differences of all systems are drawn for the same queries; those of the others have mean 0.
    """
    random = np.random.default_rng(3)
    for runs in all_runs:
        differences = runs.values[1:] - runs.values[0]
        differences = differences[np.ptp(differences, axis=1) > 0]
        if len(differences) < 2:
            continue
        query_count = differences.shape[1]
        test_count = len(differences)
        deviation = float(differences[0].std())
        difference = smallest_difference(deviation, query_count, ALPHA / test_count)
        null_differences = differences - differences.mean(1, keepdims=True)
        null_differences[0] += difference
        share = share_by_holm(null_differences, replays, random)
        name = f"{runs.collection} {runs.measure}, others null"
        rough = is_rough(differences[0], query_count)
        group = "real runs, Holm"
        yield Row(group, name, "smallest", query_count, test_count, difference, share, rough)


def share_by_holm(differences: Floats, replays: int, random: np.random.Generator) -> float:
    """Return how often the first of several differences, (tests, queries), is significant."""
    from scipy.stats import t

    query_count = differences.shape[1]
    significant_count = 0
    for _ in range(replays):
        sample = differences[:, random.integers(0, query_count, query_count)]
        p_values = 2 * t.sf(np.abs(t_statistics(sample)), query_count - 1)
        factors = correction_factors(p_values.tolist(), Correction.HOLM)
        significant_count += p_values[0] * factors[0] < ALPHA
    return significant_count / replays


class ErrorRow(NamedTuple):
    """A line of the table of Tukey's errors."""

    name: str
    system_count: int
    query_count: int
    replays: int
    share: float  # of replays with at least one false difference

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the line."""
        error = (ALPHA * (1 - ALPHA) / self.replays) ** 0.5
        is_above = self.share > ALPHA + 2 * error
        return (
            self.name,
            str(self.system_count),
            str(self.query_count),
            f"{100 * self.share:.1f}",
            "above 5 %" if is_above else "",
        )


ERROR_HEADER = ("values", "systems", "queries", "any false pair %", "")


def tukey_rows(all_runs: list[Runs], replays: int) -> Iterator[ErrorRow]:
    """Yield how often randomised Tukey HSD finds a pair of equal systems different."""
    random = np.random.default_rng(4)
    for system_count, query_count in ((3, 25), (3, 200), (6, 50)):
        for name, systems in simulated_systems(system_count, random).items():
            share = share_of_errors(systems, query_count, replays, random)
            yield ErrorRow(name, system_count, query_count, replays, share)
    for runs in all_runs:
        if len(runs.systems) < 3:
            continue
        equal_systems = runs.values - runs.values.mean(1, keepdims=True)
        share = share_of_errors(Systems(equal_systems, len(equal_systems)), 50, replays, random)
        name = f"{runs.collection} {runs.measure}, equal means"
        yield ErrorRow(name, len(runs.systems), 50, replays, share)


class Systems(NamedTuple):
    """Values of systems on many queries, of which the first ones have equal means."""

    values: Floats  # (systems, queries)
    equal_count: int


def simulated_systems(system_count: int, random: np.random.Generator) -> Mapping[str, Systems]:
    """Return systems that are all equal, and systems of which half are equal."""
    query_total = 20_000
    difficulty = random.normal(0.5, 0.3, query_total)
    values = difficulty + random.normal(0.0, 0.2, (system_count, query_total))
    successes = (values > 0.5).astype(np.float64)
    values -= values.mean(1, keepdims=True)
    half_equal = values.copy()
    equal_count = max(2, system_count // 2)
    half_equal[equal_count:] += 0.3
    # the first two are spread more than the others: their values are no random order of all
    uneven = values.copy()
    uneven[:2] += random.normal(0.0, 0.6, (2, query_total))
    uneven -= uneven.mean(1, keepdims=True)
    return {
        "normal, all equal": Systems(values, system_count),
        "success, all equal": Systems(successes, system_count),
        f"normal, {equal_count} equal, others +0.3": Systems(half_equal, equal_count),
        "normal, equal means, two with 3 times the spread": Systems(uneven, system_count),
    }


def share_of_errors(
    systems: Systems, query_count: int, replays: int, random: np.random.Generator
) -> float:
    """Return the share of samples in which any two of the equal systems are found different."""
    error_count = 0
    for replay in range(replays):
        queries = random.integers(0, systems.values.shape[1], query_count)
        sample = systems.values[:, queries]
        means = sample[: systems.equal_count].mean(1)
        ranges = permuted_ranges(sample, PERMUTATIONS, seed=replay)
        error_count += range_p_value(float(np.ptp(means)), ranges) < ALPHA
    return error_count / replays


def estimate_rows(replays: int) -> Iterator[tuple[str, ...]]:
    """Yield by how much the stated difference varies, as its deviation is that of the sample."""
    random = np.random.default_rng(5)
    for name, population in populations(random).items():
        for query_count in (25, 100, 400):
            samples = population[random.integers(0, len(population), (replays, query_count))]
            ratios = samples.std(1, ddof=1) / population.std()
            low, high = np.quantile(ratios, [0.05, 0.95])
            yield name, str(query_count), f"{low:.2f} to {high:.2f}"


ESTIMATE_HEADER = ("differences", "queries", "stated / true, 5 to 95 % of samples")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path, metavar="RUNS")
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--replays-of-tukey", type=int, default=2000)
    options = parser.parse_args()
    all_runs = [] if options.runs is None else list(read_runs(options.runs))
    rows = [
        *simulated_rows(options.replays),
        *real_rows(all_runs, options.replays),
        *holm_rows(all_runs, min(options.replays, 5000)),
    ]
    print_table(HEADER, [row.cells() for row in rows])
    print()
    print_table(SUMMARY_HEADER, list(summary_rows(rows)))
    print()
    print_table(ESTIMATE_HEADER, list(estimate_rows(2000)))
    print()
    error_rows = tukey_rows(all_runs, options.replays_of_tukey)
    print_table(ERROR_HEADER, [row.cells() for row in error_rows])


if __name__ == "__main__":
    main()
