"""manifest.json: settings, inputs and contents of a folder or run.

Every folder that denserk writes has one, with `complete: false` until the last file is written;
readers reject an unfinished folder. Settings and fingerprints are passed along the chain model ->
vectors -> index -> run, so each step can reject what does not match.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk.config import recorded
from denserk.config.encoding import Backend, Dtype, Representation
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json, select
from denserk.config.retrieval import Engine, Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.file_errors import read_errors
from denserk.io.files import STREAM, read_file
from denserk.io.locks import reject_being_written
from denserk.io.near_paths import no_such_path
from denserk.io.outputs import MANIFEST, TAKEN, is_free, reject_occupied
from denserk.io.outputs import TRAINING_RECORD as TRAINING_RECORD
from denserk.io.pipes import readable_path
from denserk.io.short_texts import first_names
from denserk.io.written_files import MANIFEST_SUFFIX, whole_binary
from denserk.version import __version__

DTYPES = ("float16", "float32")  # of stored vectors
INT8 = "int8"  # the precision of quantised models, in messages
SHOWN = 60  # characters of a wrong value or name that an error shows

Part = Mapping[str, Any]  # settings, inputs or contents
Description = Mapping[str, Any]  # of a model, by `TextEncoder.description`
# settings of a model's text without those of queries alone and without limits of length
COMPARED_TEXT_SETTINGS = ("fields", "join", "passage_prefix")


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
    DRAW = "a random draw of queries"
    CHOICE = "a choice of a retriever"

    @property
    def noun(self) -> str:
        """The kind in a sentence, with its article."""
        nouns = {
            Kind.VECTORS: "a folder of vectors",
            Kind.INDEX: "an index",
            Kind.RUN: "a run",
            Kind.RUNS: "a folder of runs on benchmarks",
        }
        return nouns.get(self, str(self))

    @property
    def remedy(self) -> str | None:
        """What to type to make a folder of this kind."""
        remedies = {
            Kind.VECTORS: "denserk encode writes one",
            Kind.INDEX: "denserk index makes one of vectors, or of a corpus with --type bm25",
            Kind.DRAW: "denserk eval RUN... --draw N --output FILE writes one",
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
    # of a manifest that was read: the paths at which there is nothing, each with the message that
    # says which file names it
    absent: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


# What a JSON value must be: a type; a range of whole numbers; a tuple of strings to choose from; a
# list with the rule of its items; or the rules of an object's fields, `...` for a rule of all of
# them. A field whose name ends in "?" may be absent or null.
Rule = Any
WORDS = {str: "a string", bool: "true or false", dict: "a JSON object", list: "a JSON array"}
COUNT = range(2**63)
SIZE = range(1, 2**63)
_MODEL: Rule = {
    "name?": str,
    "fingerprint?": str,
    "base_url?": str,  # of a model behind a URL
    "representation?": dict,
    "text?": dict,
    "queries_of?": dict,  # of a model again: see below
    "metric?": tuple(Metric),
    "dtype?": tuple(Dtype),
    "head_dtype?": tuple(Dtype),
    "certificate?": dict,
    "backend?": (Backend.TORCH, Backend.OPENVINO),
}
_MODEL["queries_of?"] = _MODEL
_SIZES = {"count?": COUNT, "dimension?": SIZE, "vectors_per_passage?": SIZE}


class _FieldRules(NamedTuple):
    """The rules of the fields in two parts of a manifest."""

    settings: Rule = dict
    contents: Rule = dict


# by kind; of other kinds, the parts are objects of any fields
_FIELD_RULES = {
    Kind.VECTORS: _FieldRules(
        settings={
            "shard_id?": COUNT,
            "shard_num?": SIZE,
            "block_size?": SIZE,
            "batch_tokens?": SIZE,
        },
        contents={**_SIZES, "dtype?": DTYPES, "blocks?": COUNT, "journal_sha256?": str},
    ),
    Kind.INDEX: _FieldRules(
        settings={
            "engine?": tuple(Engine),
            "type?": str,
            "metric?": tuple(Metric),
            "factory?": str,
            "bm25?": dict,
        },
        contents={
            **_SIZES,
            "factory?": str,
            "language?": str,
            "sha256?": {...: str},
            "bytes?": {...: COUNT},
        },
    ),
    Kind.RUN: _FieldRules(contents={"sha256?": str}),
}
EXPECTED_MANIFEST = "a manifest that denserk wrote"
REMAKE_HINT = "make it again with --overwrite"


def check(
    value: Any, rule: Rule, path: str | Path, hint: str | None = None, name: str = ""
) -> None:
    """Raise an InputError that names the first field of a value that does not obey its rule."""
    if not _obeys(value, rule):
        shown = repr(value)[:SHOWN]
        found = f"{name} that is {shown}" if name else shown
        raise InputError(path, None, found, _in_words(rule), hint)
    if isinstance(rule, list):
        items = {str(number): item for number, item in enumerate(value)}
        _check_fields(items, {...: rule[0]}, path, hint, parent=name)
    elif isinstance(rule, dict):
        _check_fields(value, rule, path, hint, parent=name)


def _obeys(value: Any, rule: Rule) -> bool:
    """Return whether a value obeys its rule, apart from its fields and items."""
    if isinstance(rule, range):
        return type(value) is int and value in rule
    if isinstance(rule, tuple):
        return value in rule
    return isinstance(value, _type_of(rule))


def _in_words(rule: Rule) -> str:
    """Return what a rule expects, for a message."""
    if isinstance(rule, range):
        return f"a number from {rule.start:,} on"
    if isinstance(rule, tuple):
        return ", ".join(rule)
    return WORDS.get(_type_of(rule), "")


def _type_of(rule: Rule) -> type:
    """Return the type of the values that a rule is for: a dict or list if the rule is one."""
    return type(rule) if isinstance(rule, dict | list) else rule


def _check_fields(
    values: Mapping[str, Any],
    rules: Mapping[Any, Rule],
    path: str | Path,
    hint: str | None,
    parent: str,
) -> None:
    """Raise an InputError for the first field that is absent or does not obey its rule.

    `parent` is the name of the field that has these fields, "" for the whole value.
    """
    if ... in rules:
        rules = dict.fromkeys(values, rules[...])
    for key, rule in rules.items():
        field = key.removesuffix("?")
        name = f"{parent}.{field}"[:SHOWN] if parent else field
        if values.get(field) is not None:
            check(values[field], rule, path, hint, name)
        elif not key.endswith("?"):
            raise InputError(path, None, f"no {name}", "this field", hint)


def require_fields(path: str | Path, manifest: Manifest, part: str, *names: str) -> None:
    """Raise an InputError if a part of a folder's manifest ("contents") lacks a field."""
    any_values = dict.fromkeys(names, object)
    check(getattr(manifest, part), any_values, beside(path), REMAKE_HINT, part)


