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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import VectorFormat
from denserk.config.retrieval import Metric
from denserk.errors import DenserkError, InputError, UsageError, reason_of
from denserk.extras import require
from denserk.io import file_errors, files, pipes, written_files
from denserk.io.json_records import dump_json, identifier, list_keys, read_objects
from denserk.io.manifest import Manifest, as_written
from denserk.io.outputs import DOCID, INDEX, whole_folder

logger = logging.getLogger(__name__)

Vectors = NDArray[np.floating[Any]]
ROWS = 4096  # rows of a block where the file itself has no blocks


class VectorBlock(NamedTuple):
    """n ids, their (n, D) vectors, and n texts if the file holds them."""

    ids: list[str]
    vectors: Vectors
    texts: list[str] | None = None


def reject_non_finite(source: str | Path, ids: Sequence[str], vectors: Vectors) -> None:
    """Reject (n * vectors per passage, D) vectors with NaN or infinity, by the first of n ids."""
    finite = np.isfinite(vectors).all(axis=1)
    if finite.all():
        return
    row = int(np.argmin(finite))
    passage_id = ids[row * len(ids) // len(vectors)]  # each id has as many consecutive rows
    raise InputError(
        source,
        None,
        found=f"a vector of {passage_id} that is not finite in {vectors.dtype}",
        expected="numbers in range",
        hint="try --dtype float32 and --vector-dtype float32",
    )


def check_dimension(block: VectorBlock, expected: int, path: str | Path) -> int:
    """Return D of a block; raise an InputError unless it is as `expected`, or that is 0."""
    dimension = int(block.vectors.shape[1])
    if expected not in (0, dimension):
        raise InputError(
            path,
            None,
            found=f"vectors of {dimension} dimensions from {block.ids[0]} on",
            expected=f"{expected}, as those before",
            hint="join vectors of one model only",
        )
    return dimension


def checked_block(
    ids: Sequence[Any], vectors: NDArray[Any], texts: list[str] | None, path: str | Path
) -> VectorBlock:
    """Return a block of n valid ids and (n, D) finite numbers, in float16 or float32.

    Other numbers become float32.
    """
    if vectors.ndim != 2 or len(ids) != len(vectors) or vectors.shape[1] == 0:
        found = f"an array of shape {vectors.shape} with {len(ids)} ids"
        raise InputError(path, None, found, "one vector an id")
    if vectors.dtype.kind not in "fiu":
        raise InputError(path, None, f"vectors of {vectors.dtype}", "numbers")
    valid_ids = [identifier(docid, path, None, "vector") for docid in ids]
    if vectors.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):  # what overflows is infinite, and rejected next
            vectors = vectors.astype(np.float32)
    reject_non_finite(path, valid_ids, vectors)
    return VectorBlock(valid_ids, vectors, texts)


# JSON lines

ID_KEYS = ("id", "docid", "qid", "_id")
MANIFEST_FIELD = "denserk_manifest"  # of the first record, see above


class _JsonRow(NamedTuple):
    """What a line of JSON holds: an id that is not checked yet, a (D,) vector and its text."""

    docid: Any
    vector: NDArray[Any]
    text: str


def read_json_lines(path: str | Path, handle: BinaryIO | None = None) -> Iterator[VectorBlock]:
    """Read blocks of vectors of a file, or of an open input; `path` names it in errors."""
    rows = _json_rows(path, handle)
    while block_rows := list(islice(rows, ROWS)):
        ids = [row.docid for row in block_rows]
        vectors = np.stack([row.vector for row in block_rows])
        texts = [row.text for row in block_rows]
        yield checked_block(ids, vectors, texts, path)


def _json_rows(path: str | Path, handle: BinaryIO | None) -> Iterator[_JsonRow]:
    """Yield the rows of a file; the first line determines D and the key of ids."""
    id_key = ""
    dimension = 0
    for line, record in read_objects(path, handle):
        if not id_key:
            id_key = next((key for key in ID_KEYS if key in record), "")
        if id_key not in record or "vector" not in record:
            raise _missing_key(path, line, record, id_key)
        vector = _json_vector(path, line, record["vector"], dimension)
        dimension = len(vector)
        contents = record.get("contents")
        yield _JsonRow(record[id_key], vector, contents if isinstance(contents, str) else "")


