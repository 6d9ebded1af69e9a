"""`denserk reproduce`: a run is made again from what its manifests record, and compared.

A run's manifest names what it was made from, and the manifests of that name theirs: run <- index
<- vectors <- model <- training data. `reproduce` follows this chain back, compares each input with
its recorded checksum, makes the steps asked for again in a folder, each from the re-made result of
the one before it, and compares the results.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config import retrieval
from denserk.config.analysis import Step
from denserk.config.encoding import is_served
from denserk.config.options import from_json
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.io import manifest as manifests
from denserk.io.blocks import texts_sha256
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest
from denserk.io.outputs import JOURNAL, training_folder
from denserk.io.topics import read_queries, topics_sha256
from denserk.io.vectors import open_vectors, verify_folders
from denserk.tasks.build_index import VECTORS_SHA256, bm25_texts
from denserk.tasks.reproduce_comparison import Verdict, compare, fingerprint_of
from denserk.tasks.reproduce_folder import WorkFolder
from denserk.tasks.reproduce_steps import (
    build_again,
    corpus_of,
    encode_again,
    run_again,
    train_again,
)

ORDER = list(Step)  # inputs before what is made from them
# Makes a step again, into a path; if the second argument is true, it continues what an interrupted
# command left there.
Remake = Callable[[str, bool], None]


@dataclass(frozen=True)
class Outcome:
    """One step of a chain."""

    step: Step
    path: str
    changed: tuple[str, ...]  # a phrase for each file and input that is not as recorded
    remade: str = "-"  # how the re-made result compares
    equal: bool = True  # within the tolerance, or not re-made


def reproduce(
    run: str,
    work: Path,
    from_step: Step,
    tolerance: float,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> list[Outcome]:
    """Check a run and all that it was made from; make the steps from `from_step` on again.

    Return the steps, inputs before what is made from them; see `Reproduction`. `work` is the folder
    of what is made again, which may be one of an earlier call: `overwrite` replaces it, `resume`
    continues it.
    """
    read_manifest(run, Kind.RUN)  # before anything is written
    folder = WorkFolder(work, run, from_step)
    folder.prepare(overwrite=overwrite, resume=resume)
    reproduction = Reproduction(folder, from_step, tolerance)
    reproduction.walk_run(run)
    folder.complete()
    return reproduction.outcomes


@dataclass
class Reproduction:
    """The steps of a run, walked from its inputs on; those from `from_step` on are made again.

    A walk of a step first walks its inputs, and collects in `changed` a phrase for each input that
    is not as recorded. It returns the path that later steps are to read: that of the re-made result
    in `work`, or the recorded one. `tolerance` is the largest difference of scores, of vectors'
    values and of weights that counts as equal.
    """

    work: WorkFolder
    from_step: Step = Step.RUN
    tolerance: float = 1e-5
    outcomes: list[Outcome] = field(default_factory=list)
    new_paths: dict[str, str] = field(default_factory=dict)  # walked path -> path for later steps
    # path at which there is nothing -> message that says so, and what names the path
    absent: dict[str, str] = field(default_factory=dict)

    def walk_run(self, path: str) -> str:
        """Walk a run that search, rerank or fuse wrote."""
        if path in self.new_paths:
            return self.new_paths[path]
        manifest = read_manifest(path, Kind.RUN)
        self.absent |= manifest.absent
        made_from = manifest.made_from
        changed = self.changed_file(path, manifest.contents.get("sha256"))
        topics = made_from.get("topics")
        if topics:
            _reject_typed_queries(path, topics)
            same_topics = partial(has_same_topics, topics, made_from.get("qrels"))
            changed += self.changed_input(topics["name"], same_topics)
        model = self.walk_model(made_from.get("model"))
        changed += self.changed_model(made_from.get("model"))
        for source in manifests.runs_of(made_from):
            changed += self.changed_file(source["name"], source["sha256"])
            self.walk_run(source["name"])
        for index in manifests.indexes_of(made_from):
            self.walk_folder(index["name"], index.get("sha256"))
        if made_from.get("encoded_queries"):
            self.walk_folder(made_from["encoded_queries"])
        remake = partial(run_again, manifest, model, self.new_paths)
        return self.finish_step(Step.RUN, path, changed, remake)

    def walk_folder(self, path: str, checksums: Any = None) -> str:
        """Walk an index or a folder of vectors; `checksums` are those that a run recorded of it."""
        if path in self.new_paths:
            return self.new_paths[path]
        if not beside(path).is_file():
            state = "has no manifest" if Path(path).exists() else "is absent"
            changed = [self.absent.get(path, f"{path} {state}")]
            # reported as an index, whatever it was
            return self.finish_step(Step.INDEX, path, changed, remake=None)
        manifest = manifests.read_any_manifest(beside(path))
        self.absent |= manifest.absent
        changed = changed_or_unreadable(path, partial(verify_folders, [path]))
        if manifest.kind is Kind.VECTORS:
            return self.walk_vectors(path, manifest, changed)
        changed += changed_vectors(path, manifest)
        if checksums is not None and checksums != manifest.contents.get("sha256"):
            changed.append(f"{path} was rebuilt after the run")
        return self.walk_index(path, manifest, changed)

    def walk_index(self, path: str, manifest: Manifest, changed: list[str]) -> str:
        """Walk an index, of vectors or of texts; `changed` are the phrases on its own files."""
        vectors = [self.walk_folder(name) for name in manifest.made_from.get("vectors", ())]
        texts = manifest.made_from.get("texts")
        if "texts_sha256" in manifest.contents:
            same_texts = partial(has_same_texts, manifest)
            changed += self.changed_input(manifest.made_from["texts"], same_texts)
        remake = None
        if vectors or texts:
            remake = partial(build_again, manifest, vectors)
        return self.finish_step(Step.INDEX, path, changed, remake)

    def walk_vectors(self, path: str, manifest: Manifest, changed: list[str]) -> str:
        """Walk a folder of vectors; `changed` are the phrases on its own files."""
        made_from = manifest.made_from
        model = self.walk_model(made_from.get("model"))
        changed += self.changed_model(made_from.get("model"))
        is_encoded = "texts" in made_from and made_from.get("model")  # else converted
        if not is_encoded:
            return self.finish_step(Step.VECTORS, path, changed, remake=None)
        if manifest.settings["side"] == "passage":
            require_same_texts = partial(reject_other_texts, path, manifest)
            changed += self.changed_input(made_from["texts"], require_same_texts)
        remake = partial(encode_again, manifest, model)
        return self.finish_step(Step.VECTORS, path, changed, remake)

    def walk_model(self, description: Mapping[str, Any] | None) -> str:
        """Walk the model that a manifest describes; return its path for later steps, "" of none."""
        if description is None:
            return ""
        name = description["name"]
        if name not in self.new_paths:
            self.walk_training(name)
        return self.new_paths[name]

    def walk_training(self, name: str) -> None:
        """Walk a model that denserk trained, and what it started from; others stay as they are."""
        record = manifests.training_record(name)
        if record is None:
            self.new_paths[name] = name
            return
        command = "finetune" if "finetune" in record else "pretrain"
        changed: list[str] = []
        for source in manifests.training_files(record):
            if source.get("sha256"):
                changed += self.changed_file(source["name"], source["sha256"])
        start = record[command].get("model")
        if start is not None and start not in self.new_paths:
            self.walk_training(start)
        new_start = self.new_paths[start] if start else None
        remake = partial(train_again, name, command, new_start)
        self.finish_step(Step.MODEL, name, changed, remake)

    def finish_step(
        self, step: Step, path: str, changed: Iterable[str], remake: Remake | None
    ) -> str:
        """Make a step again, if asked for, and compare; return the path for later steps.

        `changed` are the phrases on its files and inputs. `remake` is None if the manifest does not
        record how the step was made.
        """
        new_path = path
        verdict = Verdict("-", equal=True)
        is_asked_for = ORDER.index(step) >= ORDER.index(self.from_step)
        if is_asked_for:
            if remake is None:
                verdict = Verdict("its making is not recorded", equal=True)
            else:
                new_path, verdict = self.make_again(step, path, remake)
        self.outcomes.append(Outcome(step, path, tuple(changed), verdict.text, verdict.equal))
        self.new_paths[path] = new_path
        return new_path

    def make_again(self, step: Step, path: str, remake: Remake) -> tuple[str, Verdict]:
        """Make a step again; return its new path, or the old one if it failed, and the verdict."""
        new_path = self.work.step_path(f"{len(self.outcomes) + 1}-{Path(path).name}")
        try:
            is_started = Path(new_path).exists() or training_folder(new_path).exists()
            remake(new_path, is_started)
            if not Path(path).exists():
                return new_path, Verdict("absent", equal=True)  # nothing to compare with
            return new_path, compare(step, path, new_path, self.tolerance)
        except DenserkError as error:
            return path, Verdict(f"failed: {error}", equal=False)

    def changed_model(self, description: Mapping[str, Any] | None) -> list[str]:
        """Return a phrase if a model is not the one described."""
        if description is None:
            return []
        name = description["name"]
        if is_served(name):
            return [f"{name} is behind a URL: what it computes is not made again"]
        fingerprint = fingerprint_of(name)  # None if there is no model
        if fingerprint == description["fingerprint"]:
            return []
        state = "another model" if fingerprint else "absent"
        return [self.absent.get(name, f"{name} is {state}")]

    def changed_file(self, name: str, sha256: str | None) -> list[str]:
        """Return a phrase if a file is not the recorded one."""
        if sha256 is None:
            return [f"{name} has no recorded checksum"]
        if not Path(name).is_file():
            return [self.absent.get(name, f"{name} is absent")]
        return self.changed_input(name, lambda: file_sha256(name) == sha256)

    def changed_input(self, name: str, compare_input: Callable[[], bool | None]) -> list[str]:
        """Return a phrase if an input of a manifest is absent or not as recorded, else nothing.

        `compare_input` is that of `changed_or_unreadable`.
        """
        if name in self.absent:
            return [self.absent[name]]
        return changed_or_unreadable(name, compare_input)


def changed_or_unreadable(name: str, compare_input: Callable[[], bool | None]) -> list[str]:
    """Return a phrase if an input is not as recorded, or cannot be read; else nothing.

    `compare_input` returns whether it is; or it returns None, and raises an error if it is not.
    """
    try:
        is_same = compare_input()
    except (DenserkError, OSError) as error:
        return [str(error)]
    return [f"{name} has changed"] if is_same is False else []


def _reject_typed_queries(run: str, topics: Mapping[str, Any]) -> None:
    """Raise a UsageError for a run of `search --query`, which records no texts."""
    if topics["name"] is None:
        raise UsageError(
            f"{run} cannot be searched again: its queries were typed (--query) and not recorded",
            "search with --topics FILE for a run that can be reproduced",
        )


def has_same_topics(topics: Mapping[str, Any], qrels: str | None) -> bool:
    """Return whether queries have the ids and texts that a manifest recorded of its `topics`."""
    queries = read_queries(topics["name"], None, qrels, topics.get("fields"))
    return bool(topics_sha256(queries) == topics["sha256"])


def has_same_texts(manifest: Manifest) -> bool:
    """Return whether the corpus of a BM25 index has the recorded texts."""
    settings = manifest.settings
    bm25 = from_json(retrieval.Bm25Settings, settings["bm25"])
    digest = sha256()
    texts = bm25_texts(manifest.made_from["texts"], bm25, corpus_of(settings["corpus"]), digest)
    for _ in texts:  # each is added to the digest
        pass
    return bool(digest.hexdigest() == manifest.contents["texts_sha256"])


def reject_other_texts(path: str, manifest: Manifest) -> None:
    """Raise a MismatchError if the corpus of a folder of vectors is not the one encoded."""
    source = manifest.made_from["texts"]
    fields = manifest.made_from["model"]["text"]["fields"]
    finished_blocks = open_vectors(path).finished
    # a shard starts with a later block of the corpus
    first_passage = finished_blocks[0].number * manifest.settings["block_size"]
    given_fields = manifest.made_from.get("fields")
    passages = read_passages(source, corpus_of(manifest.settings), given_fields)
    passages = islice(passages, first_passage, None)
    for block in finished_blocks:
        texts = []
        for passage in islice(passages, block.count):
            texts.append([passage.docid, *map(passage.field, fields)])
        if texts_sha256(texts) != block.input_sha256:
            message = f"{source} has changed: first in the passages of {block.name}"
            raise MismatchError(message)


def changed_vectors(index: str, manifest: Manifest) -> list[str]:
    """Return a phrase for each folder of vectors that is not the one that an index was built of.

    Indexes that an older version built or that were merged record no checksums of them.
    """
    checksums = manifest.made_from.get(VECTORS_SHA256) or ()
    phrases = []
    for vectors, checksum in zip(manifest.made_from.get("vectors", ()), checksums, strict=False):
        journal = Path(vectors) / JOURNAL
        if checksum is not None and journal.is_file() and file_sha256(journal) != checksum:
            phrases.append(f"{vectors} was encoded again after {index} was built")
    return phrases
