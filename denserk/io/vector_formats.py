"""Readers and writers of vectors in the formats of other toolkits.

JSON lines    {"id", "contents", "vector"} (Pyserini), {"docid", ...} (Anserini), {"qid", "vector"}
              (encoded queries). If denserk knows the model, the first record has the manifest in
              the field `denserk_manifest`, which other readers ignore.
Parquet       a folder of files with the columns docid and vector (Anserini)
flat faiss    a folder of `index` and `docid` (Pyserini)
pickle        (float array [n, D], [ids]) (Tevatron, BEIR); [(id, vector), ...] (DPR); a pandas
              frame with id, text, embedding, as embedding.pkl (Pyserini's encoded queries)
array         a .npy file of (n, D); ids are the row numbers from 0

A pickle is a program. Even if reading is allowed, it may only call constructors of arrays and
frames; still, open only pickles from trusted sources. A pickle is read into memory.
"""

import logging
import mmap
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import VectorFormat
from denserk.config.retrieval import Metric
from denserk.errors import DenserkError, InputError, UsageError
from denserk.extras import require
from denserk.io import files
from denserk.io.json_records import dump_json, identifier, list_keys, read_objects
from denserk.io.manifest import Manifest, as_written
from denserk.io.outputs import whole_folder

logger = logging.getLogger(__name__)

Vectors = NDArray[np.floating[Any]]
ROWS = 4096  # rows of a block where the file itself has no blocks


class VectorBlock(NamedTuple):
    """n ids, their (n, D) vectors, and n texts if the file holds them."""

    ids: list[str]
    vectors: Vectors
    texts: list[str] | None = None


