"""Goal P12: whether indexes keep the recall of `--target-recall`, for four sets of vectors.

    python -m tests.benchmarks.index_menu WORK [--trials 100] [--target 0.95] [--sets NAME ...]

A set is a folder WORK/NAME with the folders `vectors` and `queries` of `denserk encode`; `clusters`
(Gaussian) and `uniform` (on the sphere) are drawn. Trials build the smallest type, or the fastest,
for 3,000 vectors and 400 queries, and measures its recall with 2,000 other queries.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denserk.api import Index
from denserk.config.encoding import ComputeSettings, VectorFormat
from denserk.config.retrieval import SearchSettings
from denserk.index import tuning
from denserk.index.exact import ExactIndex
from denserk.index.opening import open_index
from denserk.index.searcher import Vectors
from denserk.io.manifest import Kind, read_manifest
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import read_vector_blocks
from tests.benchmarks.timing import Goals

COUNT, ASKED, OTHERS, DEPTH, SLACK = 3000, 400, 2000, 10, 0.01


def drawn(name: str, work: Path, draw: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Draw (N, D) vectors and (Q, D) queries of a set."""
    shape = COUNT + ASKED + OTHERS, 48
    if name == "uniform":
        both = draw.standard_normal(shape, np.float32)
    elif name == "clusters":
        centres = draw.standard_normal((100, shape[1]), np.float32)
        both = centres[draw.integers(0, 100, shape[0])]
        both += 0.5 * draw.standard_normal(shape, np.float32)
    else:
        parts = []
        for kind, count in (("vectors", COUNT), ("queries", ASKED + OTHERS)):
            blocks = read_vector_blocks(str(work / name / kind)).blocks()
            parts.append(draw.permutation(np.concatenate([b.vectors for b in blocks]))[:count])
        both = np.concatenate(parts)
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    return both[:COUNT], both[COUNT:]


def trial(name: str, work: Path, seed: int, target: float) -> tuple[float, str]:
    """Return the recall with other queries, and the index type."""
    vectors, queries = drawn(name, work, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        asked, output = f"{folder}/queries", Path(folder, "index")
        block = VectorBlock([str(number) for number in range(ASKED)], queries[:ASKED])
        write_vectors(asked, VectorFormat.PYSERINI_FAISS, [block])
        options: dict[str, Any] = {"target_recall": target, "encoded_queries": asked, "threads": 1}
        options |= {"max_bytes": 1e9} if seed % 2 else {}
        Index.build(vectors, output=output, seed=seed, **options)
        opened = open_index([str(output)], SearchSettings(), ComputeSettings(threads=1))
        _, rows = opened.index.search(queries[ASKED:], DEPTH)
        factory = read_manifest(output, Kind.INDEX).contents["factory"]
    _, exact = ExactIndex(vectors).search(queries[ASKED:], DEPTH)
    return float((rows[:, :, None] == exact[:, None]).any(2).mean()), factory


def main() -> None:
    """Measure, and fail if the recall is kept in fewer than 95 of 100 trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--sets", nargs="+", default=["wiki", "fairytaleqa", "clusters", "uniform"])
    given, goals = parser.parse_args(), Goals()
    tuning.SAMPLE = COUNT // 2
    torch.set_num_threads(1)
    for name in given.sets:
        found = [trial(name, given.work, seed, given.target) for seed in range(given.trials)]
        recalls = np.array([recall for recall, _ in found])
        print(f"{name}: least recall {recalls.min():.4f}, {Counter(kind for _, kind in found)}")
        kept = 100 * float((recalls >= given.target - SLACK).mean())
        goals.at_least("P12", f"{name}: recall {given.target:g}, trials within {SLACK}", kept, 95)
    goals.finish()


if __name__ == "__main__":
    main()
