"""Replays of few human labels and many predicted ones: do the intervals hold the true means?

    python -m tests.benchmarks.predicted_replays --runs RUNS [--collection scifact ...] [--finite]

RUNS has a folder for each collection with qrels.txt and runs NAME.trec, as docs/results.sh writes
them. All queries have human labels; a replay hides all but --human of them. It draws a population's
sample of --predicted queries, with replacement, from the queries of the collection, whose mean is
the truth; the first --human of the sample have human labels, all have predicted ones. With --finite
it draws without replacement from the queries that there are: the intervals are for a population, so
that they hold the mean of so few queries more often than they say.

The predicted labels are of judges: `minilm`, relevant where MiniLM's cosine is among the highest,
three passages a query on average; `flipped P`, the true label of a pooled passage, wrong in P of a
hundred; `missed P`, the true label with P of a hundred relevant passages missed; `random`.

Coverage is that of the intervals that `denserk eval --predicted` gives without a warning: where
almost all human values are equal it says that no interval can be trusted, and such replays do not
count.
"""

import argparse
import logging
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, t

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.prediction_powered import (
    Floats,
    Gain,
    MeanEstimate,
    prediction_powered_mean,
)
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.reporting import print_table
from denserk.tasks.evaluate import NamedRun, RelevanceJudgments, evaluate_runs

COLLECTIONS = ("scifact", "cranfield", "marco-dl19")
MEASURES = ("nDCG@10", "RR@10", "R@100")
DEPTH = 10  # of the pool whose labels are flipped
PREDICTED_PER_QUERY = 3  # passages that the judge `minilm` calls relevant, on average
ALPHA = 0.05
BAND = (0.93, 0.97)  # of coverage that is as promised
NORMAL = float(norm.ppf(1 - ALPHA / 2))
MOSTLY = 0.9  # share of replays with a warning from which a case is left out

Grades = Mapping[str, Mapping[str, int]]
Runs = Mapping[str, Mapping[str, Mapping[str, float]]]  # by name, query, passage


class Values(NamedTuple):
    """The values of all queries by both labels, of a run or of a difference in one measure."""

    name: str
    human: Floats
    predicted: Floats


class Coverage(NamedTuple):
    """How often the intervals of replays hold the truth, and how long they are."""

    all_human: float  # of Student's interval of the human-judged queries, in all replays
    human: float  # the same where an interval is given without a warning
    powered: float  # with predictions where an interval is given without a warning
    published: float  # in the same replays by PPI++ as published, for large samples
    helps: float  # share of replays in which predictions help
    too_few: float  # share in which too few human values differ, and a warning is given
    width: float  # mean width with predictions by that without, where predictions help


@cache
def critical_value(freedom: int) -> float:
    """Student's quantile of a two-sided interval."""
    return float(t.ppf(1 - ALPHA / 2, freedom))


def half_width(estimate: MeanEstimate) -> float:
    """Return half the width of the interval of an estimate."""
    return critical_value(estimate.freedom) * estimate.error


def holds(estimate: MeanEstimate, truth: float) -> bool:
    """Return whether the interval of an estimate holds the truth."""
    return abs(estimate.mean - truth) <= half_width(estimate) + 1e-12


def published_interval(human: Floats, labelled: Floats, unlabelled: Floats) -> tuple[float, float]:
    """Return PPI++'s interval of a mean, power-tuned, by the normal distribution.

    human: (n,), labelled: (n,), predictions of the same queries, unlabelled: (N - n,).
    """
    ratio = len(human) / len(unlabelled)
    variance = float(np.concatenate([labelled, unlabelled]).var(ddof=1))
    covariance = float(np.cov(human, labelled)[0, 1])
    weight = min(1.0, max(0.0, covariance / ((1 + ratio) * variance))) if variance else 0.0
    residuals = human - weight * labelled
    mean = float(weight * unlabelled.mean() + residuals.mean())
    error = math.hypot(
        float((weight * unlabelled).std()) / math.sqrt(len(unlabelled)),
        float(residuals.std()) / math.sqrt(len(human)),
    )
    half_width = NORMAL * error
    return mean - half_width, mean + half_width


