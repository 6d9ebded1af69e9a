"""Goal P8: vectors written and indexed by denserk, and over JSON lines by Pyserini.

    python -m tests.benchmarks.index [--count 100000] [--large 600000]

CPU time of writing vectors and of `denserk index`, and of Pyserini's writer and
`pyserini.index.faiss`; the two indexes must have the same bytes. Then the peak memory of
`denserk index` at --large vectors (4 GB of disk).
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from denserk.io.blocks import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vectors import VectorFolderWriter
from tests.benchmarks.timing import DENSERK, Goals, cpu_seconds, watch
from tests.peers import run_pyserini

D, BLOCK = 768, 16_384
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


def write_folder(folder: Path, count: int) -> float:
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


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=600_000)
    given = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for count in (given.large, given.count):
            source, index = folder / f"v{count}", folder / f"i{count}"
            written = write_folder(source, count)
            child = watch([DENSERK, "index", "--input", str(source), "--output", str(index)])
            if count == given.large:
                what = f"denserk index of {count:,} vectors, peak in MiB"
                goals.at_most("P8", what, child.peak_mib, 1024)
                os.truncate(index / "index", 0)  # its place on the disk
        ours = written + child.cpu_seconds
        parts = [np.load(path) for path in sorted(source.glob("*.npy"))]
        np.save(folder / "vectors.npy", np.concatenate(parts))
        arguments = [folder / name for name in ("vectors.npy", "lines", "theirs")]
        said = run_pyserini(PYSERINI, *arguments, folder=folder)
        theirs = float(said.rpartition("seconds")[2])
        for name in ("index", "docid"):
            if (index / name).read_bytes() != (folder / "theirs" / name).read_bytes():
                raise SystemExit(f"the two files {name} differ")
    print(f"{given.count:,} vectors, CPU time: denserk {ours:.2f} s, Pyserini {theirs:.2f} s")
    goals.at_least("P8", "vectors to an index, x JSON lines and Pyserini", theirs / ours, 50)
    goals.finish()


if __name__ == "__main__":
    main()
