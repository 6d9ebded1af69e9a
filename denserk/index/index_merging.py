"""Index folders with one trained part -> one index: lists joined from file to file, ids behind ids.

The file has the bytes of an index that was filled in one go: vectors keep the order of the folders,
and in each list the vectors of one folder stand behind those of the folder before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from denserk.errors import MismatchError, UsageError
from denserk.formats.files import read_file, read_text_lines, whole_binary, whole_text
from denserk.formats.flat_file import is_flat
from denserk.formats.id_ledger import IdLedger
from denserk.formats.manifest import NAME, Kind, Manifest, decoded, read_manifest
from denserk.formats.vector_block import in_rows
from denserk.index.index_folder import DOCID, INDEX, PART, PassageIds, check_count
from denserk.index.inverted_lists import JOINED_BYTES, ListsInFile, write_with_lists
from denserk.index.memory_needs import Need, tell_needs
from denserk.index.trained_part import TrainedPart, read_trained
from denserk.index.vector_inputs import refuse_repeat
from denserk.reporting import track

AT_ONCE = 16_384
"""Passages whose ids are read at once."""


@dataclass(frozen=True)
class IndexPart:
    """A folder that becomes part of an index, looked at but not held.

    Attributes:
        name: the folder, as it was named.
        manifest: what made it.
        lists: where its vectors stand.
        begin: how many passages stand before its own.
    """

    name: str
    manifest: Manifest
    lists: ListsInFile
    begin: int

    @property
    def passages(self) -> int:
        """How many it holds."""
        return int(self.manifest.contents["count"])


@dataclass(frozen=True)
class IndexParts:
    """Folders that can become one index.

    Attributes:
        trained: what they share, taken from the first of them.
        parts: in the order of the index.
        vectors_per_passage: how many neighbouring vectors are one passage.
    """

    trained: TrainedPart
    parts: Sequence[IndexPart]
    vectors_per_passage: int

    @property
    def passages(self) -> int:
        """How many there are in all."""
        return sum(part.passages for part in self.parts)

    def join(self, folder: Path) -> None:
        """Writes ids and index into a folder, each whole or not at all; may be called once.

        Raises:
            InputError: an id comes twice, or a part is cut short.
            MismatchError: a part has not as many ids as vectors.
            OutputError: a file cannot be written.
        """
        self._join_ids(folder / DOCID)
        lists = [part.lists for part in self.parts]
        size = lists[0].entry * sum(part.count for part in lists)
        with (
            whole_binary(folder / INDEX) as handle,
            track("joining lists", size, "bytes") as progress,
        ):
            write_with_lists(self.trained.index, lists, handle, progress)

    def _join_ids(self, path: Path) -> None:
        size = self.vectors_per_passage
        with (
            whole_text(path) as out,
            IdLedger() as ledger,
            track("joining ids", self.passages, "passages") as progress,
        ):
            for part in self.parts:
                lines = (line.rstrip() for _, line in read_text_lines(Path(part.name) / DOCID))
                count = 0
                for some in in_rows(lines, AT_ONCE * size):
                    out.write("\n".join([*some, ""]))
                    ledger.extend([_passage(line, size) for line in some[::size]])
                    count += len(some)
                    progress.advance(len(some) // size)
                check_count(part.name, part.lists.count, count)
            refuse_repeat(ledger, lambda at: self._at(at).name, self._id_of)

    def _at(self, passage: int) -> IndexPart:
        return next(part for part in reversed(self.parts) if part.begin <= passage)

    def _id_of(self, passage: int) -> str:
        part, size = self._at(passage), self.vectors_per_passage
        return _passage(PassageIds(Path(part.name) / DOCID)[(passage - part.begin) * size], size)


def _passage(line: str, size: int) -> str:
    return line.rpartition(PART)[0] if size > 1 else line


def is_filled(name: str) -> bool:
    """Whether an input is an index that holds other than flat vectors, as denserk made it.

    Raises:
        InputError: its manifest is broken.
    """
    path = Path(name) / INDEX
    return _is_index(name) and path.is_file() and not is_flat(path)


def _is_index(name: str) -> bool:
    manifest = Path(name) / NAME
    return manifest.is_file() and decoded(read_file(manifest), manifest).kind is Kind.INDEX


def look_at_parts(names: Sequence[str]) -> IndexParts:
    """Looks at index folders that are to become one; no more of their lists is read than the sizes.

    Args:
        names: folders, in the order of the index; `is_filled` is true of one at least.

    Raises:
        UsageError: one is no such index, or of a kind that cannot be joined, or the memory does
            not suffice.
        MismatchError: they do not share a trained part, or one is unfinished.
        InputError: one is broken.
    """
    leader = next(name for name in names if is_filled(name))
    shared = _joinable(leader)
    assert shared.lists is not None
    needs = [
        Need("what was trained, of two folders", 2 * shared.lists.begin),
        Need("lists that are joined", 2 * JOINED_BYTES),
    ]
    alternative = "search the folders as they are: denserk search --index takes several"
    tell_needs(f"merging {len(names):,} indexes of {shared.factory}", needs, alternative)
    digest, size = shared.digest(), _size(shared.manifest)
    parts: list[IndexPart] = []
    rows = 0
    for name in names:
        if not is_filled(name):
            if _is_index(name):
                read_manifest(name, Kind.INDEX)  # refuses one that is unfinished
            raise UsageError(
                f"{name} is no index of {shared.factory}, and {leader} is: indexes are merged with "
                "indexes",
                f"index it first, with --trained-as {leader}",
            )
        trained = shared if name == leader else _joinable(name)
        if trained is not shared and trained.digest() != digest:
            raise MismatchError(
                f"{leader} and {name} were not trained alike: their lists cannot be joined",
                f"build {name} again with --trained-as {leader}",
            )
        if _size(trained.manifest) != size:
            raise MismatchError(
                f"{leader} has {size} vectors a passage, {name} has {_size(trained.manifest)}"
            )
        assert trained.lists is not None
        parts.append(
            IndexPart(name, trained.manifest, replace(trained.lists, first=rows), rows // size)
        )
        check_count(name, parts[-1].lists.count, parts[-1].passages * size)
        rows += parts[-1].lists.count
    return IndexParts(shared, parts, size)


def _size(manifest: Manifest) -> int:
    return int(manifest.contents.get("vectors_per_passage", 1))


def _joinable(name: str) -> TrainedPart:
    trained = read_trained(name)
    if trained.lists is None:
        raise UsageError(
            f"{name} is {trained.factory}, of which parts cannot be joined",
            "index the vectors themselves, or build the parts with inverted lists: IVF...,Flat, "
            "IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA",
        )
    return trained
