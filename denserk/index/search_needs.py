"""What a search of shards holds in memory, by its parts, before any of it is there."""

from denserk.index.candidates import HELD, SPARE
from denserk.index.exact import BLOCK_FLOATS
from denserk.index.memory_needs import Need
from denserk.index.threshold_scan import BLOCK, SAMPLE, TILE, WIDE

FLOAT, LOW = 4, 2
"""Bytes of a float32, and of a bfloat16."""
HIT = 3 * (8 + 2)
"""Bytes of a hit that is held: key and query, and what sorting them takes."""
NAMED = 8 + FLOAT + 48
"""Bytes of a hit that is returned: row, score, its id of usual length."""


def exact_needs(dimension: int, queries: int, depth: int, size: int, threads: int) -> list[Need]:
    """The memory of an exact search, whatever the number of vectors.

    Args:
        dimension: D.
        queries: B, searched together.
        depth: hits of a query.
        size: vectors of a passage.
        threads: of the scan.

    >>> [(need.what, need.size >> 20) for need in exact_needs(768, 1024, 1000, 1, 2)]
    [('a block of vectors', 451), ('the top-k', 293)]
    """
    block = BLOCK * WIDE * dimension * (2 * FLOAT + LOW) + BLOCK * TILE * (2 * FLOAT + LOW + 1)
    sample = SAMPLE * (dimension * (FLOAT + LOW) + queries * 2 * FLOAT)
    held = threads * (HELD * depth * size * queries + SPARE) * HIT
    return [
        Need("a block of vectors", max(threads * block + sample, 3 * FLOAT * BLOCK_FLOATS)),
        Need("the top-k", held + depth * size * queries * NAMED),
    ]
