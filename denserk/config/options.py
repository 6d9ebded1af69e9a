"""Declaration of options: dataclass fields with help texts, aliases and rules.

A settings class is a frozen dataclass, made so by its base class. Its docstring, up to the first
colon or period, is the title of its section in the help; the string under a field is the field's
help text, which may end in its own [default: ...]; `option` adds what a type and a default do not
say. The command line is built from these classes, so an option is declared once.
"""

import ast
import dataclasses
import math
import operator
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from functools import cache, partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from denserk.errors import UsageError

# Largest integer of an option.
LARGEST = 2**31 - 1
# Default of a required option; its class is declared with `kw_only=True`.
REQUIRED = dataclasses.MISSING
BOUNDS = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}
T = TypeVar("T")
# Given options by field name; a model or a preset has the values of the others.
Given = Mapping[str, Any]
NOTHING: Given = {}


@dataclasses.dataclass(frozen=True)
class OptionSpec:
    """Metadata of an option, beside the field's type and default."""

    names: tuple[str, ...] = ()  # aliases ("-m", "--encoder")
    metavar: str | None = None  # shown in the help in place of the type; DIR: a folder, never "-"
    repeat: bool = False  # a tuple is a repeated option instead of a comma list
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
        """Raise a UsageError for a value that is out of bounds, empty, or no folder."""
        if self.metavar == "DIR" and value == "-":
            raise UsageError(f"{self.flag(name)} -: a folder is expected, not a stream")
        if self.nonempty and not value:
            raise UsageError(f"{self.flag(name)} is empty: a value is expected")
        bounds = {text: bound for text in BOUNDS if (bound := getattr(self, text)) is not None}
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float):
                continue
            expected = [f"{text.replace('_', ' ')} {bound:g}" for text, bound in bounds.items()]
            if isinstance(number, int) and number > LARGEST:
                expected = [f"at most {LARGEST}"]
            elif not math.isfinite(number):
                expected = ["a finite number"]
            elif all(BOUNDS[text](number, bound) for text, bound in bounds.items()):
                continue
            shown = f"{self.flag(name)}{'=' if self.rare else ' '}{number}"
            raise UsageError(f"{shown}: {', '.join(expected)} is expected")


def option(default: Any = REQUIRED, *names: str, **spec: Any) -> Any:
    """Declare a dataclass field with its aliases and the metadata of an `OptionSpec`."""
    return dataclasses.field(default=default, metadata={"option": OptionSpec(names, **spec)})


# Declares a field without an option of its own, which `--set name=value` sets.
setting = partial(option, rare=True)


def spec_of(field: "dataclasses.Field[Any]") -> OptionSpec:
    """Return the metadata that `option` added to a field."""
    return field.metadata.get("option") or OptionSpec()


def fields_of(*classes: Any) -> dict[str, "dataclasses.Field[Any]"]:
    """Return the fields of dataclasses (or of their objects) by name."""
    return {field.name: field for cls in classes for field in dataclasses.fields(cls)}


def spelled(name: str, *classes: type) -> str:
    """Return the spelling of a field on the command line: `--name` or `--set name`."""
    return spec_of(fields_of(*classes)[name]).flag(name)


@dataclass_transform(frozen_default=True)
class Settings:
    """Base of settings classes: makes them frozen dataclasses that check the rules of `option`.

    A class may have further rules in `_check`, which follow those of its bases.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    own_defaults: ClassVar[str] = ""  # shown in the help in place of every default

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)

    def __post_init__(self) -> None:
        specs = {name: spec_of(field) for name, field in fields_of(self).items()}
        given = {name: specs[name] for name in given_fields(self)}
        for name, spec in given.items():
            spec.check(name, getattr(self, name))
            needed = [other for other in spec.needs.split() if other in specs]
            if needed and given.keys().isdisjoint(needed):
                wanted = " or ".join(specs[other].flag(other) for other in needed)
                raise UsageError(f"{spec.flag(name)} needs {wanted}")
            for other in (*spec.excludes.split(), *spec.either.split()):
                if other in given:
                    flags = f"{spec.flag(name)} and {given[other].flag(other)}"
                    raise UsageError(f"{flags} exclude each other", "give one of them")
        for name, spec in specs.items():
            choice = [name, *spec.either.split()]
            if spec.either and given.keys().isdisjoint(choice):
                raise UsageError(f"give {' or '.join(specs[each].flag(each) for each in choice)}")
        for cls in reversed(type(self).__mro__):
            if check := vars(cls).get("_check"):
                check(self)


def given_fields(settings: Any) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    return [name for name, f in fields_of(settings).items() if getattr(settings, name) != f.default]


def _given_specs(*groups: Any) -> dict[str, OptionSpec]:
    return {name: spec_of(fields_of(g)[name]) for g in groups for name in given_fields(g)}


def unused_options(trained: str, *groups: Any) -> list[str]:
    """Return the given options that the training of `trained` does not have (`of`)."""
    given = _given_specs(*groups).items()
    return [s.flag(name) for name, s in given if s.of and trained not in s.of.split()]


def reject_given(*groups: Any, why: str, hint: str | None = None, among: str = "") -> None:
    """Raise a UsageError that lists the given options (`among` some names)."""
    given, names = _given_specs(*groups).items(), among.split()
    if flags := [spec.flag(name) for name, spec in given if not names or name in names]:
        raise UsageError(f"{', '.join(flags)}: {why}", hint)


@cache
def _class_bodies(source: str) -> Mapping[str, list[ast.stmt]]:
    classes = (c for c in ast.parse(Path(source).read_bytes()).body if isinstance(c, ast.ClassDef))
    return {cls.name: cls.body for cls in classes}


@cache
def field_docs(settings: type) -> Mapping[str, str]:
    """Return field name -> help text: the strings under the fields of a class and its bases."""
    docs: dict[str, str] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(settings.__mro__)):
        bodies = _class_bodies(str(sys.modules[cls.__module__].__file__))
        for field, doc in pairwise(bodies.get(cls.__name__, ())):
            match field, doc:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


def plain(value: Any) -> Any:
    """Return a field's value as JSON and YAML represent it: enums by value, tuples as lists."""
    return list(map(plain, value)) if isinstance(value, tuple) else getattr(value, "value", value)


