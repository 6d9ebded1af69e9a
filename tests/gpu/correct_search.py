"""Section `exact-search`: the hits of the card's exact search beside those of the CPU's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import Metric
from denserk.index.engines import SearchableIndex
from denserk.index.exact import ExactIndex
from denserk.index.exact_gpu import GpuExactIndex
from tests.gpu.setup import Setup, counted


@dataclass(frozen=True)
class Case:
    """A kind of exact search."""

    name: str
    half: bool = False  # stored in float16
    metric: Metric = Metric.INNER
    vectors_per_passage: int = 1
    depth: int = 100


CASES = (
    Case("float32"),
    Case("float32, depth 1,000", depth=1000),
    Case("float16", half=True),
    Case("L2", metric=Metric.L2),
    Case("4 vectors a passage", vectors_per_passage=4),
)


def clustered(
    draw: np.random.Generator, centres: NDArray[np.float32], count: int
) -> NDArray[np.float32]:
    """Return vectors around centres, as those of texts lie around topics."""
    chosen = centres[draw.integers(0, len(centres), count)]
    noise = draw.standard_normal(chosen.shape, dtype=np.float32)
    return chosen + np.float32(0.7) * noise


def exact_search(setup: Setup) -> None:
    """Compare ids and scores, of one query and of many."""
    rows = setup.choose(200_000, 24_000)
    dimension = setup.choose(384, 32)
    many = setup.choose(300, 40)
    draw = np.random.default_rng(1)
    centres = draw.standard_normal((500, dimension), dtype=np.float32)
    vectors = clustered(draw, centres, rows)
    queries = clustered(draw, centres, many)
    for case in CASES:
        with setup.report.attempt(f"exact search, {case.name}"):
            stored = vectors.astype(np.float16) if case.half else vectors
            settings = (stored, case.metric, case.vectors_per_passage)
            of_cpu = exact_index("cpu", *settings)
            of_device = exact_index(setup.device, *settings)
            for count in (1, many):
                expected = of_cpu.search(queries[:count], case.depth)
                found = of_device.search(queries[:count], case.depth)
                compare(setup, f"exact search, {case.name}, {counted(count)}", expected, found)


def exact_index(
    device: str,
    vectors: NDArray[Any],
    metric: Metric = Metric.INNER,
    vectors_per_passage: int = 1,
) -> SearchableIndex:
    """Return the exact search of a device."""
    if device == "cpu":
        return ExactIndex(vectors, metric, vectors_per_passage)
    return GpuExactIndex(vectors, metric, device, vectors_per_passage)


def compare(
    setup: Setup,
    name: str,
    expected: tuple[NDArray[np.float32], NDArray[np.int64]],
    found: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> None:
    """Compare (scores, rows): nearly equal scores may change places, but none be lost."""
    scores, rows = expected
    found_scores, found_rows = found
    shares = [
        len(set(right) & set(given)) / len(right)
        for right, given in zip(rows.tolist(), found_rows.tolist(), strict=True)
    ]
    same_hits = float(np.mean(shares))
    difference = float(np.abs(scores - found_scores).max() / np.abs(scores).max())
    setup.report.check(
        name,
        same_hits,
        same_hits > 0.9995 and difference < 1e-5,
        "of the CPU's hits",
        same_place=float((rows == found_rows).mean()),
        score_difference=difference,
    )
