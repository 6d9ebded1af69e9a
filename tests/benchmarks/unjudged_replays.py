"""Replays of `denserk eval --unjudged bounds --to-judge`, where the dropped labels are known.

    python -m tests.benchmarks.unjudged_replays --data DIR [--runs DIR] [--trials 100]

DIR of --data has `marco-dl19` with its qrels and runs, that of --runs folders by collection with
`*.trec` and `qrels.txt`. Of each two runs of a collection, labels of passages in their lists are
dropped at random. Then, of the difference of the two runs:

- bounds: how often the values by all labels lie within the bounds by those that are left;
- rounds: the hits that --to-judge names get their true labels, `--round` of a depth-10 pool at a
  time, until the sign is decided (`sure`), or a fifth of the pool is judged: then the sign is that
  of most simulated judgments. `likely` is the first time that `--confidence` of these agree, and
  `judged` the median share of the pool that was judged till then.

The true sign is that of all labels; hits without any label are not relevant, as in the qrels.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation import judging
from denserk.evaluation.results import EvaluationResult, Run
from denserk.evaluation.unjudged_results import Decision, Interval, JudgingPlan
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.tasks.evaluate import NamedRun, RelevanceJudgments, evaluate_runs
from denserk.tasks.evaluate_unjudged import bound_runs

BOUNDED = ("nDCG@10", "nDCG", "P@10", "R@100", "RR@10", "RR", "Success@5", "AP@10", "AP", "Rprec")
DEPTH = 10  # of the pool of two runs
SIGNS = {
    Decision.HIGHER: 1,
    Decision.NOT_LOWER: 1,
    Decision.LOWER: -1,
    Decision.NOT_HIGHER: -1,
}
ROUNDING = 1e-9

Grades = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Pair:
    """Two runs of a collection with all labels."""

    collection: str
    runs: Mapping[str, Run]
    grades: Grades

    def pool(self) -> set[tuple[str, str]]:
        """Return query and passage of the first hits of both runs."""
        pool = set()
        for run in self.runs.values():
            for qid in self.grades:
                hits = run.get(qid, {})
                ranked = sorted(hits, key=lambda docid: (hits[docid], docid), reverse=True)
                pool |= {(qid, docid) for docid in ranked[:DEPTH]}
        return pool


@dataclass
class Tally:
    """What was counted for one share of dropped labels."""

    values: int = 0
    inside: int = 0
    trials: int = 0
    ends: Counter[tuple[str, bool]] = field(default_factory=Counter)  # how, and rightly?
    judged_shares: list[float] = field(default_factory=list)  # of the pool, at the end
    likely_shares: list[float] = field(default_factory=list)  # when the sign was likely


def read_pairs(data: Path, runs: Path | None) -> Iterator[Pair]:
    """Yield every two runs of each collection."""
    marco = data / "marco-dl19"
    yield from pairs_of("trec-dl19", marco / "qrels/test.tsv", marco / "runs")
    if runs is not None:
        for qrels in sorted(runs.glob("*/qrels.txt")):
            yield from pairs_of(qrels.parent.name, qrels, qrels.parent)


def pairs_of(collection: str, qrels: Path, folder: Path) -> Iterator[Pair]:
    """Yield every two runs of a folder."""
    paths = sorted([*folder.glob("*.trec"), *folder.glob("*.trec.gz")])
    grades = read_qrels_map(qrels)
    all_runs = {path.name.partition(".")[0]: read_run_scores(str(path)) for path in paths}
    for names in combinations(all_runs, 2):
        yield Pair(collection, {name: all_runs[name] for name in names}, grades)


def with_dropped_labels(pair: Pair, share: float, random: Random) -> Grades:
    """Return the labels without a share of those of passages in the lists; no query loses all."""
    kept: Grades = {}
    for qid, grades in pair.grades.items():
        listed: set[str] = set()
        for run in pair.runs.values():
            listed |= run.get(qid, {}).keys()
        of_query = {
            docid: grade
            for docid, grade in grades.items()
            if docid not in listed or random.random() >= share
        }
        kept[qid] = of_query or dict(list(grades.items())[:1])
    return kept


def evaluated(pair: Pair, grades: Grades, measures: Sequence[str]) -> EvaluationResult:
    """Return the measures of both runs by all labels or by some."""
    runs = [NamedRun(name, hits) for name, hits in pair.runs.items()]
    return evaluate_runs(
        runs, RelevanceJudgments(grades), EvaluationSettings(measures=tuple(measures))
    )


def count_bounds(pair: Pair, grades: Grades, tally: Tally) -> None:
    """Count how many of the true values lie within the bounds by the labels that are left."""
    truth = evaluated(pair, pair.grades, BOUNDED)
    settings = EvaluationSettings(measures=BOUNDED)
    bounds = bound_runs(list(pair.runs.items()), RelevanceJudgments(grades), settings).unjudged
    assert bounds is not None
    values = {run.name: run.summary for run in truth.runs}
    first, second = pair.runs
    for measure in BOUNDED:
        true_values = {name: values[name][measure] for name in values}
        for name, value in true_values.items():
            count_value(value, bounds.runs[name][measure].interval, tally)
        difference = true_values[second] - true_values[first]
        count_value(difference, bounds.differences[second][measure].interval, tally)


def count_value(value: float, interval: Interval, tally: Tally) -> None:
    """Count a true value, and whether it lies within its bounds."""
    tally.values += 1
    tally.inside += interval.low - ROUNDING <= value <= interval.high + ROUNDING


@dataclass(frozen=True)
class Protocol:
    """How rounds of judgments are made."""

    measure: str
    round_share: float  # of the pool, judged in a round
    most_share: float
    confidence: float


def judge_in_rounds(pair: Pair, grades: Grades, protocol: Protocol, tally: Tally) -> None:
    """Judge the named hits with their true labels until the sign is decided; count how it ends."""
    truth = evaluated(pair, pair.grades, [protocol.measure])
    first, second = (run.summary[protocol.measure] for run in truth.runs)
    true_sign = (second > first) - (second < first)
    pool_size = len(pair.pool())
    most = int(protocol.most_share * pool_size)
    grades = {qid: dict(of_query) for qid, of_query in grades.items()}
    judged_count = 0
    is_likely = False
    while True:
        size = max(1, min(int(protocol.round_share * pool_size), most - judged_count))
        plan, decision = plan_round(pair, grades, protocol.measure, size)
        is_sure = decision is not Decision.OPEN
        share = 0.5 if plan.share_higher is None else plan.share_higher
        sign = SIGNS.get(decision, 0) if is_sure else (1 if share >= 0.5 else -1)
        if not is_likely and (is_sure or max(share, 1 - share) >= protocol.confidence):
            is_likely = True
            tally.ends["likely", sign == true_sign] += 1
            tally.likely_shares.append(judged_count / pool_size)
        if is_sure or judged_count >= most:
            break
        for named in plan.pairs:
            true_grade = pair.grades[named.qid].get(named.docid, 0)
            grades[named.qid][named.docid] = true_grade
        judged_count += len(plan.pairs)
    tally.trials += 1
    tally.ends["sure" if is_sure else "most", sign == true_sign] += 1
    tally.judged_shares.append(judged_count / pool_size)


def plan_round(pair: Pair, grades: Grades, measure: str, size: int) -> tuple[JudgingPlan, Decision]:
    """Return what to judge next, and what is decided."""
    settings = EvaluationSettings(measures=(measure,))
    sources = list(pair.runs.items())
    result = bound_runs(sources, RelevanceJudgments(grades), settings, to_judge=size)
    assert result.unjudged is not None
    assert result.unjudged.plan is not None
    (difference,) = result.unjudged.differences.values()
    return result.unjudged.plan, difference[measure].interval.decision


def main() -> None:
    """Print a table for bounds and one for rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", default="", help="for other trials than those of the docs")
    parser.add_argument("--bounds-trials", type=int, default=10)
    parser.add_argument("--measure", default="nDCG@10")
    parser.add_argument("--round", type=float, default=0.05)
    parser.add_argument("--most", type=float, default=0.2)
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--collections", nargs="*", default=[])
    parser.add_argument("--names", nargs=2, help="two runs, in place of every two of a collection")
    parser.add_argument("--dropped", type=float, nargs="*", default=[0.3, 0.5, 0.7, 0.9])
    arguments = parser.parse_args()
    protocol = Protocol(arguments.measure, arguments.round, arguments.most, arguments.confidence)
    judging.MOST_ROWS = 2_200  # what it likely takes is not simulated here
    rows = []
    for pair in read_pairs(arguments.data, arguments.runs):
        if arguments.collections and pair.collection not in arguments.collections:
            continue
        if arguments.names and [*pair.runs] != arguments.names:
            continue
        for share in arguments.dropped:
            tally = Tally()
            random = Random(f"{pair.collection} {[*pair.runs]} {share}{arguments.seed}")
            for _ in range(arguments.bounds_trials):
                count_bounds(pair, with_dropped_labels(pair, share, random), tally)
            for _ in range(arguments.trials):
                judge_in_rounds(pair, with_dropped_labels(pair, share, random), protocol, tally)
            rows.append(row_of(pair, share, tally))
            if len(rows) == 1:
                print("\t".join(HEADER))
            print("\t".join(rows[-1]), flush=True)


HEADER = (
    "collection",
    "runs",
    "dropped",
    "within bounds",
    "trials",
    "sure",
    "wrong",
    "judged",
    "sign right in the end",
    "likely",
    "wrong",
    "judged",
)


def row_of(pair: Pair, share: float, tally: Tally) -> list[str]:
    """Return a row of the table."""
    cells = [pair.collection, " ".join(pair.runs), f"{share:.0%}"]
    cells.append(f"{tally.inside}/{tally.values}")
    cells.append(str(tally.trials))
    for end, shares in (("sure", tally.judged_shares), ("likely", tally.likely_shares)):
        wrong = tally.ends[end, False]
        cells.append(str(wrong + tally.ends[end, True]))
        cells.append(str(wrong))
        cells.append(f"{median(shares or [0]):.1%}")
        if end == "sure":
            right = tally.ends["sure", True] + tally.ends["most", True]
            cells.append(f"{right / max(tally.trials, 1):.1%}")
    return cells


if __name__ == "__main__":
    main()
