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
from collections.abc import Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

from denserk.config.values import as_types, field_types, plain
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


def as_json(settings: Any) -> dict[str, Any]:
    """Return settings as a JSON mapping."""
    return {name: plain(getattr(settings, name)) for name in fields_of(settings)}


def typed_values(source: str, values: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Convert values by name to the types of the classes' fields.

    A UsageError, which begins with `source`, lists all mistakes.
    """
    fields = fields_of(*classes)
    repeated = [name for name, field in fields.items() if spec_of(field).repeat]
    return as_types(source, values, field_types(*classes), repeated)


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


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a settings object from the output of `as_json`; a UsageError lists all mistakes."""
    return cls(**typed_values(cls.__name__, values, cls))
