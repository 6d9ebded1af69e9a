"""manifest.json: settings, inputs and contents of a folder or run.

Every folder that denserk writes has one, with `complete: false` until the last file is written;
readers reject an unfinished folder. Settings and fingerprints are passed along the chain model ->
vectors -> index -> run, so each step can reject what does not match.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from denserk import __version__
from denserk.config.encoding import RepresentationSettings
from denserk.config.options import as_json
from denserk.config.retrieval import Engine, Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.files import STREAM, read_errors, read_file, whole_binary, write_errors
from denserk.records import Query

NAME = "manifest.json"
DTYPES = ("float16", "float32")  # of stored vectors
SHOWN = 60  # characters of a wrong value or name that an error shows

Description = Mapping[str, Any]  # of a model, by `TextEncoder.description`
# the values of settings that did not exist when a manifest was written
DEFAULTS = as_json(RepresentationSettings())
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


@dataclass(frozen=True)
class Manifest:
    """One manifest, in plain JSON."""

    kind: Kind
    complete: bool
    settings: Mapping[str, Any] = field(default_factory=dict)  # the options of the command
    made_from: Mapping[str, Any] = field(default_factory=dict)  # names and checksums of inputs
    contents: Mapping[str, Any] = field(default_factory=dict)  # counts and checksums
    version: str = __version__


# What a JSON value must be: a type; [dict], an array of objects; a range of whole numbers; a tuple
# of strings to choose from; or the rules of an object's fields, `...` for a rule of all of them.
Rule = Any
WORDS = {str: "a string", bool: "true or false", dict: "a JSON object"}
COUNT, SIZE = range(2**63), range(1, 2**63)
NULLABLE = ("settings.factory", "made_from.model")
_MODEL = {"name": str, "fingerprint": str, "representation": dict, "text": dict}
_SIZES = {"count": COUNT, "dimension": SIZE, "vectors_per_passage": SIZE}
_BLOCKS = {"dtype": DTYPES, "blocks": COUNT, "journal_sha256": str}
_FILES = {"sha256": {...: str}, "bytes": {...: COUNT}}
_ENGINE = {"engine": tuple(Engine), "type": str, "metric": tuple(Metric)}
# fields of manifests, by kind; none is required
_SETTINGS: dict[Kind, Rule] = {
    Kind.VECTORS: {"shard_id": COUNT, "shard_num": SIZE, "block_size": SIZE},
    Kind.INDEX: {**_ENGINE, "factory": str, "bm25": dict},
}
_CONTENTS: dict[Kind, Rule] = {
    Kind.VECTORS: {**_SIZES, **_BLOCKS},
    Kind.INDEX: {**_SIZES, **_FILES, "factory": str},
    Kind.RUN: {"sha256": str},
}


def allowed(value: Any, rule: Rule) -> tuple[bool, str]:
    """Return whether a value obeys a rule, its fields apart, and the rule in words."""
    if isinstance(rule, range):
        return type(value) is int and value in rule, f"a whole number of at least {rule.start:,}"
    if isinstance(rule, tuple):
        return isinstance(value, str) and value in rule, ", ".join(rule)
    if isinstance(rule, list):
        fits = isinstance(value, list) and all(isinstance(item, rule[0]) for item in value)
        return fits, "a JSON array of objects"
    of_type = dict if isinstance(rule, dict) else rule
    return isinstance(value, of_type), WORDS[of_type]


def check(
    value: Any,
    rule: Rule,
    path: str | Path,
    hint: str | None = None,
    *,
    required: Collection[str] = (),
    name: str = "",
) -> None:
    """Raise an InputError that names the first field of a value that does not obey its rule.

    Only fields of the outermost object can be `required`; `name` is the place of an inner value.
    """
    fits, expected = allowed(value, rule)
    null = ", or null" * (name in NULLABLE)
    if not fits and not (null and value is None):
        shown = "null" if value is None else f"{value!r}"[:SHOWN]
        found = f"{name} that is {shown}" if name else shown
        raise InputError(path, None, found, expected + null, hint)
    rules = rule if isinstance(rule, dict) and value is not None else {}
    for key, inner in (dict.fromkeys(value, rules[...]) if ... in rules else rules).items():
        if key in value:
            place = f"{name}.{key}" if name else key
            check(value[key], inner, path, hint, name=place[:SHOWN])
        elif key in required:
            raise InputError(path, None, f"no {key}", allowed(None, inner)[1], hint)


EXPECTED, HINT = "a manifest that denserk wrote", "make it again with --overwrite"


def require_fields(path: str | Path, manifest: Manifest, part: str, *names: str) -> None:
    """Raise an InputError if a part of a folder's manifest lacks a field."""
    for name in names:
        if name not in getattr(manifest, part):
            raise InputError(beside(path), None, f"no {part}.{name}", EXPECTED, HINT)


def beside(path: str | Path) -> Path:
    """Return the path of the manifest of a folder, or of a file such as a run."""
    path = Path(path)
    return path / NAME if path.is_dir() else path.with_name(f"{path.name}.{NAME}")


