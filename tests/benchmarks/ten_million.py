"""Ten million vectors: the commands of docs/howto/ten-million.md, measured.

    python -m tests.benchmarks.ten_million WORK --encoded VECTORS --tuning TOPICS --topics TOPICS

Ten million passages take days to encode on a CPU, so the vectors are mixtures: each lies between
two of VECTORS, encoded passages, at a place that is drawn, with noise on every dimension.
Queries are encoded questions, those of --tuning for `--target-recall`, those of --topics for the
recall that is reported. What is in WORK already is not made again.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.io.blocks import Block
from denserk.io.manifest import Kind, read_manifest
from denserk.io.vectors import VectorFolderWriter, read_vector_blocks
from tests.benchmarks.timing import DENSERK, Child, watch

BLOCK = 50_000  # vectors
NOISE = 0.03  # standard deviation of each dimension
DEPTH = 10
BATCH = 256  # queries of an exact search


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return L2-normalised vectors."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def stored_vectors(folder: Path) -> NDArray[np.float32]:
    """Return all vectors of a folder."""
    blocks = [block.vectors for block in read_vector_blocks(str(folder)).blocks()]
    return np.concatenate(blocks).astype(np.float32)


def mixtures(encoded: NDArray[np.float32], count: int) -> Iterator[NDArray[np.float32]]:
    """Yield blocks of L2-normalised vectors that lie between two encoded ones, with noise."""
    draw = np.random.default_rng(0)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        lefts = encoded[draw.integers(0, len(encoded), size)]
        rights = encoded[draw.integers(0, len(encoded), size)]
        shares = draw.random((size, 1), dtype=np.float32)
        noise = NOISE * draw.standard_normal(lefts.shape, dtype=np.float32)
        yield unit(shares * lefts + (1 - shares) * rights + noise)


def write_mixtures(encoded: Path, output: Path, count: int) -> None:
    """Write a folder of float16 vectors, with the manifest of the vectors that they are made of."""
    manifest = read_manifest(encoded, Kind.VECTORS)
    vectors = unit(stored_vectors(encoded))
    output.mkdir(exist_ok=True)
    writer = VectorFolderWriter(output, replace(manifest, complete=False, contents={}), "float16")
    written_rows = 0
    for number, block in enumerate(mixtures(vectors, count)):
        ids = [f"v{written_rows + row}" for row in range(len(block))]
        if number not in writer.finished:
            writer.write(Block(number, len(block), ""), ids, block)
        written_rows += len(block)
    writer.finish({"dimension": vectors.shape[1], "vectors_per_passage": 1})


def show(name: str, child: Child) -> None:
    """Print what a command took."""
    seconds = f"{child.seconds:,.0f} s, {child.cpu_seconds:,.0f} s of CPU"
    print(f"{name:20} {seconds}, {child.peak_mib:,.0f} MiB at most", flush=True)


def run(name: str, output: Path, *words: str) -> None:
    """Run a command of denserk unless its output is there."""
    if not output.exists():
        show(name, watch([DENSERK, *words, "--output", str(output)]))


def exact_hits(vectors: Path, queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rows of the nearest vectors, (Q, 10), reading all vectors once."""
    from denserk.index.exact import ExactIndex

    best_scores = np.full((len(queries), DEPTH), -np.inf, np.float32)
    best_rows = np.zeros((len(queries), DEPTH), np.int64)
    rows_before = 0
    for block in read_vector_blocks(str(vectors)).blocks():
        block_scores, block_rows = ExactIndex(block.vectors).search(queries, DEPTH)
        scores = np.hstack([best_scores, block_scores])
        rows = np.hstack([best_rows, block_rows + rows_before])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        best_scores = np.take_along_axis(scores, order, axis=1)
        best_rows = np.take_along_axis(rows, order, axis=1)
        rows_before += len(block.ids)
    return best_rows


def recall(run_file: Path, topics: list[str], exact: NDArray[np.int64]) -> float:
    """Return the share of the exact hits that a run has."""
    hits_by_query: dict[str, set[str]] = {qid: set() for qid in topics}
    for line in run_file.read_text().splitlines():
        qid, _, docid, *_ = line.split()
        hits_by_query[qid].add(docid)
    shares = []
    for qid, rows in zip(topics, exact.tolist(), strict=True):
        exact_docids = {f"v{row}" for row in rows}
        shares.append(len(hits_by_query[qid] & exact_docids) / DEPTH)
    return float(np.mean(shares))


def main() -> None:
    """Make the vectors, build the index, search it, and measure its recall."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--encoded", type=Path, required=True, help="folder of encoded passages")
    parser.add_argument("--tuning", required=True, help="queries that the index is tuned with")
    parser.add_argument("--topics", required=True, help="other queries")
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--factory", default="IVF{lists},SQ8")
    parser.add_argument("--target-recall", default="0.9")
    arguments = parser.parse_args()
    work: Path = arguments.work
    vectors = work / "vectors-16bit"
    tuning_queries = work / "tuning-queries"
    queries = work / "queries"
    index = work / "ivf"
    trec = work / "ivf.trec"
    encode = ["encode", "--model", "minilm", "--topics"]
    run("tuning queries", tuning_queries, *encode, arguments.tuning)
    run("queries", queries, *encode, arguments.topics)
    start = time.perf_counter()
    write_mixtures(arguments.encoded, vectors, arguments.count)
    print(f"{'vectors':20} {time.perf_counter() - start:,.0f} s", flush=True)
    build = ["index", "--input", str(vectors), "--encoded-queries", str(tuning_queries)]
    build += ["--factory", arguments.factory, "--target-recall", arguments.target_recall]
    run("index", index, *build)
    contents = read_manifest(index, Kind.INDEX).contents
    print(json.dumps(contents, indent=1, default=str)[:3000], flush=True)
    size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    print(f"{'size of the index':20} {size / 1e9:.2f} GB", flush=True)
    search = ["search", "--index", str(index), "--topics", arguments.topics, "--hits", str(DEPTH)]
    run("search", trec, *search)
    run("search again", work / "again.trec", *search)
    blocks = list(read_vector_blocks(str(queries)).blocks())
    topics = [qid for block in blocks for qid in block.ids]
    start = time.perf_counter()
    exact = exact_hits(vectors, unit(stored_vectors(queries)))
    print(f"{'exact search':20} {time.perf_counter() - start:,.0f} s", flush=True)
    print(f"recall@{DEPTH} of {len(topics):,} queries: {recall(trec, topics, exact):.4f}")


if __name__ == "__main__":
    main()
