"""The exact engine: every vector is compared, block by block. It defines the right answer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from denserk.formats.flat_file import map_flat
from denserk.index.gpu_scan import GpuScan
from denserk.index.hit_keys import hits_of
from denserk.index.threshold_scan import ROWS, Stored, ThresholdScan, can_scan, padded
from denserk.index.top_k import best_of_each, merge_top_k, ordered, top_k
from denserk.index.vector_index import Rows, Scores, Vectors
from denserk.settings.retrieval import Metric

BLOCK_FLOATS = 1 << 24
"""Floats of a block, its vectors' or its scores', whichever are more: 64 MiB."""


class TorchExact:
    """Exact search over (N, D) vectors in memory or mapped from a file, on any device.

    Needs memory for one block and its scores beside the vectors. Where several neighbouring vectors
    belong to one passage, a passage scores what its best vector scores, and comes up once, as the
    row of that vector.

    Args:
        vectors: (N, D) float32 or float16.
        metric: inner product, or the negative squared distance.
        device: where scores are computed; blocks travel there one at a time.
        vectors_per_passage: how many neighbouring rows are one passage.
        block_floats: bound on the floats of a block.
        bfloat16: scan in bfloat16 what is then scored in float32, on a CPU that is fast at it; a
            GPU always does.
        plain: score every row in float32 and sort, without floors.

    >>> index = TorchExact(np.array([[1, 0], [0, 1], [2, 0]], dtype=np.float32))
    >>> scores, rows = index.search(np.array([[1, 0]], dtype=np.float32), 2)
    >>> scores.tolist(), rows.tolist()
    ([[2.0, 1.0]], [[2, 0]])
    """

    is_exhaustive = True

    def __init__(
        self,
        vectors: Stored,
        metric: Metric = Metric.INNER,
        device: str = "cpu",
        vectors_per_passage: int = 1,
        block_floats: int = BLOCK_FLOATS,
        *,
        bfloat16: bool = False,
        plain: bool = False,
    ) -> None:
        self._vectors, self._metric = vectors, metric
        self._device = torch.device(device)
        self._size, self._block_floats = vectors_per_passage, block_floats
        self._scan: ThresholdScan | None = None
        if not plain and self._device.type == "cpu":
            self._scan = ThresholdScan(vectors, metric, vectors_per_passage, bfloat16)
        elif not plain and metric is Metric.INNER and torch.cuda.is_bf16_supported(False):
            self._scan = GpuScan(vectors, self._device, vectors_per_passage)

    @classmethod
    def open(
        cls,
        path: Path,
        device: str = "cpu",
        vectors_per_passage: int = 1,
        threads: int | None = None,
        *,
        bfloat16: bool = False,
        plain: bool = False,
    ) -> "TorchExact":
        """Maps a flat index of faiss into memory; `threads` holds for the whole process."""
        if threads:
            torch.set_num_threads(threads)
        vectors, metric = map_flat(path)
        return cls(vectors, metric, device, vectors_per_passage, bfloat16=bfloat16, plain=plain)

    @property
    def dimension(self) -> int:
        """D, of its vectors and of any query."""
        return int(self._vectors.shape[1])

    def __len__(self) -> int:
        return len(self._vectors)

    def _blocks(self, queries: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (first row, (n, D) vectors on the device), whole passages at a time."""
        rows = self._block_floats // max(queries, self.dimension)
        together = ROWS * self._size  # rows that need no padding
        step = rows // together * together or max(rows // self._size, 1) * self._size
        for first in range(0, len(self), step):
            block = torch.from_numpy(np.asarray(self._vectors[first : first + step]))
            yield first, block.to(self._device, torch.float32)

    def _similarity(self, queries: Tensor, block: Tensor) -> Tensor:
        """(B, D), (n, D) -> (B, n), higher is closer."""
        products = (queries @ padded(block).T)[:, : len(block)]
        if self._metric is Metric.INNER:
            return products
        lengths = queries.square().sum(1)[:, None] + block.square().sum(1)
        return (2 * products - lengths).clamp(max=0.0)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows for each of (B, D) queries, by score descending, row ascending."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if self._scan is None or not can_scan(len(self), depth, len(queries), self._size):
            return self._sorted(queries, depth)
        keys, misled = self._scan.search(queries, depth)
        scores, rows = hits_of(keys)
        if misled:
            scores[misled], rows[misled] = self._sorted(queries[misled], depth)
        return scores, rows

    @torch.inference_mode()
    def _sorted(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """The answer by its definition: all scores of a block, the best of them merged and kept."""
        asked = torch.from_numpy(queries).to(self._device)
        nothing = torch.empty(len(queries), 0, device=self._device)
        held = nothing, nothing.long()
        for first, block in self._blocks(len(queries)):
            scores = self._similarity(asked, block)
            rows = torch.arange(first, first + len(block), device=self._device)
            if self._size > 1:
                scores, columns = best_of_each(scores, self._size)
                rows = rows[columns]
            held = merge_top_k(held, top_k(scores, rows, depth), depth)
        held = ordered(*held)
        missing = (0, depth - held[0].shape[1])
        padded_scores = torch.nn.functional.pad(held[0], missing, value=-torch.inf)
        padded_rows = torch.nn.functional.pad(held[1], missing, value=-1)
        return padded_scores.cpu().numpy(), padded_rows.cpu().numpy()
