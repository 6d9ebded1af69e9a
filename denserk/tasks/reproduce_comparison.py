"""How what `denserk reproduce` makes again compares with what was there: bytes, or numbers."""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.config.analysis import Step
from denserk.errors import DenserkError
from denserk.io.manifest import Kind, file_sha256, read_manifest
from denserk.io.outputs import JOURNAL
from denserk.io.runs import read_run_scores
from denserk.io.vectors import read_vector_blocks

# folders within a model's that are not the model
OTHER_FOLDERS = ("checkpoints", "best", "steps", "start")


class Verdict(NamedTuple):
    """How two results compare, in words, and whether they count as equal."""

    text: str
    equal: bool


SAME = Verdict("equal bytes", True)


def compare(step: Step, old: str, new: str, tolerance: float) -> Verdict:
    """Compare the results of a step; numbers are equal within the tolerance."""
    if step is Step.RUN:
        return compare_runs(old, new, tolerance)
    if step is Step.INDEX:
        return compare_indexes(old, new, tolerance)
    if step is Step.VECTORS:
        return compare_vectors(old, new, tolerance)
    return compare_models(old, new, tolerance)


def by_difference(largest: float, tolerance: float) -> Verdict:
    """Describe the largest difference of numbers.

    >>> by_difference(1e-7, 1e-5)
    Verdict(text='equal within 1e-07', equal=True)
    >>> by_difference(0.5, 1e-5)
    Verdict(text='differs by 0.5', equal=False)
    """
    if largest <= tolerance:
        return Verdict(f"equal within {largest:.2g}", True)
    return Verdict(f"differs by {largest:.2g}", False)


def compare_runs(old: str, new: str, tolerance: float) -> Verdict:
    """Compare the bytes of runs, else scores: a passage that one lacks counts by its score."""
    if file_sha256(old) == file_sha256(new):
        return SAME
    old_run = read_run_scores(old)
    new_run = read_run_scores(new)
    if old_run.keys() != new_run.keys():
        return Verdict(f"other queries: {len(old_run):,}, now {len(new_run):,}", False)
    largest = 0.0
    first_seen = ""
    for qid, old_hits in old_run.items():
        difference, docid = _largest_difference(old_hits, new_run[qid])
        if difference > largest:
            largest = difference
            first_seen = f", first seen at query {qid}, passage {docid}"
    verdict = by_difference(largest, tolerance)
    if verdict.equal:
        return verdict
    return Verdict(f"{verdict.text}{first_seen}", False)


def _largest_difference(
    old_hits: Mapping[str, float], new_hits: Mapping[str, float]
) -> tuple[float, str]:
    """Return the largest difference of scores of a query, and of which passage."""
    lowest = max(min(old_hits.values()), min(new_hits.values()))
    largest = 0.0
    largest_docid = ""
    for docid in old_hits.keys() | new_hits.keys():
        difference = abs(old_hits.get(docid, lowest) - new_hits.get(docid, lowest))
        if difference > largest:
            largest = difference
            largest_docid = docid
    return largest, largest_docid


def compare_vectors(old: str, new: str, tolerance: float) -> Verdict:
    """Compare ids, and the values of vectors, block by block."""
    old_journal = Path(old) / JOURNAL
    new_journal = Path(new) / JOURNAL
    have_journals = old_journal.exists() and new_journal.exists()
    if have_journals and file_sha256(old_journal) == file_sha256(new_journal):
        return SAME
    largest = 0.0
    count = 0  # of vectors that are compared
    old_blocks = read_vector_blocks(old).blocks()
    new_blocks = read_vector_blocks(new).blocks()
    for old_block, new_block in zip_longest(old_blocks, new_blocks):
        one_ends = old_block is None or new_block is None
        if one_ends or list(old_block.ids) != list(new_block.ids):
            return Verdict(f"other ids after vector {count:,}", False)
        count += len(old_block.ids)
        differences = np.abs(np.asarray(old_block.vectors, np.float32) - new_block.vectors)
        largest = max(largest, float(differences.max(initial=0)))
    return by_difference(largest, tolerance)


def compare_indexes(old: str, new: str, tolerance: float) -> Verdict:
    """Compare the files of indexes, else the vectors of flat ones."""
    old_manifest = read_manifest(old, Kind.INDEX)
    new_manifest = read_manifest(new, Kind.INDEX)
    if old_manifest.contents["sha256"] == new_manifest.contents["sha256"]:
        return SAME
    index_type = old_manifest.settings.get("type")
    if index_type == "flat":
        return compare_vectors(old, new, tolerance)
    # approximate indexes may be built in another order, BM25 indexes not
    return Verdict("other bytes", index_type != "bm25")


def compare_models(old: str, new: str, tolerance: float) -> Verdict:
    """Compare the weights of models."""
    from safetensors.numpy import load_file

    if fingerprint_of(old) == fingerprint_of(new):
        return SAME
    largest = 0.0
    for path in sorted(Path(old).rglob("model.safetensors")):
        name = path.relative_to(old)
        if name.parts[0] in OTHER_FOLDERS:
            continue
        old_tensors = load_file(path)
        new_tensors = load_file(Path(new) / name)
        if _trained_names(old_tensors) != _trained_names(new_tensors):
            return Verdict(f"{name} has other tensors", False)
        for tensor_name in _trained_names(old_tensors):
            tensor = old_tensors[tensor_name]
            differences = np.abs(tensor - new_tensors[tensor_name])
            largest = max(largest, float(differences.max(initial=0)))
    return by_difference(largest, tolerance)


def _trained_names(tensors: Iterable[str]) -> list[str]:
    """Return the names of a model's tensors without its pooler's, which older versions dropped."""
    return sorted(name for name in tensors if "pooler" not in name.split("."))


def fingerprint_of(name: str) -> str | None:
    """Return the fingerprint of a model; None if it is absent."""
    from denserk.io.model_files import find_model
    from denserk.models.model_folder import read_model_folder

    try:
        return read_model_folder(find_model(name)[1]).fingerprint()
    except DenserkError:
        return None
