"""Runs of a model on benchmarks: each corpus is encoded and indexed once, each set searched.

runs/scifact.trec                       a run a suite, its manifest beside it
runs/corpora/beir-scifact/vectors       the vectors of a corpus, resumable block by block
runs/corpora/beir-scifact/index         its exact index
runs/manifest.json                      the model and the settings that all runs share
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denserk.errors import MismatchError
from denserk.formats.data_sets import download_errors, find_parts
from denserk.formats.files import write_errors
from denserk.formats.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    differences,
    file_sha256,
    read_manifest,
    write_manifest,
)
from denserk.formats.outputs import refuse_occupied
from denserk.index.build import build_index
from denserk.index.search import search
from denserk.modeling.checkpoints import find_model
from denserk.modeling.stored_model import read_model_folder
from denserk.settings.benchmarks import Benchmark, Corpus, MakeSettings, benchmarks, find_benchmarks
from denserk.settings.encoding import PUBLISHED_MODELS, ComputeSettings, EncodeSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.options import as_json
from denserk.settings.retrieval import (
    IndexPaths,
    IndexSettings,
    SearchPaths,
    SearchSettings,
)
from denserk.tasks.encode import encode

logger = logging.getLogger(__name__)

CORPORA = "corpora"
"""Where vectors and indexes stand in the folder of runs."""
LENGTHS = ("query_max_length", "passage_max_length")
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class _Model:
    """What is searched with: its name, what identifies its weights, and what it says of texts."""

    name: str
    fingerprint: str
    positions: int | None
    tells_join: bool


@dataclass(frozen=True)
class _Job:
    """All that the suites of one call share."""

    output: Path
    model: _Model
    settings: SearchSettings
    choice: MakeSettings
    representation: Mapping[str, Any]
    text: Mapping[str, Any]
    corpus: CorpusSettings
    compute: ComputeSettings

    def run_of(self, suite: Benchmark) -> Path:
        """Where the run of a suite goes."""
        return self.output / f"{suite.short}.trec"

    def folder_of(self, corpus: Corpus) -> Path:
        """Where the vectors and the index of a corpus go."""
        return self.output / CORPORA / corpus.name.replace("/", "-")

    def text_for(self, corpus: Corpus) -> dict[str, Any]:
        """The text settings of a corpus: by hand, then the suite's; the model's own for the rest.

        A suite's lengths end where the model's positions do.
        """
        limit = self.model.positions
        lengths = {
            name: min(getattr(corpus, name), limit or getattr(corpus, name)) for name in LENGTHS
        }
        join = {} if self.model.tells_join else {"join": corpus.join}
        return {**lengths, **join, **self.text}


def make_runs(
    names: Sequence[str],
    model: str,
    output: str,
    choice: MakeSettings = MakeSettings(),  # noqa: B008  (frozen)
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    corpus: CorpusSettings = CorpusSettings(),  # noqa: B008
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> None:
    """Encode, index and search every set of some benchmarks, one after the other.

    Args:
        names: benchmarks and groups.
        model: encodes passages and queries.
        output: the folder of the runs.
        choice: how deep, and what becomes of runs that exist.
        representation: fields of RepresentationSettings that replace the model's own.
        text: fields of TextSettings that replace the benchmarks' and the model's.
        corpus: how passages are read.
        compute: where and how precisely.

    Raises:
        UsageError: a part of a benchmark is missing (all of them are named), or the folder holds
            something and neither --resume nor --overwrite was given.
        MismatchError: the folder's runs were made with another model or other settings.
        InputError, OutputError, ModelError: see `denserk.errors`.
    """
    suites = find_benchmarks(names)
    found = find_parts(suites)
    settings = SearchSettings(hits=choice.hits, index_device=choice.index_device)
    made_by = _model_of(model)
    shared = (
        settings,
        choice,
        representation,
        text,
        corpus,
        compute,
    )
    job = _Job(Path(output), made_by, *shared)
    told = _begin(job)
    for position, suite in enumerate(suites):
        if choice.resume and _is_finished(job, suite):
            logger.info(f"{suite.name}: finished, kept")
        else:
            query, passage = (job.text_for(suite.corpus)[name] for name in LENGTHS)
            logger.info(
                f"{suite.name} ({position + 1} of {len(suites)}): queries of {query} tokens, "
                f"passages of {passage}"
            )
            _search(job, suite, found[suite.name])
        later = {other.corpus.name for other in suites[position + 1 :]}
        if choice.discard_vectors and suite.corpus.name not in later:
            shutil.rmtree(job.folder_of(suite.corpus), ignore_errors=True)
    contents = {"runs": sorted(suite.name for suite in _finished(job))}
    write_manifest(job.output, replace(told, complete=True, contents=contents))


def _model_of(model: str) -> _Model:
    name, folder = find_model(model)
    stored = read_model_folder(folder)
    entry = next((one for one in PUBLISHED_MODELS if one.hub_name == name), None)
    tells = stored.told or "join" in (entry.text if entry else NOTHING)
    return _Model(name, stored.fingerprint(), stored.passage.max_length, tells)


def _begin(job: _Job) -> Manifest:
    """The folder's manifest, unfinished; refuses a folder whose runs were made otherwise."""
    told = Manifest(
        Kind.RUNS,
        False,
        {
            "search": as_json(job.settings),
            "representation": _plain(job.representation),
            "text": _plain(job.text),
            "dtype": job.compute.dtype.value,
            **as_json(job.corpus),
        },
        {"model": {"name": job.model.name, "fingerprint": job.model.fingerprint}},
    )
    begun = (job.output / NAME).is_file()
    if job.choice.resume and begun:
        _refuse_changes(job.output, told)
    elif job.choice.overwrite and begun:
        _clear(job)
    else:
        refuse_occupied(job.output, overwrite=False, resumable=begun)
    with write_errors(job.output):
        job.output.mkdir(parents=True, exist_ok=True)
    write_manifest(job.output, told)
    return told


