"""Vectors in any format: detection of the format, readers and writers.

denserk's own folder can be resumed (`vector_folder`); the others are written in one pass to a
temporary path and renamed on success.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from denserk.config.encoding import VectorFormat
from denserk.errors import InputError, UsageError
from denserk.io import flat_file, vector_folder, vector_jsonl, vector_parquet, vector_pickle
from denserk.io.files import STREAM, open_binary, rewound
from denserk.io.folder_checks import check_index
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.vector_block import (
    ROWS,
    VectorBlock,
    Vectors,
    check_dimension,
    checked_block,
    refuse_non_finite,
)

logger = logging.getLogger(__name__)

Sink = Callable[[VectorBlock], None]
UNIT_NORM = 1e-3  # how far the norm of a unit vector may be from 1


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

    def blocks(self) -> Iterator[tuple[list[str], Vectors]]:
        """Yield (n ids, (n * vectors_per_passage, D) vectors) in the order of the source.

        Raises:
            InputError: the source is broken, mixes dimensions, or holds no vectors.
        """
        for block in self.blocks_with_texts():
            yield block.ids, block.vectors

    def blocks_with_texts(self) -> Iterator[VectorBlock]:
        """Like `blocks`, with the texts if the format holds them."""
        dimension = 0
        for block in self.read():
            dimension = check_dimension(block, dimension, self.name)
            yield block
        if not dimension:
            raise InputError(self.name, None, "no vectors", "at least one")


def _read_file(path: str | Path, form: str) -> Iterator[VectorBlock]:
    if form == "parquet":
        yield from vector_parquet.read(path)
    elif form == "pickle":
        yield from vector_pickle.read(path)
    elif form == "array":
        yield from _read_array(path)
    else:
        with open_binary(path) as handle:
            yield from vector_jsonl.read(handle, path)


def _read_array(path: str | Path) -> Iterator[VectorBlock]:
    """Read a NumPy array; ids are the row numbers from 0."""
    array = vector_folder.map_array(path)
    if array.ndim != 2:
        raise InputError(path, None, f"an array of shape {array.shape}", "(vectors, dimensions)")
    for start in range(0, len(array), ROWS):
        rows = array[start : start + ROWS]
        yield checked_block(list(range(start, start + len(rows))), rows, None, path)


# first bytes of files, and their format
MAGIC = ((b"PAR1", "parquet"), (b"\x93NUMPY", "array"), (b"\x80", "pickle"), (b"{", "JSON lines"))


def _form_of_file(path: Path) -> str:
    with open_binary(path) as handle:
        head = handle.read(64)
    form = next((form for magic, form in MAGIC if head.lstrip().startswith(magic)), None)
    if form is None and path.suffix in (".pkl", ".pickle"):
        return "pickle"
    if form is None:
        raise InputError(
            path,
            None,
            f"a file that begins {head[:12]!r}" if head else "an empty file",
            "vectors as JSON lines, Parquet, a NumPy array or a pickle",
        )
    return form


SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".pkl", ".pickle")


def _files(folder: Path) -> list[Path]:
    """Return the files of vectors in a folder, sorted by name; DPR's shards have no suffix."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and not path.name.startswith(".")
        and (path.name.endswith(SUFFIXES) or path.suffix == "")
    )


def _open_folder(folder: Path) -> VectorSource:
    name = str(folder)
    if (folder / NAME).exists() and not (folder / flat_file.INDEX).exists():
        own = vector_folder.open_vectors(folder)
        read = partial(_read_own, own)
        return VectorSource(name, "npy", read, own.manifest, own.vectors_per_passage)
    if (folder / flat_file.INDEX).exists() and (folder / flat_file.IDS).exists():
        return _open_flat(folder)
    paths = _files(folder)
    if not paths:
        raise UsageError(
            f"{folder} holds no vectors",
            f"a folder that denserk wrote, `index` beside `docid`, or files {', '.join(SUFFIXES)}",
        )
    forms = {_form_of_file(path) for path in paths}
    if len(forms) > 1:
        raise InputError(folder, None, f"files of {' and '.join(sorted(forms))}", "one format")
    form = forms.pop()
    return VectorSource(name, form, lambda: (b for path in paths for b in _read_file(path, form)))


def _open_json_lines(source: str) -> VectorSource:
    """Open JSON lines, of which the first may carry the manifest."""
    with open_binary(source) as handle:
        line, manifest = vector_jsonl.read_manifest(handle, source)
        read = partial(_read_file, source, "JSON lines")
        if source == STREAM:
            read = partial(vector_jsonl.read, rewound(line + b"\n", handle), source)
    return VectorSource(source, "JSON lines", read, manifest)


