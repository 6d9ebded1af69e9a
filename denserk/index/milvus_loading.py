"""Vectors into a collection of Milvus: block by block, and on from where a load stopped.

Every row has its number for a key and is written by upsert, so that a row sent twice, by a retry or
by a resumed load, is one row.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from denserk.errors import InputError
from denserk.formats.id_ledger import IdLedger
from denserk.formats.vector_block import VectorBlock
from denserk.formats.vectors import VectorSource
from denserk.index.milvus_collection import ID_BYTES, Collection
from denserk.index.vector_inputs import CheckedBlocks, Gathered, known_count
from denserk.reporting import track

BATCH_BYTES = 8 << 20
"""Bytes of vectors sent at once, where nothing else was asked for."""
KEPT_EVERY = 8
"""Batches between two notes, in the collection, of how many rows are there."""


def load(
    collection: Collection,
    sources: Sequence[VectorSource],
    start: Callable[[int], int],
    batch: int | None,
) -> Gathered:
    """Streams vectors into a collection; one block in memory.

    Args:
        collection: is filled.
        sources: in the order of the rows.
        start: makes the collection for a dimension, or finds it made; returns how many rows are
            there already.
        batch: passages sent at once.

    Raises:
        InputError: an id comes twice or is too long, a number is not finite, there is no vector.
        MismatchError: the sources have different dimensions.
        ServerError: the server refuses, or stays away.
        OutputError: it has no room.
    """
    size = sources[0].vectors_per_passage
    sent, there, batches = 0, -1, 0
    with (
        IdLedger() as ledger,
        track("loading vectors", known_count(sources), "passages") as progress,
    ):
        blocks = CheckedBlocks(sources, ledger)
        for block in blocks:
            if there < 0:
                there = start(blocks.dimension)
            refuse_long_ids(block.ids)
            for part in _parts(block, size, batch):
                rows = len(part.vectors)
                if sent + rows > there:
                    collection.write(sent, _named(part.ids, size), part.vectors)
                    batches += 1
                    if batches % KEPT_EVERY == 0:
                        collection.keep_rows(sent + rows)
                sent += rows
                progress.advance(len(part.ids))
        collection.keep_rows(sent)
        blocks.refuse_repeats(partial(_passage_at, collection, size))
        return Gathered(ledger.count, size, blocks.dimension)


def _passage_at(collection: Collection, size: int, position: int) -> str:
    collection.settle()
    return collection.passages_of([position * size])[position * size]


def _parts(block: VectorBlock, size: int, batch: int | None) -> Iterator[VectorBlock]:
    """A block in pieces that one request carries, as float32."""
    passages = batch or max(1, BATCH_BYTES // (4 * size * block.vectors.shape[1]))
    for first in range(0, len(block.ids), passages):
        vectors = block.vectors[first * size : (first + passages) * size]
        yield VectorBlock(block.ids[first : first + passages], vectors.astype(np.float32))


def _named(ids: Sequence[str], size: int) -> list[str]:
    """The passage of each row."""
    return [docid for docid in ids for _ in range(size)]


def refuse_long_ids(ids: Sequence[str]) -> None:
    """Refuses ids that do not fit the collection's field.

    Raises:
        InputError: one does not.
    """
    for docid in ids:
        if len(docid) * 4 > ID_BYTES and len(docid.encode()) > ID_BYTES:
            raise InputError(
                "the vectors",
                None,
                f"an id of {len(docid.encode()):,} bytes ({docid[:40]}...)",
                f"at most {ID_BYTES:,}, which is what the collection's field holds",
            )
