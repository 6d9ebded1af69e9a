"""Exact search over vectors in memory or in files, block by block, on a CPU.

A sample of the passages shows which score a query's best passages will reach: its floor. Only
products that reach the floor are taken out of a block's matrix of products. Where bfloat16 is fast,
the matrix is computed in bfloat16, and what may reach the floor is scored again in float32, so that
the hits are those of a full float32 search. A floor that too few passages reach was too high: such
queries are searched again without one.

The error bound: x = c + y, with c the mean of the sample; q.c is the same for every row. Let b() be
rounding to bfloat16, with unit roundoff u = 2^-8. By Cauchy-Schwarz

    |q.y - b(q).b(y)| <= |q - b(q)| |b(y)| + |q| |y - b(y)| <= (|q - b(q)| (1 + u) + |q| u) |y|,

plus the rounding of sums in float32. The vectors b(y) are kept for the next batch of queries, where
the memory allows it.
"""

import logging
import math
import warnings
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.filesize import decimal
from torch import Tensor

from denserk.config.retrieval import Metric
from denserk.errors import NotFiniteError
from denserk.index.engines import Rows, Scores, StoredVectors, Vectors, padding
from denserk.index.memory import available_bytes
from denserk.models.devices import on_threads

logger = logging.getLogger(__name__)

BLOCK = 4096  # rows of a block: with their bfloat16 copy they stay in the caches of a core
TILE = 256  # queries multiplied with a block at once
FEW = 8  # up to so many queries, making bfloat16 copies takes longer than it saves
LARGEST_SAMPLE = 16_384  # vectors of the sample at most; a quarter of them in float32
SAMPLE_STEP = 16  # one passage of so many is in the sample
SURE = 4.0  # standard deviations by which the floor lies below the sample's estimate
PADDING = 64  # products are made of a multiple of so many rows
UNIT = 2.0**-8  # unit roundoff of bfloat16
SUMS = 2.0**-22  # four times the unit roundoff of float32: the error of each term of a sum
LARGEST = 1e38  # products that may be larger are computed in float32, and checked
CAPACITY = 4  # hits that BestHits keeps for each hit that is wanted
SPARE = 4096  # hits that it keeps beside them
# share of the available memory that float32 vectors may take: if they are smaller, a bfloat16 copy
# of them is kept
SHARE = 0.5


class Sample(NamedTuple):
    """Vectors of passages at equal distances, less their mean where products are in bfloat16."""

    vectors: Tensor  # (S, D) bfloat16 or float32
    mean: Tensor  # (D,) float32; zero for products in float32


class LowBlock(NamedTuple):
    """A block's vectors less the mean of the sample, in bfloat16."""

    vectors: Tensor  # (n, D) bfloat16
    longest: float  # no vector was longer before it was rounded; may be infinite or NaN


class QueryTile(NamedTuple):
    """Queries that are multiplied with a block at once.

    Where a float32 score reaches the floor, the bfloat16 product with a row less the mean reaches
    floor - offset - slope * (length of the row less the mean).
    """

    start: int  # number of the first query
    queries: Tensor  # (B, D) float32
    low_queries: Tensor  # (D, B) bfloat16
    longest: float  # length of the longest query
    offsets: NDArray[np.float64]  # (B,)
    slopes: NDArray[np.float64]  # (B,)

    @property
    def slice(self) -> slice:
        """The numbers of the queries."""
        return slice(self.start, self.start + len(self.queries))


class Space(NamedTuple):
    """Memory for the products of a block and a tile, because new memory costs page faults."""

    products: Tensor  # bfloat16
    reaching: NDArray[np.bool_]

    @classmethod
    def of(cls, size: int) -> "Space":
        """Return memory for so many products."""
        return cls(torch.empty(size, dtype=torch.bfloat16), np.empty(size, np.bool_))