def _missing_key(path: str | Path, line: int, record: Mapping[str, Any], id_key: str) -> InputError:
    """Return the error of a record without an id or a vector."""
    hint = None
    if "vector" not in record:
        hint = (
            "denserk encode makes vectors of texts; "
            "BM25 indexes texts: denserk index --type bm25 --corpus FILE"
        )
    expected = f"{id_key or 'id, docid or qid'} and vector"
    return InputError(path, line, f"the keys {list_keys(record)}", expected, hint)


def _json_vector(path: str | Path, line: int, values: Any, dimension: int) -> NDArray[Any]:
    """Return a list of numbers as a (D,) array; a `dimension` of 0 allows any D."""
    try:
        vector = np.array(values)
    except (ValueError, OverflowError):  # lists inside, or numbers past 64 bits
        vector = np.array([])
    expected = dimension or vector.size
    is_numeric = vector.dtype.kind in "fiu"
    if not is_numeric or vector.size == 0 or vector.shape != (expected,):
        found = f"the vector {str(values)[:40]}"
        raise InputError(path, line, found, f"a list of {expected or 'some'} numbers")
    return vector


def _write_json_lines(
    blocks: Iterable[VectorBlock], path: str, id_key: str, manifest: Manifest | None
) -> None:
    """Write ids, vectors, and texts of passages; the first record has the manifest."""
    manifest_field: dict[str, Any] = {}
    if manifest is not None:
        folder = None if path == files.STREAM else Path(path).parent
        manifest_field = {MANIFEST_FIELD: as_written(replace(manifest, contents={}), folder)}
    with written_files.whole_binary(path) as handle:
        for block in blocks:
            texts = block.texts or [""] * len(block.ids)
            vectors = np.ascontiguousarray(block.vectors)
            for docid, text, vector in zip(block.ids, texts, vectors, strict=True):
                record = {id_key: docid}
                if id_key != "qid":
                    record["contents"] = text
                record["vector"] = vector
                handle.write(dump_json(record | manifest_field))
                manifest_field = {}  # in the first record alone


# Parquet

PARQUET_ID_COLUMNS = ("id", "docid", "qid")
ROWS_A_FILE = 1_000_000  # Anserini's limit
ROW_GROUP = 65_536


