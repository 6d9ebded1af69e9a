"""Exact search over vectors in memory or in files, block by block, on a CPU.

A sample of the passages shows which score a query's best passages will reach: its floor. Only
products that reach the floor are taken out of a block's matrix of products. Where bfloat16 is fast,
the matrix is computed in bfloat16, and what may reach the floor is scored again in float32, so that
the hits are those of a full float32 search. A floor that too few passages reach was too high: such
queries are searched again without one.

The error bound: x = c + y, with c the mean of the sample; q.c is the same for every row. Let b() be
rounding to bfloat16, with unit roundoff u = 2^-8. By Cauchy-Schwarz

    |q.y - b(q).b(y)| <= |q - b(q)| |b(y)| + |q| |y - b(y)| <= (|q - b(q)| (1 + u) + |q| u) |y|,

plus the rounding of sums in float32.
"""

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.retrieval import Metric
from denserk.errors import NotFiniteError
from denserk.index.searcher import Rows, Scores, StoredVectors, Vectors, padding
from denserk.models.devices import on_threads

BLOCK = 2048  # rows of a block: with their bfloat16 copy they stay in the caches of a core
WIDE_BLOCK = 16_384  # for a few queries
TILE = 256  # queries multiplied with a block at once
FEW = 32  # up to so many queries the CPU waits for memory, and bfloat16 does not help
SAMPLE = 16_384  # rows of the sample at most; a quarter of them for products in float32
SURE = 4.0  # standard deviations by which the floor lies below the sample's estimate
PADDING = 64  # products are made of a multiple of so many rows
UNIT = 2.0**-8  # unit roundoff of bfloat16
SUMS = 2.0**-22  # four times the unit roundoff of float32: the error of each term of a sum
LARGEST = 1e38  # products that may be larger are computed in float32, and checked
CAPACITY, SPARE = 4, 4096  # hits that BestHits keeps for each hit that is wanted, and beside them