def _open_flat(folder: Path) -> VectorSource:
    """Open a flat index as vectors: denserk's own has a manifest, Pyserini's has none."""
    manifest = read_manifest(folder, Kind.INDEX) if (folder / NAME).exists() else None
    check_index(folder, manifest)
    size = 1 if manifest is None else int(manifest.contents.get("vectors_per_passage", 1))
    flat_file.map_flat(folder / flat_file.INDEX)  # checked before anything is written
    read = partial(flat_file.read_folder, folder, size)
    return VectorSource(str(folder), "pyserini-faiss", read, manifest, size)


def _read_own(folder: vector_folder.VectorFolder) -> Iterator[VectorBlock]:
    for ids, vectors in folder.blocks():
        refuse_non_finite(folder.folder, ids, vectors)
        yield VectorBlock(ids, vectors)


def read_vector_blocks(source: str, *, allow_pickle: bool = False) -> VectorSource:
    """Open vectors of any format: a folder, a file, or JSON lines from standard input ("-").

    Raises:
        UsageError: the source does not exist, holds no vectors, or is a pickle without
            `allow_pickle`.
        InputError: the format is unknown.
    """
    if source == STREAM:
        return _open_json_lines(source)
    path = Path(source)
    if path.is_dir():
        opened = _open_folder(path)
    else:
        form = _form_of_file(path)
        if form == "JSON lines":
            opened = _open_json_lines(source)
        else:
            opened = VectorSource(source, form, partial(_read_file, path, form))
    if opened.form == "pickle" and not allow_pickle:
        raise UsageError(
            f"{source} holds pickles: programs, not data",
            "add --allow-pickle if they come from someone you trust",
        )
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
        """Append n ids, (n, D) vectors, and n texts for the formats that hold them.

        Raises:
            InputError: a vector is not finite, dimensions differ, or an id holds white space.
        """
        if not len(ids):
            return
        block = checked_block(
            list(ids), vectors, None if texts is None else list(texts), self._output
        )
        self.dimension = check_dimension(block, self.dimension, self._output)
        if self._unit:
            self._check_norms(block)
        self._sink(block)
        self.count += len(block.ids)

    def _check_norms(self, block: VectorBlock) -> None:
        norms = np.linalg.norm(block.vectors.astype(np.float32), axis=1)
        far = np.abs(norms - 1) > UNIT_NORM
        if far.any():
            first = int(np.argmax(far))
            logger.warning(
                f"{block.ids[first]} has a vector of length {norms[first]:.4g}; Lucene's inner "
                "product needs length 1: encode with --l2-norm"
            )
            self._unit = False


def _open_jsonl(
    output: str, *, key: str, overwrite: bool, manifest: Manifest | None = None
) -> AbstractContextManager[Sink]:
    return vector_jsonl.open_sink(output, key, contents=key != "qid", manifest=manifest)


def _open_tevatron(output: str, *, overwrite: bool) -> AbstractContextManager[Sink]:
    return vector_pickle.open_tevatron_sink(output)


# what opens an output of each format; `npy` is written by `VectorFolderWriter`
WRITERS: dict[VectorFormat, Callable[..., AbstractContextManager[Sink]]] = {
    VectorFormat.JSONL: partial(_open_jsonl, key="id"),
    VectorFormat.ANSERINI_JSONL: partial(_open_jsonl, key="docid"),
    VectorFormat.PYSERINI_FAISS: flat_file.open_sink,
    VectorFormat.PARQUET: vector_parquet.open_sink,
    VectorFormat.TEVATRON: _open_tevatron,
    VectorFormat.PYSERINI_QUERIES: vector_pickle.open_queries_sink,
}
JSON_LINES = (VectorFormat.JSONL, VectorFormat.ANSERINI_JSONL)
FOR_LUCENE = (VectorFormat.ANSERINI_JSONL, VectorFormat.PARQUET)


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

    Raises:
        UsageError: the folder is not empty, or the format cannot be written to a stream.
    """
    if output == STREAM and form not in JSON_LINES:
        raise UsageError(
            f"{form} cannot be written to standard output", "name a file, or write jsonl"
        )
    opener = WRITERS[form]
    if queries and form is VectorFormat.ANSERINI_JSONL:
        opener = partial(_open_jsonl, key="qid")
    if manifest is not None and form in JSON_LINES:
        opener = partial(opener, manifest=manifest)
    with opener(output, overwrite=overwrite) as sink:
        yield VectorWriter(sink, output, unit=form in FOR_LUCENE)
