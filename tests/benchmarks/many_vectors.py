"""Folders of many random vectors, and what took how long for their bytes."""

import time
from pathlib import Path

import numpy as np

from denserk.io.block_journal import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter

BLOCK = 65_536
"""Vectors of a file."""


def write_vectors(folder: Path, rows: range, dimension: int) -> float:
    """Writes float16 vectors as `denserk encode` does; seconds, drawing the numbers not counted."""
    folder.mkdir(parents=True)
    writer = VectorFolderWriter(folder, Manifest(Kind.VECTORS, False), "float16")
    seconds = 0.0
    for number, first in enumerate(rows[::BLOCK]):
        block = range(first, min(first + BLOCK, rows.stop))
        draw = np.random.default_rng(first)
        drawn = draw.standard_normal((len(block), dimension), np.float32)
        ids = [f"p{row}" for row in block]
        start = time.perf_counter()
        writer.write(Block(number, len(block), ""), ids, drawn)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    writer.finish({"dimension": dimension, "vectors_per_passage": 1})
    return seconds + time.perf_counter() - start


def show(what: str, seconds: float, size: int) -> None:
    """Prints how long something took for so many bytes of vectors."""
    print(f"  {what:40} {seconds:8.1f} s {size / seconds / 1e9:7.2f} GB/s")
