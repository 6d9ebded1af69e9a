"""A run evaluated from its file, parsing included, beside pytrec_eval on parsed dicts alone.

`python -m tests.benchmarks.evaluation [--queries N] [--hits K] [--rounds R]` writes a run of a
million lines and judgements for it, and in one process measures both by the clock and by CPU time,
one of each a round. Its exit status is 1 where the ratio of the medians of CPU time is above 3.0.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

import pytrec_eval

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.evaluator import evaluate

LIMIT = 3.0
MEASURES = "nDCG@10 R@100 R@1000 AP"
NAMES = {"ndcg_cut.10", "recall.100,1000", "map"}
"""The same for pytrec_eval."""
JUDGED = 50
"""Judgements a query; every other one is of a passage in the run."""

Run = dict[str, dict[str, float]]
Judgements = dict[str, dict[str, int]]


def write(folder: Path, queries: int, hits: int) -> tuple[Path, Path]:
    """A run with scores of six digits after the point and no ties, and judgements of grade 0-3."""
    draw = Random(1)
    run, qrels = folder / "run.trec", folder / "qrels.txt"
    with run.open("w") as lines, qrels.open("w") as judged:
        for query in range(queries):
            docids = draw.sample(range(8_841_823), hits + JUDGED)
            scores = (f"{90 - place / 16 + draw.random() / 32:.6f}" for place in range(hits))
            name = 1_000_000 + query
            ranked = zip(docids[:hits], range(1, hits + 1), scores, strict=True)
            lines.writelines(f"{name} Q0 {d} {rank} {score} run\n" for d, rank, score in ranked)
            half = JUDGED // 2
            of_run, others = draw.sample(docids[:hits], half), docids[hits : hits + half]
            judged.writelines(f"{name} 0 {d} {draw.randrange(4)}\n" for d in (*of_run, *others))
    return run, qrels


def parse(run: Path, qrels: Path) -> tuple[Run, Judgements]:
    """The dicts that pytrec_eval takes."""
    scores: Run = {}
    for line in run.read_text().splitlines():
        qid, _, docid, _, score, _ = line.split()
        scores.setdefault(qid, {})[docid] = float(score)
    grades: Judgements = {}
    for line in qrels.read_text().splitlines():
        qid, _, docid, grade = line.split()
        grades.setdefault(qid, {})[docid] = int(grade)
    return scores, grades


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of CPU and by the clock."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - start[1], time.perf_counter() - start[0]


def measure(folder: Path, queries: int, hits: int, rounds: int) -> float:
    """Prints the medians; returns the ratio of CPU times."""
    run, qrels = write(folder, queries, hits)
    scores, grades = parse(run, qrels)
    settings = EvaluationSettings((MEASURES,))
    work: dict[str, Callable[[], object]] = {
        "pytrec_eval on dicts": lambda: pytrec_eval.RelevanceEvaluator(grades, NAMES).evaluate(
            scores
        ),
        "denserk from files": lambda: evaluate([str(run)], str(qrels), settings),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            found[name].append(timed(piece))
    print(f"{queries * hits:,} lines, {queries:,} queries, {MEASURES}; medians of {rounds}")
    print(f"{'':22} {'CPU':>9} {'clock':>9}")
    medians = []
    for name, times in found.items():
        cpu, clock = (median(each) for each in zip(*times, strict=True))
        medians.append((cpu, clock))
        print(f"{name:22} {cpu:7.2f} s {clock:7.2f} s")
    (cpu, clock), (ours, our_clock) = medians
    print(f"{'ratio':22} {ours / cpu:7.2f}   {our_clock / clock:7.2f}")
    return ours / cpu


def main() -> None:
    """Measures, and fails where the ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if measure(Path(folder), given.queries, given.hits, given.rounds) > LIMIT:
            raise SystemExit(f"the ratio is above {LIMIT}")


if __name__ == "__main__":
    main()
