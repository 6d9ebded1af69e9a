"""Vectors: denserk's own folder, and detection and reading of any format.

denserk's folder has independent blocks, a journal of finished blocks, and a manifest:

    block-00000.npy      (n, D) float32 or float16, C order, memory-mappable
    block-00000.docid    n ids, one a line
    block-00000.hash     n hashes of 16 bytes, of the texts that `encode` encoded
    blocks.jsonl         one line per finished block: number, count, SHA-256 of its texts and of
                         its files
    manifest.json        settings and inputs; `complete: false` until the last block is written,
                         then also counts and the SHA-256 of blocks.jsonl

Blocks hold `block_size` passages in corpus order and are numbered through the whole corpus, so the
folders of shards 0..N-1 together have the blocks of one unsharded run.

Whenever a folder is opened, the journal and every file of ids are compared with their checksums
(folders of older versions have none), and the sizes of all other files. `verify_folders` also
reads the vectors and the index, and compares their checksums.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError, UsageError
from denserk.io import manifest as manifests
from denserk.io import vector_formats as formats
from denserk.io.blocks import Block, BlockFolder, Hashes, read_journal
from denserk.io.corpus import IdLedger
from denserk.io.detection import NUMPY, PARQUET, PICKLE, PICKLE_ENDINGS
from denserk.io.file_errors import read_errors
from denserk.io.files import STREAM, open_ahead, read_file, read_text_lines
from denserk.io.json_records import dump_json, first_record, identifier
from denserk.io.locks import reject_being_written
from denserk.io.manifest import Kind, Manifest, read_manifest, vectors_per_passage
from denserk.io.outputs import DOCID, INDEX, JOURNAL, MANIFEST
from denserk.io.vector_formats import VectorBlock, Vectors, map_array
from denserk.io.versions import Version, read_whole
from denserk.reporting import track

logger = logging.getLogger(__name__)

HASH = "hash"  # suffix of the hashes of texts
DAMAGED_HINT = "the file was changed or damaged: copy it again, or make the folder again"

JSON_LINES = "JSON lines"
# The int8 model of `encode --int8`, in OpenVINO's own format.
INT8_MODEL = "int8.xml"
INT8_WEIGHTS = "int8.bin"
HEAD_SIZE = 1 << 18  # bytes of a file, enough for a first record with a manifest
# of files in a folder that are read as vectors
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", *PICKLE_ENDINGS)


class FileFormat(NamedTuple):
    """A format of files of vectors: how it begins, and how the file at a path is read."""

    magic: bytes
    read: Callable[[Any], Iterator[VectorBlock]]


FILE_FORMATS = {
    "parquet": FileFormat(PARQUET, formats.read_parquet),
    "array": FileFormat(NUMPY, formats.read_array),
    "pickle": FileFormat(PICKLE, formats.read_pickle),
    JSON_LINES: FileFormat(b"{", formats.read_json_lines),
}


class VectorFolderWriter(BlockFolder):
    """Writes blocks of vectors in float32 or float16; see `BlockFolder`."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        dtype: str,
        finished: Mapping[int, Block] | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__(folder, manifest, finished, rank)
        self._dtype = np.dtype(dtype)

    def write(
        self, block: Block, ids: Sequence[str], vectors: Vectors, hashes: Hashes | None = None
    ) -> None:
        """Write n ids, (n, D) vectors and hashes of texts; float16 storage rounds to nearest."""
        with np.errstate(over="ignore"):  # what overflows is infinite, and rejected next
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        formats.reject_non_finite(self._folder, ids, stored)
        array = BytesIO()  # np.save writes a file through C, which loses the error of a full disk
        np.save(array, stored)
        lines = "".join(f"{docid}\n" for docid in ids).encode("utf-8")
        files = {"npy": array.getvalue(), DOCID: lines}
        if hashes is not None:
            files[HASH] = hashes.tobytes()
        self.write_files(block, files)

    def finish(self, contents: Mapping[str, Any]) -> Manifest:
        """Mark the folder complete; `contents` adds to the counts in its manifest."""
        count = sum(block.count for block in self.finished.values())
        counts = {"count": count, "blocks": len(self.finished), "dtype": self._dtype.name}
        return self.complete({**counts, **contents})


@dataclass(frozen=True)
class VectorSource:
    """Vectors of any format that are read block by block; a stream can be read once."""

    name: str  # as the user wrote it
    format_name: str  # a key of `FILE_FORMATS`, or of a folder "npy" or "pyserini-faiss"
    read: Callable[[], Iterator[VectorBlock]]
    manifest: Manifest | None = None  # if denserk made the source

    @property
    def vectors_per_passage(self) -> int:
        """How many consecutive rows belong to one id."""
        return vectors_per_passage(self.manifest)

    def blocks(self) -> Iterator[VectorBlock]:
        """Yield blocks of n ids and (n * vectors_per_passage, D) vectors, of one dimension."""
        dimension = 0
        for block in self.read():
            dimension = formats.check_dimension(block, dimension, self.name)
            yield block
        if not dimension:
            raise InputError(self.name, None, "no vectors", "at least one")


