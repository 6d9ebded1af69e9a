"""Training examples as columns: the files of a prepared folder that say who belongs to whom."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.data.token_store import ArrayReader, ArrayWriter, RaggedWriter

BLOCK = 4096
"""Examples held in memory at once."""


class Columns(NamedTuple):
    """A block of N examples.

    `candidates`: (M,) int64, each example's positives, then its negatives. `scores`: (M,) float32,
    NaN where there is none. `counts` and `positive_counts`: (N,) int64, candidates and positives of
    each example. `queries`: (N,) int64. `qids`: their ids in UTF-8, one after another, `qid_counts`
    bytes each.
    """

    candidates: NDArray[np.int64]
    scores: NDArray[np.float32]
    counts: NDArray[np.int64]
    positive_counts: NDArray[np.int64]
    queries: NDArray[np.int64]
    qids: NDArray[np.uint8]
    qid_counts: NDArray[np.int64]

    def qid(self, example: int) -> str:
        """The id of one query of the block."""
        end = int(self.qid_counts[: example + 1].sum())
        return bytes(self.qids[end - self.qid_counts[example] : end]).decode()

    def keep(self, candidates: NDArray[np.bool_], queries: NDArray[np.bool_]) -> "Columns":
        """The block without some candidates, queries, and the queries that lose all positives.

        Args:
            candidates: (M,) False = goes.
            queries: (N,) False = goes.
        """
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        starts = np.cumsum(self.counts) - self.counts
        positive = np.arange(len(owner)) - starts[owner] < self.positive_counts[owner]
        positives = np.bincount(owner[candidates & positive], minlength=len(self.counts))
        stays = queries & (positives > 0)
        candidates = candidates & stays[owner]
        counts = np.bincount(owner[candidates], minlength=len(self.counts))
        return Columns(
            self.candidates[candidates],
            self.scores[candidates],
            counts[stays],
            positives[stays],
            self.queries[stays],
            self.qids[np.repeat(stays, self.qid_counts)],
            self.qid_counts[stays],
        )


class ColumnsWriter:
    """Writes blocks of examples, one after another.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._candidates = RaggedWriter(folder, "candidates", np.int64)
        self._qids = RaggedWriter(folder, "qids", np.uint8)
        self._scores = ArrayWriter(folder / "scores.npy", np.float32)
        self._positives = ArrayWriter(folder / "positive-counts.npy", np.int64)
        self._queries = ArrayWriter(folder / "query-rows.npy", np.int64)

    def append(self, block: Columns) -> None:
        """Adds a block."""
        self._candidates.extend_flat(block.candidates, block.counts)
        self._qids.extend_flat(block.qids, block.qid_counts)
        self._scores.append(block.scores)
        self._positives.append(block.positive_counts)
        self._queries.append(block.queries)

    def close(self) -> None:
        """Makes the files readable."""
        for part in (self._candidates, self._qids, self._scores, self._positives, self._queries):
            part.close()


def read_columns(folder: Path, size: int = BLOCK) -> Iterator[Columns]:
    """Yields what a `ColumnsWriter` wrote, `size` examples at a time."""
    names = ("candidates", "scores", "candidates-ends", "positive-counts", "query-rows")
    with ExitStack() as stack:
        candidates, scores, ends, positives, queries, qids, qid_ends = (
            stack.enter_context(closing(ArrayReader(folder / f"{name}.npy")))
            for name in (*names, "qids", "qids-ends")
        )
        last, last_qid = ends.read(1), qid_ends.read(1)
        while len(positive_counts := positives.read(size)):
            end, qid_end = ends.read(size), qid_ends.read(size)
            counts, qid_counts = np.diff(end, prepend=last), np.diff(qid_end, prepend=last_qid)
            last, last_qid = end[-1:], qid_end[-1:]
            total = int(counts.sum())
            yield Columns(
                candidates.read(total),
                scores.read(total),
                counts,
                positive_counts,
                queries.read(size),
                qids.read(int(qid_counts.sum())),
                qid_counts,
            )
