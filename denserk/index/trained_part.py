"""What an index learned, without its vectors: rotation, quantisers, codec, from an index folder.

Indexes that share a trained part may be filled on several machines, and their lists joined.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError, UsageError
from denserk.formats.folder_checks import check_index
from denserk.formats.manifest import Kind, Manifest, read_manifest
from denserk.index.faiss_library import faiss_errors, inner_indexes, load_faiss
from denserk.index.index_folder import INDEX
from denserk.index.inverted_lists import ListsInFile, ListsOnDisk, list_sizes, lists_header
from denserk.settings.options import from_json
from denserk.settings.retrieval import IndexSettings

FIXED = ("type", "factory", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")
"""Settings that a trained part answers; the metric is told by both."""
HOME = ("ArrayInvertedLists", "OnDiskInvertedLists")
"""Inverted lists whose entries stand in a file one behind the other."""


@dataclass(frozen=True)
class TrainedPart:
    """A trained index without vectors.

    Attributes:
        name: the folder it was taken from, as it was named.
        manifest: of that folder.
        index: faiss's, ready to be filled.
        lists: where that folder's vectors stand; None where they are no lists that can be joined.
    """

    name: str
    manifest: Manifest
    index: Any
    lists: ListsInFile | None

    @property
    def factory(self) -> str:
        """The name of its kind, as faiss has it."""
        return str(self.manifest.contents["factory"])

    @property
    def dimension(self) -> int:
        """D, of the vectors it takes."""
        return int(self.index.d)

    def digest(self) -> str:
        """Hexadecimal SHA-256 of what faiss writes of it: equal where it was trained alike."""
        found = hashlib.sha256()

        def take(data: bytes) -> int:
            found.update(data)
            return len(data)

        faiss = load_faiss()
        faiss.write_index(self.index, faiss.PyCallbackIOWriter(take))
        return found.hexdigest()

    def settings(self, given: IndexSettings) -> IndexSettings:
        """The settings given, with those of the training in their places.

        Raises:
            UsageError: another kind is asked for, or one more way of training.
            MismatchError: another metric is.
        """
        made, plain = from_json(IndexSettings, self.manifest.settings), IndexSettings()
        for name in FIXED:
            asked = getattr(given, name)
            known: tuple[Any, ...] = (getattr(plain, name), getattr(made, name))
            if asked not in (*known, self.factory if name == "factory" else None):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} {asked}: {self.name} was trained as {self.factory}, "
                    f"with {name} {known[1]}",
                    f"leave {option} out, or train anew",
                )
        if given.metric is not made.metric:
            raise MismatchError(
                f"{self.name} compares by {made.metric}, and --metric is {given.metric}",
                f"add --metric {made.metric}, or train anew",
            )
        answers: Mapping[str, Any] = {name: getattr(made, name) for name in FIXED}
        return replace(given, **answers)

    def refuse_untrained(self) -> None:
        """Refuses a kind that needs no training.

        Raises:
            UsageError: it is one.
        """
        if load_faiss().index_factory(self.dimension, self.factory).is_trained:
            raise _needs_none(self.name, self.factory)


def _needs_none(name: str, kind: str) -> UsageError:
    return UsageError(
        f"{name} is {kind}, which needs no training",
        "leave --trained-as out, and give --type or --factory",
    )


def read_trained(name: str) -> TrainedPart:
    """The trained part of an index folder; of inverted lists no more than their sizes is read.

    Raises:
        UsageError: there is no such folder, it is not an index that denserk wrote, or it is flat.
        MismatchError: it is unfinished, or holds words.
        InputError: faiss cannot read it, or it is cut short.
    """
    manifest, path = read_manifest(name, Kind.INDEX), Path(name) / INDEX
    check_index(Path(name), manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is an index of words, not of vectors")
    if "factory" not in manifest.contents:
        raise _needs_none(name, "flat")
    faiss = load_faiss()
    with faiss_errors(path):
        index = _mapped(faiss, path)
    sizes = _emptied(faiss, index)
    lists = None
    if sizes is not None and ListsOnDisk.spillable(index):
        lists = _lists_at_the_end(path, sizes, int(faiss.extract_index_ivf(index).code_size))
    return TrainedPart(name, manifest, index, lists)


def _mapped(faiss: Any, path: Path) -> Any:
    """A filled index; its lists stay in the file."""
    plain = getattr(faiss, "IO_FLAG_SKIP_PRECOMPUTE_TABLE", 0)
    index = faiss.read_index(str(path), plain | faiss.IO_FLAG_MMAP)
    ivf = _ivf(faiss, index)
    if ivf is not None and any(
        isinstance(part, faiss.IndexIVF) for part in inner_indexes(faiss, ivf.quantizer)
    ):
        index = faiss.read_index(str(path), plain)  # lists of the quantiser must go along
    return index


def _ivf(faiss: Any, index: Any) -> Any:
    """The part of an index that holds inverted lists, or None."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIVF):
        return index
    inner = getattr(index, "index", None) or getattr(index, "base_index", None)
    return _ivf(faiss, inner) if isinstance(inner, faiss.Index) else None


def _emptied(faiss: Any, index: Any) -> NDArray[np.int64] | None:
    """Takes all vectors out of an index; how many each list had, where it had lists."""
    ivf, sizes = _ivf(faiss, index), None
    if ivf is not None and type(faiss.downcast_InvertedLists(ivf.invlists)).__name__ in HOME:
        sizes = list_sizes(ivf)
        lists = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
        lists.this.disown()  # the index deletes them
        ivf.replace_invlists(lists, True)
    index.reset()
    return sizes


def _lists_at_the_end(path: Path, sizes: NDArray[np.int64], code_size: int) -> ListsInFile:
    """The lists of a file; refused where they do not stand where their sizes say."""
    lists, header = ListsInFile(path, sizes, code_size, 0), lists_header(sizes, code_size)
    size = path.stat().st_size
    begin = size - lists.end
    if begin < len(header) or lists.read(begin - len(header), len(header)) != header:
        raise InputError(
            path,
            None,
            f"{size:,} bytes, {lists.count:,} vectors not all among them",
            "an index as faiss writes it",
            "copy the folder again, or build it again",
        )
    return replace(lists, begin=begin)
