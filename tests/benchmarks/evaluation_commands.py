"""`denserk eval` beside ir_measures' command and trec_eval in C: whole processes, the same files.

`python -m tests.benchmarks.evaluation_commands [--queries N] [--hits K] [--rounds R]` writes a run
of 6,980 queries with 1,000 hits, some of which tie, and judgements as MS MARCO's development set
has them, one or two a query, and runs the commands one after another, round by round. trec_eval is
the program in Anserini's jar, which Pyserini carries; without it pytrec_eval, which is its C behind
a parser in Python, stands in for it, and the table says so.

Claims, by CPU time at full size: denserk takes at most 1/3.5 of ir_measures' time, at most 1/0.9 of
trec_eval's; all values are the same to four decimals. The exit status is 1 where one fails.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median

from denserk.index.lucene import anserini_jar
from tests.benchmarks.timing import DENSERK, Child, watch

MEASURES = ("nDCG@10", "RR@10", "R@1000")
NAMES = {"nDCG@10": "ndcg_cut_10", "R@1000": "recall_1000"}
"""The same for trec_eval, whose reciprocal rank has no cutoff."""
GOALS = {"ir_measures": 3.5, "trec_eval": 0.9}
PROGRAM = "trec_eval/trec_eval-linux-amd64"
STAND_IN = """
import sys
import pytrec_eval
with open(sys.argv[1]) as qrels, open(sys.argv[2]) as run:
    evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), {"ndcg_cut.10",
        "recall.1000", "recip_rank"})
    found = evaluator.evaluate(pytrec_eval.parse_run(run))
for name in ("ndcg_cut_10", "recall_1000", "recip_rank"):
    print(name, "all", f"{sum(each[name] for each in found.values()) / len(found):.4f}", sep="\\t")
"""


def write(folder: Path, queries: int, hits: int) -> tuple[str, str]:
    """A run with scores of three digits after the point, and its judgements."""
    draw = Random(1)
    run, qrels = folder / "run.trec", folder / "qrels.txt"
    with run.open("w") as lines, qrels.open("w") as judged:
        for query in range(1_000_000, 1_000_000 + queries):
            docids = draw.sample(range(8_841_823), hits)
            scores = sorted((round(60 + 30 * draw.random(), 3) for _ in docids), reverse=True)
            ranked = zip(docids, range(1, hits + 1), scores, strict=True)
            lines.writelines(f"{query} Q0 {d} {rank} {score} run\n" for d, rank, score in ranked)
            places = {int(draw.paretovariate(0.35)) for _ in range(1 + (draw.random() < 0.07))}
            found = (docids[place] if place < hits else -place for place in places)
            judged.writelines(f"{query} 0 {docid} 1\n" for docid in found)
    return str(run), str(qrels)


def trec_eval(folder: Path) -> tuple[str, list[str]]:
    """What stands for trec_eval, and how it is called."""
    if find_spec("pyserini") is not None and sys.platform == "linux":
        with zipfile.ZipFile(anserini_jar()) as jar:
            program = Path(jar.extract(PROGRAM, folder))
        program.chmod(0o755)
        names = ("ndcg_cut.10", "recall.1000", "recip_rank")
        return "trec_eval in C", [str(program), *(w for name in names for w in ("-m", name))]
    return "pytrec_eval for trec_eval", [sys.executable, "-c", STAND_IN]


def values(command: Sequence[str]) -> dict[str, str]:
    """Measure -> value, as a command prints them: the first and the last column."""
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines}


def check(ours: dict[str, str], irm: dict[str, str], trec: dict[str, str]) -> None:
    """Refuses values that differ.

    Raises:
        SystemExit: they do.
    """
    theirs = {name: irm[name] for name in MEASURES}
    if ours != theirs or any(ours[name] != trec[other] for name, other in NAMES.items()):
        raise SystemExit(f"values differ: {ours}, {irm}, {trec}")


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, qrels = write(folder, given.queries, given.hits)
        called, program = trec_eval(folder)
        ours = [DENSERK, "eval", run, qrels, "-m", " ".join(MEASURES), "--quiet"]
        commands = {
            "denserk eval": ours,
            "ir_measures": [str(Path(DENSERK).with_name("ir_measures")), qrels, run, *MEASURES],
            "trec_eval": [*program, qrels, run],
        }
        check(*(values(commands[name]) for name in ("denserk eval", "ir_measures", "trec_eval")))
        found: dict[str, list[Child]] = {}
        for _ in range(given.rounds):
            for name, command in commands.items():
                found.setdefault(name, []).append(watch(command))
    show(found, given.queries * given.hits, called)


def show(found: dict[str, list[Child]], lines: int, called: str) -> None:
    """Prints the medians.

    Raises:
        SystemExit: a claim does not hold.
    """
    print(f"{lines:,} lines, {' '.join(MEASURES)}; trec_eval: {called}")
    print(f"{'':22} {'clock':>9} {'CPU':>9} {'x denserk':>10} {'peak':>10}")
    cpu = {name: median(child.cpu_seconds for child in all_) for name, all_ in found.items()}
    for name, children in found.items():
        clock, peak = (median(each) for each in list(zip(*children, strict=True))[:2])
        ratio = cpu[name] / cpu["denserk eval"]
        print(f"{name:22} {clock:7.2f} s {cpu[name]:7.2f} s {ratio:10.2f} {peak:6.0f} MiB")
    for name, goal in GOALS.items():
        if cpu[name] < goal * cpu["denserk eval"]:
            raise SystemExit(f"{name} takes less than {goal} times as long")


if __name__ == "__main__":
    main()