class ExactIndex:
    """Exact search over (N, D) vectors, in memory or mapped from files, a block at a time.

    Vectors are float32 or float16. A passage of several, which are neighbours, is returned once, as
    the row of its best vector. Scores are inner products, or negative squared distances. With
    `bfloat16`, candidates are found in bfloat16.

    A vector that is not finite, or a score too large for float32, is a NotFiniteError.

    >>> index = ExactIndex(np.array([[1, 0], [0, 1], [2, 0]], dtype=np.float32))
    >>> scores, rows = index.search(np.array([[1, 0]], dtype=np.float32), 2)
    >>> scores.tolist(), rows.tolist()
    ([[2.0, 1.0]], [[2, 0]])
    """

    is_exhaustive = True
    breadth: tuple[str, ...] = ()

    def __init__(
        self,
        vectors: StoredVectors,
        metric: Metric = Metric.INNER,
        vectors_per_passage: int = 1,
        *,
        bfloat16: bool = False,
    ) -> None:
        self._vectors, self._metric, self._size = vectors, metric, vectors_per_passage
        self._bfloat16 = bfloat16 and metric is Metric.INNER
        self._sample: Tensor | None = None
        self.dimension = int(vectors.shape[1])
        self._mean = torch.zeros(self.dimension)

    def __len__(self) -> int:
        return len(self._vectors)

    @torch.inference_mode()
    def search(self, queries: NDArray[np.floating], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best passages for each of (B, D) queries, each as its best row."""
        asked = torch.from_numpy(np.array(queries, np.float32))
        passages = len(self) // self._size
        kept = min(depth, passages)
        scores, rows = padding(len(asked), depth)
        if not len(asked) or not kept:
            return scores, rows
        few = len(asked) <= FEW
        in_bfloat16 = self._bfloat16 and not few
        floors = np.full(len(asked), -np.inf, np.float32)
        if not few and passages >= max(BLOCK, 8 * depth):
            floors = self._floors(asked, kept)
        # one query takes one thread: it waits for memory, and other work may need the cores
        with on_threads(1 if len(asked) == 1 else torch.get_num_threads()):
            scores[:, :kept], rows[:, :kept] = self._scan(asked, floors, kept, in_bfloat16)
        short = np.flatnonzero((rows[:, kept - 1] < 0) | (scores[:, kept - 1] < floors))
        if len(short):
            again = asked[torch.from_numpy(short)]
            floors = np.full(len(short), -np.inf, np.float32)
            scores[short, :kept], rows[short, :kept] = self._scan(again, floors, kept, in_bfloat16)
        self._refuse_missing(rows[:, :kept])
        return scores, rows

    def _refuse_missing(self, rows: Rows) -> None:
        """Raise a NotFiniteError if a query has fewer hits than (B, K): a passage has no score."""
        for hits in rows[rows[:, -1] < 0]:
            passages = np.arange(len(self) // self._size)
            missing = np.setdiff1d(passages, hits // self._size)
            raise NotFiniteError(int(missing[0]) * self._size)

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows in ascending order."""
        return self._vectors[rows].astype(np.float32)

    def _scan(
        self, queries: Tensor, floors: NDArray[np.float32], depth: int, in_bfloat16: bool
    ) -> tuple[Scores, Rows]:
        """(B, depth) scores and rows of the best passages; floors rise meanwhile."""
        best = BestHits(floors, depth)
        low_queries, offsets, slopes = self._bounds(queries)
        longest_query = float(queries.double().norm(dim=1).max())
        mean_length = float(self._mean.double().norm())
        rows = BLOCK if len(queries) > FEW else WIDE_BLOCK
        rows = max(rows // self._size, 1) * self._size
        for first in range(0, len(self), rows):
            block = torch.from_numpy(self._vectors[first : first + rows]).float()
            centred, longest = None, 0.0
            if in_bfloat16:
                centred = block - self._mean
                longest = float(torch.linalg.vector_norm(centred, dim=1).max())
                longest *= 1 + SUMS * self.dimension
                # NaN is no less than anything: such a block is multiplied in float32, and checked
                fits = (longest + mean_length) * longest_query < LARGEST
                centred = centred.bfloat16() if fits else None
            for start in range(0, len(queries), TILE):
                tile = slice(start, start + TILE)
                limits = torch.from_numpy(floors[tile])
                if centred is None:
                    products = self._scores(block, queries[tile])
                    _refuse_non_finite(products, first)
                else:
                    products = centred @ low_queries[tile].T
                    limits = limits - torch.from_numpy(offsets[tile] + slopes[tile] * longest)
                    limits = limits.bfloat16()
                    limits -= limits.abs() * UNIT * 2  # one lower: products are rounded too
                found = self._reaching(block, queries[tile], products, limits)
                numbers, columns, scores = (part.numpy() for part in found)
                best.add(columns + start, numbers + first, scores)
        return best.table()

    def _reaching(
        self, block: Tensor, queries: Tensor, products: Tensor, limits: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P,) rows, queries and float32 scores of the passages that reach the (B,) limits.

        `products` are (n, B) float32 scores, or bfloat16 products, which are scored again.
        """
        parts = products.reshape(-1, self._size, len(queries))
        most = products if self._size == 1 else parts.amax(1)
        in_bfloat16 = products.dtype is torch.bfloat16
        if in_bfloat16 and bool((limits > 0).all()):
            # positive bfloat16 numbers order as their bits, which NumPy compares 8 times faster
            bits, lowest = (part.view(torch.int16).numpy() for part in (most, limits))
            reaching = torch.from_numpy(bits >= lowest)
        else:
            reaching = most >= limits
        passages, columns = reaching.nonzero(as_tuple=True)
        if in_bfloat16:
            each = (block[part :: self._size] for part in range(self._size))
            found = [pair_products(rows, queries, passages, columns) for rows in each]
            scores = torch.stack(found, 1)
        else:
            scores = parts[passages, :, columns]
        best, part = scores.max(1)
        return passages * self._size + part, columns, best

    def _scores(self, block: Tensor, queries: Tensor) -> Tensor:
        """(n, D), (B, D) -> (n, B) float32 scores, higher is closer."""
        # BLAS computes the last rows of a matrix with another kernel, whose sums end in other
        # digits. With zero rows behind them, equal vectors have equal scores wherever they are.
        missing = -len(block) % PADDING
        rows = torch.nn.functional.pad(block, (0, 0, 0, missing)) if missing else block
        products = (rows @ queries.T)[: len(block)]
        if self._metric is Metric.INNER:
            return products
        lengths = block.square().sum(1)[:, None] + queries.square().sum(1)
        return (2 * products - lengths).clamp(max=0.0)

    def _floors(self, queries: Tensor, depth: int) -> NDArray[np.float32]:
        """(B,) scores that more than `depth` passages reach, estimated from the sample."""
        if self._sample is None:
            # passages at equal distances; less their mean, in bfloat16, where products are
            passages = len(self) // self._size
            wanted = min(SAMPLE // (1 if self._bfloat16 else 4) // self._size, passages)
            firsts = np.arange(wanted) * passages // wanted * self._size
            rows = (firsts[:, None] + np.arange(self._size)).ravel()
            drawn = torch.from_numpy(self._vectors[rows].astype(np.float32))
            if self._bfloat16:
                self._mean = _mean(drawn, rows)
                drawn = (drawn - self._mean).bfloat16()
            self._sample = drawn
        sampled = len(self._sample) // self._size
        expected = depth * sampled / (len(self) // self._size)
        place = sampled - math.ceil(expected + SURE * math.sqrt(expected)) - 2
        floors = np.full(len(queries), -np.inf, np.float32)
        for start in range(0, len(queries) if place >= 0 else 0, TILE):
            tile = queries[start : start + TILE]
            if self._bfloat16:
                scores = tile.bfloat16() @ self._sample.T
            else:
                scores = self._scores(self._sample, tile).T
            if self._size > 1:
                scores = scores.reshape(len(tile), -1, self._size).amax(2)
            partitioned = np.partition(scores.float().numpy(), place, axis=1)
            centre = (tile.double() @ self._mean.double()).numpy()
            floors[start : start + TILE] = partitioned[:, place] + centre
        return floors

    def _bounds(self, queries: Tensor) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
        """(B, D) bfloat16 queries, (B,) offsets and (B,) slopes.

        Where a float32 score reaches the floor, the bfloat16 product with a row less the mean
        reaches floor - offset - slope * (length of the row less the mean).
        """
        low, precise, mean = queries.bfloat16(), queries.double(), self._mean.double()
        lengths = precise.norm(dim=1)
        sums = lengths * (SUMS * self.dimension)
        offsets = precise @ mean + sums * mean.norm()
        slopes = (precise - low.double()).norm(dim=1) * (1 + UNIT) + lengths * UNIT + sums
        return low, offsets.numpy(), slopes.numpy()


def _mean(vectors: Tensor, rows: Rows) -> Tensor:
    """(D,) mean of (n, D) vectors, which have these rows; zero where float32 cannot hold it."""
    mean = vectors.mean(0)
    if bool(torch.isfinite(mean).all()):
        return mean
    damaged = _first_not_finite(vectors)
    if damaged is not None:
        raise NotFiniteError(int(rows[damaged]))
    return torch.zeros_like(mean)


def _refuse_non_finite(products: Tensor, first: int) -> None:
    """Raise a NotFiniteError if a score of (n, B) is not finite; its rows count from `first`."""
    # NaN and infinity survive a sum, which takes a fraction of the time of the comparison
    if bool(torch.isfinite(products.sum())):
        return
    row = _first_not_finite(products)
    if row is not None:
        raise NotFiniteError(first + row)


def _first_not_finite(values: Tensor) -> int | None:
    """Return the first row of (n, D) values in which one is not finite; None if all are."""
    rows = (~torch.isfinite(values)).any(1).nonzero()
    return int(rows[0]) if len(rows) else None


def pair_products(block: Tensor, queries: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(P,) float32 products of rows of (n, D), ascending, and columns of (B, D) queries."""
    begins = torch.searchsorted(rows, torch.arange(len(block) + 1))
    shape, values = (len(block), len(queries)), torch.zeros(len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its sparse tensors are in beta
        pairs = torch.sparse_csr_tensor(begins, columns, values, shape, check_invariants=False)
        found: Tensor = torch.sparse.sampled_addmm(pairs, block, queries.T, beta=0.0).values()
    return found


class BestHits:
    """The best hits of a batch of queries so far, and the floors that new ones must reach.

    When there is no room for more hits, the (B,) floors rise, in place, to the worst hit
    among the best `depth`.
    """

    def __init__(self, floors: NDArray[np.float32], depth: int) -> None:
        self.floors, self._depth = floors, depth
        self._type = np.min_scalar_type(len(floors))  # narrow integers are sorted by radix
        self._hits: list[tuple[NDArray[Any], Rows, Scores]] = []
        self._count, self._room = 0, CAPACITY * depth * len(floors) + SPARE

    def add(self, queries: Rows, rows: Rows, scores: Scores) -> None:
        """Take (P,) hits, rows ascending; those below their query's floor are dropped."""
        good = np.flatnonzero(scores >= self.floors[queries])
        self._hits.append((queries[good].astype(self._type), rows[good], scores[good]))
        self._count += len(good)
        if self._count > self._room:
            best_scores, best_rows = self.table()
            np.maximum(self.floors, best_scores[:, -1], out=self.floors)
            filled = best_rows >= 0
            numbers = np.nonzero(filled)[0].astype(self._type)
            self._hits = [(numbers, best_rows[filled], best_scores[filled])]
            self._count = len(numbers)

    def table(self) -> tuple[Scores, Rows]:
        """(B, depth) scores and rows, padded where a query has fewer hits."""
        queries, rows, scores = map(np.concatenate, zip(*self._hits, strict=True))
        order = np.argsort(queries, kind="stable")
        sizes = np.bincount(queries, minlength=len(self.floors))
        found, numbers = padding(len(self.floors), max(int(sizes.max()), self._depth))
        filled = np.arange(found.shape[1]) < sizes[:, None]
        found[filled], numbers[filled] = scores[order], rows[order]
        # equal scores stay in the order in which they came: by row
        best = np.argsort(-found, axis=1, kind="stable")[:, : self._depth]
        return np.take_along_axis(found, best, 1), np.take_along_axis(numbers, best, 1)
