"""Declaration of options: dataclass fields with help texts, aliases and rules.

A settings class is a frozen dataclass. Its docstring, up to the first colon or period, is the
title of its section in the help; the string under a field is the field's help text; `option` adds
what a type and a default do not say. The command line is built from these classes, so an option
is declared once. YAML files hold values of options: the package's recipes (`denserk/recipes/`), and
users' files.
"""

import ast
import dataclasses
import math
import operator
import sys
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from denserk.errors import InputError, UsageError

# Recipes of the package.
FOLDER = Path(__file__).parents[1] / "recipes"

# Default of a required option; its class is declared with `kw_only=True`.
REQUIRED = dataclasses.MISSING
BOUNDS = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


@dataclasses.dataclass(frozen=True)
class OptionSpec:
    """Metadata of an option, beside the field's type and default."""

    names: tuple[str, ...] = ()  # aliases ("-m", "--encoder")
    metavar: str | None = None  # shown in the help in place of the type
    repeat: bool = False  # a tuple is a repeated option instead of a comma list
    shown_default: str | None = None  # shown in the help in place of the default
    rare: bool = False  # no option, but set by `--set name=value`
    # bounds of a number, or of each number of a list
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    nonempty: bool = False  # a text or list must not be empty
    # other fields, or objectives and models, separated by spaces
    needs: str = ""  # one of these must be given, too
    excludes: str = ""  # none of these may be given, too
    either: str = ""  # exactly one of this field and these must be given
    of: str = ""  # objectives or models whose training has the option; empty: all

    def flag(self, name: str) -> str:
        """Return the spelling of the field `name` on the command line."""
        return f"{'--set ' if self.rare else '--'}{name.replace('_', '-')}"

    def check(self, name: str, value: Any) -> None:
        """Raise a UsageError for a number out of bounds, or for nothing where a value is needed."""
        if self.nonempty and not value:
            raise UsageError(f"{self.flag(name)} is empty: a value is expected")
        bounds = {text: bound for text in BOUNDS if (bound := getattr(self, text)) is not None}
        expected = ", ".join(f"{text.replace('_', ' ')} {b:g}" for text, b in bounds.items())
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float):
                continue
            is_finite = math.isfinite(number)
            if not is_finite or not all(BOUNDS[text](number, b) for text, b in bounds.items()):
                shown = f"{self.flag(name)}{'=' if self.rare else ' '}{number}"
                wanted = expected if is_finite else "a finite number"
                raise UsageError(f"{shown}: {wanted} is expected")


def option(default: Any = REQUIRED, *names: str, **spec: Any) -> Any:
    """Declare a dataclass field with its aliases and the metadata of an `OptionSpec`."""
    return dataclasses.field(default=default, metadata={"option": OptionSpec(names, **spec)})


def spelled(name: str, *classes: type) -> str:
    """Return the spelling of a field on the command line: `--name` or `--set name`."""
    found = (field for cls in classes for field in dataclasses.fields(cls) if field.name == name)
    return spec_of(next(found)).flag(name)


