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
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

from denserk.config.values import as_types, field_types, plain
from denserk.errors import MissingOptionError, UsageError

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
    used_by: str = ""  # objectives, models or kinds of files that have the option; empty: all
    completes: str = ""  # what a shell completes: a key of `denserk.commands.completion.WORDS`

    def flag(self, name: str) -> str:
        """Return the spelling of the field `name` on the command line."""
        spelling = name.replace("_", "-")
        return f"--set {spelling}" if self.rare else f"--{spelling}"

    def check(self, name: str, value: Any) -> None:
        """Raise a UsageError for a value that is out of bounds, empty, or no folder."""
        if self.metavar == "DIR" and value == "-":
            raise UsageError(f"{self.flag(name)} -: a folder is expected, not a stream")
        if self.nonempty and not value:
            raise UsageError(f"{self.flag(name)} is empty: a value is expected")
        items = value if isinstance(value, tuple) else (value,)
        for item in items:
            if isinstance(item, int | float):
                self._check_number(name, item)

    def _check_number(self, name: str, number: float) -> None:
        """Raise a UsageError for a number that is out of bounds."""
        expected = self._expectation(number)
        if expected is not None:
            equals = "=" if self.rare else " "
            raise UsageError(f"{self.flag(name)}{equals}{number}: {expected} is expected")

    def _expectation(self, number: float) -> str | None:
        """Return what a number should be; None if it is."""
        if isinstance(number, int) and number > LARGEST:
            return f"at most {LARGEST}"
        if not math.isfinite(number):
            return "a finite number"
        bounds = {name: getattr(self, name) for name in BOUNDS if getattr(self, name) is not None}
        is_within_bounds = all(BOUNDS[name](number, bound) for name, bound in bounds.items())
        if is_within_bounds:
            return None
        return ", ".join(f"{name.replace('_', ' ')} {bound:g}" for name, bound in bounds.items())


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
    fields = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            fields[field.name] = field
    return fields


def spelled(name: str, *classes: type) -> str:
    """Return the spelling of a field on the command line: `--name` or `--set name`."""
    return spec_of(fields_of(*classes)[name]).flag(name)


@dataclass_transform(frozen_default=True)
class Settings:
    """Base of settings classes: makes them frozen dataclasses that check the rules of `option`.

    A class may have further rules in `_check`, which follow those of its bases.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    own_defaults: ClassVar[str] = ""  # shown in the help in place of each option's default

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)

    def __post_init__(self) -> None:
        specs = {name: spec_of(field) for name, field in fields_of(self).items()}
        given_names = given_fields(self)
        for name in given_names:
            specs[name].check(name, getattr(self, name))
            _check_needs(name, specs, given_names)
            _check_excludes(name, specs, given_names)
        for name, spec in specs.items():
            if spec.either:
                _check_choice([name, *spec.either.split()], specs, given_names)
        for cls in reversed(type(self).__mro__):
            check = vars(cls).get("_check")
            if check is not None:
                check(self)


def _check_needs(name: str, specs: Mapping[str, OptionSpec], given_names: Sequence[str]) -> None:
    """Raise a UsageError for a given option without one of those that it needs."""
    # an option of a shared base class may name one that not every class has
    needed_names = [needed for needed in specs[name].needs.split() if needed in specs]
    if needed_names and set(needed_names).isdisjoint(given_names):
        flags = [specs[needed].flag(needed) for needed in needed_names]
        raise UsageError(f"{specs[name].flag(name)} needs {' or '.join(flags)}")


def _check_excludes(name: str, specs: Mapping[str, OptionSpec], given_names: Sequence[str]) -> None:
    """Raise a UsageError for a given option beside one that it excludes."""
    spec = specs[name]
    for excluded in (*spec.excludes.split(), *spec.either.split()):
        if excluded in given_names:
            flags = f"{spec.flag(name)} and {specs[excluded].flag(excluded)}"
            raise UsageError(f"{flags} exclude each other", "give one of them")


def _check_choice(
    choices: Sequence[str], specs: Mapping[str, OptionSpec], given_names: Sequence[str]
) -> None:
    """Raise a UsageError if none of the `choices` is given: that of two is `_check_excludes`."""
    if set(choices).isdisjoint(given_names):
        flags = [specs[name].flag(name) for name in choices]
        raise MissingOptionError(f"give {' or '.join(flags)}")


def given_fields(settings: Any) -> list[str]:
    """Return the names of the given fields: of those that differ from their defaults.

    An option whose default was given counts as not given: it asks for nothing else.
    """
    fields = fields_of(settings).items()
    return [name for name, field in fields if getattr(settings, name) != field.default]


def unused_options(user: str, *groups: Any) -> list[str]:
    """Return the given options that an objective, model or kind of file has no use for."""
    flags = []
    for name, spec in _given_specs(*groups).items():
        if spec.used_by and user not in spec.used_by.split():
            flags.append(spec.flag(name))
    return flags


def reject_given(*groups: Any, why: str, hint: str | None = None, among: str = "") -> None:
    """Raise a UsageError if options are given that must not be, and list them.

    `why` ends the message. With `among`, names of fields separated by spaces, others may be given.
    """
    rejected_names = among.split()
    flags = []
    for name, spec in _given_specs(*groups).items():
        if not rejected_names or name in rejected_names:
            flags.append(spec.flag(name))
    if flags:
        raise UsageError(f"{', '.join(flags)}: {why}", hint)


def _given_specs(*groups: Any) -> dict[str, OptionSpec]:
    """Return the metadata of the given options of settings objects."""
    specs = {}
    for group in groups:
        fields = fields_of(group)
        for name in given_fields(group):
            specs[name] = spec_of(fields[name])
    return specs


@cache
def field_docs(settings: type) -> Mapping[str, str]:
    """Return field name -> help text: the strings under the fields of a class and its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if dataclasses.is_dataclass(cls):
            source = str(sys.modules[cls.__module__].__file__)
            docs |= _strings_under_fields(_class_bodies(source).get(cls.__name__, []))
    return docs


@cache
def _class_bodies(source: str) -> Mapping[str, list[ast.stmt]]:
    """Return the statements of the classes of a source file."""
    statements = ast.parse(Path(source).read_bytes()).body
    return {cls.name: cls.body for cls in statements if isinstance(cls, ast.ClassDef)}


def _strings_under_fields(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Return for each field of a class the string behind it, in one line."""
    strings = {}
    for field, doc in pairwise(body):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                strings[name] = " ".join(text.split())
    return strings


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
    arguments = select(values, cls)
    missing_flags = []
    for name, field in fields_of(cls).items():
        if field.default is REQUIRED and name not in arguments:
            missing_flags.append(spelled(name, cls))
    if missing_flags:
        raise MissingOptionError(f"{' and '.join(missing_flags)} must be given", hint)
    return cls(**arguments)


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build a settings object from the output of `as_json`; a UsageError lists all mistakes."""
    return cls(**typed_values(cls.__name__, values, cls))
