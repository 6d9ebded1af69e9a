"""An IVF-PQ index of many float16 vectors, built out of core: rates, peak memory, their growth.

`python -m tests.benchmarks.scale_building [--counts N,N] [--dimension D] [--factory F] [--folder
DIR]` writes folders of N random float16 vectors, as `denserk encode` does, and has `denserk index`
build F of each, a process on one thread. It prints the seconds and the peak of both sizes, and the
rate of a plain write of the vectors' bytes to the same disk. The claims: no peak passes --limit-gib
(4), and from the smaller size to the larger it grows by no more than a tenth. Its exit status is 1
where one does not hold. `--counts 1000000,10000000` needs 10 GB of disk.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from denserk.formats.block_journal import Block
from denserk.formats.manifest import Kind, Manifest
from denserk.formats.vector_folder import VectorFolderWriter
from tests.benchmarks.timing import DENSERK, Child, watch

BLOCK = 65_536
GROWTH = 1.1
"""How much larger the larger peak may be."""


def write_vectors(folder: Path, count: int, dimension: int) -> float:
    """Writes float16 vectors as `denserk encode` does; seconds, drawing the numbers not counted."""
    folder.mkdir()
    writer = VectorFolderWriter(folder, Manifest(Kind.VECTORS, False), "float16")
    seconds = 0.0
    for number, first in enumerate(range(0, count, BLOCK)):
        size = min(BLOCK, count - first)
        drawn = np.random.default_rng(number).standard_normal((size, dimension), np.float32)
        ids = [f"d{first + row}" for row in range(size)]
        start = time.perf_counter()
        writer.write(Block(number, size, ""), ids, drawn)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    writer.finish({"dimension": dimension, "vectors_per_passage": 1})
    return seconds + time.perf_counter() - start


def write_plainly(path: Path, size: int) -> float:
    """Seconds in which the disk takes so many bytes."""
    block = bytes(1 << 24)
    start = time.perf_counter()
    with path.open("wb") as out:
        for first in range(0, size, len(block)):
            out.write(block[: size - first])
        os.fsync(out.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def measure(folder: Path, count: int, given: Any) -> Child:
    """Writes and indexes `count` vectors, and prints a line."""
    vectors, index = folder / "vectors", folder / "index"
    floor = write_plainly(folder / "plain", 2 * count * given.dimension)
    written = write_vectors(vectors, count, given.dimension)
    command = [DENSERK, "index", "--input", str(vectors), "--output", str(index)]
    child = watch([*command, "--factory", given.factory, "--threads", str(given.threads)])
    mb = 2 * count * given.dimension / 1e6
    print(
        f"{count:12,} {mb / written:10,.0f} {mb / floor:12,.0f} {child.seconds:10.1f}"
        f" {child.cpu_seconds:8.1f} {count / child.seconds:12,.0f} {child.peak_mib:8,.0f}"
        f" {(index / 'index').stat().st_size / count:8.1f}"
    )
    return child


def main() -> None:
    """Measures both sizes, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="100000,200000")
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--factory", default="IVF1024,PQ16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit-gib", type=float, default=4)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(f"{given.factory} of {given.dimension} dimensions, {given.threads} thread(s)")
    print(
        f"{'vectors':>12} {'write MB/s':>10} {'plain MB/s':>12} {'index s':>10} {'CPU s':>8}"
        f" {'vectors/s':>12} {'MiB':>8} {'bytes':>8}"
    )
    peaks = []
    for count in map(int, given.counts.split(",")):
        with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
            peaks.append(measure(Path(temporary), count, given).peak_mib)
    print(f"the peak grew {peaks[-1] / peaks[0]:.2f} times")
    if max(peaks) > 1024 * given.limit_gib or peaks[-1] > GROWTH * peaks[0]:
        raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
