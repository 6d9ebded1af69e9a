"""Four IVF-PQ indexes merged into one, at two sizes: seconds, own memory, and how it grows.

`python -m tests.benchmarks.scale_merging [--counts N,N] [--dimension D] [--factory F] [--folder
DIR]` writes N random float16 vectors, has `denserk index` build F of them, makes three more parts
of that index under other ids, and has `denserk index` merge the four, a process on one thread. The
vectors are not at hand then, so that what is measured is the merge alone. The claim: from the
smaller size to the larger the process's own memory grows by no more than a tenth, where the merged
lists of both are larger than what is joined at once. Its exit status is 1 where it does not hold.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.timing import DENSERK, Child, watch

PARTS = 4
BLOCK = 65_536
GROWTH = 1.1
"""How many times as large the own memory of the larger may be."""


def write_vectors(path: Path, count: int, dimension: int) -> None:
    """Writes random float16 vectors as one NumPy array."""
    shape = (count, dimension)
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    for number, first in enumerate(range(0, count, BLOCK)):
        block = vectors[first : first + BLOCK]
        block[:] = np.random.default_rng(number).standard_normal(block.shape, np.float32)
    vectors.flush()


def measure(folder: Path, count: int, given: Any) -> Child:
    """Builds a part of `count` vectors, merges four of them, and prints a line."""
    vectors = folder / "vectors.npy"
    write_vectors(vectors, count, given.dimension)
    parts = [folder / "parts" / str(number) for number in range(PARTS)]
    threads = ["--threads", "1"]
    kind = ["--factory", given.factory, "--train-size", str(given.train_size), *threads]
    command = [DENSERK, "index", "--input", str(vectors), "--output", str(parts[0])]
    watch([*command, *kind])
    vectors.unlink()
    ids = (parts[0] / "docid").read_text().splitlines()
    for number, part in enumerate(parts[1:], 1):
        shutil.copytree(parts[0], part)
        (part / "docid").write_text("".join(f"{docid}-{number}\n" for docid in ids))
    merged = folder / "merged"
    inputs = ["--input", str(folder / "parts" / "*")]
    child = watch([DENSERK, "index", *inputs, "--output", str(merged), *threads])
    assert json.loads((merged / "manifest.json").read_text())["contents"]["count"] == PARTS * count
    size = (merged / "index").stat().st_size
    print(
        f"{PARTS} x {count:10,} {size / 1e6:8,.0f} MB {child.seconds:8.1f} s "
        f"{child.cpu_seconds:8.1f} CPU s {child.own_mib:8,.0f} MiB",
        flush=True,
    )
    return child


def main() -> None:
    """Measures both sizes, and fails where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1000000,4000000")
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--factory", default="IVF1024,PQ16")
    parser.add_argument("--train-size", type=int, default=40_960)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(f"{given.factory} of {given.dimension} dimensions")
    peaks = []
    for count in map(int, given.counts.split(",")):
        with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
            peaks.append(measure(Path(temporary), count, given).own_mib)
    print(f"the process's own memory grew {peaks[-1] / peaks[0]:.2f} times")
    if peaks[-1] > GROWTH * peaks[0]:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