def encoded(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decoded(data: bytes | str, where: str | Path) -> Manifest:
    """Parse a manifest; `where` names it in errors."""
    try:
        values = orjson.loads(data)
    except ValueError as error:
        raise InputError(where, None, f"text that is not JSON ({error})", EXPECTED, HINT) from None
    always = {"kind": tuple(Kind), "complete": bool}
    check(values, always, where, HINT, required=always)
    kind = Kind(values["kind"])
    parts = {
        "settings": _SETTINGS.get(kind, {}),
        "made_from": {"model": _MODEL},
        "contents": _CONTENTS.get(kind, {}),
        "version": str,
    }
    check(values, parts, where, HINT, required=parts)
    if others := sorted(values.keys() - {field.name for field in fields(Manifest)}):
        raise InputError(where, None, f"the field {others[0][:60]}", EXPECTED, HINT)
    return Manifest(**{**values, "kind": kind})


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a folder or file."""
    with whole_binary(beside(path)) as handle:
        handle.write(encoded(manifest))


def read_manifest(path: str | Path, kind: Kind, *, unfinished: bool = False) -> Manifest:
    """Read the manifest of a folder or file, which must be of a `kind`, and complete by default."""
    where = beside(path)
    if not os.path.lexists(where):
        if not os.path.lexists(path):
            raise UsageError(f"{path}: no such file or folder")
        raise UsageError(f"{path} has no {NAME}: it is not {kind} that denserk wrote")
    manifest = decoded(read_file(where), where)
    if manifest.kind is not kind:
        raise MismatchError(f"{path} holds {manifest.kind}, not {kind}")
    if not manifest.complete and not unfinished:
        raise MismatchError(
            f"{path} is unfinished: the command that writes it was interrupted",
            "run that command again with --resume",
        )
    return manifest


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe the differences between two parts of manifests, one phrase per value.

    >>> differences({"model": {"name": "a"}, "k": 1}, {"model": {"name": "b"}, "k": 1})
    ["model.name was 'a', now 'b'"]
    """
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r}, now {after!r}")
    return found


def file_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with read_errors(path), Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def has_manifest(output: str) -> bool:
    """Return whether an output file has a manifest beside it: streams and devices have none."""
    return output != STREAM and (Path(output).is_file() or not Path(output).exists())


def forget_manifest(output: str) -> None:
    """Remove the manifest of a file that is about to be replaced."""
    if has_manifest(output):
        with write_errors(output):
            beside(output).unlink(missing_ok=True)


def describe_file(
    output: str,
    kind: Kind,
    settings: Mapping[str, Any],
    made_from: Mapping[str, Any],
    contents: Mapping[str, Any],
) -> None:
    """Write the manifest of a finished file beside it, with its checksum."""
    if has_manifest(output):
        contents = {**contents, "sha256": file_sha256(output)}
        write_manifest(output, Manifest(kind, True, settings, made_from, contents))


def queries_sha256(queries: Iterable[Query]) -> str:
    """Return the hexadecimal SHA-256 of the ids and texts of queries."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(f"{query.qid}\t{query.text}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def vectors_per_passage(manifest: Manifest | None) -> int:
    """Return how many consecutive rows belong to one passage."""
    return 1 if manifest is None else int(manifest.contents.get("vectors_per_passage", 1))


def model_of(manifest: Manifest | None) -> Description | None:
    """Return the description of the model that a manifest names."""
    model = None if manifest is None else manifest.made_from.get("model")
    return model if isinstance(model, Mapping) else None


def model_differences(one: Description, other: Description) -> list[str]:
    """Describe why vectors of two models cannot be compared, one phrase per reason."""
    found = []
    if one.get("fingerprint") != other.get("fingerprint"):
        found.append(f"other weights: {one.get('name')} and {other.get('name')}")
    scales = [each["int8"].get("sha256") for each in (one, other) if each.get("int8")]
    if len(set(scales)) > 1:
        found.append("int8 calibrated on other texts")
    before, after = (
        {
            "representation": DEFAULTS | dict(model.get("representation", {})),
            "text": {name: model.get("text", {}).get(name) for name in OF_PASSAGES},
        }
        for model in (one, other)
    )
    return found + differences(before, after)


def refuse_other_model(
    one: Description | None, other: Description | None, what: str, hint: str
) -> None:
    """Raise a MismatchError for vectors of two models, if both are known.

    `what` names the vectors in the message: "the index idx and the queries q".
    """
    found = [] if one is None or other is None else model_differences(one, other)
    if found:
        raise MismatchError(f"{what} were not made alike: {'; '.join(found)}", hint)


def common_model(sources: Iterable[tuple[str, Manifest | None]]) -> Description | None:
    """Return the model that encoded all sources, given by name; None if a manifest names none."""
    models = [(name, model_of(manifest)) for name, manifest in sources]
    first, expected = models[0]
    for name, model in models[1:]:
        refuse_other_model(expected, model, f"{first} and {name}", "index vectors of one model")
    return None if any(model is None for _, model in models) else expected