def replay(
    values: Values, replays: int, human_count: int, predicted_count: int, *, finite: bool
) -> Coverage:
    """Return the coverage of replays."""
    generator = np.random.default_rng(1)
    truth = float(values.human.mean())
    count = len(values.human)
    all_human = []
    human = []
    powered = []
    published = []
    gains = []
    widths = []
    for _ in range(replays):
        if finite:
            sample = generator.permutation(count)
        else:
            sample = generator.integers(0, count, predicted_count)
        judged = sample[:human_count]
        estimate = prediction_powered_mean(
            values.human[judged], values.predicted[judged], values.predicted[sample]
        )
        gains.append(estimate.gain)
        all_human.append(holds(estimate.human, truth))
        if estimate.gain is not Gain.TOO_FEW:
            human.append(holds(estimate.human, truth))
            powered.append(holds(estimate.powered, truth))
            interval = published_interval(
                values.human[judged],
                values.predicted[judged],
                values.predicted[sample[human_count:]],
            )
            published.append(interval[0] <= truth <= interval[1])
        if estimate.gain is Gain.HELPS:
            widths.append(half_width(estimate.powered) / half_width(estimate.human))
    return Coverage(
        all_human=share(all_human),
        human=share(human),
        powered=share(powered),
        published=share(published),
        helps=gains.count(Gain.HELPS) / replays,
        too_few=gains.count(Gain.TOO_FEW) / replays,
        width=share(widths),
    )


def share(values: Sequence[float]) -> float:
    """Return the mean; NaN of no values."""
    return float(np.mean(values)) if values else math.nan


def judges(qrels: Grades, runs: Runs) -> Iterator[tuple[str, Grades]]:
    """Yield the name and the labels of each judge."""
    if "minilm" in runs:
        yield "minilm", labels_by_score(qrels, runs["minilm"])
    pool = pooled(qrels, runs)
    for percent in (10, 20, 40):
        yield f"flipped {percent}", flipped(qrels, pool, percent / 100, percent / 100)
    for percent in (10, 40):
        yield f"missed {percent}", flipped(qrels, pool, percent / 100, 0)
    generator = random.Random(1)
    labels = {qid: {docid: generator.randrange(2) for docid in pool[qid]} for qid in qrels}
    yield "random", labels


def labels_by_score(qrels: Grades, scores: Mapping[str, Mapping[str, float]]) -> Grades:
    """Return label 1 for the passages with the highest scores of all queries."""
    all_scores = [score for qid in qrels for score in scores.get(qid, {}).values()]
    threshold = sorted(all_scores)[-PREDICTED_PER_QUERY * len(qrels)]
    labels = {}
    for qid in qrels:
        hits = scores.get(qid, {})
        labels[qid] = {docid: int(score >= threshold) for docid, score in hits.items()}
    return labels


def pooled(qrels: Grades, runs: Runs) -> dict[str, list[str]]:
    """Return the passages of each query that are judged, or among the first hits of a run."""
    pool = {}
    for qid, grades in qrels.items():
        docids = set(grades)
        for run in runs.values():
            hits = run.get(qid, {})
            docids.update(sorted(hits, key=lambda docid: -hits[docid])[:DEPTH])
        pool[qid] = sorted(docids)
    return pool


def flipped(
    qrels: Grades, pool: Mapping[str, Sequence[str]], missed: float, invented: float
) -> Grades:
    """Return labels of which shares of the relevant and of the other passages are wrong."""
    generator = random.Random(1)
    labels: dict[str, dict[str, int]] = {}
    for qid, grades in qrels.items():
        labels[qid] = {}
        for docid in pool[qid]:
            grade = max(0, grades.get(docid, 0))
            is_wrong = generator.random() < (missed if grade else invented)
            if is_wrong:
                grade = 0 if grade else 1
            labels[qid][docid] = grade
    return labels


def values_by_run(qrels: Grades, runs: Runs) -> dict[tuple[str, str], Floats]:
    """Return the values of all queries by run and measure."""
    judgments = RelevanceJudgments(qrels)
    named_runs = [NamedRun(name, run) for name, run in runs.items()]
    result = evaluate_runs(named_runs, judgments, EvaluationSettings(measures=MEASURES))
    values = {}
    for run in result.runs:
        for measure in MEASURES:
            per_query = run.per_query[measure]
            values[run.name, measure] = np.array([per_query[qid] for qid in qrels])
    return values


