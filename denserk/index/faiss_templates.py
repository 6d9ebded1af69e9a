"""Trained indexes without vectors, from which index folders are filled, and merging such folders.

Folders that were filled from one template share rotation, centroids and codes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config.options import from_json, given_fields, spelled
from denserk.config.retrieval import IndexSettings
from denserk.errors import MismatchError, UsageError
from denserk.index.faiss_files import merge_files, read_index
from denserk.index.faiss_library import load_faiss, mergeable_ivf, replace_lists
from denserk.index.folder import DOCID, INDEX
from denserk.index.inputs import require_same
from denserk.io.corpus import IdLedger
from denserk.io.files import read_text_lines
from denserk.io.manifest import Kind, Manifest, read_manifest, vectors_per_passage
from denserk.io.vector_formats import part_names, passage_of
from denserk.io.vectors import check_index
from denserk.io.versions import read_whole
from denserk.io.written_files import whole_text
from denserk.reporting import track

# settings that a template prescribes for what is filled from it
PRESCRIBED_SETTINGS = (
    "type",
    "factory",
    "metric",
    "M",
    "efC",
    "pq_m",
    "pq_nbits",
    "nlist",
    "train_size",
)


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder."""

    name: str  # of the folder
    manifest: Manifest
    factory: str  # string of faiss's index_factory, such as "IVF4000,PQ32x8"
    index: Any  # of faiss
    sha256: str  # of the empty index; equal for indexes with the same training

    def complete_settings(self, requested: IndexSettings) -> IndexSettings:
        """Return the requested settings with those that the template prescribes.

        A requested setting that the training contradicts is a UsageError.
        """
        prescribed = self._prescribed_settings()
        requested_names = given_fields(requested)
        for name, trained_value in prescribed.items():
            if name not in requested_names:
                continue
            value = getattr(requested, name)
            # a factory string may also have the number of lists that "{lists}" became
            if value not in (trained_value, self.factory):
                option = spelled(name, IndexSettings)
                message = (
                    f"{option} {value}: {self.name} was trained as {self.factory}, "
                    f"with {name} {trained_value}"
                )
                raise UsageError(message, f"leave {option} out, or train a new index")
        return replace(requested, **prescribed)

    def _prescribed_settings(self) -> dict[str, Any]:
        """Return the settings that the index was trained with, by name."""
        trained = from_json(IndexSettings, self.manifest.settings)
        prescribed = {name: getattr(trained, name) for name in PRESCRIBED_SETTINGS}
        prescribed["target_recall"] = None  # the type is chosen already
        if trained.target_recall:  # denserk chose the type, so the settings do not have it
            prescribed["factory"] = self.factory
        return prescribed


@dataclass(frozen=True)
class IndexFolders:
    """Index folders with the same training, which can be merged."""

    template: Template  # of the first folder
    manifests: Sequence[tuple[str, Manifest]]  # each folder's name and manifest, in order

    @property
    def vectors_per_passage(self) -> int:
        """Return the number of vectors of each passage, which all folders share."""
        return vectors_per_passage(self.template.manifest)


def read_template(name: str) -> Template:
    """Read an index folder without its vectors; inverted lists stay on the disk."""
    return read_whole([name], partial(_read_template, name))


def _read_template(name: str) -> Template:
    """Read one version of an index folder without its vectors."""
    manifest = read_manifest(name, Kind.INDEX)
    path = Path(name) / INDEX
    check_index(path.parent, manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    factory = manifest.contents.get("factory", "flat")
    faiss = load_faiss()
    index = read_index(path)
    # a type that needs no training is trained as soon as it is created
    if factory == "flat" or faiss.index_factory(index.d, factory).is_trained:
        hint = "index the vectors with --type or --factory"
        raise UsageError(f"{name} is {factory}, which has no training to take over", hint)
    ivf = mergeable_ivf(index)
    if ivf is None:
        index = read_index(path, mapped=False)  # what is mapped cannot be emptied
    else:  # the index lets go of its lists, which are mapped from the file
        replace_lists(ivf, faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size))
    index.reset()
    digest = hashlib.sha256(faiss.serialize_index(index)).hexdigest()
    return Template(name, manifest, factory, index, digest)


def open_folders(names: Sequence[str]) -> IndexFolders:
    """Check index folders that are to be merged; only the first keeps its index in memory."""
    template = _read_mergeable(names[0])
    manifests = [(template.name, template.manifest)]
    for name in names[1:]:
        manifests.append((name, _read_manifest_of_same_training(name, template)))
    sizes = [(name, vectors_per_passage(manifest)) for name, manifest in manifests]
    require_same("vectors per passage", sizes)
    return IndexFolders(template, manifests)


def _read_mergeable(name: str) -> Template:
    """Read the template of an index folder; a UsageError if faiss cannot merge such indexes."""
    template = read_template(name)
    if mergeable_ivf(template.index) is None:
        message = f"{name} is {template.factory}, which cannot be merged"
        hint = (
            "index the vectors themselves, or build the parts with inverted lists: "
            "IVF...,Flat, IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA"
        )
        raise UsageError(message, hint)
    return template


def _read_manifest_of_same_training(name: str, template: Template) -> Manifest:
    """Return the manifest of an index folder; a MismatchError if its training is another one."""
    other_template = _read_mergeable(name)
    if other_template.sha256 != template.sha256:
        message = f"{template.name} and {name} have different training: they cannot be merged"
        raise MismatchError(message, f"build {name} again with --trained-as {template.name}")
    return other_template.manifest


def merge_folders(folders: IndexFolders, output: Path) -> None:
    """Merge index folders into the first one's template: write the files `docid` and `index`."""
    names = [name for name, _ in folders.manifests]
    _merge_ids(names, folders.vectors_per_passage, output / DOCID)
    files = [Path(name) / INDEX for name in names]
    merge_files(folders.template.index, files, output / INDEX)


def _merge_ids(names: Sequence[str], vectors_per_passage: int, path: Path) -> None:
    """Write the passage ids of index folders to one file; reject an id that occurs twice."""
    ids = IdLedger()
    with whole_text(path) as file, track("merging ids", None, "passages") as progress:
        for name in names:
            ids.start(name)
            for docid in _passage_ids([name], vectors_per_passage):
                ids.extend([docid])
                file.writelines(f"{line}\n" for line in part_names(docid, vectors_per_passage))
                progress.advance()
        # the ledger has hashes alone, and reads the ids again to name one
        ids.reject_repeat(partial(_passage_ids, names, vectors_per_passage))


def _passage_ids(names: Iterable[str], vectors_per_passage: int) -> Iterator[str]:
    """Yield the passage ids of index folders, whose files of ids have a line for each vector."""
    for name in names:
        lines = read_text_lines(Path(name) / DOCID)
        for _, line in islice(lines, 0, None, vectors_per_passage):
            yield passage_of(line.rstrip(), vectors_per_passage)
