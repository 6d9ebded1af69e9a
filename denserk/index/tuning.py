"""Choose an index type and its search parameters by the recall that they must reach.

Types are compared on a sample. The best is built from all vectors and tuned by other queries.
"""

import logging
import time
from collections.abc import Iterator, Mapping
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
from denserk.index import faiss_index
from denserk.index.exact import ExactIndex
from denserk.index.folder import INDEX
from denserk.index.searcher import SearchableIndex, Vectors, recalls
from denserk.models.devices import has_bfloat16
from denserk.reporting import print_table, track

logger = logging.getLogger(__name__)

DEPTH = 10  # hits of a query that are compared
QUERIES = 1000  # queries that choose the type, and as many others that tune the index
SAMPLE = 50_000  # vectors that candidates are built from
CANDIDATES = (
    *("Flat", "SQfp16", "SQ8", "SQ6", "SQ4", "RaBitQfs", "RaBitQfs4", "RaBitQfs6"),
    *("RaBitQfs,Refine(SQ8)", "RaBitQfs,Refine(Flat)", "IVF{lists},Flat", "IVF{lists},SQ8"),
    *("IVF{lists},RaBitQ,Refine(SQ8)", "HNSW32,Flat", "HNSW32,SQ8"),
)
# part of a factory string: its search parameter, and the value from which it is raised
PARAMETERS = {"IVF": ("nprobe", 1), "HNSW": ("ef_search", 16), "Refine": ("k_factor", 1)}
HEADER = ("index", "search", "bytes per vector", "total", "ms/query", "recall@10", "95% interval")


class Point(NamedTuple):
    """An index type and its bytes; search parameters, and the recall and speed that they reach."""

    factory: str
    size: int
    search: Mapping[str, Any]
    recall: float = 0
    low: float = 0  # of the 95% interval of the recall
    high: float = 1
    milliseconds: float = 0  # per query

    def cells(self, count: int) -> tuple[str, ...]:
        """Return the row of a table, for an index of `count` vectors."""
        search = ", ".join(f"{name.replace('_', '-')} {v}" for name, v in self.search.items())
        sizes = f"{self.size / count:,.0f}", decimal(self.size)
        recall = f"{self.recall:.4f}", f"{self.low:.4f} to {self.high:.4f}"
        return self.factory, search, *sizes, f"{self.milliseconds:.3f}", *recall


