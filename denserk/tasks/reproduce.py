"""Re-making of a run from what its manifests record, compared with what was made before.

A run's manifest names what it was made from, and the manifests of that name theirs: run <- index
<- vectors <- model <- training data. `reproduce` follows this chain back, compares each input with
its recorded checksum, makes the steps asked for again in a folder, each from the re-made result of
the one before it, and compares the results.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config import encoding, retrieval
from denserk.config.analysis import Step
from denserk.config.options import from_json, select
from denserk.errors import DenserkError, MismatchError
from denserk.io import manifest as manifests
from denserk.io.blocks import JOURNAL, texts_sha256
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries
from denserk.io.vectors import open_vectors, read_vector_blocks, verify_folders
from denserk.tasks.build_index import VECTORS_SHA256, bm25_texts, build_index
from denserk.tasks.reproduce_folder import WorkFolder
from denserk.tasks.reproduce_steps import (
    compute_of,
    corpus_of,
    fuse,
    overrides,
    rerank,
    resolved_options,
    search,
    train_again,
)

ORDER = list(Step)
SAME = "equal bytes"
# makes a step again, into a path; or continues what an interrupted command left there
Remake = Callable[[str, bool], None]


@dataclass(frozen=True)
class Outcome:
    """One step of a chain."""

    step: Step
    path: str
    changed: tuple[str, ...]  # files and inputs that are not as recorded
    remade: str = "-"  # how the re-made result compares
    equal: bool = True  # within the tolerance, or not re-made


@dataclass
class Reproduction:
    """The steps of a run, walked from its inputs on; each is made again in `work` from `first` on.

    `tolerance` is the largest difference of scores, of vectors' values and of weights that counts
    as equal.
    """

    work: WorkFolder
    first: Step = Step.RUN
    tolerance: float = 1e-5
    outcomes: list[Outcome] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # path -> re-made path, or the path itself
    absent: dict[str, str] = field(default_factory=dict)  # path -> what names it

    def run(self, path: str) -> str:
        """Walk a run that search, rerank or fuse wrote; return what later steps are to read."""
        if path in self.places:
            return self.places[path]
        manifest = read_manifest(path, Kind.RUN)
        self.absent |= manifest.absent
        made = manifest.made_from
        changed = self.changed_file(path, manifest.contents.get("sha256"))
        if topics := made.get("topics"):
            queries = read_queries(topics["name"], None, made.get("qrels"))
            texts = (query[:2] for query in queries)
            changed += self.check(topics["name"], lambda: texts_sha256(texts) == topics["sha256"])
        model = self.model(made.get("model"), changed)
        runs = manifests.runs_of(made)
        for each in runs:
            changed += self.changed_file(each["name"], each["sha256"])
            self.run(each["name"])
        for each in manifests.indexes_of(made):
            self.folder(each["name"], each.get("sha256"))
        if made.get("encoded_queries"):
            self.folder(made["encoded_queries"])

        task = fuse if "runs" in made else rerank if runs else search
        return self.take(Step.RUN, path, changed, partial(task, manifest, model, self.places))

    def folder(self, path: str, checksums: Any = None) -> str:
        """Walk an index or a folder of vectors."""
        if path in self.places:
            return self.places[path]
        if not beside(path).is_file():
            lacks = "has no manifest" if Path(path).exists() else "is absent"
            changed = [self.absent.get(path, f"{path} {lacks}")]
            return self.take(Step.INDEX, path, changed, None)
        manifest = manifests.read_any_manifest(beside(path))
        self.absent |= manifest.absent
        changed = check(path, lambda: verify_folders([path]))
        if manifest.kind is Kind.VECTORS:
            return self.vectors(path, manifest, changed)
        changed += changed_vectors(path, manifest)
        if checksums is not None and checksums != manifest.contents.get("sha256"):
            changed.append(f"{path} was rebuilt after the run")
        made, settings = manifest.made_from, manifest.settings
        inputs, texts = [self.folder(each) for each in made.get("vectors", ())], made.get("texts")

        def has_same_texts() -> bool:
            digest, corpus = sha256(), corpus_of(settings["corpus"])
            bm25 = from_json(retrieval.Bm25Settings, settings["bm25"])
            for _ in bm25_texts(made["texts"], bm25, corpus, digest):
                pass
            return bool(digest.hexdigest() == manifest.contents["texts_sha256"])

        def build(output: str, resume: bool) -> None:
            chosen = from_json(retrieval.IndexSettings, select(settings, retrieval.IndexSettings))
            bm25 = from_json(retrieval.Bm25Settings, settings.get("bm25", {}))
            paths = retrieval.IndexPaths(
                input=tuple(inputs), corpus=texts, output=output, resume=resume
            )
            build_index(paths, chosen, bm25, corpus_of(settings.get("corpus", {})))

        if "texts_sha256" in manifest.contents:
            changed += self.check(made["texts"], has_same_texts)
        return self.take(Step.INDEX, path, changed, build if inputs or texts else None)

    def vectors(self, path: str, manifest: Manifest, changed: list[str]) -> str:
        """Walk a folder of vectors."""
        made, settings = manifest.made_from, manifest.settings
        model = self.model(made.get("model"), changed)
        known = "texts" in made and made.get("model")

        def check_texts() -> None:
            fields, finished = made["model"]["text"]["fields"], open_vectors(path).finished
            passages = read_passages(made["texts"], corpus_of(settings), fields)
            passages = islice(passages, finished[0].number * settings["block_size"], None)
            for block in finished:
                texts = ([p.docid, *map(p.field, fields)] for p in islice(passages, block.count))
                if texts_sha256(texts) != block.input_sha256:
                    where = f"first in the passages of {block.name}"
                    raise MismatchError(f"{made['texts']} has changed: {where}")

        def encode(output: str, resume: bool) -> None:
            from denserk.tasks.encode import encode as task

            source = "corpus" if settings["side"] == "passage" else "topics"
            asked = {"model": model, "output": output, "qrels": settings.get("qrels")}
            asked["resume"] = resume
            names = ("vector_dtype", "shard_id", "shard_num", "block_size")
            asked |= {source: made["texts"], **{name: settings[name] for name in names}}
            options = encoding.ModelOptions(*overrides(made), compute_of(made, settings))
            task(from_json(encoding.EncodeSettings, asked), corpus_of(settings), options)

        if known and settings["side"] == "passage":
            changed += self.check(made["texts"], check_texts)
        return self.take(Step.VECTORS, path, changed, encode if known else None)

    def model(self, description: Mapping[str, Any] | None, changed: list[str]) -> str:
        """Walk a model; add to `changed` if it is not the one described."""
        if description is None:
            return ""
        name = description["name"]
        if name not in self.places:
            self.take_model(name)
        now = fingerprint_of(name)
        if now != description["fingerprint"]:
            found = f"{name} is {'another model' if now else 'absent'}"
            changed.append(self.absent.get(name, found))
        return self.places[name]

    def take_model(self, name: str) -> None:
        """Walk a model that denserk trained, and what it started from; others stay as they are."""
        record = manifests.training_record(name)
        if record is None:
            self.places[name] = name
            return
        command = "finetune" if "finetune" in record else "pretrain"
        changed: list[str] = []
        for source in manifests.training_files(record):
            if source.get("sha256"):
                changed += self.changed_file(source["name"], source["sha256"])
        start = record[command].get("model")
        if start is not None and start not in self.places:
            self.take_model(start)

        def train(output: str, resume: bool) -> None:
            options = resolved_options(Path(name) / "config.yaml")
            options |= {"output": output, "resume": resume}
            if start:
                options["model"] = self.places[start]
            train_again(command, options)

        self.take(Step.MODEL, name, changed, train)

    def take(self, step: Step, path: str, changed: Iterable[str], remake: Remake | None) -> str:
        """Make a step again, if asked for, and compare; return the path for later steps."""
        result, said, equal = path, "-", True
        compare = getattr(self, f"compare_{step}")
        if ORDER.index(step) >= ORDER.index(self.first):
            if remake is None:
                said = "its making is not recorded"
            else:
                result = self.work.step_path(f"{len(self.outcomes) + 1}-{Path(path).name}")
                try:
                    remake(result, Path(result).exists())
                    said, equal = compare(path, result) if Path(path).exists() else ("absent", True)
                except DenserkError as error:
                    said, equal, result = f"failed: {error}", False, path
        self.outcomes.append(Outcome(step, path, tuple(changed), said, equal))
        self.places[path] = result
        return result

    def check(self, name: str, is_same: Callable[[], object]) -> list[str]:
        """Return a phrase if an input of a manifest is not as recorded, else nothing."""
        return [self.absent[name]] if name in self.absent else check(name, is_same)

    def changed_file(self, name: str, sha256: str | None) -> list[str]:
        """Return a phrase if a file is not the recorded one."""
        if sha256 is None:
            return [f"{name} has no recorded checksum"]
        if not Path(name).is_file():
            return [self.absent.get(name, f"{name} is absent")]
        return self.check(name, lambda: file_sha256(name) == sha256)

    def verdict(self, largest: float) -> tuple[str, bool]:
        """Describe the largest difference of numbers."""
        equal = largest <= self.tolerance
        return f"{'equal within' if equal else 'differs by'} {largest:.2g}", equal

    def compare_run(self, old: str, new: str) -> tuple[str, bool]:
        """Compare the bytes of runs, else scores: a passage that one lacks counts by its score."""
        if file_sha256(old) == file_sha256(new):
            return SAME, True
        before, after = read_run_scores(old), read_run_scores(new)
        if before.keys() != after.keys():
            return f"other queries: {len(before):,}, now {len(after):,}", False
        worst, where = 0.0, ""
        for qid, hits in before.items():
            found = after[qid]
            lowest = max(min(hits.values()), min(found.values()))
            for docid in hits.keys() | found.keys():
                apart = abs(hits.get(docid, lowest) - found.get(docid, lowest))
                if apart > worst:
                    worst, where = apart, f", first seen at query {qid}, passage {docid}"
        said, equal = self.verdict(worst)
        return f"{said}{'' if equal else where}", equal

    def compare_vectors(self, old: str, new: str) -> tuple[str, bool]:
        """Compare ids, and the values of vectors, block by block."""
        journals = [Path(each) / JOURNAL for each in (old, new)]
        if all(each.exists() for each in journals) and len({*map(file_sha256, journals)}) == 1:
            return SAME, True
        worst, count = 0.0, 0
        pairs = (read_vector_blocks(each).blocks() for each in (old, new))
        for before, after in zip_longest(*pairs):
            if before is None or after is None or list(before.ids) != list(after.ids):
                return f"other ids after vector {count:,}", False
            count += len(before.ids)
            apart = np.abs(np.asarray(before.vectors, np.float32) - after.vectors)
            worst = max(worst, float(apart.max(initial=0)))
        return self.verdict(worst)

    def compare_index(self, old: str, new: str) -> tuple[str, bool]:
        """Compare the files of indexes, else the vectors of flat ones."""
        before, after = (read_manifest(each, Kind.INDEX) for each in (old, new))
        if before.contents["sha256"] == after.contents["sha256"]:
            return SAME, True
        if before.settings.get("type") == "flat":
            return self.compare_vectors(old, new)
        return "other bytes", before.settings.get("type") != "bm25"

    def compare_model(self, old: str, new: str) -> tuple[str, bool]:
        """Compare the weights of models."""
        from safetensors.numpy import load_file

        if fingerprint_of(old) == fingerprint_of(new):
            return SAME, True
        worst = 0.0
        for path in sorted(Path(old).rglob("model.safetensors")):
            name = path.relative_to(old)
            if name.parts[0] in ("checkpoints", "best", "steps", "start"):
                continue
            before, after = load_file(path), load_file(Path(new) / name)
            if before.keys() != after.keys():
                return f"{name} has other tensors", False
            for key, values in before.items():
                worst = max(worst, float(np.abs(values - after[key]).max(initial=0)))
        return self.verdict(worst)


def check(name: str, is_same: Callable[[], object]) -> list[str]:
    """Return a phrase if an input is not as recorded, or the error of reading it; else nothing."""
    try:
        return [f"{name} has changed"] if is_same() is False else []
    except (DenserkError, OSError) as error:
        return [str(error)]


def changed_vectors(index: str, manifest: Manifest) -> list[str]:
    """Return a phrase for each folder of vectors that is not the one that an index was built of."""
    checksums = manifest.made_from.get(VECTORS_SHA256) or ()  # older indexes record none
    phrases = []
    for vectors, checksum in zip(manifest.made_from.get("vectors", ()), checksums, strict=False):
        journal = Path(vectors) / JOURNAL
        if checksum is not None and journal.is_file() and file_sha256(journal) != checksum:
            phrases.append(f"{vectors} was encoded again after {index} was built")
    return phrases


def fingerprint_of(name: str) -> str | None:
    """Return the fingerprint of a model; None if it is absent."""
    from denserk.io.model_files import find_model
    from denserk.models.model_folder import read_model_folder

    try:
        return read_model_folder(find_model(name)[1]).fingerprint()
    except DenserkError:
        return None


def reproduce(
    run: str,
    work: Path,
    first: Step,
    tolerance: float,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> list[Outcome]:
    """Walk a run, see `Reproduction`; return its steps, inputs before what is made from them.

    `work` is the folder of what is made again, which may be one of an earlier call: `overwrite`
    replaces it, `resume` continues it.
    """
    read_manifest(run, Kind.RUN)  # before anything is written
    folder = WorkFolder(work, run, first)
    folder.prepare(overwrite=overwrite, resume=resume)
    walked = Reproduction(folder, first, tolerance)
    walked.run(run)
    folder.complete()
    return walked.outcomes
