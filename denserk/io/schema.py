"""Declared types of JSON values: what a manifest, a journal or a config.json may hold."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from denserk.errors import InputError

LARGEST = 2**63 - 1  # the largest whole number that a field may hold
SHOWN = 60  # characters of a wrong value that an error shows


@dataclass(frozen=True)
class Rule:
    """What a value must be.

    Attributes:
        expected: in words, for the error.
        fits: whether a value is of the right type and in range.
        fields: rules of an object's fields; fields without a rule may hold anything.
        required: the fields that an object must have.
        values: the rule of every value of an object.
    """

    expected: str
    fits: Callable[[Any], bool]
    fields: Mapping[str, "Rule"] = field(default_factory=dict)
    required: Collection[str] = ()
    values: "Rule | None" = None


TEXT = Rule("a string", lambda value: isinstance(value, str))
TRUTH = Rule("true or false", lambda value: isinstance(value, bool))
OBJECT = Rule("a JSON object", lambda value: isinstance(value, dict))


def whole(least: int = 0) -> Rule:
    """A whole number in a range."""
    return Rule(
        f"a whole number of at least {least:,}",
        lambda value: type(value) is int and least <= value <= LARGEST,
    )


def number(least: float, most: float) -> Rule:
    """A finite number in a range."""
    return Rule(
        f"a number from {least:g} to {most:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and least <= value <= most,
    )


def one_of(*choices: str) -> Rule:
    """One of several strings."""
    return Rule(", ".join(choices), lambda value: isinstance(value, str) and value in choices)


def optional(rule: Rule) -> Rule:
    """A value that may be null."""
    fits = rule.fits
    expected = f"{rule.expected}, or null"
    return replace(rule, expected=expected, fits=lambda value: value is None or fits(value))


def record(required: Mapping[str, Rule], others: Mapping[str, Rule] | None = None) -> Rule:
    """An object with some fields that must be there and others that may."""
    return replace(OBJECT, fields={**required, **(others or {})}, required=tuple(required))


def mapping(values: Rule) -> Rule:
    """An object whose values all obey one rule."""
    return replace(OBJECT, values=values)


def mistake(value: Any, rule: Rule, name: str = "") -> tuple[str, str] | None:
    """Return what is wrong with a value and what is expected there; None where it obeys its rule.

    >>> mistake({"count": "3"}, record({"count": whole(1)}))
    ("count that is '3'", 'a whole number of at least 1')
    >>> mistake({"count": 3}, record({"count": whole(1)}))
    """
    if not rule.fits(value):
        shown = "null" if value is None else repr(value)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        return f"{name} that is {shown}" if name else shown, rule.expected
    if not isinstance(value, dict):
        return None
    for key, inner in (dict.fromkeys(value, rule.values) if rule.values else rule.fields).items():
        place = f"{name}.{key}"[:SHOWN] if name else key[:SHOWN]
        if key in value and (found := mistake(value[key], inner, place)) is not None:
            return found
        if key not in value and key in rule.required:
            return f"no {place}", inner.expected
    return None


def require(
    value: Any, rule: Rule, path: str | Path, line: int | None = None, hint: str | None = None
) -> None:
    """Raise an InputError that names the first field of a value that does not obey its rule."""
    found = mistake(value, rule)
    if found is not None:
        raise InputError(path, line, *found, hint)
