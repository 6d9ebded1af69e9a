"""Goal: `choose` stops early, and still keeps the best system: replays in random query order.

    python -m tests.benchmarks.choose_replays [--runs DIR] [--replays 1000] [--block 25]

DIR has a folder for each collection, with qrels.txt and SYSTEM.trec for each system, as `bash
docs/results.sh --data DATA --runs DIR` makes them. Every replay adds the queries of a collection
block by block until one system remains or no query is left: in a random order, and drawn with
replacement. In the first case the truth is the mean over these queries. In the second the
collection is the population that the queries come from, which is what the guarantee is about.

Each pair of systems is replayed, too, beside the paired t-test on all queries: "clear" is a p-value
below 0.001. Then come systems that are equally good, and simulated populations.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.sequential import SequentialComparison
from denserk.evaluation.significance import t_test
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.timing import Goals, cpu_seconds

MEASURE = "nDCG@10"
ALPHA = 0.05
CLEAR = 0.001  # p-value below which at most half of the evaluations may be needed
ROUNDING = 1e-9
TRAINING_RUN = "train.trec"  # hits of other queries, which docs/results.sh mines negatives from

Values = Mapping[str, NDArray[np.float64]]  # system -> (queries,)
Means = Mapping[str, float]
Draw = Callable[[np.random.Generator, int], NDArray[np.int64]]  # of queries, by their positions


class Replay(NamedTuple):
    """What one replay ended with."""

    dropped: Mapping[str, int]  # system -> queries
    winner: str | None
    evaluations: int  # of one query with one system
    intervals_hold: bool


def replay(values: Values, true_means: Means, block: int) -> Replay:
    """Add the queries in the order of the values until one system remains."""
    query_count = len(next(iter(values.values())))
    comparison = SequentialComparison(list(values), ALPHA)
    evaluations = 0
    intervals_hold = True
    next_look = block
    for start in range(0, query_count, block):
        end = min(start + block, query_count)
        evaluations += len(comparison.remaining) * (end - start)
        comparison.add({system: values[system][start:end] for system in comparison.remaining})
        is_last = end == query_count or len(comparison.remaining) == 1
        if end >= next_look or is_last:
            intervals_hold = intervals_hold and all_intervals_hold(comparison, true_means)
            next_look *= 2
        if is_last:
            break
    winner = comparison.remaining[0] if len(comparison.remaining) == 1 else None
    return Replay(comparison.dropped, winner, evaluations, intervals_hold)


def all_intervals_hold(comparison: SequentialComparison, true_means: Means) -> bool:
    """Return whether the true difference of each system from the leader is in its interval."""
    for system in comparison.systems:
        low, high = comparison.interval(system)
        difference = true_means[system] - true_means[comparison.leader]
        if not low - ROUNDING <= difference <= high + ROUNDING:
            return False
    return True


# What the replays of the same systems say together


def best_systems(means: Means) -> list[str]:
    """Return the systems of the highest mean."""
    highest = max(means.values())
    return [system for system, mean in means.items() if mean >= highest - ROUNDING]


def drop_rate(replays: Sequence[Replay], means: Means) -> float:
    """Return the share of replays that dropped a best system; of several, the highest share."""
    rates = []
    for system in best_systems(means):
        rates.append(float(np.mean([system in result.dropped for result in replays])))
    return max(rates)


def wrong_rate(replays: Sequence[Replay], means: Means) -> float:
    """Return the share of replays whose winner is not the only best system."""
    best = best_systems(means)
    only_best = best[0] if len(best) == 1 else None
    return float(np.mean([result.winner not in (None, only_best) for result in replays]))


def winner_rate(replays: Sequence[Replay]) -> float:
    """Return the share of replays that ended with one system."""
    return float(np.mean([result.winner is not None for result in replays]))


def coverage(replays: Sequence[Replay]) -> float:
    """Return the share of replays whose intervals held at every look."""
    return float(np.mean([result.intervals_hold for result in replays]))


def used_share(replays: Sequence[Replay], system_count: int, query_count: int) -> float:
    """Return the mean share of evaluations that were made, of each query with each system."""
    mean_evaluations = float(np.mean([result.evaluations for result in replays]))
    return mean_evaluations / (system_count * query_count)


class Totals:
    """What is compared with the goals, over everything that is replayed."""

    def __init__(self) -> None:
        self.drop_rates: list[float] = []
        self.wrong_rates: list[float] = []
        self.coverages: list[float] = []
        # shares of evaluations
        self.used_by_clear_pairs: list[float] = []
        self.used_by_other_pairs: list[float] = []
        self.used_by_clear_losers: list[float] = []  # among all systems of a collection

    def add(self, replays: Sequence[Replay], means: Means) -> None:
        """Add replays of the same systems, and print them."""
        self.drop_rates.append(drop_rate(replays, means))
        self.wrong_rates.append(wrong_rate(replays, means))
        self.coverages.append(coverage(replays))
        print(
            f"best dropped {self.drop_rates[-1]:6.1%}  one left {winner_rate(replays):6.1%}"
            f"  wrongly {self.wrong_rates[-1]:6.1%}  intervals hold {self.coverages[-1]:6.1%}",
            end="",
        )


# Real runs


def read_collections(folder: Path) -> Iterator[tuple[str, Values]]:
    """Yield the name and the values of each collection that has several runs."""
    settings = EvaluationSettings(measures=(MEASURE,))
    for qrels in sorted(folder.glob("*/qrels.txt")):
        runs = sorted(set(qrels.parent.glob("*.trec")) - {qrels.parent / TRAINING_RUN})
        if len(runs) < 2:
            continue
        result = evaluate([str(run) for run in runs], str(qrels), settings)
        values = {}
        for run, run_result in zip(runs, result.runs, strict=True):
            per_query = run_result.per_query[MEASURE]
            values[run.stem] = np.array([per_query[qid] for qid in sorted(per_query)])
        yield qrels.parent.name, values


def in_random_order(random: np.random.Generator, query_count: int) -> NDArray[np.int64]:
    """Return the positions of all queries in a random order."""
    return random.permutation(query_count)


def with_replacement(random: np.random.Generator, query_count: int) -> NDArray[np.int64]:
    """Return as many positions as there are queries, each drawn from all."""
    return random.integers(0, query_count, query_count)


def means_of(values: Values) -> dict[str, float]:
    """Return the mean over all queries of each system."""
    return {system: float(system_values.mean()) for system, system_values in values.items()}


def replays_of(values: Values, draw: Draw, options: argparse.Namespace) -> list[Replay]:
    """Replay the queries of a collection."""
    means = means_of(values)
    query_count = len(next(iter(values.values())))
    replays = []
    for seed in range(options.replays):
        order = draw(np.random.default_rng(seed), query_count)
        drawn = {system: system_values[order] for system, system_values in values.items()}
        replays.append(replay(drawn, means, options.block))
    return replays


def replay_collection(
    name: str, values: Values, options: argparse.Namespace, totals: Totals
) -> None:
    """Replay all systems of a collection together, each pair of them, and equal ones."""
    query_count = len(next(iter(values.values())))
    best = best_systems(means_of(values))
    print(f"\n{name}: {len(values)} systems, {query_count} queries, best: {', '.join(best)}")
    for draw in (in_random_order, with_replacement):
        print(f"  {draw.__name__.replace('_', ' '):28}", end="")
        replays = replays_of(values, draw, options)
        totals.add(replays, means_of(values))
        print(f"  evaluations {used_share(replays, len(values), query_count):6.1%}")
        if draw is in_random_order:
            for system in values:
                if system not in best and p_value(values[best[0]], values[system]) < CLEAR:
                    used = queries_until_dropped(replays, system, query_count) / query_count
                    totals.used_by_clear_losers.append(used)
    for first, second in combinations(values, 2):
        pair = {first: values[first], second: values[second]}
        replay_pair(pair, options, totals)
    first, second = list(values)[:2]
    for kind, equal in (
        ("two copies", {"copy": values[first], "other copy": values[first]}),
        (f"{first}, {second} swapped", either_way(values[first], values[second])),
    ):
        print(f"  {kind:28}", end="")
        replays = replays_of(equal, with_replacement, options)
        totals.add(replays, means_of(equal))
        print()


def replay_pair(pair: Values, options: argparse.Namespace, totals: Totals) -> None:
    """Replay two systems of a collection beside the t-test on all queries."""
    first, second = pair
    print(f"  {first + ' and ' + second:28}", end="")
    replays = replays_of(pair, in_random_order, options)
    totals.add(replays, means_of(pair))
    used = used_share(replays, 2, len(pair[first]))
    p = p_value(pair[first], pair[second])
    if p < CLEAR:
        totals.used_by_clear_pairs.append(used)
    else:
        totals.used_by_other_pairs.append(used)
    print(f"  evaluations {used:6.1%}  p {p:.2g}", flush=True)


def p_value(values: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the p-value of the paired t-test on all queries."""
    return float(t_test(values - other).pvalue)


