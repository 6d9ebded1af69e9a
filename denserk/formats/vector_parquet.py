"""Vectors as Anserini's Parquet: a folder of files with the columns docid and vector."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.formats.outputs import whole_folder
from denserk.formats.vector_block import ROWS, VectorBlock, checked_block

ROWS_A_FILE = 1_000_000
"""Anserini's limit."""
ROW_GROUP = 65_536
ID_NAMES = ("docid", "id", "qid")


def read(path: str | Path) -> Iterator[VectorBlock]:
    """Reads blocks of vectors of one file.

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
    """The (n, D) rows of a column of lists of one length."""
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


class _Files:
    """The files of a folder, one after another, each up to `ROWS_A_FILE` rows."""

    def __init__(self, folder: Path) -> None:
        import pyarrow as arrow
        from pyarrow import parquet

        self._arrow, self._parquet = arrow, parquet
        self._folder, self._files, self._rows = folder, 0, 0
        self._writer: Any = None
        self._schema = self._arrow.schema(
            [("docid", self._arrow.string()), ("vector", self._arrow.list_(self._arrow.float32()))]
        )

    def write(self, block: VectorBlock) -> None:
        start = 0
        while start < len(block.ids):
            if self._writer is None:
                self._open()
            end = start + ROWS_A_FILE - self._rows
            ids, rows = block.ids[start:end], block.vectors[start:end]
            self._writer.write_table(self._table(ids, rows), row_group_size=ROW_GROUP)
            start += len(ids)
            self._rows += len(ids)
            if self._rows == ROWS_A_FILE:
                self.close()

    def _open(self) -> None:
        where = self._folder / f"part-{self._files:05d}.parquet"
        self._writer = self._parquet.ParquetWriter(
            where, self._schema, use_dictionary=False, compression="snappy"
        )
        self._files, self._rows = self._files + 1, 0

    def _table(self, ids: list[str], rows: NDArray[Any]) -> Any:
        count, dimension = rows.shape
        flat = self._arrow.array(np.ascontiguousarray(rows, dtype=np.float32).reshape(-1))
        offsets = self._arrow.array(np.arange(count + 1, dtype=np.int32) * dimension)
        lists = self._arrow.ListArray.from_arrays(offsets, flat)
        columns = [self._arrow.array(ids, type=self._arrow.string()), lists]
        return self._arrow.Table.from_arrays(columns, schema=self._schema)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def open_sink(folder: str | Path, *, overwrite: bool) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends a block; the folder is renamed into place when complete."""
    with whole_folder(folder, overwrite=overwrite, export=True) as temporary:
        files = _Files(temporary)
        try:
            yield files.write
        finally:
            files.close()
