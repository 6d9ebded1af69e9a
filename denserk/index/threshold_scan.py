"""Exact search that looks twice only at rows which may be among a query's best.

A sample of the rows says which score a query's best will reach: its floor. Every block of rows is
multiplied with the queries, and only products that reach the floor are taken out of the matrix. In
bfloat16 the matrix is made in a fraction of the time, and is wrong by a bounded amount: what comes
within that bound of the floor is multiplied again in float32. So every row whose float32 score
reaches the floor is found, and where these are as many as were asked for, the best of them are the
best of all. Where they are fewer, the sample was misleading, and the caller is told.

The bound: x = c + y, with c the mean of the sample; q.c is the same for every row. Write b() for
rounding to bfloat16, whose unit is u = 2^-8. Then by Cauchy and Schwarz

    |q.y - b(q).b(y)| <= |q - b(q)| |b(y)| + |q| |y - b(y)| <= (|q - b(q)| (1 + u) + |q| u) |y|,

plus what sums in float32 lose. A floor is rounded down to bfloat16, as the products are rounded.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.index.candidates import Candidates
from denserk.index.chained_vectors import ChainedVectors
from denserk.index.hit_keys import MOST_ROWS, Keys
from denserk.index.one_query import product_with_one
from denserk.index.pair_products import Places, pair_products
from denserk.settings.retrieval import Metric

Stored = NDArray[np.float32] | NDArray[np.float16] | ChainedVectors
"""(N, D) vectors of float32 or float16, as they are stored."""
BLOCK = 2048
"""Rows of a block; with their bfloat16 copy they stay in the caches of a core."""
TILE = 256
"""Queries multiplied with a block at once, for the same reason."""
SAMPLE = 16_384
"""Rows of the sample, at most; a quarter of them where their products are made in float32."""
WIDE = 8
"""For a few queries, blocks are so many times larger."""
FEW = 32
"""Up to so many queries a search waits for the memory, and bfloat16 does not help."""
LARGE = 1 << 28
"""Floats of a collection for whose sake faiss is loaded when a query comes alone: 1 GiB."""
ROWS = 64
"""Products are made of so many rows at a time; see `padded`."""
UNIT = 2.0**-8
"""Half the distance from 1 to the next bfloat16."""
SUMS = 2.0**-22
"""Four times half the distance from 1 to the next float32: the error of a sum's every term."""
SURE = 4.0
"""Standard deviations by which the floor stands below the guess of the sample."""


def can_scan(count: int, depth: int, queries: int, passage_size: int = 1) -> bool:
    """Whether floors help: few enough of many rows are asked for, and keys can hold them."""
    return queries > 0 and BLOCK <= count <= MOST_ROWS and 8 * depth * passage_size <= count


@dataclass(frozen=True)
class Asked:
    """A batch of queries, in both precisions."""

    float32: Tensor
    bfloat16: Tensor | None
    centre: NDArray[np.float64]
    """(B,), q.c"""
    lengths: NDArray[np.float64]
    """(B,)"""
    slack: NDArray[np.float64]
    """(B,), by how much a product is wrong at most, for each unit of a row's length."""