def queries_until_dropped(replays: Sequence[Replay], system: str, query_count: int) -> float:
    """Return the mean number of queries of a system, all of them if it was not dropped."""
    return float(np.mean([result.dropped.get(system, query_count) for result in replays]))


def either_way(values: NDArray[np.float64], other: NDArray[np.float64]) -> Values:
    """Return two equally good systems: each query with its two values one way and the other."""
    return {
        "one": np.concatenate([values, other]),
        "other": np.concatenate([other, values]),
    }


# Simulated populations

GAINS = 1 / np.log2(np.arange(2, 12))  # nDCG@10 of one relevant passage, by its rank
RANKS = np.array([0.5, 0.15, 0.1, 0.06, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02])  # how often it is


class Population(NamedTuple):
    """Where simulated queries come from."""

    name: str
    means: tuple[float, ...]  # of the systems
    draw: Callable[[np.random.Generator, int], list[NDArray[np.float64]]]  # a system's (queries,)


def answers(*rates: float) -> Population:
    """Return systems that answer a query or do not, each independently."""

    def draw(random: np.random.Generator, query_count: int) -> list[NDArray[np.float64]]:
        return [(random.random(query_count) < rate).astype(float) for rate in rates]

    return Population(f"answers {rates}", rates, draw)


def ranks(*rates: float, changed: float = 1.0) -> Population:
    """Return systems with nDCG@10: the relevant passage is among the ten at a rate, or the value 0.

    Only a share of the queries is `changed`; the others have one value for all systems.
    """
    mean_gain = float(RANKS @ GAINS)
    means = tuple(changed * rate * mean_gain + (1 - changed) * mean_gain for rate in rates)

    def draw(random: np.random.Generator, query_count: int) -> list[NDArray[np.float64]]:
        common = random.choice(GAINS, query_count, p=RANKS)
        systems = []
        for rate in rates:
            gains = random.choice(GAINS, query_count, p=RANKS)
            values = gains * (random.random(query_count) < rate)
            is_changed = random.random(query_count) < changed
            systems.append(np.where(is_changed, values, common))
        return systems

    return Population(f"ranks {rates}, {changed:.0%} changed", means, draw)


