"""Past memory: 10 million vectors in float16, written as shards and searched where they lie.

`python -m tests.benchmarks.scale [FOLDER] [--count 10000000]` works in FOLDER or a temporary one
(2.8 GB at 10 million). It writes synthetic vectors of 128 dimensions as ten folders of vectors, has
the file cache let go of them, and runs `denserk search --index 'shards/*'` for 1,024 queries to a
depth of 100, exactly; the same with a tenth of the vectors before. Beside the rates stand those of
reading the same files and of the matrix products alone, in bfloat16 where the CPU has it. Its exit
status is 1 where the search takes more than 4 GiB, where its memory grows by more than is mapped of
the larger collection at a time, or where hits are not those of comparing everything in float32.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.index.chained_vectors import OPEN
from tests.benchmarks.timing import DENSERK, Child, watch

DIMENSION, QUERIES, DEPTH, SHARDS = 128, 1024, 100, 10
BLOCK = 65_536
LIMIT_MIB = 4096
MAPPED_MIB = OPEN * BLOCK * DIMENSION * 2 / 2**20
"""Of vectors, at a time: pages of files, which the system takes back when it needs them."""
CHECKED = 8
"""Queries that are answered by hand too."""


class Measured(NamedTuple):
    """One size: how long each step took, and what it moved."""

    passages: int
    writing: float
    reading: float
    products: float
    search: Child

    @property
    def gigabytes(self) -> float:
        """Of vectors on the disk."""
        return self.passages * DIMENSION * 2 / 1e9


def rows_of(number: int, count: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """The vectors of a block, the same every time."""
    drawn = np.random.default_rng(number).standard_normal((count, DIMENSION), dtype=np.float32)
    return drawn.astype(np.float16)


def write(folder: Path, count: int) -> float:
    """Writes shards and queries; returns the seconds that the shards took, without drawing."""
    from denserk.formats.block_journal import Block
    from denserk.formats.manifest import Kind, Manifest
    from denserk.formats.vector_folder import VectorFolderWriter

    def writer(name: str, dtype: str) -> VectorFolderWriter:
        (folder / name).mkdir(parents=True)
        return VectorFolderWriter(folder / name, Manifest(Kind.VECTORS, False), dtype)

    seconds, number = 0.0, 0
    for shard in range(SHARDS):
        first, last = count * shard // SHARDS, count * (shard + 1) // SHARDS
        out = writer(f"shards/{shard}", "float16")
        for place, start in enumerate(range(first, last, BLOCK)):
            ids = [f"p{row}" for row in range(start, min(start + BLOCK, last))]
            rows = rows_of(number, len(ids))
            begun = time.perf_counter()
            out.write(Block(place, len(ids), ""), ids, rows)
            seconds += time.perf_counter() - begun
            number += 1
        out.finish({"dimension": DIMENSION})
    asked = writer("queries", "float32")
    asked.write(Block(0, QUERIES, ""), [f"q{n}" for n in range(QUERIES)], queries())
    asked.finish({"dimension": DIMENSION})
    return seconds


def queries() -> np.ndarray[Any, np.dtype[np.float32]]:
    """The queries."""
    return np.random.default_rng(10**9).standard_normal((QUERIES, DIMENSION), dtype=np.float32)


def blocks_of(folder: Path) -> list[Path]:
    """The files of vectors, in the order of the passages."""
    return sorted(
        folder.glob("shards/*/*.npy"), key=lambda path: (int(path.parent.name), path.name)
    )


def forget(folder: Path) -> None:
    """Has the file cache let go of the vectors."""
    for path in blocks_of(folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read(folder: Path) -> float:
    """Seconds of reading the vectors, and nothing else."""
    begun = time.perf_counter()
    for path in blocks_of(folder):
        with path.open("rb", buffering=0) as handle:
            while handle.read(1 << 24):
                pass
    return time.perf_counter() - begun


def multiply(count: int) -> float:
    """Seconds of the products of `count` vectors with the queries, scaled up from a few blocks."""
    import torch

    from denserk.modeling.devices import has_bfloat16

    dtype = torch.bfloat16 if has_bfloat16() else torch.float32
    rows, asked = torch.randn(2048, DIMENSION).to(dtype), torch.from_numpy(queries()).to(dtype)
    for rounds in (5, 50):
        begun = time.perf_counter()
        for _ in range(rounds):
            rows @ asked.T
    return (time.perf_counter() - begun) / 50 / len(rows) * count


def check(folder: Path) -> float:
    """How far scores of a few queries are from those of comparing everything in float32."""
    best: list[Any] = [np.empty((CHECKED, 0), np.float32), np.empty((CHECKED, 0), np.int64)]
    first = 0
    for path in blocks_of(folder):
        rows = np.load(path).astype(np.float32)
        numbers = np.broadcast_to(np.arange(first, first + len(rows)), (CHECKED, len(rows)))
        scores = np.concatenate([best[0], queries()[:CHECKED] @ rows.T], axis=1)
        kept = np.argpartition(-scores, DEPTH, axis=1)[:, :DEPTH]
        places = np.concatenate([best[1], numbers], axis=1)
        best = [np.take_along_axis(part, kept, axis=1) for part in (scores, places)]
        first += len(rows)
    found: dict[str, dict[str, float]] = {}
    with (folder / "run.trec").open() as lines:
        for line in lines:
            qid, _, docid, _, score, _ = line.split()
            found.setdefault(qid, {})[docid] = float(score)
    worst = 0.0
    for number in range(CHECKED):
        right = dict(zip((f"p{row}" for row in best[1][number]), best[0][number], strict=True))
        hits = found[f"q{number}"]
        cut = min(right.values())
        missing = [score for docid, score in right.items() if docid not in hits]
        worst = max([worst, *(float(score - cut) for score in missing)])
        worst = max([worst, *(abs(hits[d] - float(right[d])) for d in right.keys() & hits.keys())])
    return worst


def apart(work: Callable[..., float], *given: Any) -> float:
    """Does a piece of work in a process of its own, so that this one stays small."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def measure(folder: Path, count: int) -> Measured:
    """Writes, reads, multiplies and searches so many vectors."""
    writing = apart(write, folder, count)
    forget(folder)
    reading = read(folder)
    products = apart(multiply, count)
    forget(folder)
    command = [DENSERK, "search", "--index", str(folder / "shards" / "*"), "--hits", str(DEPTH)]
    command += ["--encoded-queries", str(folder / "queries"), "--output", str(folder / "run.trec")]
    return Measured(count, writing, reading, products, watch(command))


