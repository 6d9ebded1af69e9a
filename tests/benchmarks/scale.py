"""Past memory: 10 million vectors in float16, written as shards and searched where they lie.

`python -m tests.benchmarks.scale [FOLDER] [--count 10000000]` works in FOLDER or a temporary one
(5.5 GB at 10 million). It writes synthetic vectors of 128 dimensions as ten folders of vectors, has
the file cache let go of them, and runs `denserk search --index 'shards/*'` for 1,024 queries to a
depth of 100, exactly, on one thread; the same with a tenth of the vectors before. Beside the rates
stand those of a plain write of as many bytes, of reading the same files cold, and of the matrix
products alone, in bfloat16 where the CPU has it. Its exit status is 1 where the search takes more
than 4 GiB, where its own memory grows by more than a tenth, where it maps more than 32 files of
vectors at a time, or where hits are not those of comparing everything in float32.
"""

import argparse
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from denserk.index.shards import OPEN
from denserk.io.block_journal import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter
from tests.benchmarks.floors import forget, multiply, read_plainly, write_plainly
from tests.benchmarks.many_vectors import BLOCK, show, write_vectors
from tests.benchmarks.timing import DENSERK, Child, apart, watch

DIMENSION, QUERIES, DEPTH, SHARDS = 128, 1024, 100, 10
LIMIT_MIB = 4096
GROWTH = 1.1
"""How much more memory of its own the larger search may hold."""
MAPPED_MIB = OPEN * BLOCK * DIMENSION * 2 / 2**20
"""Of vectors, at a time: pages of files, which the system takes back when it needs them."""
CHECKED = 8
"""Queries that are answered by hand too."""


def write(folder: Path, count: int) -> float:
    """Writes shards and queries; returns the seconds that the shards took, without drawing."""
    ends = [count * shard // SHARDS for shard in range(SHARDS + 1)]
    seconds = sum(
        write_vectors(folder / f"shards/{shard}", range(*rows), DIMENSION)
        for shard, rows in enumerate(pairwise(ends))
    )
    (folder / "queries").mkdir()
    asked = VectorFolderWriter(folder / "queries", Manifest(Kind.VECTORS, False), "float32")
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


def products(count: int) -> float:
    """Seconds of the products with the queries, in bfloat16 where the CPU has it."""
    from denserk.models.devices import has_bfloat16

    dtype = "bfloat16" if has_bfloat16() else "float32"
    return multiply(count, QUERIES, DIMENSION, dtype)


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


def measure(folder: Path, count: int) -> Child:
    """Writes, reads, multiplies and searches so many vectors, and prints the rates."""
    size = 2 * count * DIMENSION
    print(f"{count:,} vectors of {DIMENSION} dimensions in float16, {size / 1e9:.2f} GB")
    folder.mkdir(parents=True)
    show("plain write to this disk", write_plainly(folder / "plain", size), size)
    show("written", apart(write, folder, count), size)
    forget(blocks_of(folder))
    show("plain read, cold", read_plainly(blocks_of(folder)), size)
    show(f"products with {QUERIES:,} queries alone", apart(products, count), size)
    forget(blocks_of(folder))
    command = [DENSERK, "search", "--index", str(folder / "shards" / "*"), "--hits", str(DEPTH)]
    command += ["--encoded-queries", str(folder / "queries"), "--output", str(folder / "run.trec")]
    child = watch([*command, "--threads", "1"])
    show(f"denserk search, {QUERIES:,} queries", child.seconds, size)
    show("the same in CPU seconds", child.cpu_seconds, size)
    print(f"  {'peak of its memory':40} {child.peak_mib:8,.0f} MiB")
    print(f"  {'its own, mapped files left out':40} {child.own_mib:8,.0f} MiB", flush=True)
    return child


def main() -> None:
    """Measures a tenth and the whole, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--count", type=int, default=10_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        found, wrong = [], 0.0
        for count in (given.count // 10, given.count):
            found.append(measure(folder / str(count), count))
            wrong = max(wrong, apart(check, folder / str(count)))
    small, large = found
    mapped = [child.peak_mib - child.own_mib for child in found]
    print(
        f"ten times the vectors: {large.seconds / small.seconds:.2f} times the seconds, "
        f"{large.peak_mib / small.peak_mib:.2f} times the memory, "
        f"{large.own_mib / small.own_mib:.2f} times its own; scores differ by {wrong:.1e}"
    )
    failed = [
        what
        for what, fails in (
            (f"the search took more than {LIMIT_MIB:,} MiB", large.peak_mib > LIMIT_MIB),
            ("the search's own memory grew", large.own_mib > GROWTH * small.own_mib),
            ("more was mapped at a time", mapped[1] > mapped[0] + MAPPED_MIB),
            ("hits are not those of comparing everything", wrong > 1e-3),
        )
        if fails
    ]
    if failed:
        sys.exit("; ".join(failed))


if __name__ == "__main__":
    main()