def constant_and_answers(constant: float, rate: float) -> Population:
    """Return a system of one value, and one that is a little better on most queries, or fails."""

    def draw(random: np.random.Generator, query_count: int) -> list[NDArray[np.float64]]:
        answered = random.random(query_count) < rate
        return [np.full(query_count, constant), answered.astype(float)]

    return Population(f"constant {constant}, answers {rate}", (constant, rate), draw)


POPULATIONS = (
    answers(0.6, 0.6),
    answers(*[0.6] * 8),
    ranks(0.7, 0.69, 0.68, 0.5, 0.4),
    ranks(0.5, 0.5, changed=0.1),
    constant_and_answers(0.9, 0.9),
    constant_and_answers(0.91, 0.9),
)


def replay_population(
    population: Population, query_count: int, options: argparse.Namespace, totals: Totals
) -> None:
    """Replay systems on new queries each time."""
    systems = [f"system {number}" for number in range(len(population.means))]
    means = dict(zip(systems, population.means, strict=True))
    replays = []
    for seed in range(options.replays):
        drawn = population.draw(np.random.default_rng(seed), query_count)
        values = dict(zip(systems, drawn, strict=True))
        replays.append(replay(values, means, options.block))
    print(f"{population.name:62}{query_count:6,} queries  ", end="")
    totals.add(replays, means)
    print(f"  evaluations {used_share(replays, len(systems), query_count):6.1%}", flush=True)


def main() -> None:
    """Replay, print, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="without it, simulated populations only")
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--block", type=int, default=25, help="queries between two looks")
    options = parser.parse_args()
    goals = Goals()
    totals = Totals()
    if options.runs:
        for name, values in read_collections(options.runs):
            replay_collection(name, values, options, totals)
        print()
    for population in POPULATIONS:
        for query_count in (300, 1000):
            replay_population(population, query_count, options, totals)

    drawn = answers(*[0.6] * 8).draw(np.random.default_rng(0), 1000)
    values = {f"system {number}": system_values for number, system_values in enumerate(drawn)}
    seconds = cpu_seconds(lambda: replay(values, means_of(values), options.block))
    print()
    goals.at_most("C1", "best system dropped, highest share", max(totals.drop_rates), ALPHA / 2)
    goals.at_most("C2", "wrong system left alone, highest share", max(totals.wrong_rates), ALPHA)
    goals.at_least("C3", "all intervals hold, lowest share", min(totals.coverages), 1 - ALPHA)
    for goal, kind, shares, bound in (
        ("C4", f"pairs with p < {CLEAR}", totals.used_by_clear_pairs, 0.5),
        ("C4", f"systems with p < {CLEAR} against the best", totals.used_by_clear_losers, 0.5),
        ("-", "other pairs", totals.used_by_other_pairs, 1.0),
    ):
        if shares:
            measured = f"evaluations of {len(shares)} {kind}"
            goals.at_most(goal, measured, float(np.mean(shares)), bound)
    goals.at_most("C5", "CPU seconds of a replay, 8 systems x 1,000 queries", seconds, 0.5)
    goals.finish()


if __name__ == "__main__":
    main()
