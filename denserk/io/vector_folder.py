"""denserk's folder of vectors: independent blocks, a journal of finished blocks, a manifest.

    block-00000.npy      (n, D) float32 or float16, C order, memory-mappable
    block-00000.docid    n ids, one a line
    blocks.jsonl         one line per finished block: number, count, SHA-256 of its texts and of
                         its two files
    manifest.json        settings and inputs; `complete: false` until the last block is written,
                         then also counts and the SHA-256 of blocks.jsonl

Blocks hold `block_size` passages in corpus order and are numbered through the whole corpus, so the
folders of shards 0..N-1 together have the blocks of one unsharded run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.block_journal import (
    JOURNAL,
    Block,
    append_to_journal,
    journal_of,
    read_journal,
    write_journal,
)
from denserk.io.checks import check_vectors
from denserk.io.files import read_text_lines, whole_binary
from denserk.io.manifest import Kind, Manifest, file_sha256, read_manifest, write_manifest
from denserk.io.vector_formats import Vectors, map_array, refuse_non_finite

# The int8 model of `encode --int8`, in OpenVINO's own format.
INT8_MODEL, INT8_WEIGHTS = "int8.xml", "int8.bin"


def begin_vectors(folder: Path, manifest: Manifest) -> dict[int, Block]:
    """Prepare a folder for writing or resuming; return its finished blocks by number."""
    finished = {block.number: block for block in read_journal(folder)}
    for left_behind in folder.glob(".*.part"):
        left_behind.unlink()
    write_manifest(folder, manifest)
    # a line cut short by a kill must not be continued
    write_journal(folder, finished.values())
    return finished


class VectorFolderWriter:
    """Writes blocks, each to a temporary file that is renamed, and records the finished ones.

    With several processes, rank 0 begins the folder before the others create their writers, and
    finishes it after their blocks were added to its `finished`.

    Args:
        folder: an existing folder, empty or with an unfinished run of the same settings.
        manifest: settings and inputs of the run, not `complete`.
        dtype: float32 or float16.
        begun: the result of `begin_vectors`; None: it is called.
        rank: of this process.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        dtype: str,
        begun: Mapping[int, Block] | None = None,
        rank: int = 0,
    ) -> None:
        self._folder, self._manifest, self._dtype = folder, manifest, np.dtype(dtype)
        self._journal = journal_of(rank)
        self.finished = dict(begin_vectors(folder, manifest) if begun is None else begun)

    def write(self, block: Block, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
        """Write n ids and (n, D) vectors; float16 storage rounds to nearest."""
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        refuse_non_finite(self._folder, ids, stored)
        array = BytesIO()  # np.save writes a file through C, which loses the error of a full disk
        np.save(array, stored)
        lines = "".join(f"{docid}\n" for docid in ids).encode("utf-8")
        digests = {}
        for suffix, data in (("npy", array.getbuffer()), ("docid", lines)):
            with whole_binary(self._folder / f"{block.name}.{suffix}") as handle:
                handle.write(data)
            digests[suffix] = sha256(data).hexdigest()
        block = replace(block, sha256=digests)
        append_to_journal(self._folder, block, self._journal)
        self.finished[block.number] = block

    def finish(self, contents: Mapping[str, Any]) -> Manifest:
        """Mark the folder complete; `contents` adds to the counts in its manifest."""
        write_journal(self._folder, self.finished.values())
        counts = {
            "count": sum(block.count for block in self.finished.values()),
            "blocks": len(self.finished),
            "dtype": self._dtype.name,
            "journal_sha256": file_sha256(self._folder / JOURNAL),
        }
        manifest = replace(self._manifest, complete=True, contents={**counts, **contents})
        write_manifest(self._folder, manifest)
        return manifest


@dataclass(frozen=True)
class VectorFolder:
    """A finished folder of vectors; blocks are memory-mapped one at a time."""

    folder: Path
    manifest: Manifest
    finished: tuple[Block, ...]

    @property
    def count(self) -> int:
        """Number of vectors."""
        return sum(block.count for block in self.finished) * self.vectors_per_passage

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.manifest.contents["dimension"])

    @property
    def vectors_per_passage(self) -> int:
        """How many consecutive rows belong to one passage."""
        return int(self.manifest.contents.get("vectors_per_passage", 1))

    def blocks(self) -> Iterator[tuple[list[str], Vectors]]:
        """Yield (n ids, (n * vectors_per_passage, D) memory-mapped vectors) in corpus order."""
        for block in self.finished:
            ids = [line.rstrip() for _, line in read_text_lines(self.ids_of(block))]
            yield ids, self.map_block(block)

    def ids_of(self, block: Block) -> Path:
        """Return the file with the ids of a block, one per line."""
        return self.folder / f"{block.name}.docid"

    def map_block(self, block: Block, *, private: bool = False) -> Vectors:
        """Memory-map the (count * vectors_per_passage, D) vectors of one block.

        Args:
            block: one of `finished`.
            private: copy-on-write, because torch wants writable arrays.
        """
        where = self.folder / f"{block.name}.npy"
        vectors = map_array(where, "c" if private else "r")
        shape = (block.count * self.vectors_per_passage, self.dimension)
        dtype = self.manifest.contents["dtype"]
        if (vectors.shape, vectors.dtype) != (shape, dtype):
            found, expected = f"{vectors.dtype} {vectors.shape}", f"{dtype} {shape}"
            raise InputError(where, None, found, expected, "encode again")
        return vectors


def open_vectors(folder: str | Path) -> VectorFolder:
    """Open a finished folder, and check its journal and ids."""
    path = Path(folder)
    manifest = read_manifest(path, Kind.VECTORS)
    blocks = tuple(sorted(read_journal(path), key=lambda block: block.number))
    check_vectors(path, manifest, blocks)
    return VectorFolder(path, manifest, blocks)
