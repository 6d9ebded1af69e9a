"""Whole commands beside other tools, bounds of time and memory: goals P7 and P8.

    python -m tests.benchmarks.commands [startup index] [--rounds 3]

startup: medians by the clock. index: CPU time of writing 100,000 vectors and of `denserk index`,
and of Pyserini's writer and `pyserini.index.faiss`, which must give the same bytes; memory at
600,000 vectors (4 GB of disk).
"""

import argparse
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from denserk.io.blocks import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vectors import VectorFolderWriter
from tests.benchmarks.eval import write_run
from tests.benchmarks.timing import DENSERK, Goals, cpu_seconds, watch
from tests.support.peers import run_pyserini

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


def startup(goals: Goals, folder: Path, rounds: int) -> None:
    """Goal P7."""
    run, qrels = write_run(folder, 10, 1000)
    corpus, index, topics = (str(folder / name) for name in ("corpus.jsonl", "bm25", "topics.tsv"))
    lines = (json.dumps({"_id": f"d{n}", "text": f"river {n} bank"}) + "\n" for n in range(1000))
    Path(corpus).write_text("".join(lines))
    Path(topics).write_text("q1\triver bank\n")
    watch([DENSERK, "index", "--type", "bm25", "--corpus", corpus, "--output", index, "--quiet"])
    search = [DENSERK, "search", "--index", index, "--topics", topics, "--overwrite"]
    commands = {
        "denserk --help": ([DENSERK, "--help"], 0.2),
        "denserk eval, 10,000 lines": ([DENSERK, "eval", run, qrels], 0.5),
        "BM25 search, one query": ([*search, "--output", str(folder / "found.trec")], 0.8),
    }
    for name, (command, bound) in commands.items():
        seconds = median(watch(command).seconds for _ in range(rounds))
        goals.at_most("P7", f"{name}, seconds", seconds, bound)


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


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser()
    known = {"startup": startup, "index": indexing}
    parser.add_argument("names", nargs="*", default=list(known), choices=known)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    goals = Goals()
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            known[name](goals, Path(folder), given.rounds)
    goals.finish()


if __name__ == "__main__":
    main()
