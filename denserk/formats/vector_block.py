"""What every shape of vectors is read into and written from: ids beside an array, in blocks."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.formats.json_records import identifier
from denserk.formats.vector_folder import refuse_non_finite

Vectors = NDArray[np.floating[Any]]

ROWS = 1024
"""Rows of a block, where the file itself has none."""


class VectorBlock(NamedTuple):
    """n ids, their (n, D) vectors, and n texts where the file holds them."""

    ids: list[str]
    vectors: Vectors
    texts: list[str] | None = None


def checked_block(
    ids: Sequence[Any],
    vectors: NDArray[Any],
    texts: list[str] | None,
    path: str | Path,
    line: int | None = None,
) -> VectorBlock:
    """A block whose ids and numbers were looked at; integers and doubles become float32.

    Raises:
        InputError: an id is none, a number is not finite, or there are not as many ids as rows.
    """
    if vectors.ndim != 2 or len(ids) != len(vectors) or vectors.shape[1] == 0:
        raise InputError(
            path, line, f"an array of shape {vectors.shape} with {len(ids)} ids", "one vector an id"
        )
    if vectors.dtype.kind not in "fiu":
        raise InputError(path, line, f"vectors of {vectors.dtype}", "numbers")
    names = [identifier(value, path, line, "vector") for value in ids]
    if vectors.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            vectors = vectors.astype(np.float32)
    refuse_non_finite(path, names, vectors)
    return VectorBlock(names, vectors, texts)


def same_dimension(blocks: Iterable[VectorBlock], path: str | Path) -> Iterator[VectorBlock]:
    """Passes blocks on, and holds them to the dimension of the first.

    Raises:
        InputError: a block has another dimension, or there is no vector at all.
    """
    dimension = 0
    for block in blocks:
        dimension = dimension or block.vectors.shape[1]
        if block.vectors.shape[1] != dimension:
            found = f"vectors of {block.vectors.shape[1]} dimensions from {block.ids[0]} on"
            raise InputError(path, None, found, f"{dimension}, as those before")
        yield block
    if not dimension:
        raise InputError(path, None, "no vectors", "at least one")


def regrouped(blocks: Iterable[VectorBlock], rows: int) -> Iterator[VectorBlock]:
    """The same vectors in blocks of `rows`; the last may be shorter.

    >>> block = VectorBlock(["a", "b", "c"], np.eye(3, dtype=np.float32))
    >>> [part.ids for part in regrouped([block, block], 4)]
    [['a', 'b', 'c', 'a'], ['b', 'c']]
    """
    held: list[VectorBlock] = []
    count = 0
    for block in blocks:
        start = 0
        while start < len(block.ids):
            part = _part(block, start, start + rows - count)
            held.append(part)
            start += len(part.ids)
            count += len(part.ids)
            if count == rows:
                yield joined(held)
                held, count = [], 0
    if held:
        yield joined(held)


def _part(block: VectorBlock, start: int, end: int) -> VectorBlock:
    texts = None if block.texts is None else block.texts[start:end]
    return VectorBlock(block.ids[start:end], block.vectors[start:end], texts)


def joined(blocks: Sequence[VectorBlock]) -> VectorBlock:
    """Several blocks as one; texts where all of them have texts."""
    texts: list[str] | None = []
    for block in blocks:
        texts = None if texts is None or block.texts is None else texts + block.texts
    ids = [docid for block in blocks for docid in block.ids]
    return VectorBlock(ids, np.concatenate([block.vectors for block in blocks]), texts)


def in_rows(items: Iterable[Any], rows: int = ROWS) -> Iterator[list[Any]]:
    """Cuts an iterator into lists of `rows`."""
    iterator = iter(items)
    while part := list(islice(iterator, rows)):
        yield part
