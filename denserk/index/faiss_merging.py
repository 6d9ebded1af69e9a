"""Template indexes (trained, empty), and merging of index folders that were filled from one.

Such indexes share rotation, centroids and codes, so their inverted lists can be merged.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config.options import from_json, spelled
from denserk.config.retrieval import IndexSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.faiss_building import merge_files, mergeable_ivf
from denserk.index.faiss_index import faiss_errors, load_faiss, read_index
from denserk.index.index_folder import DOCID, INDEX, passage_of, vectors_per_passage
from denserk.index.vector_inputs import UniqueIds, require_same, written_id
from denserk.io.files import read_text_lines, whole_text
from denserk.io.flat_file import is_flat
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.vectors import check_index
from denserk.reporting import track

TRAINED = ("type", "factory", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")
BLOCK = 16_384  # ids read at once


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder.

    Attributes:
        name: the folder.
        manifest: its manifest.
        index: faiss' index, empty; None where it is not needed.
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

    def settings(self, given: IndexSettings) -> IndexSettings:
        """Return the settings given, completed by those that the index was trained with."""
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


def read_template(name: str) -> Template:
    """Read an index folder without its vectors; inverted lists stay on the disk."""
    manifest, path = read_manifest(name, Kind.INDEX), Path(name) / INDEX
    check_index(Path(name), manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    faiss, factory = load_faiss(), manifest.contents.get("factory", "flat")
    index = read_index(path)
    if factory == "flat" or faiss.index_factory(index.d, factory).is_trained:
        raise UsageError(
            f"{name} is {factory}, which has no training to take over",
            "index the vectors with --type or --factory",
        )
    vectors = manifest.contents["count"] * vectors_per_passage(manifest)
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
    digest = hashlib.sha256(faiss.serialize_index(index)).hexdigest()
    return Template(name, manifest, index, digest)


def is_approximate(name: str) -> bool:
    """Return whether an input is an index folder of denserk that is not flat."""
    path = Path(name) / INDEX
    return path.is_file() and path.with_name(NAME).is_file() and not is_flat(path)


def open_parts(names: Sequence[str]) -> list[Template]:
    """Check index folders that are to be merged; only the first keeps its index in memory."""
    parts: list[Template] = []
    for name in names:
        part = read_template(name)
        if mergeable_ivf(part.index) is None:
            raise UsageError(
                f"{name} is {part.factory}, which cannot be merged",
                "index the vectors themselves, or build the parts with inverted lists: IVF...,Flat,"
                " IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA",
            )
        if parts and part.sha256 != parts[0].sha256:
            raise MismatchError(
                f"{parts[0].name} and {name} have different training: they cannot be merged",
                f"build {name} again with --trained-as {parts[0].name}",
            )
        parts.append(replace(part, index=None) if parts else part)
    require_same("vectors per passage", [(p.name, vectors_per_passage(p.manifest)) for p in parts])
    return parts


def merge_folders(parts: Sequence[Template], folder: Path) -> None:
    """Merge index folders into the first one's template: write the files `docid` and `index`."""
    size = vectors_per_passage(parts[0].manifest)
    ids = UniqueIds()
    with whole_text(folder / DOCID) as out, track("merging ids", None, "passages") as progress:
        for part in parts:
            ids.begin(part.name)
            lines = (line.rstrip() for _, line in read_text_lines(Path(part.name) / DOCID))
            while block := list(islice(lines, BLOCK * size)):
                out.write("\n".join([*block, ""]))
                ids.extend([passage_of(line, size) for line in block[::size]])
                progress.advance(len(block) // size)
        ids.refuse_repeat(lambda position: written_id(out, position, size))
    merge_files(parts[0].index, [Path(part.name) / INDEX for part in parts], folder / INDEX)
