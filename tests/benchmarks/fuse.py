"""Goal S9: `denserk fuse` beside Pyserini, ranx and a script with polars.

    python -m tests.benchmarks.fuse [--queries 1000] [--rounds 3] [--peers PYTHON]

Reciprocal rank fusion of four runs of 1,000 hits a query, of which each passage is in some. CPU
time of whole commands. `PYTHON` is the interpreter of an environment with ranx and polars; without
it only Pyserini is measured. polars has one thread, and writes all passages, as Pyserini does.
Scores must be equal to seven digits.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random

from tests.benchmarks.timing import DENSERK, Goals, median_children
from tests.support.peers import peer_environment

RUNS, HITS, POOL, PASSAGES = 4, 1000, 3300, 8_841_823
ROUNDING = 1e-7  # float32, and ties lowered to the next one
RANX = """
import sys
from ranx import Run, fuse
*paths, output = sys.argv[1:]
runs = [Run.from_file(path, kind="trec") for path in paths]
fuse(runs=runs, method="rrf", params={"k": 60}).save(output, kind="trec")
"""
POLARS = """
import sys
import polars as pl
*paths, output = sys.argv[1:]
types = {"q": pl.String, "Q0": pl.String, "d": pl.String, "place": pl.Int64, "s": pl.Float64,
         "tag": pl.String}
parts = []
for path in paths:
    run = pl.read_csv(path, separator=" ", has_header=False, schema=types)
    rank = pl.col("s").rank("ordinal", descending=True).over("q")
    parts.append(run.with_columns(r=1 / (60 + rank)).select("q", "d", "r"))
fused = pl.concat(parts).group_by("q", "d", maintain_order=True).agg(pl.col("r").sum())
fused = fused.sort(["q", "r", "d"], descending=[False, True, True])
fused = fused.with_columns(rank=pl.int_range(1, pl.len() + 1).over("q"))
lines = fused.select("q", a=pl.lit("Q0"), d="d", rank="rank", r="r", t=pl.lit("polars"))
lines.write_csv(output, separator=" ", include_header=False)
"""


def write_runs(folder: Path, queries: int) -> list[str]:
    """Write runs whose hits of a query are drawn from one pool."""
    paths = []
    for number in range(RUNS):
        draw = Random(100 + number)
        path = folder / f"run{number}.trec"
        with path.open("w") as run:
            for query in range(1_000_000, 1_000_000 + queries):
                pool = Random(query).sample(range(PASSAGES), POOL)
                docids = draw.sample(pool, HITS)
                # no two are equal: the tools order ties differently
                steps = (draw.uniform(0.01, 0.05) for _ in docids)
                scores = [round(60 - total, 6) for total in accumulate(steps)]
                ranked = zip(docids, range(1, HITS + 1), scores, strict=True)
                run.writelines(f"{query} Q0 {d} {rank} {score} run\n" for d, rank, score in ranked)
        paths.append(str(path))
    return paths


def scores_of(path: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield query and passage, and the score, of each line of a run."""
    with path.open() as lines:
        for line in lines:
            qid, _, docid, _, score, _ = line.split()
            yield (qid, docid), float(score)


def check_scores(ours: Path, theirs: Path) -> None:
    """Exit unless a peer gives each hit of denserk's run the same score."""
    scores = dict(scores_of(theirs))
    for hit, score in scores_of(ours):
        if hit in scores and abs(scores[hit] - score) > ROUNDING + 1e-6 * abs(score):
            raise SystemExit(f"{theirs.name}: {hit} has the scores {score} and {scores[hit]}")
    missing = sum(hit not in scores for hit, _ in scores_of(ours))
    if missing > len(scores) / 1000:  # ties at the cut
        raise SystemExit(f"{theirs.name} lacks {missing:,} hits")


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON")
    options = parser.parse_args()
    os.environ.update(peer_environment())
    os.environ["POLARS_MAX_THREADS"] = "1"
    goals = Goals()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_runs(folder, options.queries)
        outputs = {peer: folder / peer for peer in ("denserk", "Pyserini", "ranx", "polars")}
        ours = ["fuse", *paths, "--output", str(outputs["denserk"]), "--quiet", "--overwrite"]
        theirs = ["--method", "rrf", "--runs", *paths, "--output", str(outputs["Pyserini"])]
        commands = {
            "denserk": [DENSERK, *ours],
            "Pyserini": [sys.executable, "-m", "pyserini.fusion", *theirs],
        }
        if options.peers:
            for peer, script in (("ranx", RANX), ("polars", POLARS)):
                commands[peer] = [options.peers, "-c", script, *paths, str(outputs[peer])]
        children = median_children(commands, options.rounds)
        for peer in commands:
            check_scores(outputs["denserk"], outputs[peer])
    for peer, child in children.items():
        print(f"{peer}: {child.cpu_seconds:.2f} s, {child.peak_mib:.0f} MiB")
    denserk_child = children["denserk"]
    what = f"fusion of {RUNS} x {options.queries * HITS:,} lines"
    for peer, bound in (("Pyserini", 5), ("ranx", 20), ("polars", 1)):
        if peer in commands:
            ratio = children[peer].cpu_seconds / denserk_child.cpu_seconds
            goals.at_least("S9", f"{what}, x {peer}", ratio, bound)
    goals.at_most("S9", f"{what}, peak in MiB", denserk_child.peak_mib, 400)
    goals.finish()


if __name__ == "__main__":
    main()