@dataclass(frozen=True)
class VectorFolder:
    """A finished folder of vectors; blocks are memory-mapped one at a time."""

    folder: Path
    manifest: Manifest
    finished: tuple[Block, ...]
    # of the folder when it was opened: a block of another version raises a BeingWrittenError
    version: Version

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.manifest.contents["dimension"])

    @property
    def vectors_per_passage(self) -> int:
        """How many consecutive rows belong to one passage."""
        return vectors_per_passage(self.manifest)

    def blocks(self) -> Iterator[VectorBlock]:
        """Yield n ids and (n * vectors_per_passage, D) memory-mapped vectors in corpus order."""
        for block in self.finished:
            with self.version.reading():
                ids = [line.rstrip() for _, line in read_text_lines(self.ids_of(block))]
            vectors = self.map_block(block)
            formats.reject_non_finite(self.folder, ids, vectors)
            yield VectorBlock(ids, vectors)

    def ids_of(self, block: Block) -> Path:
        """Return the file with the ids of a block, one per line."""
        return self.folder / f"{block.name}.{DOCID}"

    def map_block(self, block: Block) -> Vectors:
        """Memory-map the (count * vectors_per_passage, D) vectors of one block."""
        path = self.folder / f"{block.name}.npy"
        with self.version.reading():
            vectors = map_array(path, "c")  # copy-on-write, because torch wants writable arrays
        shape = (block.count * self.vectors_per_passage, self.dimension)
        dtype = self.manifest.contents["dtype"]
        if vectors.shape != shape or vectors.dtype != dtype:
            found = f"{vectors.dtype} {vectors.shape}"
            raise InputError(path, None, found, f"{dtype} {shape}", "encode again")
        return vectors


def open_vectors(name: str | Path) -> VectorFolder:
    """Open a finished folder, and check its journal and ids.

    A folder that another command replaces meanwhile is opened again.
    """
    return read_whole([name], partial(_open_vectors, Path(name)))


def _open_vectors(path: Path) -> VectorFolder:
    """Open a folder once, as `open_vectors` does; its files may be of two versions."""
    version = Version.of(path)
    manifest = read_manifest(path, Kind.VECTORS)
    manifests.require_fields(path, manifest, "contents", "count", "dimension", "dtype")
    folder = VectorFolder(path, manifest, tuple(read_journal(path).values()), version)
    _compare_checksum(path / JOURNAL, manifest.contents.get("journal_sha256"))
    for block in folder.finished:
        _compare_checksum(folder.ids_of(block), block.sha256.get(DOCID))
    in_journal = sum(block.count for block in folder.finished)
    in_manifest = manifest.contents["count"]
    if in_journal != in_manifest:
        message = (
            f"{path} holds {in_journal:,} passages by its journal, "
            f"{in_manifest:,} by its {MANIFEST}"
        )
        raise MismatchError(message, "encode again with --overwrite")
    return folder


class EncodedTexts:
    """The texts of a finished folder, found by their hashes, and their vectors; 24 bytes a text."""

    def __init__(self, name: str) -> None:
        self.folder = open_vectors(name)
        hashes = self._read_hashes(name)
        # the numbers of the N passages, in the order of their hashes; and the hashes, sorted
        self._passages = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._passages]
        counts = [block.count for block in self.folder.finished]
        self._block_starts = np.cumsum([0, *counts])  # numbers of first passages, and N

    def _read_hashes(self, name: str) -> Hashes:
        """Return the hashes of all texts in corpus order."""
        hashes = []
        for block in self.folder.finished:
            digest = block.sha256.get(HASH)
            if digest is None:
                message = (
                    f"{name} has no hashes of its texts: an older denserk, or convert, wrote it"
                )
                raise UsageError(message, "encode the whole corpus once, without --update")
            path = self.folder.folder / f"{block.name}.{HASH}"
            with self.folder.version.reading():
                _compare_checksum(path, digest)
                hashes.append(read_file(path))
        return np.frombuffer(b"".join(hashes), "S16")

    def find(self, hashes: Hashes) -> NDArray[np.int64]:
        """Return the numbers of passages that have the (N,) texts; -1 where there is none."""
        # searched without the last hash, so that every position is one of a hash: a larger hash
        # than all others is compared with the last one
        positions = np.searchsorted(self._hashes[:-1], hashes)
        return np.where(self._hashes[positions] == hashes, self._passages[positions], -1)

    def with_encoded(self, passages: NDArray[np.int64], encoded: Vectors) -> NDArray[np.float32]:
        """Return the vectors of (N,) passages; where one is -1, the next text of `encoded`.

        (N,), (M * S, D) -> (N * S, D), with S vectors per text.
        """
        text_shape = (self.folder.vectors_per_passage, self.folder.dimension)
        vectors = np.empty((len(passages), *text_shape), np.float32)
        vectors[passages < 0] = encoded.reshape(-1, *text_shape)
        # (N,) the number of each passage's block, -1 for a passage that is -1
        blocks = np.searchsorted(self._block_starts, passages, side="right") - 1
        for number in set(blocks.tolist()) - {-1}:  # each block is mapped once
            stored = self.folder.map_block(self.folder.finished[number]).reshape(-1, *text_shape)
            is_in_block = blocks == number
            rows = passages[is_in_block] - self._block_starts[number]
            vectors[is_in_block] = stored[rows]
        return vectors.reshape(-1, self.folder.dimension)


