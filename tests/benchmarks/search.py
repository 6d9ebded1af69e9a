"""Exact search beside `faiss.IndexFlatIP` as it is installed, and what a search does beside it.

`python -m tests.benchmarks.search [--counts N,N] [--kinds KIND,KIND] [--rounds R] [--threads T]
[--queries N]` makes unit vectors of 768 dimensions, at random and in clusters, and searches them
in batches to a depth of 1,000, one batch of each engine a round; then one query at a time; then
--queries of them through ids and run file, as `denserk search` does. Rates are queries a second of
CPU time, which other work on the machine changes less than the clock. Its exit status is 1 where
the answers differ by more than float32 rounds, where batches are slower than 0.95 of faiss, or
where what is beside the scan would be more than 5 % of a search in 8,841,823 passages.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import faiss  # before denserk loads it: as installed
import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config.retrieval import Metric, SearchSettings
from denserk.index.exact import ExactIndex
from denserk.index.index_folder import PassageIds
from denserk.index.searcher import Searcher
from denserk.io.flat_file import FlatWriter, map_flat
from denserk.io.runs import run_writer
from denserk.models.devices import has_bfloat16
from tests.benchmarks.timing import largest, resident

D, DEPTH, BATCH, LARGE = 768, 1000, 256, 1024
AT_ONCE = 65_536
MARCO = 8_841_823
NEAR = 1e-6
"""Difference of two inner products of unit vectors that float32 need not see."""
SLOWER, SHARE = 0.95, 0.05
Vectors = NDArray[np.float32]


def unit(vectors: Vectors) -> Vectors:
    """Rows of length 1."""
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def collection(folder: Path, kind: str, count: int) -> tuple[Path, Vectors]:
    """A flat index on the disk, its ids beside it, and queries of the same kind."""
    draw = np.random.default_rng(count)
    centres = draw.standard_normal((2000, D), np.float32)

    def some(n: int, apart: float) -> Vectors:
        noise = draw.standard_normal((n, D), np.float32)
        if kind == "random":
            return unit(noise)
        return unit(centres[draw.integers(0, 2000, n)] + np.float32(apart) * noise)

    path = folder / "index"
    with path.open("wb") as handle:
        writer = FlatWriter(handle, Metric.INNER)
        for first in range(0, count, AT_ONCE):
            writer.add(some(min(AT_ONCE, count - first), 0.7))
        writer.finish()
    (folder / "docid").write_text("".join(f"{n}\n" for n in range(count)))
    return path, some(LARGE, 0.9)


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds of a piece of work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(work: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, after one round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, piece in work.items():
            found[name].append(cpu(piece))
    return {name: median(times[1:]) for name, times in found.items()}


def matrix_rates(rounds: int) -> dict[str, float]:
    """GFLOP/s of CPU time of products of a block with a batch, in the caches."""
    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        block, queries = (torch.randn(n, D).to(dtype) for n in (2048, BATCH))
        out = torch.empty(2048, BATCH, dtype=dtype)

        def products(b: Any = block, q: Any = queries, o: Any = out) -> None:
            for _ in range(20):
                torch.mm(b, q.T, out=o)

        rates[name] = 20 * 2 * 2048 * BATCH * D / median(cpu(products) for _ in range(rounds)) / 1e9
    return rates


def differences(
    vectors: Vectors, queries: Vectors, one: tuple[Any, Any], other: tuple[Any, Any]
) -> tuple[int, float]:
    """Places where ids differ although float64 tells them apart; the largest difference of scores.

    Raises:
        SystemExit: there is such a place, or scores differ by 1e-5.
    """
    places = np.argwhere(one[1] != other[1])
    told = 0
    for query, place in places:
        rows = [one[1][query, place], other[1][query, place]]
        left, right = vectors[rows].astype(np.float64) @ queries[query].astype(np.float64)
        told += abs(left - right) > NEAR
    apart = float(np.abs(one[0] - other[0]).max())
    if told or apart > 1e-5:
        raise SystemExit(f"{told} ids differ, and scores by {apart:.1e}")
    return len(places), apart


def compare(path: Path, kind: str, queries: Vectors, rates: dict[str, float], rounds: int) -> float:
    """Prints a collection's batches and single queries; returns the ratio of batches."""
    vectors, _ = map_flat(path)
    count = len(vectors)
    theirs = faiss.IndexFlatIP(D)
    for first in range(0, count, AT_ONCE):
        theirs.add(np.array(vectors[first : first + AT_ONCE]))
    fast, plain = ExactIndex(vectors, bfloat16=has_bfloat16()), ExactIndex(vectors)
    batch = queries[:BATCH]
    before = resident("RssAnon")
    with largest("RssAnon", looks=1000) as held_while:
        mine = fast.search(batch, DEPTH)
    ties, apart = differences(vectors, batch, mine, theirs.search(batch, DEPTH))
    found = interleaved(
        {
            "faiss.IndexFlatIP": lambda: theirs.search(batch, DEPTH),
            "denserk, float32": lambda: plain.search(batch, DEPTH),
            "denserk": lambda: fast.search(batch, DEPTH),
            f"denserk, {LARGE} a batch": lambda: fast.search(queries, DEPTH),
        },
        rounds,
    )
    base = BATCH / found["faiss.IndexFlatIP"]
    print(f"\n{count:,} {kind} vectors, depth {DEPTH:,}, batches of {BATCH}")
    print(f"{'':26} {'queries/s':>10} {'x faiss':>8} {'GFLOP/s':>8} {'of fp32':>8} {'of bf16':>8}")
    for name, seconds in found.items():
        asked = LARGE if str(LARGE) in name else BATCH
        rate = asked / seconds
        flops = 2 * count * D * rate / 1e9
        shares = "".join(f" {flops / rates[kind]:8.0%}" for kind in ("float32", "bfloat16"))
        print(f"{name:26} {rate:10,.0f} {rate / base:8.2f} {flops:8,.0f}{shares}")
    held = count * D * 4 / 2**20
    own = held_while[0] - before
    print(f"own memory: faiss {held:,.0f} MiB; denserk {own:,.0f} MiB, the file is mapped")
    print(f"the same ids but {ties} of {mine[1].size:,} near ties; scores within {apart:.1e}")
    single = interleaved(
        {
            "faiss": lambda: theirs.search(queries[:1], DEPTH),
            "denserk": lambda: fast.search(queries[:1], DEPTH),
            "floor": lambda: torch.from_numpy(vectors).amax(),
        },
        3 * rounds,
    )
    line = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in single.items())
    print(f"one query: {line} (reading the vectors once)")
    return BATCH / found["denserk"] / base


