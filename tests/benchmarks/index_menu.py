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
from typing import Any, NamedTuple

import numpy as np
import torch

from denserk.api import Index
from denserk.config.encoding import ComputeSettings, VectorFormat
from denserk.config.retrieval import SearchSettings
from denserk.index import tuning
from denserk.index.engines import Vectors
from denserk.index.exact import ExactIndex
from denserk.index.opening import open_index
from denserk.io.manifest import Kind, read_manifest
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import read_vector_blocks
from tests.benchmarks.timing import Goals

COUNT = 3000  # vectors
TUNING_QUERIES = 400
OTHER_QUERIES = 2000
DIMENSION = 48  # of drawn vectors
DEPTH = 10
SLACK = 0.01  # a recall that is lower than the target by no more counts as kept


def draw_set(name: str, work: Path, draw: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Draw (N, D) vectors and (Q, D) queries of a set, L2-normalised."""
    queries = TUNING_QUERIES + OTHER_QUERIES
    if name == "uniform":
        vectors = draw.standard_normal((COUNT + queries, DIMENSION), np.float32)
    elif name == "clusters":
        centres = draw.standard_normal((100, DIMENSION), np.float32)
        vectors = centres[draw.integers(0, 100, COUNT + queries)]
        vectors += 0.5 * draw.standard_normal(vectors.shape, np.float32)
    else:
        drawn_passages = draw_stored(work / name / "vectors", COUNT, draw)
        drawn_queries = draw_stored(work / name / "queries", queries, draw)
        vectors = np.concatenate([drawn_passages, drawn_queries])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:COUNT], vectors[COUNT:]


def draw_stored(folder: Path, count: int, draw: np.random.Generator) -> Vectors:
    """Draw (count, D) vectors of a folder."""
    blocks = read_vector_blocks(str(folder)).blocks()
    vectors = np.concatenate([block.vectors for block in blocks])
    return draw.permutation(vectors)[:count]


class Trial(NamedTuple):
    """The recall of an index with other queries than those it was tuned with, and its type."""

    recall: float
    factory: str


def run_trial(name: str, work: Path, seed: int, target: float) -> Trial:
    """Build an index for a target recall and measure its recall; odd seeds take the fastest."""
    vectors, queries = draw_set(name, work, np.random.default_rng(seed))
    tuning_queries = queries[:TUNING_QUERIES]
    other_queries = queries[TUNING_QUERIES:]
    with tempfile.TemporaryDirectory() as folder:
        topics = f"{folder}/queries"
        output = Path(folder, "index")
        block = VectorBlock([str(row) for row in range(TUNING_QUERIES)], tuning_queries)
        write_vectors(topics, VectorFormat.PYSERINI_FAISS, [block])
        options: dict[str, Any] = {"target_recall": target, "encoded_queries": topics, "threads": 1}
        if seed % 2 == 1:
            options["max_bytes"] = 1e9
        Index.build(vectors, output=output, seed=seed, **options)
        opened = open_index([str(output)], SearchSettings(), ComputeSettings(threads=1))
        _, rows = opened.index.search(other_queries, DEPTH)
        factory = read_manifest(output, Kind.INDEX).contents["factory"]
    _, exact_rows = ExactIndex(vectors).search(other_queries, DEPTH)
    is_exact_hit = (rows[:, :, None] == exact_rows[:, None]).any(axis=2)
    return Trial(float(is_exact_hit.mean()), factory)


def main() -> None:
    """Measure, and fail if the recall is kept in fewer than 95 of 100 trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--sets", nargs="+", default=["wiki", "fairytaleqa", "clusters", "uniform"])
    arguments = parser.parse_args()
    goals = Goals()
    tuning.SAMPLE = COUNT // 2
    torch.set_num_threads(1)
    target = arguments.target
    for name in arguments.sets:
        trials = [run_trial(name, arguments.work, seed, target) for seed in range(arguments.trials)]
        recalls = np.array([trial.recall for trial in trials])
        factories = Counter(trial.factory for trial in trials)
        print(f"{name}: least recall {recalls.min():.4f}, {factories}")
        kept_percent = 100 * float((recalls >= target - SLACK).mean())
        goals.at_least("P12", f"{name}: recall {target:g}, trials within {SLACK}", kept_percent, 95)
    goals.finish()


if __name__ == "__main__":
    main()