def read_vector_blocks(source: str, *, allow_pickle: bool = False) -> VectorSource:
    """Open vectors of any format: a folder, a file, or JSON lines from standard input ("-")."""
    if source == STREAM:
        vectors = _open_file(source)
    else:
        vectors = read_whole([source], partial(_open_version, source))
    if vectors.format_name == "pickle" and not allow_pickle:
        hint = "add --allow-pickle if they come from someone you trust"
        raise UsageError(f"{source} holds pickles: programs, not data", hint)
    if source != STREAM:
        logger.info(f"{source}: vectors in format {vectors.format_name}")
    return vectors


def _open_version(source: str) -> VectorSource:
    """Open a folder or a file whose blocks, which are read later, are all of one version."""
    version = Version.of(source)
    vectors = _open_folder(Path(source)) if Path(source).is_dir() else _open_file(source)
    return replace(vectors, read=lambda: version.guard(vectors.read()))


def _open_folder(folder: Path) -> VectorSource:
    """Open denserk's folder of vectors, a flat index, or a folder of files of one format."""
    has_index = (folder / INDEX).exists()
    if (folder / MANIFEST).exists() and not has_index:
        vectors = open_vectors(folder)
        return VectorSource(str(folder), "npy", vectors.blocks, vectors.manifest)
    if has_index and (folder / DOCID).exists():
        return _open_flat_index(folder)
    return _open_files(folder)


def _open_flat_index(folder: Path) -> VectorSource:
    """Open the folder of a flat index, which Pyserini writes without a manifest."""
    manifest = read_manifest(folder, Kind.INDEX) if (folder / MANIFEST).exists() else None
    check_index(folder, manifest)
    formats.map_flat(folder / INDEX)  # checked before anything is written
    read = partial(formats.read_flat, folder, vectors_per_passage(manifest))
    return VectorSource(str(folder), "pyserini-faiss", read, manifest)


def _open_files(folder: Path) -> VectorSource:
    """Open the files of a folder, in the order of their names."""
    paths = sorted(filter(_may_hold_vectors, folder.iterdir()))
    sources = [_open_file(str(path)) for path in paths]
    if not sources:
        reject_being_written(folder)
        suffixes = ", ".join(SUFFIXES)
        hint = f"a folder that denserk wrote, `index` beside `docid`, or files {suffixes}"
        raise UsageError(f"{folder} holds no vectors", hint)
    format_names = sorted({source.format_name for source in sources})
    if len(format_names) > 1:
        raise InputError(folder, None, f"files of {' and '.join(format_names)}", "one format")

    def read() -> Iterator[VectorBlock]:
        for source in sources:
            yield from source.read()

    return VectorSource(str(folder), format_names[0], read)


def _may_hold_vectors(path: Path) -> bool:
    """Return whether the name of a file in a folder can be one of vectors."""
    if not path.is_file() or path.name.startswith("."):
        return False
    return path.name.endswith(SUFFIXES) or not path.suffix  # DPR's shards have no suffix


def _open_file(source: str) -> VectorSource:
    """Open a file, or JSON lines from standard input, whose first record may have a manifest."""
    with open_ahead(source, HEAD_SIZE) as (head, stream):
        file_format = JSON_LINES if source == STREAM else _file_format(source, head)
    if source == STREAM:  # it stays open, unlike a file, and cannot be opened again
        read = partial(formats.read_json_lines, source, stream)
    else:
        read = partial(FILE_FORMATS[file_format].read, source)
    manifest = _manifest_of_first_record(source, head) if file_format == JSON_LINES else None
    return VectorSource(source, file_format, read, manifest)


