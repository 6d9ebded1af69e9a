"""Blocks of vectors: ids beside an array, as every format of vectors is read and written."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.json_records import identifier

Vectors = NDArray[np.floating[Any]]

ROWS = 1024  # rows of a block where the file itself has no blocks


class VectorBlock(NamedTuple):
    """n ids, their (n, D) vectors, and n texts if the file holds them."""

    ids: list[str]
    vectors: Vectors
    texts: list[str] | None = None


def refuse_non_finite(where: str | Path, ids: Sequence[str], vectors: Vectors) -> None:
    """Reject (n, D) vectors that hold NaN or infinity; the error names the first id.

    Raises:
        InputError: at least one does.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        first = ids[int(np.argmin(finite)) * len(ids) // len(vectors)]
        raise InputError(
            where,
            None,
            f"a vector of {first} that is not finite in {vectors.dtype}",
            "numbers in range",
            "try --dtype float32 and --vector-dtype float32",
        )


def check_dimension(block: VectorBlock, expected: int, path: str | Path) -> int:
    """Return D of a block, which must be `expected` unless that is 0.

    Raises:
        InputError: it has another dimension.
    """
    dimension = int(block.vectors.shape[1])
    if expected not in (0, dimension):
        found = f"vectors of {dimension} dimensions from {block.ids[0]} on"
        hint = "put together vectors of one model"
        raise InputError(path, None, found, f"{expected}, as those before", hint)
    return dimension


def checked_block(
    ids: Sequence[Any],
    vectors: NDArray[Any],
    texts: list[str] | None,
    path: str | Path,
    line: int | None = None,
) -> VectorBlock:
    """Return a block of valid ids and finite numbers; integers and doubles become float32.

    Raises:
        InputError: an id is not valid, a number is not finite, or ids and rows differ in number.
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


def regrouped(blocks: Iterable[VectorBlock], rows: int) -> Iterator[VectorBlock]:
    """Yield the same vectors in blocks of `rows`; the last may be shorter.

    >>> block = VectorBlock(["a", "b", "c"], np.eye(3, dtype=np.float32))
    >>> [part.ids for part in regrouped([block, block], 4)]
    [['a', 'b', 'c', 'a'], ['b', 'c']]
    """
    held: list[VectorBlock] = []
    count = 0
    for ids, vectors, texts in blocks:
        start = 0
        while start < len(ids):
            some = slice(start, start + rows - count)
            held.append(VectorBlock(ids[some], vectors[some], texts and texts[some]))
            taken = len(held[-1].ids)
            start, count = start + taken, count + taken
            if count == rows:
                yield joined(held)
                held, count = [], 0
    if held:
        yield joined(held)


def joined(blocks: Sequence[VectorBlock]) -> VectorBlock:
    """Join blocks into one; it has texts if all of them have texts."""
    texts = [text for block in blocks for text in block.texts or ()]
    ids = [docid for block in blocks for docid in block.ids]
    has_texts = all(block.texts is not None for block in blocks)
    vectors = np.concatenate([block.vectors for block in blocks])
    return VectorBlock(ids, vectors, texts if has_texts else None)


def in_rows(items: Iterable[Any], rows: int = ROWS) -> Iterator[list[Any]]:
    """Cut an iterable into lists of `rows` items."""
    iterator = iter(items)
    while part := list(islice(iterator, rows)):
        yield part
