"""manifest.json: settings, inputs and contents of a folder or run; ir_metadata of a run.

Every folder that denserk writes has one, with `complete: false` until the last file is written;
readers reject an unfinished folder. Settings and fingerprints are passed along the chain model ->
vectors -> index -> run, so each step can reject what does not match.

The metadata of a run are derived from these: platform, implementation, method and data, by PRIMAD,
in YAML, in version 0.1 of the schema of ir-metadata.org. What manifests do not hold (actor,
research goal, qrels) is empty or left out.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk import __version__
from denserk.config import recorded
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, from_json, select
from denserk.config.retrieval import Engine, IrMetadata, Metric, RankingSettings, Ties
from denserk.errors import DenserkError, InputError, MismatchError, UsageError
from denserk.io.durability import flush_names
from denserk.io.files import (
    STREAM,
    open_binary,
    read_errors,
    read_file,
    readable_path,
    whole_binary,
    write_errors,
)
from denserk.io.locks import refuse_being_written

NAME = "manifest.json"
TRAINING_RECORD = "training.json"  # in the folder of a model that denserk trained
DTYPES = ("float16", "float32")  # of stored vectors
SUFFIX = ".ir_metadata.yaml"
SHOWN = 60  # characters of a wrong value or name that an error shows

Part = Mapping[str, Any]  # settings, inputs or contents
Description = Mapping[str, Any]  # of a model, by `TextEncoder.description`
# settings of text that queries and passages must share, or that only passages use
OF_PASSAGES = ("fields", "join", "passage_prefix")


class Kind(StrEnum):
    """What a manifest describes."""

    VECTORS = "vectors"
    INDEX = "index"
    RUN = "run"
    RUNS = "runs of suites"
    TRAINING = "training data"
    PRETRAINING = "pre-training data"
    TOKENS = "tokenised text"
    EXPANSIONS = "generated queries and continuations"
    START = "a model from nothing"
    REPRODUCTION = "what reproduce made again"

    @property
    def noun(self) -> str:
        """The kind in a sentence, with its article."""
        nouns = {Kind.VECTORS: "a folder of vectors", Kind.INDEX: "an index", Kind.RUN: "a run"}
        return nouns.get(self, str(self))

    @property
    def remedy(self) -> str | None:
        """What to type to make a folder of this kind."""
        remedies = {
            Kind.VECTORS: "denserk encode writes one",
            Kind.INDEX: "denserk index makes one of vectors, or of a corpus with --type bm25",
        }
        return remedies.get(self)


@dataclass(frozen=True)
class Manifest:
    """One manifest, in plain JSON."""

    kind: Kind
    complete: bool
    settings: Part = field(default_factory=dict)  # the options of the command
    made_from: Part = field(default_factory=dict)  # names and checksums of inputs
    contents: Part = field(default_factory=dict)  # counts and checksums
    version: str = __version__
    # of a manifest that was read: paths at which there is nothing, and what names them
    absent: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


# What a JSON value must be: a type; a range of whole numbers; a tuple of strings to choose from; a
# list with the rule of its items; or the rules of an object's fields, `...` for a rule of all of
# them. A field whose name ends in "?" may be absent or null.
Rule = Any
WORDS = {str: "a string", bool: "true or false", dict: "a JSON object", list: "a JSON array"}
COUNT, SIZE = range(2**63), range(1, 2**63)
_MODEL: Rule = {"name?": str, "fingerprint?": str, "representation?": dict, "text?": dict}
_MODEL |= {"queries_of?": _MODEL, "metric?": tuple(Metric)}
_SIZES = {"count?": COUNT, "dimension?": SIZE, "vectors_per_passage?": SIZE}
_ENGINE = {"engine?": tuple(Engine), "type?": str, "metric?": tuple(Metric)}
# rules of settings and of contents, by kind
_FIELDS: dict[Kind, tuple[Rule, Rule]] = {
    Kind.VECTORS: (
        {"shard_id?": COUNT, "shard_num?": SIZE, "block_size?": SIZE},
        {**_SIZES, "dtype?": DTYPES, "blocks?": COUNT, "journal_sha256?": str},
    ),
    Kind.INDEX: (
        {**_ENGINE, "factory?": str, "bm25?": dict},
        {**_SIZES, "factory?": str, "sha256?": {...: str}, "bytes?": {...: COUNT}},
    ),
    Kind.RUN: (dict, {"sha256?": str}),
}
EXPECTED, HINT = "a manifest that denserk wrote", "make it again with --overwrite"


def check(
    value: Any, rule: Rule, path: str | Path, hint: str | None = None, name: str = ""
) -> None:
    """Raise an InputError that names the first field of a value that does not obey its rule."""
    if isinstance(rule, range):
        fits, expected = type(value) is int and value in rule, f"a number from {rule.start:,} on"
    elif isinstance(rule, tuple):
        fits, expected = value in rule, ", ".join(rule)
    else:
        kind = type(rule) if isinstance(rule, dict | list) else rule
        fits, expected = isinstance(value, kind), WORDS.get(kind, "")
    if not fits:
        shown = repr(value)[:SHOWN]
        raise InputError(path, None, f"{name} that is {shown}" if name else shown, expected, hint)
    if isinstance(rule, list):
        value, rule = {str(n): item for n, item in enumerate(value)}, {...: rule[0]}
    if isinstance(rule, dict):
        for key, inner in (dict.fromkeys(value, rule[...]) if ... in rule else rule).items():
            field = key.removesuffix("?")
            place = f"{name}.{field}"[:SHOWN] if name else field
            if value.get(field) is not None:
                check(value[field], inner, path, hint, place)
            elif field == key:
                raise InputError(path, None, f"no {place}", "this field", hint)


def require_fields(path: str | Path, manifest: Manifest, part: str, *names: str) -> None:
    """Raise an InputError if a part of a folder's manifest lacks a field."""
    check(getattr(manifest, part), dict.fromkeys(names, object), beside(path), HINT, part)