def as_json(settings: Any) -> dict[str, Any]:
    """Return settings as a JSON mapping."""
    return {name: plain(getattr(settings, name)) for name in fields_of(settings)}


def without_none(kind: Any) -> Any:
    """Return a type without its `None`: int for `int | None`."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


# Types of values, and their descriptions in messages.
_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str | PathLike, "text"),
}


def as_type(kind: Any, value: Any) -> Any:
    """Convert a value from YAML, JSON or the command line to a type; a ValueError if it is none.

    >>> as_type(float | None, "5e-6"), as_type(tuple[int, ...], "12, 10")
    (5e-06, (12, 10))
    """
    is_optional, kind = type(None) in get_args(kind), without_none(kind)
    is_choice = isinstance(kind, type) and issubclass(kind, Enum)  # which may have a "none"
    if is_optional and (value is None or (value == "none" and not is_choice)):
        return None
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part]
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(as_type(inner[0], part) for part in value)
    if isinstance(value, Mapping) and origin is Mapping:
        return {as_type(inner[0], k): as_type(inner[1], v) for k, v in value.items()}
    if isinstance(value, Mapping) and dataclasses.is_dataclass(kind):
        return from_json(kind, value)  # type: ignore[arg-type]
    accepted, expected = _PLAIN.get(kind, ((), "a list" if origin is tuple else "a mapping"))
    if is_choice:
        accepted, expected = kind, " or ".join(str(choice.value) for choice in kind)
    if isinstance(value, str) and (is_choice or kind in (int, float)):
        with suppress(ValueError):  # YAML reads 5e-6 as a text
            value = kind(value)
    if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
        return str(value) if kind is str else value
    raise ValueError(f"found {value!r}, expected {expected}")


type_hints = cache(get_type_hints)


def typed_values(source: str, values: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Convert values by name to the types of the classes' fields.

    A UsageError, which begins with `source`, lists all mistakes.
    """
    fields = fields_of(*classes)
    hints = {name: hint for cls in classes for name, hint in type_hints(cls).items()}
    typed: dict[str, Any] = {}
    mistakes: list[str] = []
    for given, value in values.items():
        name = given.replace("-", "_")
        if name not in fields:
            near = get_close_matches(name, fields, n=1)
            meant = f" (did you mean {near[0].replace('_', '-')}?)" if near else ""
            mistakes.append(f"{given} is not a setting{meant}")
            continue
        try:
            is_item = spec_of(fields[name]).repeat and isinstance(value, str | PathLike)
            typed[name] = as_type(hints[name], [value] if is_item else value)
        except ValueError as error:
            mistakes.append(f"{given}: {error}")
    if mistakes:
        raise UsageError(f"{source}: {'; '.join(mistakes)}")
    return typed


def select(values: Given, *classes: type) -> dict[str, Any]:
    """Return the values whose names are fields of the classes."""
    return {name: values[name] for name in fields_of(*classes) if name in values}


def build(cls: type[T], values: Mapping[str, Any], hint: str | None = None) -> T:
    """Build a settings object from those values that are its fields."""
    own = select(values, cls)
    required = [name for name, field in fields_of(cls).items() if field.default is REQUIRED]
    if missing := [spelled(name, cls) for name in required if name not in own]:
        raise UsageError(f"{' and '.join(missing)} must be given", hint)
    return cls(**own)


def unknown(what: str, name: str, known: Iterable[str], hint: str) -> UsageError:
    """Return the error of a name that is not among the known ones; its hint has the nearest."""
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no {what} is called {name!r}", f"{meant}{hint}")


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a settings object from the output of `as_json`; a UsageError lists all mistakes."""
    return cls(**typed_values(cls.__name__, values, cls))
