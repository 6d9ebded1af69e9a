"""The scan with floors on a GPU: blocks travel there once where they fit, else while others work.

The bound of `threshold_scan` holds as long as sums stay in float32, which cuBLAS is told.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.index.candidates import Candidates
from denserk.index.hit_keys import Keys
from denserk.index.pair_products import pair_products
from denserk.index.threshold_scan import SUMS, TILE, UNIT, Asked, Stored, ThresholdScan
from denserk.settings.retrieval import Metric

ROWS = 32_768
"""Rows of a block: 96 MiB at 768 dimensions."""
KEPT = 0.5
"""Share of the free memory of the GPU that vectors may fill for good."""


class GpuScan(ThresholdScan):
    """Scans (N, D) vectors by inner product, in bfloat16, on a device.

    Args:
        vectors: the rows, in memory or mapped.
        device: where they are compared.
        passage_size: how many neighbouring rows are one passage.
    """

    def __init__(self, vectors: Stored, device: torch.device, passage_size: int = 1) -> None:
        super().__init__(vectors, Metric.INNER, passage_size, bfloat16=True)
        self._rows = max(ROWS // passage_size, 1) * passage_size
        self._device = device
        self._kept: list[Tensor] | None = None
        if device.type == "cuda" and vectors.nbytes < KEPT * torch.cuda.mem_get_info(device)[0]:
            self._kept = []

    @torch.inference_mode()
    def search(self, queries: NDArray[np.float32], depth: int) -> tuple[Keys, list[int]]:
        """As `ThresholdScan.search`."""
        asked, floors = self._begin(torch.from_numpy(queries), depth)
        candidates = Candidates(floors, depth, self._size)
        with _sums_in_float32():
            first = 0
            for stored in self._blocks():
                self._compare_block(stored.float(), first, asked, candidates)
                first += len(stored)
        return candidates.finish()

    def _begin(self, queries: Tensor, depth: int) -> tuple[Asked, NDArray[np.float32]]:
        return self._prepared(queries, depth)  # a GPU is fast in bfloat16 for one query too

    def _compare_block(
        self, block: Tensor, first: int, asked: Asked, candidates: Candidates
    ) -> None:
        """Takes what may reach its floor by its product in bfloat16, and does in float32."""
        moved = block - self._mean.to(self._device)
        low = moved.bfloat16()
        longest = float(torch.linalg.vector_norm(moved, dim=1).max()) * (1 + SUMS * block.shape[1])
        assert asked.bfloat16 is not None
        for start in range(0, len(asked.float32), TILE):
            tile = slice(start, start + TILE)
            limits = torch.from_numpy(self._limits(asked, tile, candidates.floors[tile], longest))
            lowest = limits.float().bfloat16()
            lowest = (lowest - lowest.abs() * UNIT * 2).to(self._device)
            products = torch.mm(low, asked.bfloat16[tile].to(self._device).T)
            rows, columns = (products >= lowest).nonzero(as_tuple=True)
            queries = asked.float32[tile].to(self._device)
            exact = pair_products(block, queries, rows, columns).cpu().numpy()
            found = columns.cpu().numpy() + start, rows.cpu().numpy() + first
            candidates.add(*found, exact)

    def _blocks(self) -> Iterator[Tensor]:
        """Yields (n, D) rows on the device, as they are stored."""
        if self._kept:
            yield from self._kept
            return
        moving = self._pinned() if self._device.type == "cuda" else self._plain()
        for block in moving:
            if self._kept is not None:
                self._kept.append(block)
            yield block

    def _plain(self) -> Iterator[Tensor]:
        for first in range(0, len(self._vectors), self._rows):
            stored = np.asarray(self._vectors[first : first + self._rows])
            yield torch.from_numpy(stored).to(self._device)

    def _pinned(self) -> Iterator[Tensor]:
        """The same, each copied from pinned memory while the one before it is compared."""
        shape, dtype = (self._rows, self._vectors.shape[1]), torch.from_numpy(self._vectors[:1])
        stages = [torch.empty(shape, dtype=dtype.dtype, pin_memory=True) for _ in range(2)]
        events = [torch.cuda.Event() for _ in stages]  # type: ignore[no-untyped-call]
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        work = torch.cuda.current_stream(self._device)
        before: tuple[Tensor, torch.cuda.Event] | None = None
        for number, first in enumerate(range(0, len(self._vectors), self._rows)):
            stage, copied = stages[number % 2], events[number % 2]
            copied.synchronize()
            stored = np.asarray(self._vectors[first : first + self._rows])
            stage = stage[: len(stored)].copy_(torch.from_numpy(stored))
            with torch.cuda.stream(stream):
                block = stage.to(self._device, non_blocking=True)
                copied.record(stream)
            block.record_stream(work)
            if before is not None:
                work.wait_event(before[1])
                yield before[0]
            before = block, copied
        if before is not None:
            work.wait_event(before[1])
            yield before[0]


@contextmanager
def _sums_in_float32() -> Iterator[None]:
    """Keeps cuBLAS from adding parts of a product in bfloat16."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