def read_parquet(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors of one file."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            id_column = next((name for name in PARQUET_ID_COLUMNS if name in names), None)
            if id_column is None or "vector" not in names:
                raise InputError(path, None, f"columns {', '.join(names)}", "docid and vector")
            columns = [id_column, "vector"]
            if "contents" in names:
                columns.append("contents")
            for batch in file.iter_batches(ROWS, columns=columns):
                ids = batch.column(id_column).to_pylist()
                vectors = np.stack(batch.column("vector").to_numpy(zero_copy_only=False))
                texts = batch.column("contents").to_pylist() if "contents" in names else None
                yield checked_block(ids, vectors, texts, path)
    except (arrow.ArrowException, OSError, TypeError, ValueError) as error:
        found = f"a broken file ({reason_of(error)})"
        raise InputError(path, None, found, "Parquet with vectors of one length") from None


def _write_parquet(blocks: Iterable[VectorBlock], folder: Path) -> None:
    """Write files of at most `ROWS_A_FILE` rows, or of one block that has more."""
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema({"docid": arrow.string(), "vector": arrow.list_(arrow.float32())})
    file_number = 0
    rows_to_fill = 0  # of the file that is open
    with ExitStack() as open_file:
        for ids, vectors, _ in blocks:
            if len(ids) > rows_to_fill:
                open_file.close()
                path = folder / f"part-{file_number:05d}.parquet"
                writer = parquet.ParquetWriter(path, schema, use_dictionary=False)
                open_file.enter_context(writer)
                file_number += 1
                rows_to_fill = ROWS_A_FILE
            columns = {"docid": ids, "vector": list(vectors.astype(np.float32, copy=False))}
            writer.write_table(arrow.table(columns, schema=schema), row_group_size=ROW_GROUP)
            rows_to_fill -= len(ids)


# flat faiss: a header of 45 bytes, then float32 rows
#
#     IxFI (inner product) or IxF2 (squared distance)    4 bytes
#     D int32, N int64, two fillers int64                28
#     trained, 1 byte; metric int32 (0 inner, 1 l2)      5
#     N * D, the number of floats, uint64                8
#
# faiss writes an index only from memory. Written here, a flat index of any size needs the memory of
# one block, and can be built and searched without faiss. Ids are lines of `docid` beside it.

PART = "#"  # between a passage id and the number of one of its vectors
HEADER = struct.Struct("<4siqqq?iQ")
FILLER = 1 << 20
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.12 on
MAGIC = {Metric.INNER: b"IxFI", Metric.L2: b"IxF2"}


@dataclass(frozen=True)
class FlatHeader:
    """What the header of a flat index says: its metric, D and N."""

    metric: Metric
    dimension: int
    count: int

    @classmethod
    def parse(cls, data: bytes) -> "FlatHeader":
        """Return the header in the first bytes of a file."""
        magic, dimension, count, *_ = HEADER.unpack(data)
        metric = next(metric for metric in MAGIC if MAGIC[metric] == magic)
        return cls(metric, dimension, count)

    def packed(self) -> bytes:
        """Return the bytes of the header."""
        is_trained = True
        return HEADER.pack(
            MAGIC[self.metric],
            self.dimension,
            self.count,
            FILLER,
            FILLER,
            is_trained,
            list(MAGIC).index(self.metric),
            self.count * self.dimension,
        )

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return HEADER.size + 4 * self.dimension * self.count


def write_flat(
    path: Path, metric: Metric, blocks: Iterable[tuple[Iterable[str], NDArray[np.floating]]]
) -> tuple[int, int]:
    """Write blocks of ids and (n, D) vectors to `path` and `docid` beside it; return (N, D)."""
    count = 0
    dimension = 0
    with (
        written_files.whole_binary(path) as index,
        written_files.whole_text(path.with_name(DOCID)) as lines,
    ):
        index.write(bytes(HEADER.size))  # filled in once the count is known
        for ids, vectors in blocks:
            count += len(vectors)
            dimension = vectors.shape[1]
            index.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            lines.writelines(f"{docid}\n" for docid in ids)
        index.seek(0)
        index.write(FlatHeader(metric, dimension, count).packed())
    return count, dimension


def is_flat(path: Path) -> bool:
    """Return whether a file starts with the header of a flat index."""
    with file_errors.read_errors(path), Path(pipes.readable_path(path)).open("rb") as handle:
        return handle.read(4) in MAGIC.values()


def map_flat(path: Path) -> tuple[NDArray[np.float32], Metric]:
    """Return the memory-mapped (N, D) rows of a flat index, and their metric."""
    with file_errors.read_errors(path), path.open("rb") as handle:
        header = _read_flat_header(handle, path)
        flags = mmap.MAP_PRIVATE  # torch wants writable arrays
        if sys.platform == "linux":
            # else Linux reserves memory for changes, and rejects a file larger than the memory
            flags |= NO_RESERVE
        mapped = mmap.mmap(handle.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    rows = np.ndarray((header.count, header.dimension), "<f4", mapped, HEADER.size)
    return rows, header.metric


def _read_flat_header(handle: BinaryIO, path: Path) -> FlatHeader:
    """Return the header of an open flat index; an InputError unless it says the file's size."""
    data = handle.read(HEADER.size)
    file_size = path.stat().st_size
    if data[:4] not in MAGIC.values() or len(data) < HEADER.size:
        raise InputError(path, None, f"a file that begins {data[:4]!r}", "a flat index of faiss")
    header = FlatHeader.parse(data)
    if header.dimension < 1 or header.count < 0 or file_size != header.file_size:
        sizes = f"{header.count:,} vectors of {header.dimension} dimensions"
        raise InputError(
            path,
            None,
            found=f"{file_size:,} bytes",
            expected=f"{header.file_size:,}, for {sizes}",
            hint="build the index again",
        )
    return header


def passage_of(line: str, size: int) -> str:
    """Return the passage id of a line, given the vectors per passage.

    >>> passage_of("d1", 1), passage_of("d1#0", 2)
    ('d1', 'd1')
    """
    if size == 1:
        return line
    return line.rpartition(PART)[0]  # a "#" before the last one is of the passage id


def part_names(docid: str, count: int) -> list[str]:
    """Return the lines of one passage with `count` vectors.

    >>> part_names("d1", 1), part_names("d1", 2)
    (['d1'], ['d1#0', 'd1#1'])
    """
    if count == 1:
        return [docid]
    return [f"{docid}{PART}{number}" for number in range(count)]


def read_flat(folder: Path, vectors_per_passage: int = 1) -> Iterator[VectorBlock]:
    """Read blocks of a folder with a flat `index` and `docid`."""
    rows, _ = map_flat(folder / INDEX)
    lines = files.read_text_lines(folder / DOCID)
    block_size = ROWS * vectors_per_passage
    for start in range(0, len(rows), block_size):
        vectors = rows[start : start + block_size]
        row_names = [line.rstrip() for _, line in islice(lines, len(vectors))]
        block = checked_block(row_names, vectors, None, folder)
        if vectors_per_passage > 1:
            names = block.ids[::vectors_per_passage]
            docids = [passage_of(name, vectors_per_passage) for name in names]
            block = block._replace(ids=docids)
        yield block
    if next(lines, None) is not None:
        found = f"more than {len(rows):,} ids"
        raise InputError(folder / DOCID, None, found, "one for each vector")


# pickles

QUERIES_FILE = "embedding.pkl"
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
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array of vectors needs; "
                "do not open this file"
            )
        if module.startswith(("pandas", "pyarrow")):
            require(module.partition(".")[0], "a pickled frame")
        return super().find_class(module, name)


def read_pickle(path: str | Path) -> Iterator[VectorBlock]:
    """Read blocks of vectors; a pickle that calls a name that is not allowed is an InputError."""
    try:
        with files.open_binary(path) as handle:
            value = _Unpickler(handle).load()
        ids, vectors, texts = _pickled_vectors(value)
    except DenserkError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken pickle raises anything
        found = f"a broken pickle ({type(error).__name__}: {error})"
        expected = "(vectors, ids), a list of (id, vector), or a frame with id, text, embedding"
        raise InputError(path, None, found, expected) from None
    # up to the longer one, so that a block with too few of the other is rejected
    for start in range(0, max(len(ids), len(vectors)), ROWS):
        rows = slice(start, start + ROWS)
        block_texts = None if texts is None else texts[rows]
        yield checked_block(ids[rows], vectors[rows], block_texts, path)


class _PickledVectors(NamedTuple):
    """What a pickle holds: ids that are not checked yet, their vectors, and perhaps texts."""

    ids: list[Any]
    vectors: NDArray[Any]
    texts: list[str] | None


def _pickled_vectors(value: Any) -> _PickledVectors:
    """Return the vectors in the value of a pickle; whatever is raised says that there are none."""
    ids: list[Any]
    vectors: Any
    texts = None
    if type(value).__name__ == "DataFrame":
        ids = list(value["id"])
        vectors = list(value["embedding"])
        if "text" in value.columns:
            texts = [str(text) for text in value["text"]]
    elif isinstance(value, tuple | list) and isinstance(value[0], np.ndarray):
        vectors, id_array = value
        ids = np.asarray(id_array, dtype=object).reshape(-1).tolist()
    else:
        ids = [pair[0] for pair in value]
        vectors = [pair[1] for pair in value]
    if not isinstance(vectors, np.ndarray):
        vectors = np.stack([np.asarray(vector) for vector in vectors])
    if vectors.ndim == 0:
        raise ValueError("a single number")
    plain_ids = [docid.item() if isinstance(docid, np.generic) else docid for docid in ids]
    return _PickledVectors(plain_ids, vectors, texts)


def _write_pyserini_queries(blocks: Iterable[VectorBlock], folder: Path) -> None:
    """Write queries with their texts, by which Pyserini finds them."""
    pandas = require("pandas", "Pyserini's folder of encoded queries")
    rows: list[tuple[str, str, Vectors]] = []
    for ids, vectors, texts in blocks:
        rows += zip(ids, texts or [""] * len(ids), vectors, strict=True)
    if not all(text for _, text, _ in rows):
        message = "Pyserini finds encoded queries by their text; these vectors come without texts"
        raise UsageError(message, "encode --topics Q --output-format pyserini-queries")
    columns = pandas.Index(["id", "text", "embedding"], dtype=object)  # what older pandas reads
    frame = pandas.DataFrame(rows, columns=columns, dtype=object)
    frame.to_pickle(folder / QUERIES_FILE, protocol=4)


# arrays


def map_array(path: str | Path, mode: Literal["r", "c"] = "r") -> NDArray[Any]:
    """Memory-map a .npy file: to read ("r"), or copy-on-write ("c")."""
    try:
        with file_errors.read_errors(path):
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
    """Blocks of vectors while they are written: checked and counted.

    With `for_lucene`, a warning names a vector that is not L2-normalised.
    """

    def __init__(self, blocks: Iterable[VectorBlock], output: str, *, for_lucene: bool) -> None:
        self._blocks = blocks
        self._output = output
        self._warns_of_norms = for_lucene
        self.count = 0

    def __iter__(self) -> Iterator[VectorBlock]:
        for block in self._blocks:
            if not block.ids:
                continue
            yield checked_block(block.ids, block.vectors, block.texts, self._output)
            self.count += len(block.ids)
            if self._warns_of_norms:
                self._warn_unless_normalised(block)

    def _warn_unless_normalised(self, block: VectorBlock) -> None:
        """Warn, once, of the vector of a block whose length is farthest from 1."""
        norms = np.linalg.norm(block.vectors.astype(np.float32), axis=1)
        worst = int(np.argmax(np.abs(norms - 1)))
        if abs(norms[worst] - 1) > 1e-3:
            logger.warning(
                f"{block.ids[worst]} has a vector of length {norms[worst]:.4g}; "
                "Lucene's inner product needs length 1: encode with --l2-norm"
            )
            self._warns_of_norms = False  # one warning is enough


def _write_tevatron(blocks: Iterable[VectorBlock], output: str) -> None:
    """Write a pickle of all vectors and their ids."""
    with written_files.whole_binary(output) as handle:
        ids: list[str] = []
        vectors: list[Vectors] = []
        for block in blocks:
            ids += block.ids
            vectors.append(block.vectors)
        all_vectors = np.concatenate(vectors)
        vectors.clear()  # the blocks need no memory while the pickle is written
        pickle.dump((all_vectors, ids), handle, protocol=4)


# formats that are one file, besides JSON lines
FILE_WRITERS: dict[VectorFormat, Callable[[Iterable[VectorBlock], str], None]] = {
    VectorFormat.TEVATRON: _write_tevatron,
}


def is_single_file(vector_format: VectorFormat) -> bool:
    """Return whether vectors of a format are one file, and not a folder."""
    return vector_format in JSON_KEYS or vector_format in FILE_WRITERS


def write_vectors(
    output: str,
    vector_format: VectorFormat,
    blocks: Iterable[VectorBlock],
    *,
    overwrite: bool = False,
    queries: bool = False,
    manifest: Manifest | None = None,
) -> int:
    """Check and write blocks in any format but `npy`, in one pass; return the number of vectors.

    JSON lines, the only format for "-", carry the `manifest` of what encoded the vectors. With
    `queries`, the vectors are those of queries: in Anserini's JSON lines their ids are `qid`.
    """
    if output == files.STREAM and vector_format not in JSON_KEYS:
        message = f"{vector_format} cannot be written to standard output"
        raise UsageError(message, "name a file, or write jsonl")
    for_lucene = vector_format in (VectorFormat.ANSERINI_JSONL, VectorFormat.PARQUET)
    checked_blocks = _CheckedBlocks(blocks, output, for_lucene=for_lucene)
    if vector_format in JSON_KEYS:
        id_key = JSON_KEYS[vector_format]
        if queries and vector_format is VectorFormat.ANSERINI_JSONL:
            id_key = "qid"
        _write_json_lines(checked_blocks, output, id_key, manifest)
    elif vector_format in FILE_WRITERS:
        FILE_WRITERS[vector_format](checked_blocks, output)
    else:
        with whole_folder(output, overwrite=overwrite, export=True) as folder:
            _write_folder(checked_blocks, vector_format, folder)
    return checked_blocks.count


def _write_folder(blocks: Iterable[VectorBlock], vector_format: VectorFormat, folder: Path) -> None:
    """Write a format that is a folder of files."""
    if vector_format is VectorFormat.PARQUET:
        _write_parquet(blocks, folder)
    elif vector_format is VectorFormat.PYSERINI_QUERIES:
        _write_pyserini_queries(blocks, folder)
    else:
        ids_and_vectors = ((block.ids, block.vectors) for block in blocks)
        write_flat(folder / INDEX, Metric.INNER, ids_and_vectors)
