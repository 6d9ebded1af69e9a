"""Goal P5: `denserk eval` beside ir_measures' command and trec_eval in C, whole processes.

    python -m tests.benchmarks.evaluate [--queries 6980] [--hits 1000] [--rounds 3]

The run has ties, the qrels one or two passages a query, as MS MARCO's development set. trec_eval is
the program in Anserini's jar, which Pyserini carries. Values must be equal to four decimals.
"""

import argparse
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median

from denserk.index.bm25 import anserini_jar
from tests.benchmarks.timing import DENSERK, Child, Goals, watch

MEASURES = ("nDCG@10", "RR@10", "R@1000")
TREC_NAMES = {"nDCG@10": "ndcg_cut_10", "R@1000": "recall_1000"}  # RR has no cutoff there
PROGRAM = "trec_eval/trec_eval-linux-amd64"


def write(folder: Path, queries: int, hits: int) -> tuple[str, str]:
    """Write a run with scores of three decimals, and its qrels."""
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


def values(command: Sequence[str]) -> dict[str, str]:
    """Measure -> value, as a command prints them: the first and the last column."""
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines}


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run, qrels = write(Path(name), given.queries, given.hits)
        with zipfile.ZipFile(anserini_jar()) as jar:
            program = Path(jar.extract(PROGRAM, name))
        program.chmod(0o755)
        asked = ["-m", "ndcg_cut.10", "-m", "recall.1000", "-m", "recip_rank"]
        commands = {
            "denserk": [DENSERK, "eval", run, qrels, "-m", " ".join(MEASURES), "--quiet"],
            "ir_measures": [str(Path(DENSERK).with_name("ir_measures")), qrels, run, *MEASURES],
            "trec_eval": [str(program), *asked, qrels, run],
        }
        ours, irm, trec = (values(command) for command in commands.values())
        same = all(ours[name] == irm[name] for name in MEASURES)
        if not same or any(ours[name] != trec[other] for name, other in TREC_NAMES.items()):
            raise SystemExit(f"values differ: {ours}, {irm}, {trec}")
        found: dict[str, list[Child]] = {name: [] for name in commands}
        for _ in range(given.rounds):
            for name, command in commands.items():
                found[name].append(watch(command))
    cpu = {name: median(child.cpu_seconds for child in each) for name, each in found.items()}
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cpu.items())
    print(f"{given.queries * given.hits:,} lines, CPU time: {times}; equal values")
    goals = Goals()
    goals.at_least("P5", "eval, x ir_measures' command", cpu["ir_measures"] / cpu["denserk"], 6)
    goals.at_least("P5", "eval, x trec_eval in C", cpu["trec_eval"] / cpu["denserk"], 1.5)
    peak = median(child.peak_mib for child in found["denserk"])
    goals.at_most("P5", "eval, peak memory in MiB", peak, 300)
    goals.finish()


if __name__ == "__main__":
    main()