def mean_recall(shares: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of (Q,) recalls, one for each query, and Wilson's 95% interval of it.

    The hits of a query depend on one another; they count as mean (1 - mean) Q / variance trials
    (Korn and Graubard, 1998), which are at least Q and at most all hits.
    """
    count, mean = len(shares), float(shares.mean())
    trials = (mean * (1 - mean) or 1) * count / (float(shares.var(ddof=1)) or 1e-9)
    trials = min(max(int(trials), count), count * DEPTH)
    low, high = binomtest(round(trials * mean), trials).proportion_ci(method="wilson")
    return mean, float(low), float(high)


class Judge:
    """Compares indexes of (N, D) vectors with exact search for (Q, D) queries."""

    def __init__(self, vectors: Vectors, queries: Vectors, settings: IndexSettings) -> None:
        torch.set_num_threads(settings.threads or torch.get_num_threads())
        self.vectors, self.settings, self._queries = vectors, settings, queries
        self._flat = ExactIndex(vectors, settings.similarity, bfloat16=has_bfloat16())
        _, self._exact = self._flat.search(queries, DEPTH)

    def _measured(self, path: Path, point: Point, **changed: int) -> Point:
        search = {**point.search, **changed}
        index: SearchableIndex = self._flat
        if point.factory != "Flat":
            chosen = SearchSettings(**search)
            index = faiss_index.FaissIndex(path, chosen, threads=self.settings.threads)
        start = time.perf_counter()
        _, rows = index.search(self._queries, DEPTH)
        milliseconds = 1000 * (time.perf_counter() - start) / len(rows)
        found = (1.0, 1.0, 1.0) if index is self._flat else mean_recall(recalls(rows, self._exact))
        return Point(point.factory, point.size, search, *found, milliseconds)

    def tuned(self, path: Path, point: Point) -> Point:
        """Raise the search parameter that helps most, until the target is reached or none helps."""
        best, point = self._measured(path, point), point._replace(recall=-1)
        while point.recall < best.recall and best.low < (self.settings.target_recall or 1):
            point = best
            raised = ({name: v + (v + 1) // 2} for name, v in point.search.items())
            points = [point, *(self._measured(path, point, **each) for each in raised)]
            best = max(points, key=lambda each: each.recall)
        return best


def measure_types(judge: Judge, path: Path, count: int) -> Iterator[Point]:
    """Build the types that fit from the judge's sample of `count` vectors, and tune them."""
    settings, (size, dimension) = judge.settings, judge.vectors.shape
    templates = [settings.factory] if settings.factory else CANDIDATES
    with track("comparing index types", len(templates), "types") as progress:
        for template in templates:
            progress.advance()
            own = replace(settings, factory=template)
            search = dict(start for part, start in PARAMETERS.items() if part in template)
            try:
                factory, index = faiss_index.empty_index(count, dimension, own)
                point = Point(factory, faiss_index.stored_bytes(index, count), search)
                if point.size > (settings.max_bytes or np.inf):
                    raise UsageError(f"it takes {decimal(point.size)}")
                _, index = faiss_index.empty_index(size, dimension, own)
                with faiss_index.faiss_errors(UsageError):
                    index.train(judge.vectors)
                    index.add(judge.vectors)
            except UsageError as error:
                logger.info(f"{template} is left out: {error}")
                continue
            faiss_index.write_index(index, path)
            point = judge.tuned(path, point)
            # the work grows with the vectors; in a graph with their logarithm
            growth = np.log(count + 1) / np.log(size + 1) if "HNSW" in template else count / size
            yield point._replace(milliseconds=point.milliseconds * growth)


def build_for_recall(
    vectors: Vectors, stored: Path, settings: IndexSettings, queries: Vectors
) -> dict[str, Any]:
    """Build an index of (N, D) vectors beside their flat file; return what its manifest records.

    Of the types that reach the target with the (Q, D) queries, the smallest is built; with
    --max-bytes, the fastest that fits.
    """
    if len(queries) < 2 * DEPTH or queries.shape[1] != vectors.shape[1]:
        wanted = f"{2 * DEPTH} or more of {vectors.shape[1]} dimensions"
        raise UsageError(f"--encoded-queries has vectors {queries.shape}: {wanted} are needed")
    count, target = len(vectors), settings.target_recall or 1
    path, judge, rng = stored.with_name(INDEX), None, np.random.default_rng(settings.seed)
    first, second = np.array_split(rng.permutation(queries)[: 2 * QUERIES], 2)
    rows = np.sort(rng.choice(count, min(SAMPLE, count), replace=False))
    logger.info(f"index types: {len(rows):,} of {count:,} vectors, {len(first):,} queries")
    found = list(measure_types(Judge(vectors[rows], first, settings), path, count))
    found.sort(key=lambda p: (p.low < target, p.milliseconds if settings.max_bytes else p.size))
    if logger.isEnabledFor(logging.INFO):
        print_table(HEADER, [point.cells(count) for point in found])
    for point in (each for each in found if each.low >= target):
        if point.factory == "Flat":
            stored.rename(path)
        else:
            own = replace(settings, factory=point.factory)
            factory, index = faiss_index.empty_index(count, vectors.shape[1], own)
            faiss_index.check_memory(factory, index, count, settings)
            faiss_index.build(vectors, path, settings, factory, index)
        with track(f"tuning {point.factory}", len(second), "queries"):
            judge = judge or Judge(vectors, second, settings)
            reached = judge.tuned(path, point)
        named = zip(HEADER, reached.cells(count), strict=True)
        logger.info(", ".join(f"{name} {cell}" for name, cell in named if cell))
        if reached.low >= target:
            stored.unlink(missing_ok=True)  # a flat index is this file, renamed
            result = {"factory": point.factory, "recall": reached.recall, "search": reached.search}
            interval = (reached.low, reached.high)
            return result | {"interval": interval, "queries": len(second), "sample": len(rows)}
        logger.warning(f"{point.factory} does not reach recall {target:g} with all vectors")
    why = f"no index that fits reaches recall {target:g}"
    if found:
        best = max(found, key=lambda point: point.low)
        why += f"; the best has {best.recall:.4f}, at least {best.low:.4f}"
    raise UsageError(why, "raise --max-bytes, or lower --target-recall")