def _refuse_changes(output: Path, told: Manifest) -> None:
    begun = read_manifest(output, Kind.RUNS, unfinished=True)
    found = differences(begun.settings, told.settings)
    before, now = (m.made_from["model"] for m in (begun, told))
    if before["fingerprint"] != now["fingerprint"]:
        found.append(f"the model was {before['name']}, now {now['name']} with other weights")
    if found:
        raise MismatchError(
            f"the runs in {output} were made otherwise: {'; '.join(found)}",
            "choose another --output, or make all runs anew with --overwrite",
        )


def _clear(job: _Job) -> None:
    """Removes what this command made in the folder, and nothing else."""
    read_manifest(job.output, Kind.RUNS, unfinished=True)
    with write_errors(job.output):
        shutil.rmtree(job.output / CORPORA, ignore_errors=True)
        for suite in benchmarks().values():
            for run in (job.output / f"{suite.short}.{end}" for end in ("trec", "tsv", "jsonl")):
                if beside(run).is_file():
                    run.unlink(missing_ok=True)
                    beside(run).unlink()


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else getattr(value, "value", value)
        for name, value in given.items()
    }


def _is_finished(job: _Job, suite: Benchmark) -> bool:
    """Whether the run of a suite is there, whole and unchanged."""
    run = job.run_of(suite)
    if not run.is_file() or not beside(run).is_file():
        return False
    manifest = read_manifest(run, Kind.RUN, unfinished=True)
    return manifest.made_from.get("suite") == _named(suite) and (
        manifest.contents.get("sha256") == file_sha256(run)
    )


def _finished(job: _Job) -> Iterator[Benchmark]:
    return (suite for suite in benchmarks().values() if _is_finished(job, suite))


def _named(suite: Benchmark) -> dict[str, str]:
    """What a run's manifest says of its suite."""
    return {"name": suite.name, "corpus": suite.corpus.name}


def _search(job: _Job, suite: Benchmark, parts: Mapping[str, str]) -> None:
    """Makes the run of one suite, and whatever it needs that is not there yet."""
    text = job.text_for(suite.corpus)
    index = _index(job, suite, parts["corpus"], text)
    run = job.run_of(suite)
    rules = replace(
        job.settings,
        remove_query=job.settings.remove_query or suite.remove_query,
        max_passage=job.settings.max_passage or suite.max_passage,
    )
    asked = SearchPaths(
        index=(str(index),), topics=parts["topics"], model=job.model.name, output=str(run)
    )
    with download_errors(suite, "topics", parts["topics"]):
        search(asked, rules, job.representation, text, job.compute, own_precision=True)
    made = read_manifest(run, Kind.RUN)
    write_manifest(run, replace(made, made_from={**made.made_from, "suite": _named(suite)}))


def _index(job: _Job, suite: Benchmark, source: str, text: Mapping[str, Any]) -> Path:
    """The index of a suite's corpus, built unless this folder has it."""
    folder = job.folder_of(suite.corpus)
    vectors, index = folder / "vectors", folder / "index"
    if (index / NAME).is_file() and read_manifest(index, Kind.INDEX, unfinished=True).complete:
        return index
    asked = EncodeSettings(
        model=job.model.name, corpus=source, output=str(vectors), resume=vectors.is_dir()
    )
    with download_errors(suite, "corpus", source):
        encode(asked, job.corpus, job.representation, text, job.compute)
    paths = IndexPaths(input=(str(vectors),), output=str(index), resume=True)
    build_index(paths, IndexSettings())
    return index
