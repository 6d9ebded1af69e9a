"""Goal S6: exact search beside faiss and torch.

    python -m tests.benchmarks.search [--counts 100000,600000] [--dimensions 384,768]
        [--batches 1,32,256,1000] [--depths 100,1000] [--base FOLDER] [--rounds 3] [--threads 1]

CPU time of a search in a flat index, opened as `denserk search` opens it, beside faiss' flat
index and torch's product and topk. faiss-cpu computes in BLAS only from 128,000 numbers of queries
(queries x dimensions), unless `faiss.cvar.distance_compute_blas_threshold` is lower: it is measured
as installed, and with a threshold of 1, and the goal is against the best. Vectors are mixtures of
two of a folder of `denserk encode`, with noise, and some of such vectors one after another for more
dimensions; without a folder, random ones. Ids must be those of faiss except where float64 cannot
tell two products apart. 600,000 vectors of 768 dimensions need 6 GB of memory and 2 GB of disk.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faiss  # before denserk loads it: as installed
import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, VectorFormat
from denserk.config.retrieval import SearchSettings
from denserk.index.opening import open_index
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import read_vector_blocks
from tests.benchmarks.timing import Goals, medians

NEAR = 1e-6  # difference of two inner products of unit vectors that float32 need not see
NOISE = 0.03  # standard deviation of the noise of a number
PART = 50_000  # vectors drawn at once
BLAS_THRESHOLD = faiss.cvar.distance_compute_blas_threshold  # as installed
QUERIES = 64  # queries of a measurement: in batches, or more in one batch


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (N, D) vectors, L2-normalised."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / lengths, np.float32)


def base_vectors(folder: str | None) -> NDArray[np.float32]:
    """Return encoded passages, or random vectors."""
    if folder is None:
        return unit(np.random.default_rng(0).standard_normal((20_000, 384), np.float32))
    blocks = [block.vectors for block in read_vector_blocks(folder).blocks()]
    return unit(np.concatenate(blocks).astype(np.float32))


def mixtures(base: NDArray[np.float32], count: int, dimension: int) -> NDArray[np.float32]:
    """Return (count, dimension) unit vectors between two of the base, with noise."""
    draw = np.random.default_rng([count, dimension])
    width = base.shape[1]
    vectors = np.empty((count, dimension), np.float32)
    for begin in range(0, count, PART):
        block = vectors[begin : begin + PART]
        rows = len(block)
        for start in range(0, dimension, width):
            left = base[draw.integers(0, len(base), rows)]
            right = base[draw.integers(0, len(base), rows)]
            share = draw.random((rows, 1), np.float32)
            noise = NOISE * draw.standard_normal((rows, width), np.float32)
            mixed = unit(share * left + (1 - share) * right + noise)
            block[:, start : start + width] = mixed[:, : dimension - start]
        vectors[begin : begin + PART] = unit(block)
    return vectors


def check_ids(
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    rows: NDArray[np.int64],
    expected: NDArray[np.int64],
) -> None:
    """Exit where the rows of hits differ and their scores do, too."""
    for query, rank in np.argwhere(rows != expected):
        different = [rows[query, rank], expected[query, rank]]
        left, right = vectors[different].astype(np.float64) @ queries[query].astype(np.float64)
        if abs(left - right) > NEAR:
            raise SystemExit(f"query {query}: the ids at rank {rank + 1} differ")


def exact(
    goals: Goals, folder: Path, base: NDArray[np.float32], size: tuple[int, int], options: Any
) -> None:
    """Compare searches in vectors of one size: their number and their dimension."""
    count, dimension = size
    vectors = mixtures(base, count, dimension)
    all_queries = mixtures(base, max(options.batches), dimension)
    block = VectorBlock([str(number) for number in range(count)], vectors)
    write_vectors(str(folder / "index"), VectorFormat.PYSERINI_FAISS, [block])
    compute = ComputeSettings(device="cpu", threads=options.threads)
    index = open_index([str(folder / "index")], SearchSettings(), compute).index
    flat = faiss.IndexFlatIP(dimension)
    flat.add(vectors)
    tensor = torch.from_numpy(vectors)

    def by_faiss(queries: NDArray[np.float32], depth: int, threshold: int) -> Any:
        faiss.cvar.distance_compute_blas_threshold = threshold
        return flat.search(queries, depth)

    def by_torch(queries: NDArray[np.float32], depth: int) -> Any:
        return torch.topk(torch.from_numpy(queries) @ tensor.T, depth)

    for batch in options.batches:
        queries = all_queries[:batch]
        for depth in options.depths:
            peers: dict[str, Callable[[], Any]] = {"torch": partial(by_torch, queries, depth)}
            peers["faiss"] = partial(by_faiss, queries, depth, BLAS_THRESHOLD)
            if batch > 1 and batch * dimension < BLAS_THRESHOLD:
                peers["faiss with BLAS"] = partial(by_faiss, queries, depth, 1)
            search_denserk = partial(index.search, queries, depth)
            check_ids(vectors, queries, search_denserk()[1], peers["faiss"]()[1])
            works: dict[str, Callable[[], Any]] = {"denserk": search_denserk, **peers}
            repeated = {
                name: partial(_repeat, work, max(1, QUERIES // batch))
                for name, work in works.items()
            }
            seconds = medians(repeated, options.rounds)
            cell = f"{count:,} x {dimension}, {batch:,} at once, k {depth:,}"
            ratios = {name: seconds[name] / seconds["denserk"] for name in peers}
            print(cell, ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
            if batch == 1:
                goals.at_most("S6", f"{cell}, / torch", 1 / ratios["torch"], 1.0)
            else:
                goals.at_least("S6", f"{cell}, x best", min(ratios.values()), 1.3)


def _repeat(work: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        work()


def numbers(text: str) -> list[int]:
    """Return whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=numbers, default=[100_000, 600_000])
    parser.add_argument("--dimensions", type=numbers, default=[384, 768])
    parser.add_argument("--batches", type=numbers, default=[1, 32, 256, 1000])
    parser.add_argument("--depths", type=numbers, default=[100, 1000])
    parser.add_argument("--base", help="folder of encoded passages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    goals = Goals()
    base = base_vectors(options.base)
    for count in options.counts:
        for dimension in options.dimensions:
            with tempfile.TemporaryDirectory() as folder:
                exact(goals, Path(folder), base, (count, dimension), options)
    goals.finish()


if __name__ == "__main__":
    main()
