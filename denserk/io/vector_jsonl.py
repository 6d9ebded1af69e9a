"""Vectors as JSON lines, one vector per line.

{"id", "contents", "vector": [numbers]}        Pyserini
{"docid", "contents", "vector": [numbers]}     Anserini
{"qid", "vector": [numbers]}                   encoded queries, as Anserini reads them

If denserk knows which model encoded the vectors, the first record has the manifest in the field
`denserk_manifest`, which other readers ignore.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.files import number_lines, whole_binary
from denserk.io.json_records import dump_json, parse_objects
from denserk.io.manifest import Manifest, decoded
from denserk.io.vector_block import VectorBlock, checked_block, in_rows

ID_KEYS = ("id", "docid", "qid", "_id")
MANIFEST = "denserk_manifest"
Row = tuple[int, Any, NDArray[Any], str]


def read_manifest(handle: BinaryIO, path: str | Path) -> tuple[bytes, Manifest | None]:
    """Read the first line of an open input, and the manifest it may carry.

    Raises:
        InputError: the manifest is broken.
    """
    _, line = next(number_lines(handle, path), (1, b""))
    try:
        record = orjson.loads(line)
    except ValueError:
        record = None  # `read` reports it
    if not isinstance(record, dict) or MANIFEST not in record:
        return line, None
    return line, decoded(orjson.dumps(record[MANIFEST]), f"{path}, line 1, {MANIFEST}")


def read(handle: BinaryIO, path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors; `path` names the input in errors.

    Raises:
        InputError: a line has no id or no vector, or vectors differ in length.
    """
    for rows in in_rows(_rows(handle, path)):
        yield checked_block(
            [row[1] for row in rows],
            np.stack([row[2] for row in rows]),
            [row[3] for row in rows],
            path,
        )


def _rows(handle: BinaryIO, path: str | Path) -> Iterator[Row]:
    """Yield (line, id, (D,) vector, contents); the first line determines D and the key of ids."""
    key, dimension = "", 0
    for line, record in parse_objects(number_lines(handle, path), path):
        key = key or next((name for name in ID_KEYS if name in record), "")
        if key not in record or "vector" not in record:
            found = f"the keys {', '.join(list(record)[:8])}"
            raise InputError(path, line, found, f"{key or 'id, docid or qid'} and vector")
        vector = _vector(record["vector"], path, line)
        dimension = dimension or len(vector)
        if len(vector) != dimension:
            found = f"a vector of {len(vector)} numbers"
            raise InputError(path, line, found, f"{dimension}, as in the lines before")
        contents = record.get("contents")
        yield line, record[key], vector, contents if isinstance(contents, str) else ""


def _vector(value: Any, path: str | Path, line: int) -> NDArray[Any]:
    numbers = value if isinstance(value, list) else []
    try:
        vector = np.array(numbers)
    except (ValueError, OverflowError):  # lists inside
        vector = np.array([])
    if vector.ndim != 1 or not len(vector) or vector.dtype.kind not in "fiu":
        raise InputError(path, line, "a vector that is no list of numbers", "a list of numbers")
    with np.errstate(over="ignore"):
        return vector.astype(np.float32)


@contextmanager
def open_sink(
    path: str | Path, key: str, *, contents: bool = True, manifest: Manifest | None = None
) -> Iterator[Callable[[VectorBlock], None]]:
    """Yield a function that appends a block; the file is renamed into place when complete.

    Args:
        path: the file; "-" is standard output.
        key: name of the id: id, docid or qid.
        contents: write the text, empty if there is none.
        manifest: settings and inputs, which the first record carries.
    """
    extra = {} if manifest is None else {MANIFEST: asdict(replace(manifest, contents={}))}

    def lines(block: VectorBlock) -> Iterable[bytes]:
        texts = block.texts or [""] * len(block.ids)
        rows = np.ascontiguousarray(block.vectors)
        for docid, text, row in zip(block.ids, texts, rows, strict=True):
            middle = {"contents": text} if contents else {}
            yield dump_json({key: docid, **middle, "vector": row, **extra})
            extra.clear()

    with whole_binary(path) as handle:
        yield lambda block: handle.writelines(lines(block))