def beside(path: str | Path) -> Path:
    """Return the path of the manifest of a folder, or of a file such as a run."""
    path = Path(path)
    if path.is_dir():
        return path / MANIFEST
    return path.with_name(f"{path.name}{MANIFEST_SUFFIX}")


def as_written(manifest: Manifest, folder: str | Path | None) -> dict[str, Any]:
    """Return a manifest as a JSON object for a file in `folder`, to which its names are relative.

    Without a folder, as in a stream, the names stay as they are.
    """
    settings = manifest.settings
    made_from = manifest.made_from
    marker = {}
    if folder is not None:
        marker = {recorded.MARK: recorded.RELATIVE}
        record = partial(recorded.record_name, folder=folder)
        settings = recorded.change_names(settings, record)
        made_from = recorded.change_names(made_from, record)
    return {
        "kind": manifest.kind,
        "complete": manifest.complete,
        **marker,
        "settings": settings,
        "made_from": made_from,
        "contents": manifest.contents,
        "version": manifest.version,
    }


def encoded(manifest: Manifest, folder: str | Path | None) -> bytes:
    """Return a manifest as JSON for a file in `folder`, see `as_written`."""
    written = as_written(manifest, folder)
    return orjson.dumps(written, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decoded(
    data: bytes | str, source: str | Path, names_from: str | Path | None = None
) -> Manifest:
    """Parse a manifest; `source` names it in errors.

    The names of files in it become paths, found from the file `names_from` that holds it; without
    one, as in a stream, they stay as they are.
    """
    try:
        values = orjson.loads(data)
    except ValueError as error:
        found = f"text that is not JSON ({error})"
        raise InputError(source, None, found, EXPECTED_MANIFEST, REMAKE_HINT) from None
    _check_manifest(values, source)
    manifest = Manifest(
        kind=Kind(values["kind"]),
        complete=values["complete"],
        settings=values["settings"],
        made_from=values["made_from"],
        contents=values["contents"],
        version=values["version"],
    )
    if names_from is None:
        return manifest
    names = recorded.Names(names_from, values)
    return replace(
        manifest,
        settings=names.located(manifest.settings),
        made_from=names.located(manifest.made_from),
        absent=names.absent,
    )


def _check_manifest(values: Any, source: str | Path) -> None:
    """Raise an InputError for the first field of a manifest that is absent or wrong."""
    rules_of_all = {
        "kind": tuple(Kind),
        "complete": bool,
        "version": str,
        f"{recorded.MARK}?": (recorded.RELATIVE,),
    }
    check(values, rules_of_all, source, REMAKE_HINT)
    field_rules = _FIELD_RULES.get(values["kind"], _FieldRules())
    rules_of_kind = {
        "settings": field_rules.settings,
        "made_from": {"model?": _MODEL},
        "contents": field_rules.contents,
    }
    check(values, rules_of_kind, source, REMAKE_HINT)


def read_any_manifest(file: str | Path) -> Manifest:
    """Read a manifest file of any kind, complete or not."""
    return decoded(read_file(file), source=file, names_from=file)


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a folder or file."""
    manifest_file = beside(path)
    with whole_binary(manifest_file) as handle:
        handle.write(encoded(manifest, manifest_file.parent))


def read_manifest(path: str | Path, kind: Kind, *, unfinished: bool = False) -> Manifest:
    """Read the manifest of a folder or file, which must be of a `kind`, and complete by default."""
    manifest_file = beside(path)
    if not os.path.lexists(manifest_file):
        reject_being_written(path)
        if not os.path.lexists(path):
            raise no_such_path(path, f"{path}: no such file or folder")
        message = f"{path} has no {MANIFEST}: it is not {kind.noun} that denserk wrote"
        raise UsageError(message, kind.remedy)
    manifest = read_any_manifest(manifest_file)
    if manifest.kind is not kind:
        message = f"{path} is {manifest.kind.noun}, not {kind.noun}"
        raise MismatchError(message, kind.remedy)
    if not manifest.complete and not unfinished:
        reject_being_written(path)
        message = f"{path} is unfinished: the command that writes it was interrupted"
        raise MismatchError(message, "run that command again with --resume")
    return manifest


def started_manifest(
    folder: str | Path, kind: Kind, *, overwrite: bool, resume: bool
) -> Manifest | None:
    """Return the manifest of a folder that an earlier call of a command started, if there is one.

    It is for commands that decide by themselves what they remove of an old folder. Raises an error
    for a folder of anything else, and for one that may be neither replaced nor continued.
    """
    path = Path(folder)
    if (path / MANIFEST).is_file():
        started = read_manifest(path, kind, unfinished=True)
        if not (overwrite or resume):
            raise UsageError(f"{folder} is not empty: it is {kind.noun}", TAKEN)
        return started
    reject_occupied(path, overwrite=True)  # a file, or what denserk did not write
    if path.is_dir() and not is_free(path):
        raise UsageError(f"{folder} is not empty, and not {kind.noun}", "choose another --output")
    return None


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
    """Return whether two values of a field are equal, or name one file."""
    if before == after:
        return True
    files_before = recorded.change_names({key: before}, recorded.same_place)
    files_after = recorded.change_names({key: after}, recorded.same_place)
    return files_before == files_after


def file_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file, or of what came through a pipe."""
    with read_errors(path), Path(readable_path(path)).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def can_have_manifest(output: str) -> bool:
    """Return whether a manifest is written beside an output: not beside streams and devices."""
    return output != STREAM and (Path(output).is_file() or not Path(output).exists())


def describe_file(output: str, manifest: Manifest) -> None:
    """Write the manifest of a finished file beside it, with its checksum."""
    if can_have_manifest(output):
        contents = {**manifest.contents, "sha256": file_sha256(output)}
        write_manifest(output, replace(manifest, contents=contents))


def vectors_per_passage(manifest: Manifest | None) -> int:
    """Return how many consecutive rows belong to one passage."""
    if manifest is None:
        return 1
    return manifest.contents.get("vectors_per_passage") or 1


def model_of(manifest: Manifest | None) -> Description | None:
    """Return the description of the model that a manifest names."""
    return None if manifest is None else manifest.made_from.get("model")


def metric_of(manifest: Manifest | None) -> Metric:
    """Return how the model of a manifest compares vectors: by inner product if it does not say."""
    return metric_of_model(model_of(manifest))


def metric_of_model(model: Description | None) -> Metric:
    """Return how a described model compares vectors: by inner product if it does not say."""
    if model is None:
        return Metric.INNER
    return Metric(model.get("metric") or Metric.INNER)


class CorpusSource(NamedTuple):
    """A corpus that a manifest names, and how it was read."""

    name: str
    settings: CorpusSettings
    absent: str | None = None  # message of a path at which there is nothing, else None


def corpora_of(manifest: Manifest | None) -> Iterator[CorpusSource]:
    """Yield the corpora behind an index or vectors.

    Those of an index of vectors are in the manifests of the vectors, where these still exist.
    """
    if manifest is None:
        return
    name = manifest.made_from.get("texts")
    if name is not None:
        # a BM25 index has them as a group, vectors have them among those of `encode`
        values = manifest.settings.get("corpus") or manifest.settings
        settings = from_json(CorpusSettings, select(values, CorpusSettings))
        yield CorpusSource(name, settings, manifest.absent.get(name))
    for folder in manifest.made_from.get("vectors", ()):
        if Path(folder).is_dir() and beside(folder).is_file():
            yield from corpora_of(read_manifest(folder, Kind.VECTORS))


def bm25_language(manifest: Manifest | None) -> str | None:
    """Return the language of a BM25 index: the one that was detected, named, or neither."""
    if manifest is None:
        return None
    detected_language: str | None = manifest.contents.get("language")
    named_language: str | None = manifest.settings.get("bm25", {}).get("language")
    return named_language if detected_language is None else detected_language


def indexes_of(made_from: Part) -> list[Mapping[str, Any]]:
    """Return the indexes, or the folders of vectors, that a run searched."""
    indexes = made_from.get("index") or []
    return indexes if isinstance(indexes, list) else [indexes]


def runs_of(made_from: Part) -> list[Mapping[str, Any]]:
    """Return the runs that a run was fused or reranked from."""
    runs = list(made_from.get("runs", ()))
    if made_from.get("run"):
        runs.append(made_from["run"])
    return runs


def corpora_of_run(run: str | Path) -> Iterator[CorpusSource]:
    """Yield the corpora of the indexes that a run comes from, as far as manifests lead there."""
    pending: list[str | Path] = [run]
    visited = set()
    while pending:
        run_manifest = beside(pending.pop())
        if run_manifest in visited or not run_manifest.is_file():
            continue
        visited.add(run_manifest)
        made_from = read_any_manifest(run_manifest).made_from
        for index in indexes_of(made_from):
            index_manifest = beside(index.get("name") or "")
            if index_manifest.is_file():
                yield from corpora_of(read_any_manifest(index_manifest))
        for source in runs_of(made_from):
            pending.append(source.get("name") or "")


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
    for files_of_part in record.get("data", {}).values():
        for file in files_of_part.values():
            if isinstance(file, dict):  # else no file, such as an option that was not given
                yield file


def reject_other_model(
    model: Description | None, other_model: Description | None, vectors: str, hint: str
) -> None:
    """Raise a MismatchError for vectors of two models or encodings, if both are known.

    `vectors` names them in the message: "the index idx and the queries q".
    """
    if model is None or other_model is None:
        return
    phrases = []
    if model.get("fingerprint") != other_model.get("fingerprint"):
        phrases.append(f"other weights: {model.get('name')} and {other_model.get('name')}")
    int8 = model.get("int8") or {}
    other_int8 = other_model.get("int8") or {}
    # vectors of an int8 model may meet those of the model that was quantised
    if int8 and other_int8 and int8.get("sha256") != other_int8.get("sha256"):
        phrases.append("int8 calibrated on other texts")
    phrases += differences(_passage_encoding(model), _passage_encoding(other_model))
    if phrases:
        raise MismatchError(f"{vectors} were encoded differently: {'; '.join(phrases)}", hint)


def _passage_encoding(model: Description) -> Part:
    """Return the settings of a model that two folders of its vectors must share."""
    text = model.get("text") or {}
    return {
        "representation": model.get("representation") or {},
        "text": {name: text.get(name) for name in COMPARED_TEXT_SETTINGS},
    }


def common_model(sources: Iterable[tuple[str, Manifest | None]]) -> Description | None:
    """Return the model that encoded all sources, one or more; None if a manifest names none."""
    models = [(name, model_of(manifest)) for name, manifest in sources]
    first_name, first_model = models[0]
    for name, model in models[1:]:
        vectors = f"{first_name} and {name}"
        reject_other_model(first_model, model, vectors, "index vectors of one model")
    if any(model is None for _, model in models):
        return None
    return first_model


def precision_of(model: Description | None) -> str | None:
    """Return the precision in which a model computed, None if it is not recorded.

    It is int8 for a quantised model. That of agg's projection to the vocabulary is named if it is
    another one.

    >>> precision_of({"dtype": "float32", "head_dtype": "bfloat16", "representation": {}})
    'float32'
    """
    if model is None or model.get("dtype") is None:
        return None
    if model.get("int8"):
        return INT8
    dtype: str = model["dtype"]
    head_dtype = model.get("head_dtype") or dtype
    representation = (model.get("representation") or {}).get("representation")
    if representation != Representation.AGG or head_dtype == dtype:
        return dtype
    return f"{dtype}, head {head_dtype}"


def recorded_dtype(manifest: Manifest) -> Dtype:
    """Return the precision in the settings of a manifest; float32 if there is none."""
    dtype = manifest.settings.get("dtype")
    return Dtype(dtype) if dtype in list(Dtype) else Dtype.FLOAT32


def reject_mixed_precision(sources: Sequence[tuple[str, Manifest | None]]) -> None:
    """Raise a MismatchError if sources, given by name, were computed in different precisions.

    The dtype of the stored vectors does not show it: what bfloat16 computed is stored in float32
    as well. Sources that do not record it are not compared.
    """
    names_by_precision = _names_by_precision(sources)
    if len(names_by_precision) < 2:
        return
    kept_precision = _precision_of_most(sources)
    others: list[str] = []
    for precision, names in names_by_precision.items():
        if precision != kept_precision:
            others += names
    # of "float32, head bfloat16", see `precision_of`: float32 --set head-dtype=bfloat16
    options = kept_precision.replace(", head ", " --set head-dtype=")
    raise MismatchError(
        _mixed_precision_message(names_by_precision),
        f"encode the passages of {first_names(others)} again: denserk encode --dtype {options} "
        "--overwrite",
    )


def mixed_precision(sources: Sequence[tuple[str, Manifest | None]]) -> str | None:
    """Return a message if sources, given by name, were computed in different precisions."""
    names_by_precision = _names_by_precision(sources)
    if len(names_by_precision) < 2:
        return None
    return _mixed_precision_message(names_by_precision)


def _names_by_precision(sources: Sequence[tuple[str, Manifest | None]]) -> dict[str, list[str]]:
    """Return the names of sources by the precision that they record."""
    names_by_precision: dict[str, list[str]] = {}
    for name, manifest in sources:
        precision = precision_of(model_of(manifest))
        if precision is not None:
            names_by_precision.setdefault(precision, []).append(name)
    return names_by_precision


def _mixed_precision_message(names_by_precision: Mapping[str, Sequence[str]]) -> str:
    """Return the message that names the sources of each precision."""
    groups = [
        f"{precision} ({first_names(names)})" for precision, names in names_by_precision.items()
    ]
    return f"the vectors were computed in different precisions: {' and '.join(groups)}"


def _precision_of_most(sources: Sequence[tuple[str, Manifest | None]]) -> str:
    """Return the precision of most passages, in which the others can be encoded again.

    It is never int8, whose scales are calibrated on the texts of one folder. Sources of two or
    more precisions have another one.
    """
    passages: Counter[str] = Counter()
    for _, manifest in sources:
        precision = precision_of(model_of(manifest))
        if manifest is None or precision is None or precision == INT8:
            continue
        passages[precision] += manifest.contents.get("count") or 0
    return passages.most_common(1)[0][0]