def refuse_non_finite(where: str | Path, ids: Sequence[str], vectors: Vectors) -> None:
    """Reject (n * vectors per passage, D) vectors with NaN or infinity, by the first of n ids."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        first = ids[int(np.argmin(finite)) * len(ids) // len(vectors)]
        found = f"a vector of {first} that is not finite in {vectors.dtype}"
        hint = "try --dtype float32 and --vector-dtype float32"
        raise InputError(where, None, found, "numbers in range", hint)


def check_dimension(block: VectorBlock, expected: int, path: str | Path) -> int:
    """Return D of a block; raise an InputError unless it is as `expected`, or that is 0."""
    dimension = int(block.vectors.shape[1])
    if expected not in (0, dimension):
        found = f"vectors of {dimension} dimensions from {block.ids[0]} on"
        hint = "join vectors of one model only"
        raise InputError(path, None, found, f"{expected}, as those before", hint)
    return dimension


def checked_block(
    ids: Sequence[Any], vectors: NDArray[Any], texts: list[str] | None, path: str | Path
) -> VectorBlock:
    """Return a block of valid ids and finite numbers; integers and doubles become float32."""
    if vectors.ndim != 2 or len(ids) != len(vectors) or vectors.shape[1] == 0:
        found = f"an array of shape {vectors.shape} with {len(ids)} ids"
        raise InputError(path, None, found, "one vector an id")
    if vectors.dtype.kind not in "fiu":
        raise InputError(path, None, f"vectors of {vectors.dtype}", "numbers")
    names = [identifier(value, path, None, "vector") for value in ids]
    if vectors.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            vectors = vectors.astype(np.float32)
    refuse_non_finite(path, names, vectors)
    return VectorBlock(names, vectors, texts)


# JSON lines

ID_KEYS = ("id", "docid", "qid", "_id")
MANIFEST = "denserk_manifest"


def read_json_lines(path: str | Path, handle: BinaryIO | None = None) -> Iterator[VectorBlock]:
    """Read blocks of vectors of a file, or of an open input; `path` names it in errors."""
    rows = _json_rows(path, handle)
    while part := list(islice(rows, ROWS)):
        ids, vectors, texts = zip(*part, strict=True)
        yield checked_block(ids, np.stack(vectors), list(texts), path)


def _json_rows(
    path: str | Path, handle: BinaryIO | None
) -> Iterator[tuple[Any, NDArray[Any], str]]:
    """Yield (id, (D,) vector, contents); the first line determines D and the key of ids."""
    key, dimension = "", 0
    for line, record in read_objects(path, handle):
        key = key or next((name for name in ID_KEYS if name in record), "")
        if key not in record or "vector" not in record:
            found = f"the keys {list_keys(record)}"
            expected = f"{key or 'id, docid or qid'} and vector"
            hint = None
            if "vector" not in record:
                hint = (
                    "denserk encode makes vectors of texts; "
                    "BM25 indexes texts: denserk index --type bm25 --corpus FILE"
                )
            raise InputError(path, line, found, expected, hint)
        try:
            vector = np.array(record["vector"])
        except (ValueError, OverflowError):  # lists inside, or numbers past 64 bits
            vector = np.array([])
        dimension = dimension or vector.size
        if vector.dtype.kind not in "fiu" or not dimension or vector.shape != (dimension,):
            found = f"the vector {str(record['vector'])[:40]}"
            raise InputError(path, line, found, f"a list of {dimension or 'some'} numbers")
        contents = record.get("contents")
        yield record[key], vector, contents if isinstance(contents, str) else ""


def _write_json_lines(
    blocks: Iterable[VectorBlock], path: str, key: str, manifest: Manifest | None
) -> None:
    """Write ids as `key`, vectors, and texts of passages; the first record has the manifest."""
    extra: dict[str, Any] = {}
    if manifest is not None:
        folder = None if path == files.STREAM else Path(path).parent
        extra = {MANIFEST: as_written(replace(manifest, contents={}), folder)}
    with files.whole_binary(path) as handle:
        for block in blocks:
            texts = block.texts or [""] * len(block.ids)
            rows = np.ascontiguousarray(block.vectors)
            for docid, text, row in zip(block.ids, texts, rows, strict=True):
                middle = {} if key == "qid" else {"contents": text}
                handle.write(dump_json({key: docid, **middle, "vector": row, **extra}))
                extra = {}


# Parquet

ROWS_A_FILE = 1_000_000  # Anserini's limit
ROW_GROUP = 65_536


def read_parquet(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors of one file."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            key = next((name for name in ID_KEYS[:3] if name in names), None)
            if key is None or "vector" not in names:
                raise InputError(path, None, f"columns {', '.join(names)}", "docid and vector")
            texts = ["contents"] if "contents" in names else []
            for batch in file.iter_batches(ROWS, columns=[key, "vector", *texts]):
                vectors = np.stack(batch.column("vector").to_numpy(zero_copy_only=False))
                contents = batch.column("contents").to_pylist() if texts else None
                yield checked_block(batch.column(key).to_pylist(), vectors, contents, path)
    except (arrow.ArrowException, OSError, TypeError, ValueError) as error:
        found = f"a broken file ({str(error).splitlines()[0]})"
        raise InputError(path, None, found, "Parquet with vectors of one length") from None


def _write_parquet(blocks: Iterable[VectorBlock], folder: Path) -> None:
    """Write files of at most `ROWS_A_FILE` rows, or of one block that has more."""
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema({"docid": arrow.string(), "vector": arrow.list_(arrow.float32())})
    number, room = 0, 0
    with ExitStack() as files:
        for ids, vectors, _ in blocks:
            if len(ids) > room:
                files.close()
                where = folder / f"part-{number:05d}.parquet"
                writer = parquet.ParquetWriter(where, schema, use_dictionary=False)
                files.enter_context(writer)
                number, room = number + 1, ROWS_A_FILE
            columns = {"docid": ids, "vector": list(vectors.astype(np.float32, copy=False))}
            writer.write_table(arrow.table(columns, schema=schema), row_group_size=ROW_GROUP)
            room -= len(ids)


# flat faiss: a header of 45 bytes, then float32 rows
#
#     IxFI (inner product) or IxF2 (squared distance)    4 bytes
#     D int32, N int64, two fillers int64                28
#     trained, 1 byte; metric int32 (0 inner, 1 l2)      5
#     N * D, the number of floats, uint64                8
#
# faiss writes an index only from memory. Written here, a flat index of any size needs the memory of
# one block, and can be built and searched without faiss. Ids are lines of `docid` beside it.

INDEX, DOCID = "index", "docid"
HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.12 on
MAGIC = {Metric.INNER: b"IxFI", Metric.L2: b"IxF2"}


def write_flat(
    path: Path, metric: Metric, blocks: Iterable[tuple[Iterable[str], NDArray[np.floating]]]
) -> tuple[int, int]:
    """Write blocks of ids and (n, D) vectors to `path` and `docid` beside it; return (N, D)."""
    count = dimension = 0
    with files.whole_binary(path) as rows, files.whole_text(path.with_name(DOCID)) as lines:
        rows.write(bytes(HEADER.size))
        for ids, vectors in blocks:
            count, dimension = count + len(vectors), vectors.shape[1]
            rows.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            lines.writelines(f"{docid}\n" for docid in ids)
        sizes = dimension, count, FILLER, FILLER, True, [*MAGIC].index(metric), count * dimension
        rows.seek(0)
        rows.write(HEADER.pack(MAGIC[metric], *sizes))
    return count, dimension


def is_flat(path: Path) -> bool:
    """Return whether a file starts with the header of a flat index."""
    with files.read_errors(path), Path(files.readable_path(path)).open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """Return the memory-mapped (N, D) rows of a flat index, and their metric."""
    with files.read_errors(path), path.open("rb") as handle:
        header, size = handle.read(HEADER.size), path.stat().st_size
        if header[:4] not in MAGIC.values() or len(header) < HEADER.size:
            found = f"a file that begins {header[:4]!r}"
            raise InputError(path, None, found, "a flat index of faiss")
        magic, dimension, count, *_ = HEADER.unpack(header)
        expected = HEADER.size + 4 * dimension * count
        if dimension < 1 or count < 0 or size != expected:
            wanted = f"{expected:,}, for {count:,} vectors of {dimension} dimensions"
            raise InputError(path, None, f"{size:,} bytes", wanted, "build the index again")
        # private, because torch wants writable arrays; by default Linux reserves memory
        # for changes, and rejects a file larger than the memory
        flags = mmap.MAP_PRIVATE | (NO_RESERVE if sys.platform == "linux" else 0)
        mapped = mmap.mmap(handle.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    rows = np.ndarray((count, dimension), "<f4", mapped, HEADER.size)
    return rows, next(metric for metric, value in MAGIC.items() if value == magic)


def read_flat(folder: Path, size: int = 1) -> Iterator[VectorBlock]:
    """Read blocks of a folder with a flat `index` and `docid`; `size` vectors per passage."""
    rows, _ = map_flat(folder / INDEX)
    lines = files.read_text_lines(folder / DOCID)
    for start in range(0, len(rows), ROWS * size):
        some = rows[start : start + ROWS * size]
        ids = [line.rstrip() for _, line in islice(lines, len(some))]
        block = checked_block(ids, some, None, folder)
        if size > 1:  # ids end in "#" and a number
            block = block._replace(ids=[line.rpartition("#")[0] for line in block.ids[::size]])
        yield block
    if next(lines, None) is not None:
        found = f"more than {len(rows):,} ids"
        raise InputError(folder / DOCID, None, found, "one for each vector")


# pickles

QUERIES_FILE = "embedding.pkl"
EXPECTED = "(vectors, ids), a list of (id, vector), or a frame with id, text, embedding"
BUILTINS = "bytearray bytes complex dict float frozenset int list set slice str tuple"
# module -> names that a pickle of vectors may call: constructors of arrays and frames
ALLOWED = {
    "builtins": BUILTINS,
    "__builtin__": BUILTINS,
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
            found = f"{module}.{name}, which no array of vectors needs"
            raise pickle.UnpicklingError(f"it asks for {found}; do not open this file")
        if module.startswith(("pandas", "pyarrow")):
            require(module.partition(".")[0], "a pickled frame")
        return super().find_class(module, name)


def read_pickle(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors; a pickle that calls a name that is not allowed is an InputError."""
    ids: Any
    vectors: Any
    texts = None
    try:
        with files.open_binary(path) as handle:
            value = _Unpickler(handle).load()
        if type(value).__name__ == "DataFrame":
            ids, vectors = list(value["id"]), list(value["embedding"])
            texts = list(map(str, value["text"])) if "text" in value.columns else None
        elif isinstance(value, tuple | list) and isinstance(value[0], np.ndarray):
            vectors, ids = value
            ids = np.asarray(ids, dtype=object).reshape(-1).tolist()
        else:
            ids, vectors = [pair[0] for pair in value], [pair[1] for pair in value]
        if not isinstance(vectors, np.ndarray):
            vectors = np.stack([np.asarray(row) for row in vectors])
    except DenserkError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken pickle raises anything
        found = f"a broken pickle ({type(error).__name__}: {error})"
        raise InputError(path, None, found, EXPECTED) from None
    names = [docid.item() if isinstance(docid, np.generic) else docid for docid in ids]
    for start in range(0, max(len(names), len(vectors)), ROWS):
        some = slice(start, start + ROWS)
        yield checked_block(names[some], vectors[some], texts and texts[some], path)


