"""Section `search-speed`: exact search beside one product and topk over the whole matrix."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.gpu.correct_search import exact_index
from tests.gpu.measuring import Load, median_seconds
from tests.gpu.setup import Setup, counted

DRAWN = 500_000  # vectors that are drawn at once
ROWS = 1 << 20  # rows that the plain search multiplies at once
UNIT = "queries/s"


@dataclass(frozen=True)
class Case:
    """A matrix of so many rows, in a precision."""

    rows: int
    dtype: Any


CASES = (Case(1_000_000, np.float32), Case(8_841_823, np.float16))
# depth, queries
SEARCHES = ((100, 1), (100, 32), (100, 1024), (1000, 1), (1000, 1024))
Answers = tuple[NDArray[np.float32], NDArray[np.int64]]


def search_speed(setup: Setup) -> None:
    """Measure every search over every matrix, 768 dimensions."""
    dimension = setup.choose(768, 32)
    for case in CASES[: setup.choose(len(CASES), 1)]:
        rows = setup.choose(case.rows, 20_000)
        name = f"{rows / 1e6:.2g}M x {dimension} {np.dtype(case.dtype).name}"
        lacking = missing_memory(setup, rows * dimension * np.dtype(case.dtype).itemsize)
        if lacking:
            setup.report.skip(f"search {name}", lacking)
            continue
        with setup.report.attempt(f"search {name}"):
            time_searches(setup, name, rows, dimension, case.dtype)
            if setup.device == "cuda":
                torch.cuda.empty_cache()


def missing_memory(setup: Setup, size: int) -> str:
    """Return what keeps a matrix of so many bytes from being searched; an empty text if nothing."""
    free = available_memory()
    if free < 1.5 * size:
        return f"{free / 2**30:.0f} GiB of memory are free, {1.5 * size / 2**30:.0f} are needed"
    if setup.device == "cuda":
        free = torch.cuda.mem_get_info()[0]
        if free < 2.2 * size:  # to be kept between searches, vectors may take half of it
            return f"{free / 2**30:.0f} GiB of the card are free, {2.2 * size / 2**30:.0f} needed"
    return ""


def available_memory() -> int:
    """Return the bytes of memory that a process can still take."""
    with open("/proc/meminfo") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("MemAvailable"):
                return 1024 * int(line.split()[1])
    return 0


def time_searches(setup: Setup, name: str, rows: int, dimension: int, dtype: Any) -> None:
    """Measure denserk's search, then the plain one, and compare what they find."""
    stored, queries = drawn_vectors(setup.device, rows, dimension, dtype)
    answers = time_denserk(setup, name, stored, queries)
    if setup.device == "cuda":
        torch.cuda.empty_cache()
    time_plain(setup, name, stored, queries, answers)


def time_denserk(
    setup: Setup, name: str, stored: NDArray[Any], queries: NDArray[np.float32]
) -> dict[tuple[int, int], Answers]:
    """Measure denserk's exact search; return its answers by depth and number of queries."""
    report = setup.report
    index = exact_index(setup.device, stored)
    start = time.perf_counter()
    index.search(queries[:1], 100)
    report.measure(f"search {name}, first query", time.perf_counter() - start, "s")
    answers: dict[tuple[int, int], Answers] = {}

    def search(depth: int, count: int) -> None:
        answers[depth, count] = index.search(queries[:count], depth)

    for depth, count in SEARCHES:
        label = f"search {name}, {counted(count)}, depth {depth:,}"
        with report.attempt(label), Load(setup.device) as load:
            work = partial(search, depth, count)
            seconds = median_seconds(work, setup.device, enough=2.0)
            details = {"milliseconds": 1000 * seconds, **load.details}
            report.measure(label, count / seconds, UNIT, **details)
    return answers


def time_plain(
    setup: Setup,
    name: str,
    stored: NDArray[Any],
    queries: NDArray[np.float32],
    answers: dict[tuple[int, int], Answers],
) -> None:
    """Measure the plain search, and compare its answers with denserk's."""
    matrix = torch.from_numpy(stored).to(setup.device)
    for depth, count in SEARCHES:
        label = f"product and topk {name}, {counted(count)}, depth {depth:,}"
        with setup.report.attempt(label):
            work = partial(plain_search, matrix, queries[:count], depth)
            seconds = median_seconds(work, setup.device, enough=2.0)
            details = {"milliseconds": 1000 * seconds}
            if (depth, count) in answers:
                details["same_hits"] = shared_hits(answers[depth, count][1], work()[1])
            setup.report.measure(label, count / seconds, UNIT, **details)


def drawn_vectors(
    device: str, rows: int, dimension: int, dtype: Any
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Draw vectors around centres, on the device, and 1,024 queries; both in memory."""
    torch.manual_seed(0)
    centres = torch.randn(1000, dimension, device=device)

    def draw(count: int) -> Tensor:
        rows_of_centres = torch.randint(0, len(centres), (count,), device=device)
        return centres[rows_of_centres] + torch.randn(count, dimension, device=device)

    stored = np.empty((rows, dimension), dtype)
    half = np.dtype(dtype) == np.float16
    for first_row in range(0, rows, DRAWN):
        vectors = draw(min(DRAWN, rows - first_row))
        stored[first_row : first_row + DRAWN] = (vectors.half() if half else vectors).cpu().numpy()
    return stored, draw(1024).cpu().numpy()


def plain_search(matrix: Tensor, queries: NDArray[np.float32], depth: int) -> Answers:
    """Search as one would without denserk: products in the matrix's precision, topk, block-wise."""
    query_vectors = torch.from_numpy(queries).to(matrix.device, matrix.dtype)
    values, rows = [], []
    for first_row, block in blocks_of(matrix):
        scores = query_vectors @ block.T
        best, columns = scores.topk(min(depth, len(block)), dim=1)
        values.append(best.float())
        rows.append(columns + first_row)
    best, order = torch.cat(values, dim=1).topk(depth, dim=1)
    return best.cpu().numpy(), torch.cat(rows, dim=1).gather(1, order).cpu().numpy()


def blocks_of(matrix: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the rows of a matrix in blocks, each with the number of its first row."""
    for first_row in range(0, len(matrix), ROWS):
        yield first_row, matrix[first_row : first_row + ROWS]


def shared_hits(rows: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """Return the mean share of hits that two (B, K) arrays of rows have in common."""
    shares = [
        len(set(hits) & set(other_hits)) / len(hits)
        for hits, other_hits in zip(rows.tolist(), others.tolist(), strict=True)
    ]
    return float(np.mean(shares))
