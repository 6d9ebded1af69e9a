"""Exact search on a GPU: products in float32, the best of each block of vectors, the best of all.

The vectors stay on the GPU between searches where they take at most half of its free memory. Others
are copied to it at each search, one block at a time.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.retrieval import Metric
from denserk.errors import NotFiniteError
from denserk.index.engines import Rows, Scores, StoredVectors, Vectors, in_order, padding
from denserk.models.devices import memory_errors

BLOCK = 131_072  # vectors multiplied at once
TILE = 1024  # queries multiplied at once
PADDING = 64  # a block has a multiple of so many vectors
SHARE = 0.5  # of a GPU's free memory, which vectors may occupy between searches
LESS_MEMORY = (
    "search fewer queries at once with --query-batch, or on the CPU: --set index-device=cpu"
)


class GpuExactIndex:
    """Exact search over (N, D) vectors, in memory or mapped from files, on a GPU.

    Vectors are float32 or float16. A passage of several, which are neighbours, is returned once, as
    the row of its best vector. Scores are inner products, or negative squared distances. Which of
    the passages that tie at the depth are returned is not specified.

    A vector that is not finite, or a score too large for float32, is a NotFiniteError.
    """

    is_exhaustive = True
    breadth: tuple[str, ...] = ()

    def __init__(
        self,
        vectors: StoredVectors,
        metric: Metric = Metric.INNER,
        device: str = "cuda",
        vectors_per_passage: int = 1,
    ) -> None:
        self._vectors = vectors
        self._metric = metric
        self._device = torch.device(device)
        self._per_passage = vectors_per_passage
        self.dimension = int(vectors.shape[1])
        whole_passages = max(BLOCK // vectors_per_passage, 1) * vectors_per_passage
        self._block_rows = min(whole_passages, len(vectors))
        # Another number of rows may have another kernel, whose sums end in other digits. With all
        # blocks of one length, equal vectors have equal scores wherever they are.
        self._padded_rows = self._block_rows + -self._block_rows % PADDING
        free_memory, _ = torch.cuda.mem_get_info(self._device)
        # files may hold both float16 and float32
        row_bytes = max(vectors[:1].nbytes, vectors[len(vectors) - 1 : len(vectors)].nbytes)
        self._stays = len(vectors) * row_bytes < SHARE * free_memory
        self._resident: list[tuple[int, Tensor]] = []

    def __len__(self) -> int:
        return len(self._vectors)

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows in ascending order."""
        return self._vectors[rows].astype(np.float32)

    @torch.inference_mode()
    def search(self, queries: NDArray[np.floating], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best passages for each of (B, D) queries, each as its best row."""
        scores, rows = padding(len(queries), depth)
        hit_count = min(depth, len(self) // self._per_passage)
        if not len(queries) or not hit_count:
            return scores, rows
        with memory_errors(f"searching on {self._device}", LESS_MEMORY):
            scores[:, :hit_count], rows[:, :hit_count] = self._search(queries, hit_count)
        return scores, rows

    def _search(self, queries: NDArray[np.floating], depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best passages, of at least so many: (B, depth) scores and rows."""
        query_vectors = torch.from_numpy(np.array(queries, np.float32)).to(self._device)
        tiles = torch.split(query_vectors, TILE)
        best_hits = [no_hits(len(tile), self._device) for tile in tiles]
        # NaN and infinity survive a sum, so that the GPU is asked once
        sum_of_products = torch.zeros((), device=self._device)
        for first_row, block in self._blocks():
            for number, tile in enumerate(tiles):
                products = self._products(tile, block)
                sum_of_products += products.sum()
                hits = self._best_of_block(products, first_row, depth)
                best_hits[number] = merged(best_hits[number], hits, depth)
        if not bool(torch.isfinite(sum_of_products)):
            self._reject_non_finite(tiles)
        scores = torch.cat([hits.scores for hits in best_hits]).cpu().numpy()
        rows = torch.cat([hits.rows for hits in best_hits]).cpu().numpy()
        return in_order(scores, rows)

    def _blocks(self) -> Iterable[tuple[int, Tensor]]:
        """Return the vectors in blocks on the GPU, (n, D), each with its first row."""
        if not self._stays:
            return self._copied_blocks()
        if not self._resident:
            self._resident = list(self._copied_blocks())
        return self._resident

    def _copied_blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Copy the vectors to the GPU, a block at a time."""
        for first in range(0, len(self), self._block_rows):
            rows = self._vectors[first : first + self._block_rows]
            yield first, torch.from_numpy(rows).to(self._device)

    def _products(self, queries: Tensor, block: Tensor) -> Tensor:
        """Score a block: (B, D), (n, D) -> (B, n) float32, higher is closer."""
        vectors = block.float()
        padded_vectors = vectors
        zero_rows = self._padded_rows - len(block)
        if zero_rows:
            padded_vectors = F.pad(vectors, (0, 0, 0, zero_rows))
        products = (queries @ padded_vectors.T)[:, : len(block)]
        if self._metric is Metric.INNER:
            return products
        lengths = queries.square().sum(1)[:, None] + vectors.square().sum(1)
        return (2 * products - lengths).clamp(max=0.0)

    def _best_of_block(self, products: Tensor, first_row: int, depth: int) -> "Hits":
        """Return the best passages of a block by its (B, n) products."""
        if self._per_passage == 1:
            scores, positions = products.topk(min(depth, products.shape[1]), dim=1)
            return Hits(scores, first_row + positions)
        products_of_passages = products.reshape(len(products), -1, self._per_passage)
        passage_scores, best_vectors = products_of_passages.max(dim=2)
        scores, passages = passage_scores.topk(min(depth, passage_scores.shape[1]), dim=1)
        rows = first_row + passages * self._per_passage + best_vectors.gather(1, passages)
        return Hits(scores, rows)

    def _reject_non_finite(self, tiles: tuple[Tensor, ...]) -> None:
        """Raise a NotFiniteError for the first vector with a score that is not finite, if any."""
        for first_row, block in self._blocks():
            for tile in tiles:
                is_finite = torch.isfinite(self._products(tile, block))
                damaged_rows = (~is_finite).any(0).nonzero()
                if len(damaged_rows):
                    raise NotFiniteError(first_row + int(damaged_rows[0]))


class Hits(NamedTuple):
    """The best rows of each query, in no order."""

    scores: Tensor  # (B, K)
    rows: Tensor  # (B, K)


def no_hits(queries: int, device: torch.device) -> Hits:
    """Return the hits of so many queries before any vector was compared: (B, 0) each."""
    scores = torch.empty(queries, 0, device=device)
    rows = torch.empty(queries, 0, dtype=torch.int64, device=device)
    return Hits(scores, rows)


def merged(best_hits: Hits, hits: Hits, depth: int) -> Hits:
    """Return the best of two sets of hits, at most `depth` for each query."""
    scores = torch.cat([best_hits.scores, hits.scores], dim=1)
    rows = torch.cat([best_hits.rows, hits.rows], dim=1)
    best_scores, positions = scores.topk(min(depth, scores.shape[1]), dim=1)
    return Hits(best_scores, rows.gather(1, positions))
