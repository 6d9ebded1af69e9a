"""ir_metadata of a run, derived from its manifest and those of its inputs.

Platform, implementation, method and data, by PRIMAD, in YAML, in version 0.1 of the schema of
ir-metadata.org. What manifests do not hold (actor, research goal, qrels) is empty or left out.
"""

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config import recorded
from denserk.config.languages import ENGLISH, Language, find_language
from denserk.config.options import as_json
from denserk.config.retrieval import Engine, IrMetadata, RankingSettings, StopWords, Ties
from denserk.errors import DenserkError
from denserk.io.files import open_binary
from denserk.io.manifest import (
    Kind,
    Manifest,
    Part,
    beside,
    bm25_language,
    can_have_manifest,
    corpora_of,
    describe_file,
    indexes_of,
    read_any_manifest,
    read_manifest,
    runs_of,
    training_files,
    training_record,
)
from denserk.io.written_files import IR_METADATA_SUFFIX, whole_binary
from denserk.version import __version__

ABSOLUTE_PATH = re.compile(r"(?:(?<![^=,])|(?<=hf:))/[^=,:]+")  # within a word of a command line
LIBRARIES = ("torch", "transformers", "faiss-cpu", "faiss-gpu", "bm25s", "openvino", "numpy")


def describe_run(
    output: str, settings: RankingSettings, made_from: Part, contents: Part, **further_settings: Any
) -> None:
    """Write manifest and ir_metadata of a finished run, unless it is a stream."""
    if not can_have_manifest(output):
        return
    ties = settings.ties or Ties.BREAK
    run_format = settings.format_of_run(output)
    run_settings = {
        **as_json(settings),
        "output_format": run_format.value,
        "ties": ties.value,
        **further_settings,
    }
    manifest = Manifest(Kind.RUN, True, run_settings, made_from, contents)
    if settings.ir_metadata is not IrMetadata.NONE:
        in_comments = settings.ir_metadata is IrMetadata.COMMENTS
        _write_ir_metadata(output, manifest, in_comments=in_comments)
    describe_file(output, manifest)


def _write_ir_metadata(output: str, manifest: Manifest, *, in_comments: bool) -> None:
    """Write the metadata of a run, at its start or in a file beside it."""
    import yaml

    text = yaml.safe_dump(ir_metadata(output, manifest), sort_keys=False)
    lines = ["ir_metadata.start", *text.splitlines(), "ir_metadata.end"]
    if in_comments:
        with whole_binary(output) as out, open_binary(output) as run:
            out.write("".join(f"# {line}\n" for line in lines).encode())
            shutil.copyfileobj(run, out)
    else:
        with whole_binary(f"{output}{IR_METADATA_SUFFIX}") as out:
            out.write("".join(f"{line}\n" for line in lines).encode())


