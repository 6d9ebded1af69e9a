"""Conversion of values from YAML, JSON and the command line to the types of options."""

import dataclasses
import types
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from functools import cache
from numbers import Integral, Real
from os import PathLike
from typing import Any, Union, get_args, get_origin, get_type_hints

from denserk.errors import UsageError


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


def without_none(value_type: Any) -> Any:
    """Return a type without its `None`.

    >>> without_none(int | None), without_none(str)
    (<class 'int'>, <class 'str'>)
    """
    if get_origin(value_type) in (Union, types.UnionType):
        return next(member for member in get_args(value_type) if member is not type(None))
    return value_type


type_hints = cache(get_type_hints)


def field_types(*classes: Any) -> dict[str, Any]:
    """Return the types of the fields of dataclasses by name."""
    type_by_name = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            type_by_name[field.name] = type_hints(cls)[field.name]
    return type_by_name


def as_type(value_type: Any, value: Any) -> Any:
    """Convert a value from YAML, JSON or the command line to a type; a ValueError if it is none.

    A text becomes a number, or the items of a list; "none" becomes None where it is allowed.

    >>> as_type(float, "5e-6"), as_type(tuple[int, ...], "12, 10"), as_type(int | None, "none")
    (5e-06, (12, 10), None)
    >>> as_type(int, "twelve")
    Traceback (most recent call last):
    ValueError: found 'twelve', expected a whole number
    """
    member_type = without_none(value_type)
    is_optional = type(None) in get_args(value_type)
    if is_optional and (value is None or _is_word_none(member_type, value)):
        return None
    if _is_choice(member_type):
        return _as_choice(member_type, value)
    if get_origin(member_type) is tuple:
        return _as_tuple(member_type, value)
    if get_origin(member_type) is Mapping:
        return _as_mapping(member_type, value)
    if member_type in _SCALARS:
        return _SCALARS[member_type](value)
    return _as_record(member_type, value)


def _is_choice(value_type: Any) -> bool:
    return isinstance(value_type, type) and issubclass(value_type, Enum)


def _is_word_none(value_type: Any, value: Any) -> bool:
    """Return whether a value is the word for None; one of an enumeration's names may be "none"."""
    return not _is_choice(value_type) and value == "none"


def _as_choice(enumeration: type[Enum], value: Any) -> Enum:
    try:
        return enumeration(value)
    except ValueError:
        names = [str(choice.value) for choice in enumeration]
        raise _mismatch(value, " or ".join(names)) from None


def _as_tuple(tuple_type: Any, value: Any) -> tuple[Any, ...]:
    """Convert a list, or a text with commas between the items."""
    item_type = get_args(tuple_type)[0]
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item]
    if not isinstance(value, list | tuple):
        raise _mismatch(value, "a list")
    return tuple(as_type(item_type, item) for item in value)


def _as_mapping(mapping_type: Any, value: Any) -> dict[Any, Any]:
    key_type, item_type = get_args(mapping_type)
    if not isinstance(value, Mapping):
        raise _mismatch(value, "a mapping")
    return {as_type(key_type, key): as_type(item_type, item) for key, item in value.items()}


def _as_record(cls: Any, value: Any) -> Any:
    """Convert a mapping to a dataclass; a UsageError lists all its mistakes."""
    if not dataclasses.is_dataclass(cls) or not isinstance(value, Mapping):
        raise _mismatch(value, "a mapping")
    name = cls.__name__  # type: ignore[union-attr]  # of a class
    return cls(**as_types(name, value, field_types(cls)))  # type: ignore[operator]


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _mismatch(value, "true or false")


def _as_int(value: Any) -> int:
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = int(value)
    if isinstance(number, bool):
        raise _mismatch(value, "a whole number")
    if isinstance(number, Integral):  # it may be one of NumPy
        return int(number)
    raise _mismatch(value, "a whole number")


def _as_float(value: Any) -> float:
    """Convert to a number; a whole one stays an integer, as which it is recorded."""
    number = value
    if isinstance(value, str):
        with suppress(ValueError):  # YAML reads 5e-6 as a text
            number = float(value)
    if isinstance(number, bool):
        raise _mismatch(value, "a number")
    if isinstance(number, Integral):  # it may be one of NumPy
        return int(number)
    if isinstance(number, Real):
        return float(number)
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
    source: str,
    values: Mapping[str, Any],
    type_by_name: Mapping[str, Any],
    list_names: Container[str] = (),
) -> dict[str, Any]:
    """Convert values by name to the types of those names, which may be spelled with hyphens.

    A text or path of one of `list_names` is a list with that item. A UsageError, which begins with
    `source`, lists all mistakes.

    >>> as_types("config.yaml", {"batch-size": "8"}, {"batch_size": int})
    {'batch_size': 8}
    """
    typed: dict[str, Any] = {}
    mistakes: list[str] = []
    for spelling, value in values.items():
        name = spelling.replace("-", "_")
        if name not in type_by_name:
            mistakes.append(f"{spelling} is not a setting{_suggestion(spelling, type_by_name)}")
            continue
        if name in list_names and isinstance(value, str | PathLike):
            value = [value]
        try:
            typed[name] = as_type(type_by_name[name], value)
        except ValueError as error:
            mistakes.append(f"{spelling}: {error}")
    if mistakes:
        raise UsageError(f"{source}: {'; '.join(mistakes)}")
    return typed


def _suggestion(spelling: str, names: Iterable[str]) -> str:
    """Return a question for the name that is most like a wrong one; empty if none is.

    It has hyphens, unless the wrong one has underscores, as in Python.

    >>> _suggestion("ef-serch", ["ef_search"]), _suggestion("ef_serch", ["ef_search"])
    (' (did you mean ef-search?)', ' (did you mean ef_search?)')
    """
    nearest = get_close_matches(spelling.replace("-", "_"), names, n=1)
    if not nearest:
        return ""
    suggestion = nearest[0] if "_" in spelling else nearest[0].replace("_", "-")
    return f" (did you mean {suggestion}?)"


def unknown_name(noun: str, name: str, names: Iterable[str], hint: str) -> UsageError:
    """Return the error of a name that is none of some names; its hint has the nearest ones."""
    nearest = near_names(name, names)
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? {hint}"
    return UsageError(f"no {noun} is called {name!r}", hint)


def near_names(name: str, names: Iterable[str], likeness: float = 0.4) -> list[str]:
    """Return up to three names that are like a wrong one, the nearest first.

    `likeness` is the least that counts, from 0 to 1.

    >>> near_names("bm52", ["bm25", "minilm"], likeness=0.7)
    ['bm25']
    """
    return get_close_matches(name, list(names), n=3, cutoff=likeness)