def besides(path: Path, queries: Vectors, asked: int) -> float:
    """Prints what ids and run file cost; returns their share of a search in MARCO's passages."""
    vectors, _ = map_flat(path)
    index = ExactIndex(vectors, bfloat16=has_bfloat16())
    scanning = [0.0]

    class Timed:
        is_exhaustive = True

        def __len__(self) -> int:
            return len(index)

        def search(self, some: Vectors, depth: int) -> Any:
            start = time.process_time()
            try:
                return index.search(some, depth)
            finally:
                scanning[0] += time.process_time() - start

    opening = cpu(lambda: len(PassageIds(path.with_name("docid"), len(index))))
    qids = [f"{1_000_000 + number}" for number in range(asked)]
    many = queries[np.arange(asked) % len(queries)]
    output = path.with_name("run.trec")

    def whole() -> None:
        ids = PassageIds(path.with_name("docid"), len(index))
        searcher = Searcher(Timed(), ids, SearchSettings())
        with run_writer(output) as write:
            for qid, names, scores in searcher.ranked(qids, many):
                write(qid, names, scores)

    seconds = cpu(whole)
    rest = seconds - scanning[0]
    lines = asked * DEPTH
    share = rest / (rest + scanning[0] * MARCO / len(index))
    print(f"\n{asked:,} queries x {DEPTH:,} hits in {len(index):,} vectors, CPU seconds")
    print(f"scan {scanning[0]:.2f}, ids and run {rest:.2f} ({lines / rest:,.0f} lines/s)")
    print(f"ids of {len(index):,} opened in {1000 * opening:.1f} ms")
    print(f"share {rest / seconds:.1%}; computed for {MARCO:,} passages {share:.1%}")
    return share


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="100000,600000")
    parser.add_argument("--kinds", default="random,clustered")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--queries", type=int, default=6980)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    faiss.omp_set_num_threads(given.threads)
    rates = matrix_rates(given.rounds)
    told = ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items())
    print(f"{given.threads} threads; matrix products: {told}")
    ratios, share = [], 0.0
    for count in map(int, given.counts.split(",")):
        for kind in given.kinds.split(","):
            with tempfile.TemporaryDirectory() as folder:
                path, queries = collection(Path(folder), kind, count)
                ratios.append(compare(path, kind, queries, rates, given.rounds))
                if kind == given.kinds.split(",")[-1]:
                    share = besides(path, queries, given.queries)
    if min(ratios) < SLOWER or share > SHARE:
        raise SystemExit(f"slowest ratio {min(ratios):.2f}, share {share:.1%}")


if __name__ == "__main__":
    main()
