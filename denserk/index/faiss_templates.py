"""Trained indexes without vectors, from which index folders are filled, and merging such folders.

Folders that were filled from one template share rotation, centroids and codes.
"""

import hashlib
from collections.abc import Iterator, Sequence
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
from denserk.io.files import read_text_lines, whole_text
from denserk.io.manifest import Kind, Manifest, read_manifest, vectors_per_passage
from denserk.io.vector_formats import part_names, passage_of
from denserk.io.vectors import check_index
from denserk.io.versions import read_whole
from denserk.reporting import track

# settings that a template prescribes
TRAINED = ("type", "factory", "metric", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder."""

    name: str  # of the folder
    manifest: Manifest
    factory: str
    index: Any  # None where it is not needed
    sha256: str  # of the empty index; equal for indexes with the same training

    def settings(self, requested: IndexSettings) -> IndexSettings:
        """Return the requested settings, completed by those that the index was trained with.

        A requested setting that the training contradicts is a UsageError.
        """
        trained = from_json(IndexSettings, self.manifest.settings)
        values = {name: getattr(trained, name) for name in TRAINED}
        values["target_recall"] = None
        if trained.target_recall:  # denserk chose the type
            values["factory"] = self.factory
        given_names = given_fields(requested)
        for name, trained_value in values.items():
            if name not in given_names:
                continue
            value = getattr(requested, name)
            if value not in (trained_value, self.factory):
                option = spelled(name, IndexSettings)
                message = (
                    f"{option} {value}: {self.name} was trained as {self.factory}, "
                    f"with {name} {trained_value}"
                )
                raise UsageError(message, f"leave {option} out, or train a new index")
        return replace(requested, **values)


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
    if factory == "flat" or faiss.index_factory(index.d, factory).is_trained:
        hint = "index the vectors with --type or --factory"
        raise UsageError(f"{name} is {factory}, which has no training to take over", hint)
    ivf = mergeable_ivf(index)
    if ivf is None:
        index = read_index(path, mapped=False)  # what is mapped cannot be emptied
    else:
        replace_lists(ivf, faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size))
    index.reset()
    digest = hashlib.sha256(faiss.serialize_index(index)).hexdigest()
    return Template(name, manifest, factory, index, digest)


def open_parts(names: Sequence[str]) -> list[Template]:
    """Check index folders that are to be merged; only the first keeps its index in memory."""
    templates: list[Template] = []
    for name in names:
        template = read_template(name)
        if mergeable_ivf(template.index) is None:
            message = f"{name} is {template.factory}, which cannot be merged"
            hint = (
                "index the vectors themselves, or build the parts with inverted lists: "
                "IVF...,Flat, IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA"
            )
            raise UsageError(message, hint)
        if not templates:
            templates.append(template)
            continue
        first = templates[0]
        if template.sha256 != first.sha256:
            message = f"{first.name} and {name} have different training: they cannot be merged"
            raise MismatchError(message, f"build {name} again with --trained-as {first.name}")
        templates.append(replace(template, index=None))
    sizes = [(template.name, vectors_per_passage(template.manifest)) for template in templates]
    require_same("vectors per passage", sizes)
    return templates


def merge_folders(templates: Sequence[Template], folder: Path) -> None:
    """Merge index folders into the first one's template: write the files `docid` and `index`."""
    _merge_ids(templates, folder / DOCID)
    files = [Path(template.name) / INDEX for template in templates]
    merge_files(templates[0].index, files, folder / INDEX)


def _merge_ids(templates: Sequence[Template], path: Path) -> None:
    """Write the passage ids of index folders to one file; reject an id that occurs twice."""
    size = vectors_per_passage(templates[0].manifest)
    ids = IdLedger()
    with whole_text(path) as file, track("merging ids", None, "passages") as progress:
        for template in templates:
            ids.start(template.name)
            for docid in _passage_ids(template, size):
                ids.extend([docid])
                file.writelines(f"{line}\n" for line in part_names(docid, size))
                progress.advance()

        def all_ids() -> Iterator[str]:
            for template in templates:
                yield from _passage_ids(template, size)

        ids.refuse_repeat(all_ids)


def _passage_ids(template: Template, vectors_per_passage: int) -> Iterator[str]:
    """Yield the passage ids of an index folder, whose lines are one for each vector."""
    lines = read_text_lines(Path(template.name) / DOCID)
    for _, line in islice(lines, 0, None, vectors_per_passage):
        yield passage_of(line.rstrip(), vectors_per_passage)
