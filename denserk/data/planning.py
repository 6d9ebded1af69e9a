"""Texts divided into batches by length, and padded; nothing here imports torch."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = Sequence[int] | NDArray[np.integer[Any]]

# Tokens from which a batch ends before shorter texts, by device type: so many keep it at its full
# rate, and a batch of one length needs no padding
ENOUGH = {"cpu": 512}


def by_length(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_size: int | None = None,
    enough_tokens: float = inf,
) -> Iterator[list[int]]:
    """Yield batches, as rows of texts, of texts of similar length; the longest first.

    A batch has at most `batch_tokens` tokens, padding included (a longer text is a batch of its
    own), and `batch_size` texts. One of at least `enough_tokens` ends before a shorter text, so
    that most batches need no padding.

    >>> list(by_length([2, 9, 3, 2], batch_tokens=9))
    [[1], [2, 0, 3]]
    >>> list(by_length([2, 9, 3, 2], batch_tokens=9, enough_tokens=3))
    [[1], [2], [0, 3]]
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[batch[0]] if batch else 0
        is_full = (len(batch) + 1) * longest > batch_tokens or len(batch) == batch_size
        is_shorter = lengths[row] < longest
        has_enough = len(batch) * longest >= enough_tokens
        if batch and (is_full or (is_shorter and has_enough)):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def padded(ids: Sequence[Ids], pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad token ids at the end to the longest text: (B, T) ids, and True where a token is real.

    >>> ids, mask = padded([[5, 6, 7], [8]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    lengths = np.array([len(text) for text in ids])
    width = int(lengths.max(initial=0))
    padded_ids = np.full((len(ids), width), pad_id, dtype=np.int64)
    mask = np.arange(width) < lengths[:, None]
    if len(ids):
        padded_ids[mask] = np.concatenate(ids)
    return padded_ids, mask
