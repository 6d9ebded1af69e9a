"""Template indexes (trained, empty) and merging: index folders, or lists that outgrew memory.

Indexes that were filled from one template share rotation, centroids and codes, so their inverted
lists can be merged. What fits in memory becomes one file, by faiss' `merge_from`. Otherwise the
lists go to a second file, `index.ivfdata`, by faiss' `OnDiskInvertedLists`.
"""

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config.options import from_json, spelled
from denserk.config.retrieval import IndexSettings
from denserk.errors import InputError, MismatchError, OutputError, UsageError
from denserk.index.faiss_index import faiss_errors, lists_file, load_faiss, read_index, reason
from denserk.index.index_folder import DOCID, INDEX, PART, PassageIds, check_count
from denserk.index.memory import available_bytes, in_units
from denserk.index.vector_inputs import refuse_repeat
from denserk.io.checks import IdLedger, check_index
from denserk.io.files import read_text_lines, whole_binary, whole_text
from denserk.io.flat_file import is_flat
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.reporting import track

logger = logging.getLogger(__name__)

TRAINED = ("type", "factory", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")
# ids read at once
BLOCK = 16_384
ID_BYTES = 8


def mergeable_ivf(index: Any) -> Any:
    """Return the IVF part whose inverted lists hold all that grows in an index, or None."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return mergeable_ivf(index.index)
    if (
        not isinstance(index, faiss.IndexIVF)
        or isinstance(index, faiss.IndexIVFPQR | faiss.IndexIVFFlatDedup)
        or isinstance(faiss.downcast_index(index.quantizer), faiss.IndexIVF)
    ):
        return None
    # packed (fast scan) and other lists keep their entries elsewhere
    kinds = (faiss.ArrayInvertedLists, faiss.OnDiskInvertedLists)
    return index if type(faiss.downcast_InvertedLists(index.invlists)) in kinds else None


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder.

    Attributes:
        name: the folder.
        manifest: its manifest.
        index: faiss' index, empty.
        sha256: digest of the empty index; equal for indexes with the same training.
    """

    name: str
    manifest: Manifest
    index: Any
    sha256: str

    @property
    def factory(self) -> str:
        """Faiss' name for its type."""
        return str(self.manifest.contents["factory"])

    @property
    def vectors_per_passage(self) -> int:
        """Neighbouring vectors of one passage."""
        return int(self.manifest.contents.get("vectors_per_passage", 1))

    def settings(self, given: IndexSettings) -> IndexSettings:
        """Return the settings given, completed by those that the index was trained with.

        Raises:
            UsageError: another type, or another option of training, was given.
            MismatchError: another metric was given.
        """
        made, default = from_json(IndexSettings, self.manifest.settings), IndexSettings()
        values = {name: getattr(made, name) for name in TRAINED}
        for name, value in values.items():
            asked = getattr(given, name)
            if asked not in (getattr(default, name), value, self.factory):
                option = spelled(name, IndexSettings)
                raise UsageError(
                    f"{option} {asked}: {self.name} was trained as {self.factory}, "
                    f"with {name} {value}",
                    f"leave {option} out, or train a new index",
                )
        if given.metric is not made.metric:
            raise MismatchError(
                f"{self.name} compares by {made.metric}, and --metric is {given.metric}",
                f"add --metric {made.metric}, or train a new index",
            )
        return replace(given, **values)

    def require_training(self) -> None:
        """Raise a UsageError for an index type that is not trained."""
        if load_faiss().index_factory(self.index.d, self.factory).is_trained:
            raise _untrained(self.name, self.factory)


def _untrained(name: str, kind: str) -> UsageError:
    return UsageError(
        f"{name} is {kind}, which has no training to take over",
        "index the vectors with --type or --factory",
    )


def read_template(name: str) -> Template:
    """Read an index folder without its vectors; inverted lists stay on the disk.

    Raises:
        UsageError: there is no such folder, denserk did not write it, or its index is flat.
        MismatchError: it is unfinished, a BM25 index, or its index has not the vectors it should.
        InputError: faiss cannot read it.
    """
    manifest, path = read_manifest(name, Kind.INDEX), Path(name) / INDEX
    check_index(Path(name), manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    if "factory" not in manifest.contents:
        raise _untrained(name, "flat")
    faiss = load_faiss()
    index = read_index(path)
    vectors = manifest.contents["count"] * manifest.contents.get("vectors_per_passage", 1)
    if index.ntotal != vectors:
        raise InputError(path, None, f"{index.ntotal:,} vectors", f"{vectors:,}")
    ivf = mergeable_ivf(index)
    if ivf is None:
        with faiss_errors(path):  # all of it is read: lists inside a quantiser must not be mapped
            index = faiss.read_index(str(path))
    else:
        lists = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
        ivf.replace_invlists(lists, True)
        lists.this.disown()  # the index deletes them
    index.reset()
    digest = hashlib.sha256()

    def update(data: bytes) -> int:
        digest.update(data)
        return len(data)

    faiss.write_index(index, faiss.PyCallbackIOWriter(update))
    return Template(name, manifest, index, digest.hexdigest())


def write_index(index: Any, path: Path) -> None:
    """Write an index to a temporary file, and rename it."""
    with whole_binary(path) as handle:
        try:
            load_faiss().write_index(index, handle.name)
        except RuntimeError as error:
            raise OutputError(f"{path} cannot be written: {reason(error)}") from None


def merge_files(index: Any, files: Sequence[Path], path: Path) -> None:
    """Merge the vectors of index files into an empty index, and write it.

    Args:
        index: the template of all files, of a `mergeable_ivf` type.
        files: in the order of the vectors; their ids, from 0 in each, are renumbered.
        path: the index file. Lists too large for memory go to a second file beside it.

    Raises:
        InputError: faiss cannot read a file.
    """
    sizes = [file.stat().st_size for file in files]
    needed, available = sum(sizes) + max(sizes), available_bytes()
    separate = any(lists_file(file).exists() for file in files)
    if separate or (available is not None and needed > available):
        logger.info(f"inverted lists go to {lists_file(path)}: open the index with denserk")
        _merge_on_disk(index, files, lists_file(path))
    else:
        with track("merging indexes", len(files), "files") as progress:
            for file in files:
                with faiss_errors(file):
                    part = load_faiss().read_index(str(file))
                index.merge_from(part, index.ntotal)
                progress.advance()
    write_index(index, path)


def _merge_on_disk(index: Any, files: Sequence[Path], target: Path) -> None:
    """Merge the inverted lists of index files into the file `target`, used by `index` from then."""
    faiss = load_faiss()
    parts = [read_index(file) for file in files]
    ivf = mergeable_ivf(index)
    count = sum(part.ntotal for part in parts)
    size, free = count * (ivf.code_size + ID_BYTES), shutil.disk_usage(target.parent).free
    if size > free:  # faiss writes through a memory map: a full disk would kill the process
        raise OutputError(
            f"{target} cannot be written: it takes {in_units(size)}, and {in_units(free)} are free"
        )
    sources = faiss.InvertedListsPtrVector()
    for part in parts:
        sources.push_back(mergeable_ivf(part).invlists)
    try:
        lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(target))
        lists.merge_from_multiple(sources.data(), sources.size())
    except RuntimeError as error:
        target.unlink(missing_ok=True)
        raise OutputError(f"{target} cannot be written: {reason(error)}") from None
    # faiss' own `shift_ids` is wrong for files of different sizes (faiss 1.15)
    for number in range(ivf.nlist):
        first, offset = 0, 0
        ids = faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
        for part, source in enumerate(parts):
            last = first + sources.at(part).list_size(number)
            ids[first:last] += offset
            first, offset = last, offset + source.ntotal
    lists.filename = target.name  # the folder can be moved
    index.ntotal = ivf.ntotal = count
    ivf.replace_invlists(lists, True)
    lists.this.disown()  # the index deletes them


@dataclass(frozen=True)
class IndexPart:
    """An index folder that is to be merged, and the number of its first passage."""

    name: str
    manifest: Manifest
    first: int

    @property
    def count(self) -> int:
        """Number of passages."""
        return int(self.manifest.contents["count"])


def is_approximate(name: str) -> bool:
    """Return whether an input is an index folder of denserk that is not flat."""
    path = Path(name) / INDEX
    return path.is_file() and path.with_name(NAME).is_file() and not is_flat(path)


def open_parts(names: Sequence[str]) -> tuple[Template, list[IndexPart]]:
    """Check index folders that are to be merged, and return their template.

    Args:
        names: folders, in the order of the index; at least one `is_approximate`.

    Raises:
        UsageError: one is not an index, or of a type that cannot be merged.
        MismatchError: they have different templates, or one is unfinished.
        InputError: faiss cannot read one.
    """
    leader = next(name for name in names if is_approximate(name))
    template = _read_mergeable(leader)
    parts: list[IndexPart] = []
    for name in names:
        part = template if name == leader else _read_mergeable(name)
        if part.sha256 != template.sha256:
            raise MismatchError(
                f"{leader} and {name} have different training: they cannot be merged",
                f"build {name} again with --trained-as {leader}",
            )
        if part.vectors_per_passage != template.vectors_per_passage:
            raise MismatchError(
                f"{leader} has {template.vectors_per_passage} vectors per passage, "
                f"{name} has {part.vectors_per_passage}"
            )
        first = parts[-1].first + parts[-1].count if parts else 0
        parts.append(IndexPart(name, part.manifest, first))
    return template, parts


def _read_mergeable(name: str) -> Template:
    template = read_template(name)
    if mergeable_ivf(template.index) is None:
        raise UsageError(
            f"{name} is {template.factory}, which cannot be merged",
            "index the vectors themselves, or build the parts with inverted lists: IVF...,Flat, "
            "IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA",
        )
    return template


def merge_folders(template: Template, parts: Sequence[IndexPart], folder: Path) -> None:
    """Merge index folders: write the files `docid` and `index`.

    Raises:
        InputError: an id occurs twice, or faiss cannot read a file.
    """
    size = template.vectors_per_passage
    total = parts[-1].first + parts[-1].count

    def passage(line: str) -> str:
        return line.rpartition(PART)[0] if size > 1 else line

    def part_at(number: int) -> IndexPart:
        return next(part for part in reversed(parts) if part.first <= number)

    def name_of(number: int) -> str:
        part = part_at(number)
        return passage(PassageIds(Path(part.name) / DOCID)[(number - part.first) * size])

    ledger = IdLedger()
    with whole_text(folder / DOCID) as out, track("merging ids", total, "passages") as progress:
        for part in parts:
            lines = (line.rstrip() for _, line in read_text_lines(Path(part.name) / DOCID))
            while block := list(islice(lines, BLOCK * size)):
                out.write("\n".join([*block, ""]))
                ledger.extend([passage(line) for line in block[::size]])
                progress.advance(len(block) // size)
            check_count(part.name, (part.first + part.count) * size, ledger.count * size)
        refuse_repeat(ledger, lambda number: part_at(number).name, name_of)
    merge_files(template.index, [Path(part.name) / INDEX for part in parts], folder / INDEX)