def _write_pyserini_queries(blocks: Iterable[VectorBlock], folder: Path) -> None:
    """Write queries with their texts, by which Pyserini finds them."""
    pandas = require("pandas", "Pyserini's folder of encoded queries")
    rows: list[tuple[str, str, Vectors]] = []
    for ids, vectors, texts in blocks:
        rows += zip(ids, texts or [""] * len(ids), vectors, strict=True)
    if not all(text for _, text, _ in rows):
        lacking = "Pyserini finds encoded queries by their text; these vectors come without texts"
        raise UsageError(lacking, "encode --topics Q --output-format pyserini-queries")
    columns = pandas.Index(["id", "text", "embedding"], dtype=object)  # what older pandas reads
    frame = pandas.DataFrame(rows, columns=columns, dtype=object)
    frame.to_pickle(folder / QUERIES_FILE, protocol=4)


# arrays


def map_array(path: str | Path, mode: Literal["r", "c"] = "r") -> NDArray[Any]:
    """Memory-map a .npy file."""
    try:
        with files.read_errors(path):
            array: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    except DenserkError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken header raises anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(path, None, f"a broken file ({reason})", "a NumPy array") from None
    return array


def read_array(path: str | Path) -> Iterator[VectorBlock]:
    """Read a NumPy array in blocks; ids are the row numbers from 0."""
    array = map_array(path)
    if array.ndim != 2:
        raise InputError(path, None, f"an array of shape {array.shape}", "(vectors, dimensions)")
    for start in range(0, len(array), ROWS):
        rows = array[start : start + ROWS]
        yield checked_block(list(range(start, start + len(rows))), rows, None, path)


