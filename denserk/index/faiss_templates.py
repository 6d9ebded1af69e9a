"""Trained indexes without vectors, from which index folders are filled, and merging such folders.

Folders that were filled from one template share rotation, centroids and codes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from denserk.config.options import from_json, given_fields, spelled
from denserk.config.retrieval import IndexSettings
from denserk.errors import MismatchError, UsageError
from denserk.index.faiss_files import merge_files, read_index
from denserk.index.faiss_library import load_faiss, mergeable_ivf
from denserk.index.folder import DOCID, INDEX, part_names, passage_of, require_same
from denserk.io.corpus import IdLedger
from denserk.io.files import read_text_lines, whole_text
from denserk.io.manifest import Kind, Manifest, read_manifest, vectors_per_passage
from denserk.io.vectors import check_index
from denserk.io.versions import read_whole
from denserk.reporting import track

# settings that a template prescribes
TRAINED = ("type", "factory", "metric", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder."""

    name: str
    manifest: Manifest
    factory: str
    index: Any  # None where it is not needed
    sha256: str  # of the empty index; equal for indexes with the same training

    def settings(self, given: IndexSettings) -> IndexSettings:
        """Return the settings given, completed by those that the index was trained with."""
        made = from_json(IndexSettings, self.manifest.settings)
        values = {name: getattr(made, name) for name in TRAINED} | {"target_recall": None}
        values["factory"] = self.factory if made.target_recall else made.factory
        for name in values.keys() & given_fields(given):
            asked, option = getattr(given, name), spelled(name, IndexSettings)
            if asked not in (values[name], self.factory):
                trained = f"{self.name} was trained as {self.factory}, with {name} {values[name]}"
                hint = f"leave {option} out, or train a new index"
                raise UsageError(f"{option} {asked}: {trained}", hint)
        return replace(given, **values)


def read_template(name: str) -> Template:
    """Read an index folder without its vectors; inverted lists stay on the disk."""
    return read_whole([name], partial(_read_template, name))


def _read_template(name: str) -> Template:
    manifest, path = read_manifest(name, Kind.INDEX), Path(name) / INDEX
    check_index(Path(name), manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    faiss, factory = load_faiss(), manifest.contents.get("factory", "flat")
    index = read_index(path)
    if factory == "flat" or faiss.index_factory(index.d, factory).is_trained:
        hint = "index the vectors with --type or --factory"
        raise UsageError(f"{name} is {factory}, which has no training to take over", hint)
    ivf = mergeable_ivf(index)
    if ivf is None:  # what is mapped cannot be emptied
        index = read_index(path, mapped=False)
    else:
        lists = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
        ivf.replace_invlists(lists, True)
        lists.this.disown()  # the index deletes them
    index.reset()
    digest = hashlib.sha256(faiss.serialize_index(index)).hexdigest()
    return Template(name, manifest, factory, index, digest)


def open_parts(names: Sequence[str]) -> list[Template]:
    """Check index folders that are to be merged; only the first keeps its index in memory."""
    parts: list[Template] = []
    for name in names:
        part = read_template(name)
        if mergeable_ivf(part.index) is None:
            lists = "IVF...,Flat, IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA"
            hint = f"index the vectors themselves, or build the parts with inverted lists: {lists}"
            raise UsageError(f"{name} is {part.factory}, which cannot be merged", hint)
        if parts and part.sha256 != parts[0].sha256:
            what = f"{parts[0].name} and {name} have different training: they cannot be merged"
            raise MismatchError(what, f"build {name} again with --trained-as {parts[0].name}")
        parts.append(replace(part, index=None) if parts else part)
    require_same("vectors per passage", [(p.name, vectors_per_passage(p.manifest)) for p in parts])
    return parts


def merge_folders(parts: Sequence[Template], folder: Path) -> None:
    """Merge index folders into the first one's template: write the files `docid` and `index`."""
    size, ids = vectors_per_passage(parts[0].manifest), IdLedger()

    def passages(part: Template) -> Iterator[str]:
        lines = read_text_lines(Path(part.name) / DOCID)
        return (passage_of(line.rstrip(), size) for _, line in islice(lines, 0, None, size))

    with whole_text(folder / DOCID) as out, track("merging ids", None, "passages") as progress:
        for part in parts:
            ids.start(part.name)
            for docid in passages(part):
                ids.extend([docid])
                out.writelines(f"{line}\n" for line in part_names(docid, size))
                progress.advance()
        ids.refuse_repeat(lambda: chain.from_iterable(map(passages, parts)))
    merge_files(parts[0].index, [Path(part.name) / INDEX for part in parts], folder / INDEX)