def beside(path: str | Path) -> Path:
    """Return the path of the manifest of a folder, or of a file such as a run."""
    path = Path(path)
    return path / NAME if path.is_dir() else path.with_name(f"{path.name}.{NAME}")


def as_written(manifest: Manifest, folder: str | Path | None) -> dict[str, Any]:
    """Return a manifest as a JSON object for a file in `folder`, to which its names are relative.

    Without a folder, as in a stream, the names stay as they are.
    """
    settings, made_from, paths = manifest.settings, manifest.made_from, {}
    if folder is not None:
        paths = {recorded.MARK: recorded.RELATIVE}
        record = partial(recorded.record_name, folder=folder)
        settings = recorded.change_names(settings, record)
        made_from = recorded.change_names(made_from, record)
    return {
        "kind": manifest.kind,
        "complete": manifest.complete,
        **paths,
        "settings": settings,
        "made_from": made_from,
        "contents": manifest.contents,
        "version": manifest.version,
    }


def encoded(manifest: Manifest, folder: str | Path | None) -> bytes:
    """Return a manifest as JSON for a file in `folder`, see `as_written`."""
    written = as_written(manifest, folder)
    return orjson.dumps(written, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decoded(data: bytes | str, where: str | Path, names_from: str | Path | None = None) -> Manifest:
    """Parse a manifest; `where` names it in errors.

    Its names become paths, those of a file at `names_from`; without it they stay as they are.
    """
    try:
        values = orjson.loads(data)
    except ValueError as error:
        raise InputError(where, None, f"text that is not JSON ({error})", EXPECTED, HINT) from None
    rules = {"kind": tuple(Kind), "complete": bool, "version": str}
    check(values, {**rules, f"{recorded.MARK}?": (recorded.RELATIVE,)}, where, HINT)
    settings, contents = _FIELDS.get(values["kind"], (dict, dict))
    parts = {"settings": settings, "made_from": {"model?": _MODEL}, "contents": contents}
    check(values, parts, where, HINT)
    settings, made_from, absent = values["settings"], values["made_from"], {}
    if names_from is not None:
        names = recorded.Names(names_from, values)
        settings, made_from = names.located(settings), names.located(made_from)
        absent = names.absent
    return Manifest(
        Kind(values["kind"]),
        values["complete"],
        settings,
        made_from,
        values["contents"],
        values["version"],
        absent,
    )


def read_any_manifest(where: str | Path) -> Manifest:
    """Read a manifest file of any kind, complete or not."""
    return decoded(read_file(where), where, where)


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a folder or file."""
    where = beside(path)
    with whole_binary(where) as handle:
        handle.write(encoded(manifest, where.parent))


def read_manifest(path: str | Path, kind: Kind, *, unfinished: bool = False) -> Manifest:
    """Read the manifest of a folder or file, which must be of a `kind`, and complete by default."""
    where = beside(path)
    if not os.path.lexists(where):
        refuse_being_written(path)
        if not os.path.lexists(path):
            raise UsageError(f"{path}: no such file or folder")
        found = f"{path} has no {NAME}: it is not {kind.noun} that denserk wrote"
        raise UsageError(found, kind.remedy)
    manifest = read_any_manifest(where)
    if manifest.kind is not kind:
        found = f"{path} is {manifest.kind.noun}, not {kind.noun}"
        raise MismatchError(found, kind.remedy)
    if not manifest.complete and not unfinished:
        refuse_being_written(path)
        found = f"{path} is unfinished: the command that writes it was interrupted"
        raise MismatchError(found, "run that command again with --resume")
    return manifest


def differences(old: Part, new: Part, prefix: str = "") -> list[str]:
    """Describe the differences between two parts of manifests, one phrase per value.

    Two names of one file are equal.

    >>> differences({"model": {"name": "a"}, "k": 1}, {"model": {"name": "b"}, "k": 1})
    ["model.name was 'a', now 'b'"]
    """
    phrases = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            phrases += differences(before, after, f"{prefix}{key}.")
        elif not _are_same(key, before, after):
            phrases.append(f"{prefix}{key} was {before!r}, now {after!r}")
    return phrases


def _are_same(key: str, before: Any, after: Any) -> bool:
    if before == after:
        return True
    one = recorded.change_names({key: before}, recorded.same_place)
    other = recorded.change_names({key: after}, recorded.same_place)
    return one == other


def file_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with read_errors(path), Path(readable_path(path)).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def has_manifest(output: str) -> bool:
    """Return whether an output file has a manifest beside it: streams and devices have none."""
    return output != STREAM and (Path(output).is_file() or not Path(output).exists())


def forget_file(output: str) -> None:
    """Remove the manifest, and the ir_metadata, of a file that is about to be replaced."""
    if has_manifest(output):
        with write_errors(output):
            described_by = (beside(output), Path(f"{output}{SUFFIX}"))
            stale = [path for path in described_by if os.path.lexists(path)]
            for path in stale:
                path.unlink(missing_ok=True)
            if stale:
                flush_names(stale[0].parent)  # before the file is another one


def describe_file(output: str, manifest: Manifest) -> None:
    """Write the manifest of a finished file beside it, with its checksum."""
    if has_manifest(output):
        contents = {**manifest.contents, "sha256": file_sha256(output)}
        write_manifest(output, replace(manifest, contents=contents))


def vectors_per_passage(manifest: Manifest | None) -> int:
    """Return how many consecutive rows belong to one passage."""
    return 1 if manifest is None else manifest.contents.get("vectors_per_passage") or 1


def model_of(manifest: Manifest | None) -> Description | None:
    """Return the description of the model that a manifest names."""
    return None if manifest is None else manifest.made_from.get("model")


def metric_of(manifest: Manifest | None) -> Metric:
    """Return how the model of a manifest compares vectors: by inner product if it does not say."""
    return metric_of_model(model_of(manifest))


def metric_of_model(model: Description | None) -> Metric:
    """Return how a described model compares vectors: by inner product if it does not say."""
    return Metric((model or {}).get("metric") or Metric.INNER)


class CorpusSource(NamedTuple):
    """A corpus that a manifest names, and how it was read."""

    name: str
    settings: CorpusSettings
    absent: str | None = None  # where it is not; None if it is there, or is no path


def corpora_of(manifest: Manifest | None) -> Iterator[CorpusSource]:
    """Yield the corpora behind an index or vectors.

    Those of an index of vectors are in the manifests of the vectors, where these still exist.
    """
    if manifest is None:
        return
    name = manifest.made_from.get("texts")
    if name is not None:
        values = manifest.settings.get("corpus") or manifest.settings
        settings = from_json(CorpusSettings, select(values, CorpusSettings))
        yield CorpusSource(name, settings, manifest.absent.get(name))
    for folder in manifest.made_from.get("vectors", ()):
        if Path(folder).is_dir() and beside(folder).is_file():
            yield from corpora_of(read_manifest(folder, Kind.VECTORS))


def indexes_of(made_from: Part) -> list[Mapping[str, Any]]:
    """Return the indexes, or the folders of vectors, that a run searched."""
    found = made_from.get("index") or []
    return found if isinstance(found, list) else [found]


def runs_of(made_from: Part) -> list[Mapping[str, Any]]:
    """Return the runs that a run was fused or reranked from."""
    return [*made_from.get("runs", ()), *filter(None, [made_from.get("run")])]


def training_record(folder: str | Path) -> dict[str, Any] | None:
    """Return the training.json of a model folder, its names as paths; None if it has none."""
    path = Path(folder) / TRAINING_RECORD
    if not path.is_file():
        return None
    try:
        record = orjson.loads(read_file(path))
    except ValueError as error:
        raise InputError(path, None, f"text that is not JSON ({error})", "JSON") from None
    check(record, {"data?": {...: dict}}, path)
    return recorded.Names(path, record).located(record)


def training_files(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield name and checksum of each file that a training.json names."""
    for files in record.get("data", {}).values():
        yield from (file for file in files.values() if isinstance(file, dict))


def refuse_other_model(
    one: Description | None, other: Description | None, what: str, hint: str
) -> None:
    """Raise a MismatchError for vectors of two models or encodings, if both are known.

    `what` names the vectors in the message: "the index idx and the queries q".
    """
    if one is None or other is None:
        return
    found = []
    if one.get("fingerprint") != other.get("fingerprint"):
        found.append(f"other weights: {one.get('name')} and {other.get('name')}")
    if len({each["int8"].get("sha256") for each in (one, other) if each.get("int8")}) > 1:
        found.append("int8 calibrated on other texts")
    parts = []
    for each in (one, other):
        text = {name: (each.get("text") or {}).get(name) for name in OF_PASSAGES}
        parts.append({"representation": each.get("representation") or {}, "text": text})
    if found := found + differences(parts[0], parts[1]):
        raise MismatchError(f"{what} were encoded differently: {'; '.join(found)}", hint)


def common_model(sources: Iterable[tuple[str, Manifest | None]]) -> Description | None:
    """Return the model that encoded all sources, given by name; None if a manifest names none."""
    models = [(name, model_of(manifest)) for name, manifest in sources]
    first, expected = models[0]
    for name, model in models[1:]:
        refuse_other_model(expected, model, f"{first} and {name}", "index vectors of one model")
    return None if any(model is None for _, model in models) else expected


# ir_metadata

ABSOLUTE_PATH = re.compile(r"(?:(?<![^=,])|(?<=hf:))/[^=,:]+")  # within a word of a command line
LIBRARIES = ("torch", "transformers", "faiss-cpu", "faiss-gpu", "bm25s", "openvino", "numpy")


def describe_run(
    output: str, settings: RankingSettings, made_from: Part, contents: Part, **more: Any
) -> None:
    """Write manifest and ir_metadata of a finished run, unless it is a stream."""
    if not has_manifest(output):
        return
    ties = settings.ties or Ties.BREAK
    recorded = {**as_json(settings), "ties": ties.value, **more}
    manifest = Manifest(Kind.RUN, True, recorded, made_from, contents)
    if settings.ir_metadata is not IrMetadata.NONE:
        import yaml

        text = yaml.safe_dump(ir_metadata(output, manifest), sort_keys=False)
        lines = ["ir_metadata.start", *text.splitlines(), "ir_metadata.end"]
        if settings.ir_metadata is IrMetadata.COMMENTS:
            with whole_binary(output) as out, open_binary(output) as run:
                out.write("".join(f"# {line}\n" for line in lines).encode())
                shutil.copyfileobj(run, out)
        else:
            with whole_binary(f"{output}{SUFFIX}") as out:
                out.write("".join(f"{line}\n" for line in lines).encode())
    describe_file(output, manifest)


def ir_metadata(output: str, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a run: paths are relative to its folder, or names alone."""
    public = partial(recorded.public_name, folder=Path(output).parent)
    stages = [*_stages(Path(output).name, manifest)]
    training_data = _training_data([stage.get("model") for stage in stages], public)
    for stage in stages:
        for key in {"model", "topics", "corpus"} & stage.keys():
            stage[key] = stage[key] and public(stage[key])
    indexing, topics, corpus = (
        next(filter(None, [stage.pop(name, None) for stage in stages]), None)
        for name in ("indexing", "topics", "corpus")
    )
    collection = {"source": corpus, "topics": topics}
    command = shlex.join([Path(sys.argv[0]).name, *map(_public_word, sys.argv[1:])])
    cpu = {"architecture": platform.machine(), "number of cores": len(os.sched_getaffinity(0))}
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    libraries, toolkit = [], f"denserk=={__version__}"
    for library in LIBRARIES:
        with suppress(ModuleNotFoundError):
            libraries.append(f"{library}=={version(library)}")
    return {
        "schema-version": 0.1,
        "run-version": 1.0,
        "tag": manifest.settings.get("tag", ""),
        "platform": {
            "hardware": {"cpu": cpu, "ram": f"{ram:.0f} GB"},
            "operating system": {"kernel": platform.release()},
            "software": {"libraries": {"python": libraries}, "retrieval toolkit": [toolkit]},
        },
        "research goal": {},  # readers expect all six components
        "implementation": {"executable": {"cmd": command}, "source": {"lang": ["python"]}},
        "method": {
            "automatic": True,
            "score ties": "passage ids descending, then strictly decreasing scores"
            if manifest.settings.get("ties") == "break"
            else "kept",
            **({"indexing": indexing} if indexing else {}),
            "retrieval": [{k: v for k, v in s.items() if v is not None} for s in stages],
        },
        "actor": {},
        "data": {
            "test collection": {name: value for name, value in collection.items() if value},
            **({"training data": training_data} if training_data else {}),
        },
    }


def _training_data(
    models: Iterable[str | None], public: Callable[[str], str]
) -> list[dict[str, str]]:
    """Return names of the files that models were trained on, where their folders say so."""
    sources: dict[str, dict[str, str]] = {}
    for model in filter(None, models):
        for file in training_files(training_record(model) or {}):
            name = file["name"]
            sources[name] = {"name": Path(name).name, "source": public(name)}
    return [*sources.values()]


def _public_word(word: str) -> str:
    """Return a word of a command line with absolute paths as they are seen from where it ran.

    A path may follow the name of an option, a label or another path: --index=/a, label=/a, /a,/b.
    """
    return ABSOLUTE_PATH.sub(lambda path: recorded.public_name(path[0], "."), word)


def _stages(name: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the stages of retrieval that made a run, the first one first."""
    made, model = manifest.made_from, manifest.made_from.get("model") or {}
    earlier = runs_of(made)
    for run in earlier:
        try:
            before = read_manifest(run["name"], Kind.RUN)
        except DenserkError:  # another toolkit's, or gone
            yield {"name": Path(run["name"]).name, "method": "unknown"}
        else:
            yield from _stages(Path(run["name"]).name, before)
    names = [Path(run["name"]).name for run in earlier]
    if "runs" in made:
        fusion = manifest.settings["fusion"]
        method, weights = f"{fusion['method']} fusion", fusion["weights"]
        yield {"name": name, "method": method, "interpolates": names, "weight": weights}
    elif earlier:
        yield {"name": name, "method": "cross-encoder", "model": model["name"], "reranks": names[0]}
    else:
        settings: Part = {}
        corpus = None
        for each in indexes_of(made)[:1]:
            where = beside(each["name"])
            with suppress(DenserkError):  # gone, or of another version
                index = read_any_manifest(where)
                corpus = next((source.name for source in corpora_of(index)), None)
                settings = index.settings
        stage = {"name": name, "topics": (made.get("topics") or {}).get("name")}
        if bm25 := settings.get("bm25"):
            analysis = {name: bm25[name] for name in ("stemmer", "stopwords")}
            analysis = {"tokenizer": settings["engine"], **analysis}
            scoring = {"k1": bm25["k1"], "b": bm25["b"], "corpus": corpus, "indexing": analysis}
            yield {**stage, "method": "BM25", **scoring}
        else:
            dense = (model.get("representation") or {}).get("representation", "vectors")
            encoder = {"model": model.get("name"), "fingerprint": model.get("fingerprint")}
            searched = {"index": settings.get("type", "flat"), "corpus": corpus}
            yield {**stage, "method": f"dense: {dense}", **encoder, **searched}
