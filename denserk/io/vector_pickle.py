"""Pickles of vectors of other toolkits: read on request, written if a toolkit reads nothing else.

    (float array [n, D], [ids])                  Tevatron, BEIR
    [(id, vector), ...]                          DPR
    a pandas frame with id, text, embedding      Pyserini's encoded queries, as embedding.pkl

A pickle is a program. Even if reading is allowed, it may only call constructors of arrays and
frames; still, open only pickles of people you trust. A pickle is read into memory.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from denserk.errors import DenserkError, InputError, UsageError
from denserk.extras import require
from denserk.io.files import open_binary, whole_binary
from denserk.io.outputs import whole_folder
from denserk.io.vector_block import ROWS, VectorBlock, checked_block, joined

QUERIES_FILE = "embedding.pkl"
EXPECTED = "(vectors, ids), a list of (id, vector), or a frame with id, text, embedding"

# module -> names that a pickle of vectors may call: constructors of arrays and frames
ALLOWED = {
    "builtins": "bytearray bytes complex dict float frozenset int list set slice str tuple",
    "__builtin__": "bytearray bytes complex dict float frozenset int list set slice str tuple",
    "_codecs": "encode",
    "numpy": "ndarray dtype",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "pandas": "DataFrame Index RangeIndex StringDtype",
    "pandas.arrays": "ArrowStringArray StringArray",
    "pandas.core.frame": "DataFrame",
    "pandas.core.indexes.base": "Index _new_Index",
    "pandas.core.indexes.range": "RangeIndex",
    "pandas.core.internals.managers": "BlockManager",
    "pandas.core.internals.blocks": "new_block",
    "pandas._libs.internals": "_unpickle_block",
    "pandas.core.arrays.string_": "StringArray StringDtype",
    "pandas.core.arrays.string_arrow": "ArrowStringArray",
    "pyarrow.lib": "py_buffer type_for_alias _restore_array",
}


class _Unpickler(pickle.Unpickler):
    """Finds only the names in `ALLOWED`."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in ALLOWED.get(module, "").split():
            raise DenserkError(
                f"the pickle asks for {module}.{name}, which no array of vectors needs",
                "do not open this file",
            )
        if module.startswith(("pandas", "pyarrow")):
            require(module.partition(".")[0], "a pickled frame")
        return super().find_class(module, name)


def _load(path: str | Path) -> Any:
    try:
        with open_binary(path) as handle:
            return _Unpickler(handle).load()
    except DenserkError as error:
        if error.__class__ is not DenserkError:
            raise
        raise InputError(path, None, error.message, "a pickle of vectors", error.hint) from None
    except Exception as error:  # noqa: BLE001 - a broken pickle raises anything
        found = f"a broken pickle ({type(error).__name__}: {error})"
        raise InputError(path, None, found, EXPECTED) from None


def read(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors.

    Raises:
        InputError: it is another kind of pickle, or calls a name that is not allowed.
    """
    ids, vectors, texts = _contents(_load(path), path)
    for start in range(0, len(ids), ROWS):
        rows = slice(start, start + ROWS)
        part = None if texts is None else texts[rows]
        yield checked_block(ids[rows], _array(vectors[rows], path), part, path)


def _array(rows: Any, path: str | Path) -> Any:
    try:
        return rows if isinstance(rows, np.ndarray) else np.stack([np.asarray(row) for row in rows])
    except (ValueError, TypeError) as error:
        raise InputError(
            path, None, f"vectors that do not fit together ({error})", EXPECTED
        ) from None


def _contents(value: Any, path: str | Path) -> tuple[list[Any], Any, list[str] | None]:
    """Return (ids, vectors, texts) of any of the three formats."""
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], np.ndarray):
        ids = np.asarray(value[1], dtype=object).reshape(-1).tolist()
        if len(ids) == len(value[0]):
            return list(map(_plain, ids)), value[0], None
    elif isinstance(value, list) and all(
        isinstance(v, tuple | list) and len(v) >= 2 for v in value
    ):
        return [_plain(pair[0]) for pair in value], [pair[1] for pair in value], None
    elif type(value).__name__ == "DataFrame" and {"id", "embedding"} <= set(value.columns):
        texts = list(map(str, value["text"])) if "text" in value.columns else None
        return list(map(_plain, value["id"])), list(value["embedding"]), texts
    raise InputError(path, None, f"a pickled {type(value).__name__}", EXPECTED)


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python one."""
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def open_tevatron_sink(path: str | Path) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends a block; all blocks are held in memory until the end."""
    blocks: list[VectorBlock] = []
    with whole_binary(path) as handle:
        yield blocks.append
        whole = joined(blocks)
        pickle.dump((whole.vectors, whole.ids), handle, protocol=4)


@contextmanager
def open_queries_sink(
    folder: str | Path, *, overwrite: bool
) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends queries with their texts, by which Pyserini finds them.

    Raises:
        MissingExtraError: pandas is not installed.
        UsageError: the vectors come without texts.
    """
    pandas = require("pandas", "Pyserini's folder of encoded queries")
    blocks: list[VectorBlock] = []
    with whole_folder(folder, overwrite=overwrite, export=True) as temporary:
        yield blocks.append
        whole = joined(blocks)
        if whole.texts is None or not all(whole.texts):
            raise UsageError(
                "Pyserini finds encoded queries by their text; these vectors come without texts",
                "encode --topics Q --output-format pyserini-queries",
            )
        columns = {"id": whole.ids, "text": whole.texts, "embedding": list(whole.vectors)}
        frame = pandas.DataFrame(columns, dtype=object)
        frame.columns = pandas.Index(list(columns), dtype=object)  # what older pandas reads
        frame.to_pickle(temporary / QUERIES_FILE, protocol=4)
