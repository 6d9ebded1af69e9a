"""denserk's folder of vectors: blocks that stand alone, a journal of the finished ones, a manifest.

    block-00000.npy      (n, D) float32 or float16, C order, memory-mappable block-00000.docid    n
    ids, one a line blocks.jsonl         one line a finished block: its name, count, and the SHA-256
    of what it was made from manifest.json        what made it; `complete: false` until the last
    block is there

Blocks hold `block_size` passages in corpus order and are numbered through the whole corpus, so the
folders of shards 0..N-1, one after another, are the folder of one run, block for block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError
from denserk.formats.block_journal import (
    Block,
    append_to_journal,
    journal_of,
    read_journal,
    read_journals,
    write_only_journal,
)
from denserk.formats.files import read_text_lines, whole_binary
from denserk.formats.manifest import Kind, Manifest, read_manifest, write_manifest


def refuse_non_finite(
    where: str | Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]
) -> None:
    """Refuses (n, D) vectors that hold NaN or infinity, naming the first id.

    Raises:
        InputError: at least one does.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        first = ids[int(np.argmin(finite)) * len(ids) // len(vectors)]
        raise InputError(
            where,
            None,
            f"a vector of {first} that is not finite in {vectors.dtype}",
            "numbers in range",
            "try --dtype float32 and --vector-dtype float32",
        )


def begin_vectors(folder: Path, manifest: Manifest) -> dict[int, Block]:
    """Makes a folder ready to be written or continued; its finished blocks by number."""
    finished = {block.number: block for block in read_journals(folder, Block)}
    for left_behind in folder.glob(".*.part"):
        left_behind.unlink()
    write_manifest(folder, manifest)
    # a line cut short by a kill must not be continued
    write_only_journal(folder, finished.values())
    return finished


class VectorFolderWriter:
    """Writes blocks, each whole or not at all, and remembers which are finished.

    Of several processes at one folder, the first begins it before the others make their writers,
    and finishes it once their blocks stand in its `finished`.

    Args:
        folder: an existing folder, empty or with an unfinished run of the same settings.
        manifest: settings and inputs of the run; `complete` must be false.
        dtype: float32 or float16.
        begun: what `begin_vectors` gave; None: it is called.
        rank: this process's number among several.
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
        """Writes one block: (n, D) vectors beside n ids; float16 storage rounds to nearest.

        Raises:
            InputError: a vector is not finite, or leaves float16's range.
            OutputError: it cannot be written.
        """
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        refuse_non_finite(self._folder, ids, stored)
        with whole_binary(self._folder / f"{block.name}.npy") as handle:
            # not write_array: for a file it writes through C, which loses the error of a full disk
            np.lib.format.write_array_header_1_0(
                handle, np.lib.format.header_data_from_array_1_0(stored)
            )
            handle.write(stored.data)
        with whole_binary(self._folder / f"{block.name}.docid") as handle:
            handle.write("".join(f"{docid}\n" for docid in ids).encode("utf-8"))
        append_to_journal(self._folder, block, self._journal)
        self.finished[block.number] = block

    def finish(self, contents: Mapping[str, Any]) -> Manifest:
        """Declares the folder whole; `contents` adds to the counts kept here."""
        write_only_journal(self._folder, self.finished.values())
        counts = {
            "count": sum(block.count for block in self.finished.values()),
            "blocks": len(self.finished),
            "dtype": self._dtype.name,
        }
        manifest = replace(self._manifest, complete=True, contents={**counts, **contents})
        write_manifest(self._folder, manifest)
        return manifest


@dataclass(frozen=True)
class VectorFolder:
    """A finished folder of vectors, its blocks memory-mapped one at a time."""

    folder: Path
    manifest: Manifest
    finished: tuple[Block, ...]

    @property
    def count(self) -> int:
        """Number of vectors."""
        return sum(block.count for block in self.finished) * self.vectors_per_passage

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.manifest.contents["dimension"])

    @property
    def vectors_per_passage(self) -> int:
        """How many rows in a row belong to one passage."""
        return int(self.manifest.contents.get("vectors_per_passage", 1))

    def blocks(self) -> Iterator[tuple[list[str], NDArray[np.floating[Any]]]]:
        """Yields (n ids, (n * vectors_per_passage, D) memory-mapped vectors) in corpus order.

        Raises:
            InputError: a block is missing or does not hold what the journal says.
        """
        for block in self.finished:
            where = self.ids_of(block)
            vectors, ids = self.map_block(block), _lines(where)
            if len(ids) != block.count:
                raise InputError(
                    where, None, f"{len(ids)} ids", f"{block.count} ids", "encode again"
                )
            yield ids, vectors

    def ids_of(self, block: Block) -> Path:
        """The file of a block's ids, one a line."""
        return self.folder / f"{block.name}.docid"

    def map_block(self, block: Block, *, private: bool = False) -> NDArray[np.floating[Any]]:
        """The (count * vectors_per_passage, D) vectors of one block, memory-mapped.

        Args:
            block: one of `finished`.
            private: map it so that it may be written to in memory, which torch asks for.

        Raises:
            InputError: it is missing, or does not hold what the journal says.
        """
        where = self.folder / f"{block.name}.npy"
        try:
            vectors = np.load(where, mmap_mode="c" if private else "r", allow_pickle=False)
        except FileNotFoundError:
            raise InputError(where, None, "nothing", "a block of vectors", "encode again") from None
        except (ValueError, EOFError) as error:
            raise InputError(
                where, None, f"a broken file ({error})", "a NumPy array", "encode again"
            ) from None
        expected = (block.count * self.vectors_per_passage, self.dimension)
        if vectors.shape != expected:
            raise InputError(where, None, str(vectors.shape), str(expected), "encode again")
        mapped: NDArray[np.floating[Any]] = vectors
        return mapped


def _lines(path: Path) -> list[str]:
    """The ids of a block.

    Raises:
        InputError: a line is not UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        text = "\r"
    if "\r" in text or not text.endswith("\n"):  # nothing that denserk writes
        return [line for _, line in read_text_lines(path)]
    return text[:-1].split("\n")


def open_vectors(folder: str | Path) -> VectorFolder:
    """Opens a finished folder.

    Raises:
        UsageError: it is not a folder of vectors.
        MismatchError: it is unfinished, or shards of it are missing in the middle.
    """
    path = Path(folder)
    manifest = read_manifest(path, Kind.VECTORS)
    blocks = tuple(sorted(read_journal(path, Block), key=lambda block: block.number))
    numbers = [block.number for block in blocks]
    if numbers != list(
        range(numbers[0] if numbers else 0, (numbers[0] if numbers else 0) + len(numbers))
    ):
        raise MismatchError(
            f"{folder} lacks blocks between {numbers[0]} and {numbers[-1]}", "encode with --resume"
        )
    return VectorFolder(path, manifest, blocks)
