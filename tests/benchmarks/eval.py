"""Goal S8: `denserk eval` beside a script with pytrec_eval, ir_measures' command and trec_eval.

    python -m tests.benchmarks.eval [--queries 5000] [--rounds 3]

A run of 1,000 hits a query, and qrels with three judged hits a query at any rank: nDCG@10, RR@10
and R@1000. CPU time of whole commands; values must be equal to four decimals. trec_eval in C is
that of Anserini's jar. The peak memory is compared with that of a fifth of the queries.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from denserk.index.lucene import anserini_jar
from tests.benchmarks.timing import DENSERK, Goals, median_children, watch

MEASURES = ("nDCG@10", "RR@10", "R@1000")
TREC_NAMES = {"nDCG@10": "ndcg_cut_10", "R@1000": "recall_1000"}  # RR has no cutoff there
PROGRAM = "trec_eval/trec_eval-linux-amd64"
HITS, JUDGED, PASSAGES = 1000, 3, 8_841_823
SCRIPT = """
import sys
import pytrec_eval
with open(sys.argv[1]) as file:
    qrels = pytrec_eval.parse_qrel(file)
with open(sys.argv[2]) as file:
    run = pytrec_eval.parse_run(file)
evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recip_rank", "recall.1000"})
values = evaluator.evaluate(run)
for measure in ("ndcg_cut_10", "recip_rank", "recall_1000"):
    mean = sum(of_query[measure] for of_query in values.values()) / len(values)
    print(measure, "all", f"{mean:.4f}")
"""


class RunAndQrels(NamedTuple):
    """Files that are evaluated."""

    run: str
    qrels: str


def write_run(folder: Path, queries: int, hits: int = HITS) -> RunAndQrels:
    """Write a run with scores of six decimals, and its qrels."""
    draw = Random(1)
    files = RunAndQrels(str(folder / f"run{queries}.trec"), str(folder / f"qrels{queries}.txt"))
    with Path(files.run).open("w") as run, Path(files.qrels).open("w") as qrels:
        for query in range(1_000_000, 1_000_000 + queries):
            docids = draw.sample(range(PASSAGES), hits)
            scores = sorted((round(60 + 30 * draw.random(), 6) for _ in docids), reverse=True)
            ranked = zip(docids, range(1, hits + 1), scores, strict=True)
            run.writelines(f"{query} Q0 {d} {rank} {score} run\n" for d, rank, score in ranked)
            judged = draw.sample(docids, min(JUDGED, hits))
            qrels.writelines(f"{query} 0 {docid} 1\n" for docid in judged)
    return files


def values(command: Sequence[str]) -> dict[str, str]:
    """Measure -> value, as a command prints them: the first and the last column."""
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines}


def denserk_eval(files: RunAndQrels) -> list[str]:
    """Return the command of denserk."""
    return [DENSERK, "eval", files.run, files.qrels, "-m", " ".join(MEASURES), "--quiet"]


def trec_eval(folder: Path, files: RunAndQrels) -> list[str]:
    """Return the command of trec_eval in C."""
    with zipfile.ZipFile(anserini_jar()) as jar:
        program = Path(jar.extract(PROGRAM, folder))
    program.chmod(0o755)
    measures = ["-m", "ndcg_cut.10", "-m", "recall.1000", "-m", "recip_rank"]
    return [str(program), *measures, files.qrels, files.run]


def check_values(commands: dict[str, list[str]]) -> None:
    """Exit unless all commands print the same values."""
    found = {name: values(command) for name, command in commands.items()}
    ours = found["denserk"]
    for name in MEASURES:
        peers = {found["ir_measures"][name]}
        if name in TREC_NAMES:
            peers |= {found[peer][TREC_NAMES[name]] for peer in ("pytrec_eval script", "trec_eval")}
        if peers != {ours[name]}:
            raise SystemExit(f"values differ: {found}")


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_run(folder, options.queries)
        few = write_run(folder, options.queries // 5)
        commands = {
            "denserk": denserk_eval(files),
            "pytrec_eval script": [sys.executable, "-c", SCRIPT, files.qrels, files.run],
            "ir_measures": [
                str(Path(DENSERK).with_name("ir_measures")),
                *(files.qrels, files.run),
                *MEASURES,
            ],
            "trec_eval": trec_eval(folder, files),
        }
        check_values(commands)
        children = median_children(commands, options.rounds)
        peak_of_few = watch(denserk_eval(few)).peak_mib
    for name, child in children.items():
        print(f"{name}: {child.cpu_seconds:.2f} s, {child.peak_mib:.0f} MiB")
    denserk_child = children["denserk"]
    what = f"eval of {options.queries * HITS:,} lines"
    for name, bound in (("pytrec_eval script", 1.5), ("ir_measures", 6), ("trec_eval", 1.5)):
        ratio = children[name].cpu_seconds / denserk_child.cpu_seconds
        goals.at_least("S8", f"{what}, x {name}", ratio, bound)
    goals.at_most("S8", f"{what}, peak in MiB", denserk_child.peak_mib, 250)
    goals.at_most("S8", "peak, x that of a fifth", denserk_child.peak_mib / peak_of_few, 1.15)
    goals.finish()


if __name__ == "__main__":
    main()