def ir_metadata(output: str, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a run: paths are relative to its folder, or names alone."""
    public = partial(recorded.public_name, folder=Path(output).parent)
    stages = list(_stages(Path(output).name, manifest))
    training_data = _training_data([stage.get("model") for stage in stages], public)
    for stage in stages:
        for key in ("model", "topics", "corpus"):
            if stage.get(key):
                stage[key] = public(stage[key])
    indexing = _pop_first(stages, "indexing")
    topics = _pop_first(stages, "topics")
    corpus = _pop_first(stages, "corpus")
    command = shlex.join([Path(sys.argv[0]).name, *map(_public_word, sys.argv[1:])])
    return {
        "schema-version": 0.1,
        "run-version": 1.0,
        "tag": manifest.settings.get("tag", ""),
        "platform": _platform(),
        "research goal": {},  # readers expect all six components
        "implementation": {"executable": {"cmd": command}, "source": {"lang": ["python"]}},
        "method": _method(manifest.settings.get("ties"), indexing, stages),
        "actor": {},
        "data": _data(corpus, topics, training_data),
    }


def _method(
    ties: str | None, indexing: Part | None, stages: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return how a run was made: its order, its index if there was one, and its stages."""
    method: dict[str, Any] = {"automatic": True}
    if ties == "break":
        method["score ties"] = "passage ids descending, then strictly decreasing scores"
    else:
        method["score ties"] = "kept"
    if indexing:
        method["indexing"] = indexing
    method["retrieval"] = [_without_none(stage) for stage in stages]
    return method


def _data(
    corpus: str | None, topics: str | None, training_data: list[dict[str, str]]
) -> dict[str, Any]:
    """Return what a run was made of, as far as manifests name it."""
    collection = {}
    if corpus:
        collection["source"] = corpus
    if topics:
        collection["topics"] = topics
    data: dict[str, Any] = {"test collection": collection}
    if training_data:
        data["training data"] = training_data
    return data


def _platform() -> dict[str, Any]:
    """Return hardware, operating system and software of this machine."""
    cpu = {"architecture": platform.machine(), "number of cores": len(os.sched_getaffinity(0))}
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    libraries = []
    for library in LIBRARIES:
        with suppress(ModuleNotFoundError):
            libraries.append(f"{library}=={version(library)}")
    toolkit = f"denserk=={__version__}"
    return {
        "hardware": {"cpu": cpu, "ram": f"{ram:.0f} GB"},
        "operating system": {"kernel": platform.release()},
        "software": {"libraries": {"python": libraries}, "retrieval toolkit": [toolkit]},
    }


def _pop_first(stages: Iterable[dict[str, Any]], key: str) -> Any:
    """Remove a field from all stages, and return its first value that is not empty, if any."""
    values = [stage.pop(key, None) for stage in stages]
    return next(filter(None, values), None)


def _without_none(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stage.items() if value is not None}


def _training_data(
    models: Iterable[str | None], public: Callable[[str], str]
) -> list[dict[str, str]]:
    """Return names of the files that models were trained on, where their folders say so."""
    sources: dict[str, dict[str, str]] = {}
    for model in filter(None, models):
        for file in training_files(training_record(model) or {}):
            name = file["name"]
            sources[name] = {"name": Path(name).name, "source": public(name)}
    return list(sources.values())


def _public_word(word: str) -> str:
    """Return a word of a command line with absolute paths as they are seen from where it ran.

    A path may follow the name of an option, a label or another path: --index=/a, label=/a, /a,/b.
    """
    return ABSOLUTE_PATH.sub(lambda path: recorded.public_name(path[0], "."), word)


def _stages(name: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the stages of retrieval that made a run, the first one first."""
    made_from = manifest.made_from
    earlier_runs = runs_of(made_from)
    for run in earlier_runs:
        try:
            earlier_manifest = read_manifest(run["name"], Kind.RUN)
        except DenserkError:  # another toolkit's, or gone
            yield {"name": Path(run["name"]).name, "method": "unknown"}
        else:
            yield from _stages(Path(run["name"]).name, earlier_manifest)
    earlier_names = [Path(run["name"]).name for run in earlier_runs]
    if "runs" in made_from:
        fusion = manifest.settings["fusion"]
        yield {
            "name": name,
            "method": f"{fusion['method']} fusion",
            "interpolates": earlier_names,
            "weight": fusion["weights"],
        }
    elif earlier_runs:
        yield {
            "name": name,
            "method": "cross-encoder",
            "model": made_from["model"]["name"],
            "reranks": earlier_names[0],
        }
    else:
        yield _search_stage(name, made_from)


def _search_stage(name: str, made_from: Part) -> dict[str, Any]:
    """Return the stage of a run that searched an index or vectors."""
    topics = made_from.get("topics") or {}
    excluded = made_from.get("excluded") or {}
    index = _searched_index(made_from)
    if index.settings.get("bm25"):
        return {
            "name": name,
            "topics": topics.get("name"),
            "method": "BM25",
            "k1": index.settings["bm25"]["k1"],
            "b": index.settings["bm25"]["b"],
            "corpus": index.corpus,
            "excluded passages": excluded.get("passages"),
            "indexing": _analysis(index.settings, index.language),
        }
    model = made_from.get("model") or {}
    representation = model.get("representation") or {}
    return {
        "name": name,
        "topics": topics.get("name"),
        "method": f"dense: {representation.get('representation', 'vectors')}",
        "model": model.get("name"),
        "fingerprint": model.get("fingerprint"),
        "index": index.settings.get("type", "flat"),
        "corpus": index.corpus,
        "excluded passages": excluded.get("passages"),
    }


def _analysis(settings: Part, language: Language | None) -> dict[str, Any]:
    """Return how a BM25 index splits texts into terms."""
    bm25 = settings["bm25"]
    engine = settings["engine"]
    if language is None or language is ENGLISH:
        return {
            "tokenizer": engine,
            "stemmer": bm25["stemmer"],
            "stopwords": bm25["stopwords"],
        }
    if engine == Engine.LUCENE:
        analyzer = f"Lucene's for {language.name}"
        return {"tokenizer": engine, "stemmer": analyzer, "stopwords": analyzer}
    has_stop_words = language.stop_words is not None and bm25["stopwords"] != StopWords.NONE
    return {
        "tokenizer": f"{engine}, {language.terms}",
        "stemmer": language.stemmer,
        "stopwords": f"bm25s.stopwords, {language.stop_words}" if has_stop_words else "none",
    }


class _SearchedIndex(NamedTuple):
    """The settings of the first index that a run searched, its corpus's name and language."""

    settings: Part
    corpus: str | None
    language: Language | None = None  # of a BM25 index, if it was named or found


def _searched_index(made_from: Part) -> _SearchedIndex:
    """Return the first index that a run searched, by its manifest; an empty one if it is gone."""
    indexes = indexes_of(made_from)
    if not indexes:
        return _SearchedIndex({}, None)
    try:
        manifest = read_any_manifest(beside(indexes[0]["name"]))
        corpus = next((source.name for source in corpora_of(manifest)), None)
        language_name = bm25_language(manifest)
        language = None if language_name is None else find_language(language_name)
    except DenserkError:  # gone, or of another version
        return _SearchedIndex({}, None)
    return _SearchedIndex(manifest.settings, corpus, language)
