"""Choose an index type and its search parameters by the recall that they must reach.

Types are compared on a sample. The best is built from all vectors and tuned by other queries.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.filesize import decimal
from scipy.stats import binomtest

from denserk.config.retrieval import IndexSettings, SearchSettings
from denserk.errors import UsageError
from denserk.index import faiss_build, faiss_files, faiss_library
from denserk.index.engines import SearchableIndex, Vectors, recalls
from denserk.index.exact import ExactIndex
from denserk.index.faiss_index import FaissIndex
from denserk.index.folder import INDEX
from denserk.models import processor
from denserk.reporting import track

logger = logging.getLogger(__name__)

DEPTH = 10  # hits of a query that are compared
QUERIES = 1000  # queries that choose the type, and as many others that tune the index
SAMPLE = 50_000  # vectors that candidates are built from
CANDIDATES = (  # faiss factory strings; `create_index` sets the number of lists
    "Flat",
    "SQfp16",
    "SQ8",
    "SQ6",
    "SQ4",
    "RaBitQfs",
    "RaBitQfs4",
    "RaBitQfs6",
    "RaBitQfs,Refine(SQ8)",
    "RaBitQfs,Refine(Flat)",
    "IVF{lists},Flat",
    "IVF{lists},SQ8",
    "IVF{lists},RaBitQ,Refine(SQ8)",
    "HNSW32,Flat",
    "HNSW32,SQ8",
)
# component of a factory string -> its search parameter, and the value from which that is raised
PARAMETERS = {"IVF": ("nprobe", 1), "HNSW": ("ef_search", 16), "Refine": ("k_factor", 1)}
HEADER = ("index", "search", "bytes per vector", "total", "ms/query", "recall@10", "95% interval")
# takes the header and the rows of a table
ShowTable = Callable[[Sequence[str], Sequence[Sequence[str]]], None]


class Point(NamedTuple):
    """An index type with search parameters, and the recall and speed that they reach."""

    factory: str
    size: int  # bytes of the index with all vectors
    search: Mapping[str, Any]  # search parameters by name
    recall: float = 0
    low: float = 0  # of the 95% interval of the recall
    high: float = 1
    milliseconds: float = 0  # per query

    def cells(self, count: int) -> tuple[str, ...]:
        """Return the row of a table, for an index of `count` vectors."""
        search = [f"{name.replace('_', '-')} {value}" for name, value in self.search.items()]
        return (
            self.factory,
            ", ".join(search),
            f"{self.size / count:,.0f}",
            decimal(self.size),
            f"{self.milliseconds:.3f}",
            f"{self.recall:.4f}",
            f"{self.low:.4f} to {self.high:.4f}",
        )


class Recall(NamedTuple):
    """The mean recall of queries, and its 95% interval."""

    mean: float
    low: float
    high: float


def mean_recall(shares: NDArray[np.float64]) -> Recall:
    """Return the mean of (Q,) recalls, one for each query, and Wilson's 95% interval of it.

    The hits of a query depend on one another; they count as mean (1 - mean) Q / variance trials
    (Korn and Graubard, 1998), which are at least Q and at most all hits. They are all hits where
    the recalls of all queries are equal.
    """
    count = len(shares)
    mean = float(shares.mean())
    # not 0, so that equal recalls divide by a small number, and count as many trials
    variance = float(shares.var(ddof=1)) or 1e-9
    variance_of_hit = mean * (1 - mean) or 1
    effective_count = variance_of_hit * count / variance
    trials = min(max(int(effective_count), count), count * DEPTH)
    low, high = binomtest(round(trials * mean), trials).proportion_ci(method="wilson")
    return Recall(mean, float(low), float(high))


class RecallMeter:
    """Measures the recall of indexes of (N, D) vectors by exact search for (Q, D) queries."""

    def __init__(self, vectors: Vectors, queries: Vectors, settings: IndexSettings) -> None:
        torch.set_num_threads(settings.threads or torch.get_num_threads())
        self.vectors = vectors
        self.settings = settings
        self._queries = queries
        self._flat = ExactIndex(vectors, settings.similarity, bfloat16=processor.has_bfloat16())
        _, self._exact_rows = self._flat.search(queries, DEPTH)

    def _measure(self, path: Path, point: Point, **changed_parameters: int) -> Point:
        """Return the recall and the speed of an index, some of its search parameters changed."""
        search = {**point.search, **changed_parameters}
        index: SearchableIndex = self._flat
        if point.factory != "Flat":
            search_settings = SearchSettings(**search)
            index = FaissIndex(path, search_settings, threads=self.settings.threads)
        started = time.perf_counter()
        _, rows = index.search(self._queries, DEPTH)
        milliseconds = 1000 * (time.perf_counter() - started) / len(rows)
        recall = Recall(1.0, 1.0, 1.0)
        if index is not self._flat:
            recall = mean_recall(recalls(rows, self._exact_rows))
        return Point(
            point.factory,
            point.size,
            search,
            recall=recall.mean,
            low=recall.low,
            high=recall.high,
            milliseconds=milliseconds,
        )

    def tune(self, path: Path, point: Point) -> Point:
        """Raise the search parameter that helps most, until the target is reached or none helps.

        A parameter is raised by half of its value. The target is reached by the lower end of the
        interval.
        """
        target = self.settings.target_recall or 1
        best = self._measure(path, point)
        previous_recall = -1.0
        while previous_recall < best.recall and best.low < target:
            previous_recall = best.recall
            current = best
            for name, value in current.search.items():
                raised_value = value + (value + 1) // 2
                raised = self._measure(path, current, **{name: raised_value})
                if raised.recall > best.recall:
                    best = raised
        return best


def measure_types(meter: RecallMeter, path: Path, count: int) -> Iterator[Point]:
    """Build the types that fit from the meter's vectors, a sample of `count`, and tune them.

    Yields each with the speed that is to be expected with all `count` vectors. `path` is that of
    the index that is built last.
    """
    settings = meter.settings
    factories = [settings.factory] if settings.factory else CANDIDATES
    with track("comparing index types", len(factories), "types") as progress:
        for factory in factories:
            progress.advance()
            try:
                point = _build_sample(
                    meter.vectors, path, count, replace(settings, factory=factory)
                )
            except UsageError as error:
                logger.info(f"{factory} is left out: {error}")
                continue
            tuned = meter.tune(path, point)
            growth = _growth(factory, len(meter.vectors), count)
            yield tuned._replace(milliseconds=tuned.milliseconds * growth)


def _build_sample(sample: Vectors, path: Path, count: int, settings: IndexSettings) -> Point:
    """Build the type of the settings from a sample of `count` vectors.

    Raises a UsageError if faiss rejects it, or if it would not fit with all vectors.
    """
    sample_size, dimension = sample.shape
    search = {}
    for component, (parameter, start) in PARAMETERS.items():
        if component in (settings.factory or ""):
            search[parameter] = start
    # the string has as many lists as the index of all vectors
    factory, whole_index = faiss_build.create_index(count, dimension, settings)
    size = faiss_library.stored_bytes(whole_index, count)
    if settings.max_bytes and size > settings.max_bytes:
        raise UsageError(f"it takes {decimal(size)}")
    _, sample_index = faiss_build.create_index(sample_size, dimension, settings)
    with faiss_library.faiss_errors(UsageError):
        sample_index.train(sample)
        sample_index.add(sample)
    faiss_files.write_index(sample_index, path)
    return Point(factory, size, search)


def _growth(factory: str, sample_size: int, count: int) -> float:
    """Return how much longer a search takes with all vectors than with the sample.

    The work grows with the vectors; in a graph with their logarithm.

    >>> _growth("Flat", 100, 200)
    2.0
    """
    if "HNSW" in factory:
        return float(np.log(count + 1) / np.log(sample_size + 1))
    return count / sample_size


def build_for_recall(
    vectors: Vectors,
    stored: Path,
    settings: IndexSettings,
    queries: Vectors,
    show_types: ShowTable | None = None,
) -> dict[str, Any]:
    """Build an index of (N, D) vectors beside their flat file; return what its manifest records.

    Of the types that reach the target with the (Q, D) queries, the smallest is built; with
    --max-bytes, the fastest that fits. `stored` is the flat file, which becomes the index or is
    deleted. `show_types` is called with the table of the types that were compared.
    """
    _require_queries(queries, vectors.shape[1])
    count = len(vectors)
    target = settings.target_recall or 1
    path = stored.with_name(INDEX)
    generator = np.random.default_rng(settings.seed)
    # one half of the queries chooses the type, the other one tunes the index
    shuffled_queries = generator.permutation(queries)
    choosing_queries, tuning_queries = np.array_split(shuffled_queries[: 2 * QUERIES], 2)
    sample_rows = np.sort(generator.choice(count, min(SAMPLE, count), replace=False))
    logger.info(
        f"index types: {len(sample_rows):,} of {count:,} vectors, {len(choosing_queries):,} queries"
    )
    sample_meter = RecallMeter(vectors[sample_rows], choosing_queries, settings)
    points = list(measure_types(sample_meter, path, count))
    points.sort(key=lambda point: _preference(point, settings))
    if show_types is not None:
        show_types(HEADER, [point.cells(count) for point in points])

    meter = None  # of all vectors, for all types: it searches exactly when it is made
    for point in points:
        if point.low < target:
            continue
        _build_whole(vectors, stored, settings, point)
        with track(f"tuning {point.factory}", len(tuning_queries), "queries"):
            if meter is None:
                meter = RecallMeter(vectors, tuning_queries, settings)
            tuned = meter.tune(path, point)
        _log_point(tuned, count)
        if tuned.low >= target:
            stored.unlink(missing_ok=True)  # a flat index is this file, renamed
            return {
                "factory": point.factory,
                "recall": tuned.recall,
                "search": tuned.search,
                "interval": (tuned.low, tuned.high),
                "queries": len(tuning_queries),
                "sample": len(sample_rows),
            }
        logger.warning(f"{point.factory} does not reach recall {target:g} with all vectors")
    raise _target_not_reached(points, target)


def _require_queries(queries: Vectors, dimension: int) -> None:
    """Raise a UsageError for few queries, or queries of another dimension."""
    if len(queries) < 2 * DEPTH or queries.shape[1] != dimension:
        message = (
            f"--encoded-queries has vectors {queries.shape}: {2 * DEPTH} or more of {dimension} "
            "dimensions are needed"
        )
        raise UsageError(message)


def _log_point(point: Point, count: int) -> None:
    """Log the cells of a point that are not empty, with the names of their columns."""
    named_cells = zip(HEADER, point.cells(count), strict=True)
    logger.info(", ".join(f"{name} {cell}" for name, cell in named_cells if cell))


def _preference(point: Point, settings: IndexSettings) -> tuple[bool, float]:
    """Return what points are sorted by: those that reach the target first, then size or speed."""
    misses_target = point.low < (settings.target_recall or 1)
    cost = point.milliseconds if settings.max_bytes else point.size
    return misses_target, cost


def _build_whole(vectors: Vectors, stored: Path, settings: IndexSettings, point: Point) -> None:
    """Build an index of all vectors beside their flat file, which is the index of type Flat."""
    path = stored.with_name(INDEX)
    if point.factory == "Flat":
        stored.rename(path)
        return
    count, dimension = vectors.shape
    type_settings = replace(settings, factory=point.factory)
    empty_index = faiss_build.create_index(count, dimension, type_settings)
    faiss_build.check_memory(empty_index, count, settings)
    faiss_build.build(vectors, path, empty_index, settings)


def _target_not_reached(points: Sequence[Point], target: float) -> UsageError:
    """Return the error of a target that no type reaches."""
    message = f"no index that fits reaches recall {target:g}"
    if points:
        best = max(points, key=lambda point: point.low)
        message += f"; the best has {best.recall:.4f}, at least {best.low:.4f}"
    return UsageError(message, "raise --max-bytes, or lower --target-recall")