def means_and_differences(
    human: Mapping[tuple[str, str], Floats],
    predicted: Mapping[tuple[str, str], Floats],
) -> Iterator[Values]:
    """Yield the values of all runs, and their differences from the first run."""
    baseline = next(iter(human))[0]
    for (run, measure), values in human.items():
        predicted_values = predicted[run, measure]
        yield Values(f"{run} {measure}", values, predicted_values)
        if run != baseline:
            yield Values(
                f"{run} - {baseline} {measure}",
                (values - human[baseline, measure]).round(12),
                (predicted_values - predicted[baseline, measure]).round(12),
            )


def read_runs(folder: Path) -> Runs:
    """Return the runs of a folder that docs/results.sh makes without training."""
    paths = [folder / f"{name}.trec" for name in ("bm25", "minilm", "hybrid")]
    return {path.stem: read_run_scores(path) for path in paths if path.exists()}


def row(kind: str, coverages: Sequence[Coverage]) -> list[str]:
    """Return the cells of a row for several means or differences."""
    given = [coverage for coverage in coverages if coverage.too_few < MOSTLY]
    if not given:
        return [kind, f"0 of {len(coverages)}", *["-"] * 6]
    powered = [coverage.powered for coverage in given]
    low, high = BAND
    below = sum(value < low for value in powered)
    above = sum(value > high for value in powered)
    widths = [coverage.width for coverage in given if not math.isnan(coverage.width)]
    return [
        kind,
        f"{len(given)} of {len(coverages)}",
        percent_range([coverage.human for coverage in given]),
        percent_range([coverage.published for coverage in given]),
        percent_range(powered),
        f"{below}/{len(powered) - below - above}/{above}",
        f"{100 * share([coverage.helps for coverage in given]):.0f}",
        f"{share(widths):.2f}",
    ]


def percent_range(values: Sequence[float]) -> str:
    """Return the lowest and the highest share in percent."""
    return f"{100 * min(values):.1f}..{100 * max(values):.1f}"


HEADER = (
    "collection",
    "judge",
    "of",
    "cases",
    "human only, %",
    "PPI++, %",
    "with predictions, %",
    "below/93..97/above",
    "helps, %",
    "width",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of coverages, and the cases below the band."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--collection", nargs="*", default=COLLECTIONS)
    parser.add_argument("--replays", type=int, default=2000)
    parser.add_argument("--human", type=int, default=30)
    parser.add_argument("--predicted", type=int, default=300)
    parser.add_argument("--finite", action="store_true")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows = []
    outside = []
    for collection in options.collection:
        folder = options.runs / collection
        qrels = read_qrels_map(folder / "qrels.txt")
        runs = read_runs(folder)
        human = values_by_run(qrels, runs)
        for judge, labels in judges(qrels, runs):
            by_kind: dict[str, list[Coverage]] = {"means": [], "differences": []}
            for values in means_and_differences(human, values_by_run(labels, runs)):
                coverage = replay(
                    values,
                    options.replays,
                    options.human,
                    options.predicted,
                    finite=options.finite,
                )
                by_kind["differences" if " - " in values.name else "means"].append(coverage)
                if coverage.too_few < MOSTLY and coverage.powered < BAND[0]:
                    outside.append([collection, judge, values.name, *case_cells(coverage)])
            for kind, coverages in by_kind.items():
                if coverages:
                    rows.append([collection, judge, *row(kind, coverages)])
            print(f"{collection} {judge}", file=sys.stderr)
    print_table(HEADER, rows)
    print()
    print_table(
        ("below", "judge", "case", "all", "human", "predicted", "PPI++", "helps", "warned"), outside
    )


def case_cells(coverage: Coverage) -> list[str]:
    """Return the cells of a case that is below the band, in percent."""
    shares = coverage[:-1]
    return [f"{100 * share:.1f}" for share in shares]


if __name__ == "__main__":
    main()