class ThresholdScan:
    """Scans (N, D) vectors of float32 or float16, in memory or mapped; threads take parts of them.

    Args:
        vectors: the rows.
        metric: how they compare; distances are computed in float32.
        passage_size: how many neighbouring rows are one passage.
        bfloat16: scan in bfloat16, for batches of more than a few queries.
    """

    def __init__(
        self, vectors: Stored, metric: Metric, passage_size: int = 1, bfloat16: bool = False
    ) -> None:
        self._vectors, self._metric, self._size = vectors, metric, passage_size
        self._step = max(BLOCK // passage_size, 1) * passage_size
        self._bfloat16 = bfloat16 and metric is Metric.INNER
        self._sample: Tensor | None = None
        self._mean, self._mean_length = torch.zeros(vectors.shape[1]), 0.0
        self._longest = np.full(-(-len(vectors) // self._step), np.nan)
        """Length of the longest row of each block, less the mean; NaN where nobody looked."""

    @torch.inference_mode()
    def search(self, queries: NDArray[np.float32], depth: int) -> tuple[Keys, list[int]]:
        """The sorted keys of the `depth` best, and which of the queries must be asked otherwise.

        Args:
            queries: (B, D).
            depth: at most an eighth of the passages.

        Returns:
            (B, depth) keys, and the queries whose line of keys is not to be trusted.
        """
        asked, floors = self._begin(torch.from_numpy(queries), depth)
        threads = max(1, min(torch.get_num_threads(), len(self._longest) // WIDE))
        bounds = [len(self._longest) * i // threads for i in range(threads + 1)]
        wide = WIDE if len(queries) <= FEW else 1
        parts = [
            _Part(self, asked, Candidates(floors.copy(), depth, self._size), range(*ends, wide))
            for ends in pairwise(bounds)
        ]
        if threads == 1:
            parts[0].scan()
        else:
            _together(parts, threads)
        held = parts[0].candidates
        for part in parts[1:]:
            held.absorb(part.candidates)
        return held.finish()

    def _begin(self, queries: Tensor, depth: int) -> tuple[Asked, NDArray[np.float32]]:
        """Queries in the precision of the scan, and the floors that the sample gives."""
        count = len(queries)
        if count <= FEW:
            floors = np.full(count, -np.inf, np.float32)
            return Asked(queries, None, *(np.zeros(count) for _ in range(3))), floors
        return self._prepared(queries, depth)

    def _prepared(self, queries: Tensor, depth: int) -> tuple[Asked, NDArray[np.float32]]:
        if self._sample is None:
            self._take_sample()
        assert self._sample is not None
        centre = queries.double() @ self._mean.double()
        low = queries.bfloat16() if self._bfloat16 else None
        lengths = queries.double().norm(dim=1)
        lost = 0 if low is None else (queries.double() - low.double()).norm(dim=1)
        slack = lost * (1 + UNIT) + lengths * UNIT
        asked = Asked(queries, low, centre.numpy(), lengths.numpy(), slack.numpy())
        products = torch.mm(queries if low is None else low, self._sample.T)
        if self._metric is Metric.L2:
            products = _distances(products, queries, self._sample)
        if self._size > 1:
            products = products.reshape(len(queries), -1, self._size).amax(2)
        floors = _floors(products, depth, len(self._vectors) // self._size)
        return asked, (floors + asked.centre).astype(np.float32)

    def _limits(
        self, asked: Asked, tile: slice, floors: NDArray[np.float32], longest: float
    ) -> NDArray[np.float64]:
        """What a bfloat16 product must reach, less the mean's, for its row to reach the floor.

        Args:
            asked: all queries.
            tile: B of them.
            floors: (B,) of these.
            longest: length of the longest row, less the mean.
        """
        sums = SUMS * asked.float32.shape[1] * (longest + self._mean_length)
        wrong = asked.slack[tile] * longest + asked.lengths[tile] * sums
        return floors - asked.centre[tile] - wrong

    def _take_sample(self) -> None:
        """Passages at equal distances, and their mean."""
        passages = len(self._vectors) // self._size
        wanted = min(SAMPLE // (1 if self._bfloat16 else 4) // self._size, passages)
        firsts = np.arange(wanted) * passages // wanted * self._size
        rows = (firsts[:, None] + np.arange(self._size)).ravel()
        sample = torch.from_numpy(self._vectors[rows].astype(np.float32))
        if self._bfloat16:
            self._mean = sample.mean(0)
            self._mean_length = float(self._mean.norm())
            sample = (sample - self._mean).bfloat16()
        self._sample = sample


class _Part:
    """What one thread scans, with the room it works in."""

    def __init__(
        self, scan: ThresholdScan, asked: Asked, candidates: Candidates, blocks: range
    ) -> None:
        self._scan, self._asked, self.candidates, self._blocks = scan, asked, candidates, blocks
        shape = scan._step * blocks.step, asked.float32.shape[1]
        self._float32 = torch.empty(shape)
        self._low = torch.empty(shape, dtype=torch.bfloat16)
        self._products = torch.empty(shape[0], TILE, dtype=torch.bfloat16)
        self._mask = np.empty((shape[0], TILE), np.bool_)

    @torch.inference_mode()
    def scan(self) -> None:
        """Takes every block of the part, and every tile of the queries."""
        step = self._scan._step
        for number in self._blocks:
            first = number * step
            last = min(number + self._blocks.step, self._blocks.stop) * step
            stored = torch.from_numpy(np.asarray(self._scan._vectors[first:last]))
            block = stored
            if stored.dtype is not torch.float32:
                block = self._float32[: len(stored)].copy_(stored)
            tiles = range(0, len(self._asked.float32), TILE)
            if self._asked.bfloat16 is None:
                for start in tiles:
                    self._compare(block, first, slice(start, start + TILE))
                continue
            low = self._lowered(block, number)
            for start in tiles:
                self._compare_low(block, low, number, slice(start, start + TILE))

    def _lowered(self, block: Tensor, number: int) -> Tensor:
        """The block less the mean, in bfloat16; remembers its longest row."""
        moved = self._float32[: len(block)]
        if block.data_ptr() == moved.data_ptr():
            moved = torch.empty_like(block)
        torch.sub(block, self._scan._mean, out=moved)
        if np.isnan(self._scan._longest[number]):
            longest = torch.linalg.vector_norm(moved, dim=1).max()
            self._scan._longest[number] = float(longest) * (1 + SUMS * block.shape[1])
        return self._low[: len(block)].copy_(moved)

    def _compare(self, block: Tensor, first: int, tile: slice) -> None:
        """Takes what reaches its floor, in float32."""
        queries = self._asked.float32[tile]
        if len(queries) > 2:
            products = (padded(block) @ queries.T)[: len(block)]
        else:
            vectors = self._scan._vectors
            multiply = torch.mv if math.prod(vectors.shape) < LARGE else product_with_one
            products = torch.stack([multiply(padded(block), query) for query in queries], dim=1)
            products = products[: len(block)]
        if self._scan._metric is Metric.L2:
            products = _distances(products, block, queries)
        scores = products.numpy()
        rows, columns = places(scores >= self.candidates.floors[tile])
        self.candidates.add(columns + tile.start, rows + first, scores[rows, columns])

    def _compare_low(self, block: Tensor, low: Tensor, number: int, tile: slice) -> None:
        """Takes what may reach its floor by its product in bfloat16, and does by that in float32.

        Positive bfloat16 are in the order of their bits as whole numbers, and so they are compared.
        """
        asked, queries = self._asked, self._asked.float32[tile]
        assert asked.bfloat16 is not None
        longest = self._scan._longest[number]
        limits = self._scan._limits(asked, tile, self.candidates.floors[tile], longest)
        shape = len(block), len(queries)
        products = self._products.ravel()[: math.prod(shape)].view(shape)
        torch.mm(low, asked.bfloat16[tile].T, out=products)
        lowest = torch.from_numpy(limits.astype(np.float32)).bfloat16()
        bits = lowest.view(torch.int16).numpy() - 1
        if (limits > 0).all():
            mask = self._mask.ravel()[: math.prod(shape)].reshape(shape)
            np.greater_equal(products.view(torch.int16).numpy(), bits, out=mask)
        else:
            mask = (products >= lowest - lowest.abs() * UNIT * 2).numpy()
        rows, columns = places(mask)
        exact = pair_products(block, queries, rows, columns).numpy()
        self.candidates.add(columns + tile.start, rows + number * self._scan._step, exact)


def padded(block: Tensor) -> Tensor:
    """Append zero rows to (n, D) vectors, up to a multiple of ROWS.

    BLAS computes the last rows of a matrix with another kernel, whose sums end in other digits.
    Without them equal vectors have equal scores wherever they stand, and are recognised as ties.
    """
    missing = -len(block) % ROWS
    return torch.nn.functional.pad(block, (0, 0, 0, missing)) if missing else block


def places(mask: NDArray[np.bool_]) -> tuple[Places, Places]:
    """Rows and columns of what is true, row by row; eight places are looked at together.

    >>> [part.tolist() for part in places(np.array([[False, True], [True, False]]))]
    [[0, 1], [1, 0]]
    """
    width = mask.shape[1]
    if width % 8:
        rows, columns = np.nonzero(mask)
        return rows, columns
    eights = np.flatnonzero(mask.reshape(-1).view(np.uint64))
    among = np.flatnonzero(mask.reshape(-1, 8)[eights])
    found = eights[among >> 3] * 8 + (among & 7)
    rows = found // width
    return rows, found - rows * width


def _distances(products: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Negative squared distances from (n, D), (m, D) vectors and their (n, m) products."""
    lengths = one.square().sum(1)[:, None] + other.square().sum(1)
    return (2 * products - lengths).clamp(max=0.0)


def _floors(scores: Tensor, depth: int, passages: int) -> NDArray[np.float32]:
    """(B,) scores that more than `depth` of all passages reach, as far as (B, M) of them tell."""
    sampled = scores.shape[1]
    expected = depth * sampled / passages
    place = sampled - math.ceil(expected + SURE * math.sqrt(expected)) - 2
    if place < 0:
        return np.full(len(scores), -np.inf, np.float32)
    if scores.dtype is torch.bfloat16:  # positive ones are in the order of their bits
        bits = torch.from_numpy(np.partition(scores.view(torch.int16).numpy(), place, axis=1))
        floors = bits[:, place].contiguous().view(torch.bfloat16)
        if bool((floors > 0).all()):
            return floors.float().numpy()
        scores = scores.float()
    partitioned: NDArray[np.float32] = np.partition(scores.numpy(), place, axis=1)
    return partitioned[:, place]


def _together(parts: list[_Part], threads: int) -> None:
    """Scans every part in a thread of its own, in which torch does not start more of them."""
    before = torch.get_num_threads()

    def alone(part: _Part) -> None:
        torch.get_num_threads()  # torch sets a new thread up once; then it can be told otherwise
        torch.set_num_threads(1)
        part.scan()

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(alone, parts))
    finally:
        torch.set_num_threads(before)