def _file_format(source: str, head: bytes) -> str:
    """Return the format of a file by how it begins, or of a pickle by its name.

    Raise an InputError if it is none of vectors.
    """
    start = head.lstrip()
    for name, file_format in FILE_FORMATS.items():
        if start.startswith(file_format.magic):
            return name
    if source.endswith(PICKLE_ENDINGS):  # of protocol 0 or 1, which has no magic bytes
        return "pickle"
    message = f"a file that begins {head[:12]!r}" if head else "an empty file"
    expected = "vectors as JSON lines, Parquet, a NumPy array or a pickle"
    raise InputError(source, None, message, expected)


def _manifest_of_first_record(source: str, head: bytes) -> Manifest | None:
    """Return the manifest in the first of JSON lines, without what it records of a folder."""
    record = first_record(head) or {}
    if formats.MANIFEST_FIELD not in record:
        return None
    position = f"{source}, line 1, {formats.MANIFEST_FIELD}"
    names_from = None if source == STREAM else source
    manifest = manifests.decoded(dump_json(record[formats.MANIFEST_FIELD]), position, names_from)
    return replace(manifest, contents={})


def check_index(folder: Path, manifest: Manifest | None) -> None:
    """Check an index folder's ids and the sizes of its files; without a manifest, its ids alone."""
    contents = {} if manifest is None else manifest.contents
    if manifest is not None:
        manifests.require_fields(folder, manifest, "contents", "count")
    for name, size in contents.get("bytes", {}).items():
        _compare_size(folder / name, size)
    ids_file = folder / DOCID
    digest = contents.get("sha256", {}).get(DOCID)
    if digest is not None:
        _compare_checksum(ids_file, digest)
    elif ids_file.exists():
        passages = contents.get("count")
        lines = None if passages is None else passages * vectors_per_passage(manifest)
        _check_ids(ids_file, lines)


def _compare_size(path: Path, size: int) -> None:
    """Raise an InputError for a file that is not of the size in its manifest."""
    with read_errors(path):
        file_size = path.stat().st_size
    if file_size != size:
        raise InputError(path, None, f"{file_size:,} bytes", f"{size:,} bytes", DAMAGED_HINT)


def _check_ids(path: Path, count: int | None) -> None:
    """Read a file of ids that has no checksum: each occurs once, and there are `count` of them."""

    def read_ids() -> Iterator[str]:
        for line, docid in read_text_lines(path):
            yield identifier(docid.rstrip(), path, line, "passage")

    ids = IdLedger()
    ids.start(path)
    ids.extend(read_ids())
    if count is not None and ids.count != count:
        raise InputError(path, None, f"{ids.count:,} ids", f"{count:,} ids", DAMAGED_HINT)
    ids.reject_repeat(read_ids, "lines")  # read again only to name a repeated id


def verify_folders(names: Iterable[str]) -> None:
    """Compare every file of vector folders and indexes with its checksum; warn if it has none."""
    for name in names:
        read_whole([name], partial(_verify, name))


def _verify(name: str) -> None:
    """Compare the files of one folder with their checksums."""
    checksums = _recorded_checksums(name)
    if not checksums:
        logger.warning(f"--verify: {name} holds no checksums, and is not verified")
        return
    with track(f"verifying {name}", len(checksums), "files") as progress:
        for file_name, digest in checksums.items():
            _compare_checksum(Path(name) / file_name, digest)
            progress.advance()


def _recorded_checksums(name: str) -> Mapping[str, str]:
    """Return the checksums of a folder's files, by name: an index's manifest or a journal has them.

    There are none for what is no folder, and for folders of other tools and of older versions.
    """
    folder = Path(name)
    manifest_file = manifests.beside(name)
    if not folder.is_dir() or not manifest_file.exists():
        return {}
    if manifests.read_any_manifest(manifest_file).kind is Kind.INDEX:
        checksums: Mapping[str, str] = read_manifest(folder, Kind.INDEX).contents.get("sha256", {})
        return checksums
    read_manifest(folder, Kind.VECTORS)  # rejects other kinds, and an unfinished folder
    checksums = {}
    for block in read_journal(folder).values():
        for suffix, digest in block.sha256.items():
            checksums[f"{block.name}.{suffix}"] = digest
    return checksums


def _compare_checksum(path: Path, digest: str | None) -> None:
    """Compare a file with its checksum, if it has one."""
    if digest is not None and manifests.file_sha256(path) != digest:
        found = "bytes that differ from the checksum written with them"
        raise InputError(path, None, found, digest[:12], DAMAGED_HINT)