class Pairs(NamedTuple):
    """Pairs of a passage of a block and a query: (P,) numbers of each, passages ascending."""

    passages: Rows
    queries: Rows


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
        self._vectors = vectors
        self._metric = metric
        self._per_passage = vectors_per_passage
        self._bfloat16 = bfloat16 and metric is Metric.INNER
        self._passages = len(vectors) // vectors_per_passage
        self._block_rows = max(BLOCK // vectors_per_passage, 1) * vectors_per_passage
        self._low_blocks: dict[int, LowBlock] = {}  # by their first row
        self.dimension = int(vectors.shape[1])

    def __len__(self) -> int:
        return len(self._vectors)

    @torch.inference_mode()
    def search(self, queries: NDArray[np.floating], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best passages for each of (B, D) queries, each as its best row."""
        scores, rows = padding(len(queries), depth)
        hit_count = min(depth, self._passages)
        if not len(queries) or not hit_count:
            return scores, rows
        query_vectors = torch.from_numpy(np.array(queries, np.float32))
        # one query takes one thread: it waits for memory, and other work may need the cores
        with on_threads(1 if len(queries) == 1 else torch.get_num_threads()):
            floors = self._floors(query_vectors, hit_count)
            # the scan raises a copy: what follows compares with the estimates
            hits = self._scan(query_vectors, floors.copy(), hit_count)
            scores[:, :hit_count], rows[:, :hit_count] = hits
            # too few passages reached the floor, which may have hidden better ones
            last_scores = scores[:, hit_count - 1]
            last_rows = rows[:, hit_count - 1]
            unfinished = np.flatnonzero((last_rows < 0) | (last_scores < floors))
            if len(unfinished):
                unfinished_queries = query_vectors[torch.from_numpy(unfinished)]
                hits = self._scan(unfinished_queries, no_floors(len(unfinished)), hit_count)
                scores[unfinished, :hit_count], rows[unfinished, :hit_count] = hits
        self._reject_missing(rows[:, :hit_count])
        return scores, rows

    def _reject_missing(self, rows: Rows) -> None:
        """Raise a NotFiniteError if a query has fewer hits than (B, K): a passage has no score."""
        for hits in rows[rows[:, -1] < 0]:
            missing = np.setdiff1d(np.arange(self._passages), hits // self._per_passage)
            raise NotFiniteError(int(missing[0]) * self._per_passage)

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows in ascending order."""
        return self._vectors[rows].astype(np.float32)

    def _scan(
        self, queries: Tensor, floors: NDArray[np.float32], depth: int
    ) -> tuple[Scores, Rows]:
        """Return the (B, depth) scores and rows of the best passages; the floors rise meanwhile."""
        best = BestHits(floors, depth)
        in_bfloat16 = self._bfloat16 and (len(queries) > FEW or self._keeps_low_blocks)
        tiles = self._tiles(queries) if in_bfloat16 else _tiles_of_float32(queries)
        space = Space.of(self._block_rows * min(TILE, len(queries)))
        for first in range(0, len(self), self._block_rows):
            block = torch.from_numpy(self._vectors[first : first + self._block_rows]).float()
            low_block = self._low_block(first, block) if in_bfloat16 else None
            for tile in tiles:
                if low_block is not None and self._suits_bfloat16(low_block, tile):
                    pairs = self._pairs_by_bfloat16(low_block, tile, floors, space)
                    scores, rows = self._scores_of_pairs(block, tile.queries, pairs)
                else:
                    products = self._products(block, tile.queries)
                    _reject_non_finite(products, first)
                    products_of_passages = self._by_passage(products)
                    pairs = _pairs(products_of_passages.max(axis=1) >= floors[tile.slice])
                    scores, rows = self._best_of_products(products_of_passages, pairs)
                best.add(pairs.queries + tile.start, rows + first, scores)
        return best.table()

    def _tiles(self, queries: Tensor) -> list[QueryTile]:
        """Return (B, D) queries in tiles, each with the terms of its error bound."""
        mean = self._sample.mean.double()
        tiles = []
        for number, tile in enumerate(torch.split(queries, TILE)):
            low = tile.bfloat16()
            precise = tile.double()
            lengths = precise.norm(dim=1)
            sums = lengths * (SUMS * self.dimension)
            offsets = precise @ mean + sums * mean.norm()
            slopes = (precise - low.double()).norm(dim=1) * (1 + UNIT) + lengths * UNIT + sums
            tiles.append(
                QueryTile(
                    start=number * TILE,
                    queries=tile,
                    low_queries=low.T.contiguous(),
                    longest=float(lengths.max()),
                    offsets=offsets.numpy(),
                    slopes=slopes.numpy(),
                )
            )
        return tiles

    @cached_property
    def _keeps_low_blocks(self) -> bool:
        """Whether the memory allows a bfloat16 copy of all vectors, which is half their size.

        Vectors that are mapped from files need memory too, if they are not to be read again and
        again.
        """
        if not self._bfloat16:
            return False
        available = available_bytes()
        size = 4 * len(self) * self.dimension  # in float32
        if available is None or size > SHARE * available:
            logger.debug(f"exact search: no room for a bfloat16 copy of {decimal(size)} of vectors")
            return False
        logger.debug(f"exact search: a bfloat16 copy of {decimal(size // 2)} stays in memory")
        return True

    def _low_block(self, first: int, block: Tensor) -> LowBlock:
        """Return the bfloat16 copy of a block, which begins with the row `first`."""
        low_block = self._low_blocks.get(first)
        if low_block is not None:
            return low_block
        centred = block - self._sample.mean
        longest = float(torch.linalg.vector_norm(centred, dim=1).max())
        longest *= 1 + SUMS * self.dimension  # a bound, as the length is rounded, too
        low_block = LowBlock(centred.bfloat16(), longest)
        if self._keeps_low_blocks:
            self._low_blocks[first] = low_block
        return low_block

    def _suits_bfloat16(self, block: LowBlock, tile: QueryTile) -> bool:
        """Return whether no product of a block and a tile can be too large for bfloat16.

        A block with NaN does not suit, as NaN is not less than anything: it is multiplied in
        float32, and checked.
        """
        mean_length = float(self._sample.mean.double().norm())
        return (block.longest + mean_length) * tile.longest < LARGEST

    def _pairs_by_bfloat16(
        self, block: LowBlock, tile: QueryTile, floors: NDArray[np.float32], space: Space
    ) -> Pairs:
        """Return all pairs whose float32 score may reach the floor of the query."""
        shape = len(block.vectors), len(tile.queries)
        products = space.products[: math.prod(shape)].view(shape)
        torch.mm(block.vectors, tile.low_queries, out=products)
        if self._per_passage > 1:
            products = products.view(-1, self._per_passage, len(tile.queries)).amax(1)
        errors = tile.offsets + tile.slopes * block.longest
        limits = (torch.from_numpy(floors[tile.slice]) - torch.from_numpy(errors)).bfloat16()
        limits -= limits.abs() * UNIT * 2  # one lower: products are rounded too
        if bool((limits > 0).all()):
            # positive bfloat16 numbers order as their bits, which NumPy compares 8 times faster
            bits = products.view(torch.int16).numpy()
            reaching = space.reaching[: bits.size].reshape(bits.shape)
            np.greater_equal(bits, limits.view(torch.int16).numpy(), out=reaching)
        else:
            reaching = (products >= limits).numpy()
        return _pairs(reaching)

    def _scores_of_pairs(self, block: Tensor, queries: Tensor, pairs: Pairs) -> tuple[Scores, Rows]:
        """Return the (P,) float32 scores of pairs, and the rows of their best vectors."""
        if self._per_passage == 1:
            return pair_products(block, queries, pairs), pairs.passages
        scores_by_vector = []
        for number in range(self._per_passage):
            vectors = block[number :: self._per_passage]  # one of each passage
            scores_by_vector.append(pair_products(vectors, queries, pairs))
        scores = np.stack(scores_by_vector, axis=1)
        return self._best_vectors(scores, pairs.passages)

    def _by_passage(self, products: Tensor) -> NDArray[np.float32]:
        """Return (n, B) products as (passages, vectors per passage, B)."""
        values: NDArray[np.float32] = products.numpy()
        return values.reshape(-1, self._per_passage, products.shape[1])

    def _best_of_products(
        self, products_of_passages: NDArray[np.float32], pairs: Pairs
    ) -> tuple[Scores, Rows]:
        """Return the (P,) scores of pairs, and the rows of their best vectors."""
        scores = products_of_passages[pairs.passages, :, pairs.queries]
        return self._best_vectors(scores, pairs.passages)

    def _best_vectors(
        self, scores: NDArray[np.float32], passages: Rows
    ) -> tuple[NDArray[np.float32], Rows]:
        """Return the best score of each of (P, vectors per passage), and that vector's row."""
        best_vectors = scores.argmax(axis=1)
        best_scores = np.take_along_axis(scores, best_vectors[:, None], axis=1)[:, 0]
        return best_scores, passages * self._per_passage + best_vectors

    def _products(self, block: Tensor, queries: Tensor) -> Tensor:
        """(n, D), (B, D) -> (n, B) float32 scores, higher is closer."""
        # BLAS computes the last rows of a matrix with another kernel, whose sums end in other
        # digits. With zero rows behind them, equal vectors have equal scores wherever they are.
        zero_rows = -len(block) % PADDING
        rows = torch.nn.functional.pad(block, (0, 0, 0, zero_rows)) if zero_rows else block
        products = (rows @ queries.T)[: len(block)]
        if self._metric is Metric.INNER:
            return products
        lengths = block.square().sum(1)[:, None] + queries.square().sum(1)
        return (2 * products - lengths).clamp(max=0.0)

    @cached_property
    def _sample(self) -> Sample:
        """The sample of the passages, with all vectors of each."""
        most_vectors = LARGEST_SAMPLE if self._bfloat16 else LARGEST_SAMPLE // 4
        sample_size = math.ceil(self._passages / SAMPLE_STEP)
        sample_size = min(most_vectors // self._per_passage, sample_size)
        passages = np.arange(sample_size) * self._passages // sample_size  # at equal distances
        first_rows = passages * self._per_passage
        rows = (first_rows[:, None] + np.arange(self._per_passage)).ravel()
        vectors = torch.from_numpy(self._vectors[rows].astype(np.float32))
        if not self._bfloat16:
            return Sample(vectors, torch.zeros(self.dimension))
        mean = _mean(vectors, rows)
        return Sample((vectors - mean).bfloat16(), mean)

    def _floors(self, queries: Tensor, depth: int) -> NDArray[np.float32]:
        """Return (B,) scores that more than `depth` passages reach, estimated from the sample."""
        floors = no_floors(len(queries))
        # where a block holds all passages, or an eighth of them are hits, a floor leaves little out
        if self._passages < max(BLOCK, 8 * depth):
            return floors
        vectors, mean = self._sample
        sample_size = len(vectors) // self._per_passage
        expected_hits = depth * sample_size / self._passages
        # how many hits are in the sample varies about the expected number, by about its root
        rank = math.ceil(expected_hits + SURE * math.sqrt(expected_hits)) + 2
        if rank > sample_size:
            return floors
        for number, tile in enumerate(torch.split(queries, TILE)):
            if self._bfloat16:
                scores = tile.bfloat16() @ vectors.T
            else:
                scores = self._products(vectors, tile).T
            if self._per_passage > 1:
                scores = scores.reshape(len(tile), -1, self._per_passage).amax(2)
            score_of_rank = scores.topk(rank, dim=1).values[:, -1].float()
            scores_of_mean = tile.double() @ mean.double()  # the sample is less its mean
            start = number * TILE
            floors[start : start + len(tile)] = (score_of_rank + scores_of_mean).numpy()
        return floors


def _tiles_of_float32(queries: Tensor) -> list[QueryTile]:
    """Return (B, D) queries in tiles, without what is needed for products in bfloat16."""
    no_vectors = torch.empty(0)
    no_bounds = np.empty(0)
    return [
        QueryTile(number * TILE, tile, no_vectors, math.inf, no_bounds, no_bounds)
        for number, tile in enumerate(torch.split(queries, TILE))
    ]


def no_floors(query_count: int) -> NDArray[np.float32]:
    """Return the (B,) floors of queries that every score reaches."""
    return np.full(query_count, -np.inf, np.float32)


def _mean(vectors: Tensor, rows: Rows) -> Tensor:
    """(D,) mean of (n, D) vectors, which have these rows; zero where float32 cannot hold it."""
    mean = vectors.mean(0)
    if bool(torch.isfinite(mean).all()):
        return mean
    damaged_row = _first_not_finite(vectors)
    if damaged_row is not None:
        raise NotFiniteError(int(rows[damaged_row]))
    # all are finite, and their sum is too large
    return torch.zeros_like(mean)


def _reject_non_finite(products: Tensor, first: int) -> None:
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


def _pairs(reaching: NDArray[np.bool_]) -> Pairs:
    """Return which passages and queries of (n, B) are true."""
    # NumPy finds them several times faster than torch
    positions = np.flatnonzero(reaching)
    query_count = reaching.shape[1]
    passages = positions // query_count
    return Pairs(passages, positions - passages * query_count)


def pair_products(block: Tensor, queries: Tensor, pairs: Pairs) -> NDArray[np.float32]:
    """Return the (P,) float32 products of rows of (n, D) and queries (B, D).

    The pairs are the cells of a sparse matrix (n, B) in CSR format, which torch fills in: the cells
    of row i are those from `row_starts[i]` to before `row_starts[i + 1]`.
    """
    sizes = np.bincount(pairs.passages, minlength=len(block))
    row_starts = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
    columns = torch.from_numpy(pairs.queries)
    shape = len(block), len(queries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its sparse tensors are in beta
        empty_cells = torch.sparse_csr_tensor(
            row_starts, columns, torch.zeros(len(columns)), shape, check_invariants=False
        )
        products = torch.sparse.sampled_addmm(empty_cells, block, queries.T, beta=0.0).values()
    values: NDArray[np.float32] = products.numpy()
    return values


# Hits are sorted by one number: the score, from high to low, in the upper 32 bits, and the row in
# the lower ones. NumPy sorts such numbers many times faster than scores with their positions.
Keys = NDArray[np.uint64]
NO_HIT = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
ROW_BITS = np.uint64(32)
SIGN = np.uint32(0x8000_0000)
MAGNITUDE = np.uint32(0x7FFF_FFFF)


def sort_keys(scores: NDArray[np.float32], rows: Rows) -> Keys:
    """Return keys that order hits by score descending, then row; rows are less than 2^32 - 1.

    >>> np.argsort(sort_keys(np.float32([1, -2, 3, 3, -1]), np.array([0, 1, 7, 3, 4]))).tolist()
    [3, 2, 0, 4, 1]
    """
    bits = (scores + np.float32(0)).view(np.uint32)  # a sum, because -0.0 equals 0.0
    # Read as integers, the bits of positive numbers grow with them, and the bits of negative ones,
    # which are larger, grow as they fall. Keys of positive numbers are turned round, to fall, too.
    falling = np.where(bits < SIGN, bits ^ MAGNITUDE, bits)
    return (falling.astype(np.uint64) << ROW_BITS) | rows.astype(np.uint64)


def hits_of_keys(keys: Keys) -> tuple[Scores, Rows]:
    """Return the scores and the rows of keys; -inf and -1 where there is no hit."""
    falling = (keys >> ROW_BITS).astype(np.uint32)
    scores = np.where(falling < SIGN, falling ^ MAGNITUDE, falling).view(np.float32)
    rows = (keys & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    is_hit = keys != NO_HIT
    return np.where(is_hit, scores, np.float32(-np.inf)), np.where(is_hit, rows, -1)


class BestHits:
    """The best hits of a batch of queries so far, and the floors that new ones must reach.

    When there is no room for more hits, the (B,) floors rise, in place, to the worst hit
    among the best `depth`.
    """

    def __init__(self, floors: NDArray[np.float32], depth: int) -> None:
        self.floors = floors
        self._depth = depth
        self._type = np.min_scalar_type(len(floors))  # narrow integers are sorted by radix
        self._queries: list[NDArray[np.unsignedinteger]] = []  # (P,) numbers of the hits' queries
        self._keys: list[Keys] = []  # (P,)
        self._count = 0
        self._room = CAPACITY * depth * len(floors) + SPARE

    def add(self, queries: Rows, rows: Rows, scores: NDArray[np.float32]) -> None:
        """Take (P,) hits; those below their query's floor are dropped."""
        reaching = np.flatnonzero(scores >= self.floors[queries])
        self._queries.append(queries[reaching].astype(self._type))
        self._keys.append(sort_keys(scores[reaching], rows[reaching]))
        self._count += len(reaching)
        if self._count > self._room:
            self._drop_worse()

    def _drop_worse(self) -> None:
        """Keep the best hits alone, and raise the floors to the last of them."""
        keys = self._best_keys()
        scores, _ = hits_of_keys(keys[:, -1])
        np.maximum(self.floors, scores, out=self.floors)
        queries, ranks = np.nonzero(keys != NO_HIT)
        self._queries = [queries.astype(self._type)]
        self._keys = [keys[queries, ranks]]
        self._count = len(queries)

    def _best_keys(self) -> Keys:
        """Return the (B, depth) keys of the best hits, in order."""
        queries = np.concatenate(self._queries)
        sizes = np.bincount(queries, minlength=len(self.floors))
        width = max(int(sizes.max()), self._depth)
        table = np.full((len(self.floors), width), NO_HIT)
        is_filled = np.arange(width) < sizes[:, None]
        table[is_filled] = np.concatenate(self._keys)[np.argsort(queries, kind="stable")]
        table.sort(axis=1)
        return table[:, : self._depth]

    def table(self) -> tuple[Scores, Rows]:
        """Return (B, depth) scores and rows, padded where a query has fewer hits."""
        return hits_of_keys(self._best_keys())