# any format

JSON_KEYS = {VectorFormat.JSONL: "id", VectorFormat.ANSERINI_JSONL: "docid"}


class _CheckedBlocks:
    """Blocks of vectors while they are written: checked, counted, for Lucene L2-normalised."""

    def __init__(self, blocks: Iterable[VectorBlock], output: str, *, for_lucene: bool) -> None:
        self._blocks, self._output, self._for_lucene = blocks, output, for_lucene
        self.count = 0

    def __iter__(self) -> Iterator[VectorBlock]:
        for block in self._blocks:
            if not block.ids:
                continue
            yield checked_block(*block, self._output)
            self.count += len(block.ids)
            if self._for_lucene:
                self._warn_unless_normalised(block)

    def _warn_unless_normalised(self, block: VectorBlock) -> None:
        """Warn of the first block that has a vector whose length is not 1."""
        norms = np.linalg.norm(block.vectors.astype(np.float32), axis=1)
        worst = int(np.argmax(np.abs(norms - 1)))
        if abs(norms[worst] - 1) > 1e-3:
            logger.warning(
                f"{block.ids[worst]} has a vector of length {norms[worst]:.4g}; "
                "Lucene's inner product needs length 1: encode with --l2-norm"
            )
            self._for_lucene = False  # one warning is enough


def _write_tevatron(blocks: Iterable[VectorBlock], output: str) -> None:
    """Write a pickle of all vectors and their ids."""
    with files.whole_binary(output) as handle:
        ids: list[str] = []
        vectors: list[Vectors] = []
        for block in blocks:
            ids += block.ids
            vectors.append(block.vectors)
        whole = np.concatenate(vectors)
        vectors.clear()  # the blocks need no memory while the pickle is written
        pickle.dump((whole, ids), handle, protocol=4)


# formats that are one file, besides JSON lines
FILE_WRITERS: dict[VectorFormat, Callable[[Iterable[VectorBlock], str], None]] = {
    VectorFormat.TEVATRON: _write_tevatron,
}


def is_single_file(form: VectorFormat) -> bool:
    """Return whether vectors of a format are one file, and not a folder."""
    return form in JSON_KEYS or form in FILE_WRITERS


def write_vectors(
    output: str,
    form: VectorFormat,
    blocks: Iterable[VectorBlock],
    *,
    overwrite: bool = False,
    queries: bool = False,
    manifest: Manifest | None = None,
) -> int:
    """Check and write blocks in any format but `npy`, in one pass; return the number of vectors.

    JSON lines, which "-" needs, carry the `manifest` of what encoded the vectors; Anserini's call
    the id of `queries` `qid`.
    """
    if output == files.STREAM and form not in JSON_KEYS:
        message = f"{form} cannot be written to standard output"
        raise UsageError(message, "name a file, or write jsonl")
    for_lucene = form in (VectorFormat.ANSERINI_JSONL, VectorFormat.PARQUET)
    checked = _CheckedBlocks(blocks, output, for_lucene=for_lucene)
    if form in JSON_KEYS:
        is_qid = queries and form is VectorFormat.ANSERINI_JSONL
        _write_json_lines(checked, output, "qid" if is_qid else JSON_KEYS[form], manifest)
    elif form in FILE_WRITERS:
        FILE_WRITERS[form](checked, output)
    else:
        with whole_folder(output, overwrite=overwrite, export=True) as folder:
            if form is VectorFormat.PARQUET:
                _write_parquet(checked, folder)
            elif form is VectorFormat.PYSERINI_QUERIES:
                _write_pyserini_queries(checked, folder)
            else:
                write_flat(folder / INDEX, Metric.INNER, (block[:2] for block in checked))
    return checked.count
