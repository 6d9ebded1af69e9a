"""Vectors as Anserini's Parquet: a folder of files with the columns docid and vector."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.outputs import whole_folder
from denserk.io.vector_block import ROWS, VectorBlock, checked_block

ROWS_A_FILE = 1_000_000  # Anserini's limit
ROW_GROUP = 65_536
ID_NAMES = ("docid", "id", "qid")


def read(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors of one file.

    Raises:
        InputError: it is not Parquet, or lacks the columns.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            key = next((name for name in ID_NAMES if name in names), None)
            if key is None or "vector" not in names:
                raise InputError(path, None, f"columns {', '.join(names)}", "docid and vector")
            columns = [key, "vector", *(["contents"] if "contents" in names else [])]
            for batch in file.iter_batches(batch_size=ROWS, columns=columns):
                yield _block(batch, key, path)
    except (arrow.ArrowException, OSError) as error:
        found = f"a broken file ({str(error).splitlines()[0]})"
        raise InputError(path, None, found, "a Parquet file") from None


def _block(batch: Any, key: str, path: str | Path) -> VectorBlock:
    ids = batch.column(key).to_pylist()
    texts = batch.column("contents").to_pylist() if "contents" in batch.schema.names else None
    return checked_block(ids, _matrix(batch.column("vector"), path), texts, path)


def _matrix(column: Any, path: str | Path) -> NDArray[Any]:
    """Return the (n, D) array of a column of lists."""
    from pyarrow import compute

    try:
        lengths = set(compute.list_value_length(column).to_pylist())
    except NotImplementedError:  # it holds no lists
        raise InputError(path, None, f"vectors of {column.type}", "lists of numbers") from None
    if len(lengths) != 1 or None in lengths:
        found = f"vectors of {', '.join(sorted(map(str, lengths)))} numbers"
        raise InputError(path, None, found, "vectors of one length")
    flat = column.flatten()
    if flat.null_count:
        raise InputError(path, None, "a vector with a hole", "numbers")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), -1)


@contextmanager
def open_sink(folder: str | Path, *, overwrite: bool) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends a block; the folder is renamed into place when complete."""
    import pyarrow as arrow
    from pyarrow import parquet

    types = {"docid": arrow.string(), "vector": arrow.list_(arrow.float32())}
    schema, count = arrow.schema(types), 0
    writer: Any = None
    with whole_folder(folder, overwrite=overwrite, export=True) as temporary, ExitStack() as files:

        def write(block: VectorBlock) -> None:
            nonlocal count, writer
            start = 0
            while start < len(block.ids):
                number, before = divmod(count, ROWS_A_FILE)
                if before == 0:
                    files.close()
                    where = temporary / f"part-{number:05d}.parquet"
                    writer = files.enter_context(
                        parquet.ParquetWriter(
                            where, schema, use_dictionary=False, compression="snappy"
                        )
                    )
                some = slice(start, start + ROWS_A_FILE - before)
                rows = list(block.vectors[some].astype(np.float32, copy=False))
                columns = {"docid": block.ids[some], "vector": rows}
                table = arrow.Table.from_pydict(columns, schema=schema)
                writer.write_table(table, row_group_size=ROW_GROUP)
                start += len(rows)
                count += len(rows)

        yield write