class Settings:
    """Base of settings classes: checks the rules that `option` declares."""

    def __post_init__(self) -> None:
        specs = {f.name: spec_of(f) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        given = {name: specs[name] for name in given_fields(self)}
        for name, spec in given.items():
            spec.check(name, getattr(self, name))
            if spec.needs and given.keys().isdisjoint(spec.needs.split()):
                wanted = " or ".join(specs[other].flag(other) for other in spec.needs.split())
                raise UsageError(f"{spec.flag(name)} needs {wanted}")
            for other in (*spec.excludes.split(), *spec.either.split()):
                if other in given:
                    flags = f"{spec.flag(name)} and {given[other].flag(other)}"
                    raise UsageError(f"{flags} exclude each other", "give one of them")
        for name, spec in specs.items():
            choice = [name, *spec.either.split()]
            if spec.either and given.keys().isdisjoint(choice):
                raise UsageError(f"give {' or '.join(specs[each].flag(each) for each in choice)}")


def given_fields(settings: Any) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    fields = dataclasses.fields(settings)
    return [field.name for field in fields if getattr(settings, field.name) != field.default]


def unused_options(trained: str, *groups: Any) -> list[str]:
    """Return the given options that the training of `trained` does not have (`of`)."""
    return [
        spec.flag(name)
        for settings in groups
        for name in given_fields(settings)
        if (spec := spec_of(settings.__dataclass_fields__[name])).of
        and trained not in spec.of.split()
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings):
    """Device, for all commands that run a model."""

    device: str = option("auto", metavar="auto|cpu|cuda|cuda:N")
    """Device; auto uses a GPU if there is one. For several GPUs use torchrun."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverwriteSettings(Settings):
    """Output."""

    overwrite: bool = False
    """Replace an existing output."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeSettings(OverwriteSettings):
    """Output of a command that can continue an interrupted run."""

    resume: bool = option(False, excludes="overwrite")
    """Resume an interrupted run; finished work is checked against the input and kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSettings(Settings):
    """Part of the input that a command processes."""

    shard_id: int = option(0, "--dataset-shard-index", "--shard-index", at_least=0)
    """Shard to process, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards", at_least=1)
    """Number of shards; their outputs concatenated equal the unsharded output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard_id >= self.shard_num:
            raise UsageError(
                f"--shard-id {self.shard_id} of --shard-num {self.shard_num}",
                f"shards are numbered 0 to {self.shard_num - 1}",
            )
        if self.shard_num > 1 and "-" in map(vars(self).get, ("corpus", "topics")):
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagSettings(Settings):
    """Tag of a run."""

    tag: str = option("denserk", "--runtag", "--run-tag", nonempty=True)
    """Run tag, the last column of a TREC run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(character.isspace() for character in self.tag):
            raise UsageError(f"--tag {self.tag!r}: cannot contain white space")


def spec_of(field: "dataclasses.Field[Any]") -> OptionSpec:
    """Return the metadata that `option` added to a field."""
    return field.metadata.get("option") or OptionSpec()


@cache
def _class_docs(source: Path) -> dict[str, dict[str, str]]:
    """Read a source file: class name -> field name -> the string under the field."""
    docs: dict[str, dict[str, str]] = {}
    classes = (c for c in ast.parse(source.read_text("utf-8")).body if isinstance(c, ast.ClassDef))
    for cls in classes:
        for field, doc in pairwise(cls.body):
            match field, doc:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs.setdefault(cls.name, {})[name] = " ".join(text.split())
    return docs


def field_docs(settings: type) -> Mapping[str, str]:
    """Return field name -> help text, for a settings class and its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if dataclasses.is_dataclass(cls):
            source = Path(str(sys.modules[cls.__module__].__file__))
            docs |= _class_docs(source).get(cls.__name__, {})
    return docs


def plain(value: Any) -> Any:
    """Return a field's value as JSON and YAML represent it: enums by value, tuples as lists."""
    return list(map(plain, value)) if isinstance(value, tuple) else getattr(value, "value", value)


def as_json(settings: Any) -> dict[str, Any]:
    """Return settings as a JSON mapping."""
    return {f.name: plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def without_none(kind: Any) -> Any:
    """Return a type without its `None`: int for `int | None`."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def as_type(kind: Any, value: Any) -> Any:
    """Convert a JSON or YAML value to the type of a field; a ValueError if it does not fit."""
    if value is None and type(None) in get_args(kind):
        return None
    kind = without_none(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(as_type(inner[0], item) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {as_type(inner[0], k): as_type(inner[1], v) for k, v in value.items()}
    expected = _EXPECTED.get(origin or kind, str(kind))
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            return from_json(kind, value)
        if issubclass(kind, Enum):
            if value in list(kind):
                return kind(value)
            expected = " or ".join(str(choice.value) for choice in kind)
        elif isinstance(value, (int, float) if kind is float else kind) and (
            kind is bool or not isinstance(value, bool)
        ):
            return value
    raise ValueError(f"found {value!r}, expected {expected}")


_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    Mapping: "a mapping",
}


_type_hints = cache(get_type_hints)


def typed_values(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert JSON values to the types of the class's fields; a UsageError lists all mistakes."""
    hints = _type_hints(cls)
    typed: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in values.items():
        if name not in hints:
            mistakes.append(f"{name} is not a setting of {cls.__name__}")
            continue
        try:
            typed[name] = as_type(hints[name], value)
        except ValueError as error:
            mistakes.append(f"{name}: {error}")
    if mistakes:
        raise UsageError("; ".join(mistakes))
    return typed


T = TypeVar("T")


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a settings object from the output of `as_json`; a UsageError lists all mistakes."""
    return cls(**typed_values(cls, values))


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader; it also reads 5e-6 as a number and rejects repeated keys."""
    import re

    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            # Called before `<<:` is resolved, and again for each mapping that merges this one.
            seen: set[str] = set()
            for key, _ in () if hasattr(node, "checked") else node.value:
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is repeated", problem_mark=key.start_mark
                    )
                seen.add(str(key.value))
            node.checked = True
            super().flatten_mapping(node)

    number = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader


def read_yaml(path: str | Path) -> Mapping[str, Any]:
    """Read a YAML file, which must have a mapping of names at the top level."""
    import yaml

    expected = "lines of the form 'name: value'"
    try:
        values = yaml.load(Path(path).read_text("utf-8"), _loader())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        line = mark.line + 1 if mark else None
        raise InputError(path, line, f"invalid YAML ({problem})", expected) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        kind = "nothing" if values is None else f"a {type(values).__name__}"
        raise InputError(path, None, kind, expected)
    return values


@cache
def paper_sections(section: str) -> Mapping[str, tuple[Path, Mapping[str, Any]]]:
    """Return the entries of `section` in all recipes: name -> (file, values)."""
    return {
        name: (path, values)
        for path in sorted(FOLDER.glob("*.yaml"))
        for name, values in read_yaml(path).get(section, {}).items()
    }
