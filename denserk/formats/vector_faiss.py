"""Pyserini's folder of a flat faiss index: `index`, the vectors, and `docid`, an id a line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from denserk.errors import InputError
from denserk.formats.files import read_text_lines
from denserk.formats.flat_file import FlatWriter, map_flat
from denserk.formats.outputs import whole_folder
from denserk.formats.vector_block import ROWS, VectorBlock, checked_block
from denserk.settings.retrieval import Metric

INDEX = "index"
IDS = "docid"


def read(folder: str | Path, size: int = 1) -> Iterator[VectorBlock]:
    """Reads blocks of vectors, the file mapped into memory.

    Args:
        folder: holds index and ids.
        size: how many neighbouring vectors are one passage; their lines end in "#" and a number.

    Raises:
        InputError: the index is not flat (other kinds do not hold the vectors as they were), or
            there are not as many ids.
    """
    rows, _ = map_flat(Path(folder) / INDEX)
    lines = read_text_lines(Path(folder) / IDS)
    for start in range(0, len(rows), ROWS * size):
        some = rows[start : start + ROWS * size]
        ids = [line.rstrip() for _, line in islice(lines, len(some))]
        block = checked_block(ids, some, None, folder)
        if size > 1:
            block = block._replace(ids=[line.rpartition("#")[0] for line in block.ids[::size]])
        yield block
    if next(lines, None) is not None:
        found = f"more than {len(rows):,} ids"
        raise InputError(Path(folder) / IDS, None, found, "one for each vector")


@contextmanager
def open_sink(folder: str | Path, *, overwrite: bool) -> Iterator[Callable[[VectorBlock], None]]:
    """Yields a function that appends a block; the folder appears whole or not at all."""
    with (
        whole_folder(folder, overwrite=overwrite, export=True) as temporary,
        (temporary / INDEX).open("wb") as rows,
        (temporary / IDS).open("w", encoding="utf-8", newline="\n") as ids,
    ):
        writer = FlatWriter(rows, Metric.INNER)

        def write(block: VectorBlock) -> None:
            writer.add(block.vectors)
            ids.writelines(f"{docid}\n" for docid in block.ids)

        yield write
        writer.finish()