def show(found: Measured) -> None:
    """Prints one size."""
    size = found.gigabytes
    print(f"{found.passages:,} vectors of {DIMENSION} dimensions in float16, {size:.2f} GB")
    for what, seconds in (
        ("written", found.writing),
        ("read, nothing else", found.reading),
        (f"products with {QUERIES:,} queries alone", found.products),
        (f"denserk search, {QUERIES:,} queries", found.search.seconds),
    ):
        print(f"  {what:40} {seconds:8.1f} s {size / seconds:7.2f} GB/s")
    print(f"  {'memory of the search':40} {found.search.peak_mib:8,.0f} MiB")
    print(f"  {'its CPU seconds':40} {found.search.cpu_seconds:8.1f} s")


def main() -> None:
    """Measures a tenth and the whole, and prints both."""
    parser = argparse.ArgumentParser(description="Search past memory.")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--count", type=int, default=10_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        sizes = []
        wrong = 0.0
        for count in (given.count // 10, given.count):
            sizes.append(measure(folder / str(count), count))
            show(sizes[-1])
            wrong = max(wrong, apart(check, folder / str(count)))
    small, large = (size.search for size in sizes)
    print(
        f"ten times the vectors: {large.seconds / small.seconds:.2f} times the seconds, "
        f"{large.peak_mib / small.peak_mib:.2f} times the memory; scores differ by {wrong:.1e}"
    )
    failed = [
        what
        for what, fails in (
            (f"the search took more than {LIMIT_MIB:,} MiB", large.peak_mib > LIMIT_MIB),
            (
                "memory grew with the collection",
                large.peak_mib > small.peak_mib + 1.25 * MAPPED_MIB,
            ),
            ("hits are not those of comparing everything", wrong > 1e-3),
        )
        if fails
    ]
    if failed:
        sys.exit("; ".join(failed))


if __name__ == "__main__":
    main()
