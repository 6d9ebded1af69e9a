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
from collections.abc import Callable, Container, Iterable, Mapping
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
    """Return a field's value as JSON and YAML represent it: enums by value, tuples as lists.

    >>> plain((1, 2)), plain(None)
    ([1, 2], None)
    """
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def without_none(kind: Any) -> Any:
    """Return a type without its `None`.

    >>> without_none(int | None), without_none(str)
    (<class 'int'>, <class 'str'>)
    """
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


type_hints = cache(get_type_hints)


def field_types(*classes: Any) -> dict[str, Any]:
    """Return the types of the fields of dataclasses by name."""
    kinds = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            kinds[field.name] = type_hints(cls)[field.name]
    return kinds


def as_type(kind: Any, value: Any) -> Any:
    """Convert a value from YAML, JSON or the command line to a type; a ValueError if it is none.

    A text becomes a number, or the items of a list; "none" becomes None where it is allowed.

    >>> as_type(float, "5e-6"), as_type(tuple[int, ...], "12, 10"), as_type(int | None, "none")
    (5e-06, (12, 10), None)
    >>> as_type(int, "twelve")
    Traceback (most recent call last):
    ValueError: found 'twelve', expected a whole number
    """
    is_optional = type(None) in get_args(kind)
    kind = without_none(kind)
    if is_optional and (value is None or _is_word_none(kind, value)):
        return None
    if _is_choice(kind):
        return _as_choice(kind, value)
    if get_origin(kind) is tuple:
        return _as_tuple(kind, value)
    if get_origin(kind) is Mapping:
        return _as_mapping(kind, value)
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    return _as_record(kind, value)


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_word_none(kind: Any, value: Any) -> bool:
    """Return whether a value is the word for None; one of an enumeration's names may be "none"."""
    return not _is_choice(kind) and value == "none"


def _as_choice(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        names = [str(choice.value) for choice in kind]
        raise _mismatch(value, " or ".join(names)) from None


def _as_tuple(kind: Any, value: Any) -> tuple[Any, ...]:
    """Convert a list, or a text with commas between the items."""
    item_kind = get_args(kind)[0]
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part]
    if not isinstance(value, list | tuple):
        raise _mismatch(value, "a list")
    return tuple(as_type(item_kind, item) for item in value)


def _as_mapping(kind: Any, value: Any) -> dict[Any, Any]:
    key_kind, item_kind = get_args(kind)
    if not isinstance(value, Mapping):
        raise _mismatch(value, "a mapping")
    return {as_type(key_kind, key): as_type(item_kind, item) for key, item in value.items()}


def _as_record(kind: Any, value: Any) -> Any:
    """Convert a mapping to a dataclass; a UsageError lists all its mistakes."""
    if not (dataclasses.is_dataclass(kind) and isinstance(value, Mapping)):
        raise _mismatch(value, "a mapping")
    name = kind.__name__  # type: ignore[union-attr]  # of a class
    return kind(**as_types(name, value, field_types(kind)))  # type: ignore[operator]


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _mismatch(value, "true or false")


def _as_int(value: Any) -> int:
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = int(value)
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    raise _mismatch(value, "a whole number")


def _as_float(value: Any) -> float:
    """Convert to a number; a whole one stays an integer, as which it is recorded."""
    number = value
    if isinstance(value, str):
        with suppress(ValueError):  # YAML reads 5e-6 as a text
            number = float(value)
    if isinstance(number, int | float) and not isinstance(number, bool):
        return number
    raise _mismatch(value, "a number")


def _as_str(value: Any) -> str:
    if isinstance(value, str | PathLike):
        return str(value)
    raise _mismatch(value, "text")


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_str,
}


def _mismatch(value: Any, expected: str) -> ValueError:
    """Return the error of a value that is not of a type."""
    return ValueError(f"found {value!r}, expected {expected}")


def as_types(
    source: str, values: Mapping[str, Any], kinds: Mapping[str, Any], items: Container[str] = ()
) -> dict[str, Any]:
    """Convert values by name to the types of those names, which may be spelled with hyphens.

    A text or path of one of `items`, names of lists, is a list with that item. A UsageError, which
    begins with `source`, lists all mistakes.

    >>> as_types("config.yaml", {"batch-size": "8"}, {"batch_size": int})
    {'batch_size': 8}
    """
    typed: dict[str, Any] = {}
    mistakes: list[str] = []
    for spelling, value in values.items():
        name = spelling.replace("-", "_")
        if name not in kinds:
            mistakes.append(f"{spelling} is not a setting{_suggestion(name, kinds)}")
            continue
        if name in items and isinstance(value, str | PathLike):
            value = [value]
        try:
            typed[name] = as_type(kinds[name], value)
        except ValueError as error:
            mistakes.append(f"{spelling}: {error}")
    if mistakes:
        raise UsageError(f"{source}: {'; '.join(mistakes)}")
    return typed


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Return a question for the name that is most like another one; empty if none is."""
    nearest = get_close_matches(name, names, n=1)
    if not nearest:
        return ""
    return f" (did you mean {nearest[0].replace('_', '-')}?)"


def unknown_name(noun: str, name: str, names: Iterable[str], hint: str) -> UsageError:
    """Return the error of a name that is none of some names; its hint has the nearest ones."""
    nearest = get_close_matches(name, names, n=3, cutoff=0.4)
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? {hint}"
    return UsageError(f"no {noun} is called {name!r}", hint)


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
