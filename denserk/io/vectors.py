"""Vectors in any format: detection of the format, readers and writers.

denserk's own folder can be resumed (`vector_folder`); the others are written in one pass to a
temporary path and renamed on success.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from denserk.config.encoding import VectorFormat
from denserk.errors import InputError, UsageError
from denserk.io import vector_formats as formats
from denserk.io.checks import check_index
from denserk.io.files import STREAM, open_binary, rewound
from denserk.io.flat_file import map_flat
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.vector_folder import VectorFolder, open_vectors
from denserk.io.vector_formats import (
    Sink,
    VectorBlock,
    Vectors,
    check_dimension,
    checked_block,
    refuse_non_finite,
)

logger = logging.getLogger(__name__)

UNIT_NORM = 1e-3  # how far the norm of a unit vector may be from 1
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".pkl", ".pickle")
# first bytes of files, and their format
MAGIC = ((b"PAR1", "parquet"), (b"\x93NUMPY", "array"), (b"\x80", "pickle"), (b"{", "JSON lines"))
READERS = {
    "JSON lines": formats.read_json_file,
    "parquet": formats.read_parquet,
    "pickle": formats.read_pickle,
    "array": formats.read_array,
}
JSON_LINES = (VectorFormat.JSONL, VectorFormat.ANSERINI_JSONL)
FOR_LUCENE = (VectorFormat.ANSERINI_JSONL, VectorFormat.PARQUET)


@dataclass(frozen=True)
class VectorSource:
    """Vectors that are read block by block; a stream can be read once.

    Attributes:
        name: the source, as it was given.
        form: its format.
        manifest: the manifest, if denserk made it.
        vectors_per_passage: how many consecutive rows belong to one id.
    """

    name: str
    form: str
    read: Callable[[], Iterator[VectorBlock]]
    manifest: Manifest | None = None
    vectors_per_passage: int = 1

    def blocks(self) -> Iterator[VectorBlock]:
        """Yield blocks of n ids and (n * vectors_per_passage, D) vectors, of one dimension."""
        dimension = 0
        for block in self.read():
            dimension = check_dimension(block, dimension, self.name)
            yield block
        if not dimension:
            raise InputError(self.name, None, "no vectors", "at least one")


def _detect(path: Path) -> str:
    """Return the format of a file."""
    with open_binary(path) as handle:
        head = handle.read(64)
    form = next((form for magic, form in MAGIC if head.lstrip().startswith(magic)), None)
    if form is None and path.suffix in (".pkl", ".pickle"):
        return "pickle"
    if form is None:
        found = f"a file that begins {head[:12]!r}" if head else "an empty file"
        expected = "vectors as JSON lines, Parquet, a NumPy array or a pickle"
        raise InputError(path, None, found, expected)
    return form


def _open_folder(folder: Path) -> VectorSource:
    name, index = str(folder), folder / formats.INDEX
    if (folder / NAME).exists() and not index.exists():
        own = open_vectors(folder)
        read = partial(_read_own, own)
        return VectorSource(name, "npy", read, own.manifest, own.vectors_per_passage)
    if index.exists() and (folder / formats.IDS).exists():
        # denserk's own has a manifest, Pyserini's has none
        manifest = read_manifest(folder, Kind.INDEX) if (folder / NAME).exists() else None
        check_index(folder, manifest)
        map_flat(index)  # checked before anything is written
        size = 1 if manifest is None else int(manifest.contents.get("vectors_per_passage", 1))
        read = partial(formats.read_flat, folder, size)
        return VectorSource(name, "pyserini-faiss", read, manifest, size)
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and not path.name.startswith(".")
        and (path.name.endswith(SUFFIXES) or path.suffix == "")  # DPR's shards have no suffix
    )
    if not paths:
        raise UsageError(
            f"{folder} holds no vectors",
            f"a folder that denserk wrote, `index` beside `docid`, or files {', '.join(SUFFIXES)}",
        )
    found = sorted({_detect(path) for path in paths})
    if len(found) > 1:
        raise InputError(folder, None, f"files of {' and '.join(found)}", "one format")
    read_each = READERS[found[0]]
    return VectorSource(name, found[0], lambda: (b for path in paths for b in read_each(path)))


def _read_own(folder: VectorFolder) -> Iterator[VectorBlock]:
    for ids, vectors in folder.blocks():
        refuse_non_finite(folder.folder, ids, vectors)
        yield VectorBlock(ids, vectors)


def _open_file(source: str) -> VectorSource:
    """Open a file, or JSON lines from standard input."""
    path = Path(source)
    form = "JSON lines" if source == STREAM else _detect(path)
    read, manifest = partial(READERS[form], path), None
    if form == "JSON lines":
        with open_binary(source) as handle:
            line, manifest = formats.read_json_manifest(handle, source)
            if source == STREAM:
                read = partial(formats.read_json_lines, rewound(line + b"\n", handle), source)
    return VectorSource(source, form, read, manifest)


def read_vector_blocks(source: str, *, allow_pickle: bool = False) -> VectorSource:
    """Open vectors of any format: a folder, a file, or JSON lines from standard input ("-")."""
    is_folder = source != STREAM and Path(source).is_dir()
    opened = _open_folder(Path(source)) if is_folder else _open_file(source)
    if opened.form == "pickle" and not allow_pickle:
        raise UsageError(
            f"{source} holds pickles: programs, not data",
            "add --allow-pickle if they come from someone you trust",
        )
    if source != STREAM:
        logger.info(f"{source}: vectors in format {opened.form}")
    return opened


class VectorWriter:
    """Checks blocks of vectors and writes them.

    Args:
        sink: appends a block to the output.
        output: the output's name, for errors.
        unit: warn once of a vector that is not L2-normalised.
    """

    def __init__(self, sink: Sink, output: str, *, unit: bool) -> None:
        self._sink, self._output, self._unit = sink, output, unit
        self.count = 0
        self.dimension = 0

    def write(
        self, ids: Sequence[str], vectors: Vectors, texts: Sequence[str] | None = None
    ) -> None:
        """Append n ids, (n, D) vectors, and n texts for the formats that hold them."""
        if not len(ids):
            return
        held = None if texts is None else list(texts)
        block = checked_block(list(ids), vectors, held, self._output)
        self.dimension = check_dimension(block, self.dimension, self._output)
        if self._unit:
            norms = np.linalg.norm(block.vectors.astype(np.float32), axis=1)
            far = np.abs(norms - 1) > UNIT_NORM
            if far.any():
                first = int(np.argmax(far))
                logger.warning(
                    f"{block.ids[first]} has a vector of length {norms[first]:.4g}; Lucene's inner "
                    "product needs length 1: encode with --l2-norm"
                )
                self._unit = False
        self._sink(block)
        self.count += len(block.ids)


@contextmanager
def open_writer(
    output: str,
    form: VectorFormat,
    *,
    overwrite: bool = False,
    queries: bool = False,
    manifest: Manifest | None = None,
) -> Iterator[VectorWriter]:
    """Open an output that is written in one pass and renamed into place on success.

    Args:
        output: a file, a folder if the format is one, or "-" for JSON lines.
        form: any format but `npy`.
        overwrite: whether a folder that is not empty is replaced.
        queries: the vectors are of queries: Anserini's lines then call the id `qid`.
        manifest: what made the vectors; JSON lines carry it.
    """
    if output == STREAM and form not in JSON_LINES:
        raise UsageError(
            f"{form} cannot be written to standard output", "name a file, or write jsonl"
        )
    if form in JSON_LINES:
        key = "id" if form is VectorFormat.JSONL else "qid" if queries else "docid"
        opened = formats.json_lines_sink(output, key, contents=key != "qid", manifest=manifest)
    elif form is VectorFormat.TEVATRON:
        opened = formats.tevatron_sink(output)
    else:
        opened = {
            VectorFormat.PARQUET: formats.parquet_sink,
            VectorFormat.PYSERINI_FAISS: formats.flat_sink,
            VectorFormat.PYSERINI_QUERIES: formats.pyserini_queries_sink,
        }[form](output, overwrite=overwrite)
    with opened as sink:
        yield VectorWriter(sink, output, unit=form in FOR_LUCENE)
