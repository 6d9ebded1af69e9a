"""Declaration of options: dataclass fields with help texts, aliases and bounds.

A settings class is a frozen dataclass. The string under a field is its help text; `option` adds
what a type and a default do not say. The command line is built from these classes, so an option is
declared once.
"""

import ast
import dataclasses
import sys
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from denserk.errors import UsageError

# Default of a required option; its class is declared with `kw_only=True`.
REQUIRED = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class OptionSpec:
    """Metadata of an option, beside the field's type and default.

    `names` are aliases ("-m", "--encoder"); `metavar` is shown in the help in place of the type;
    `repeat` makes a tuple a repeated option instead of a comma list; `shown_default` replaces the
    default in the help. A `rare` field is no option: it is set by `--set name=value`. A number is
    `at_least`, `above` or `at_most` a bound.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    repeat: bool = False
    shown_default: str | None = None
    rare: bool = False
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise a UsageError for a number outside the bounds."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        too_small = self.at_least is not None and not value >= self.at_least
        too_small |= self.above is not None and not value > self.above
        if too_small or (self.at_most is not None and not value <= self.at_most):
            bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most}
            wanted = [f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None]
            flag = f"--set {name}=" if self.rare else f"--{name} "
            raise UsageError(f"{flag.replace('_', '-')}{value:g}: {', '.join(wanted)} is expected")


def option(
    default: Any = REQUIRED,
    *names: str,
    metavar: str | None = None,
    repeat: bool = False,
    shown_default: str | None = None,
    rare: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declare a dataclass field with an `OptionSpec`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Example:
    ...     model: str = option("", "--encoder")
    >>> spec_of(dataclasses.fields(Example)[0]).names
    ('--encoder',)
    """
    spec = OptionSpec(names, metavar, repeat, shown_default, rare, at_least, above, at_most)
    return dataclasses.field(default=default, metadata={"option": spec})


def spelled(name: str, *classes: type) -> str:
    """Return the spelling of a field on the command line: `--name` or `--set name`."""
    rare = any(f.name == name and spec_of(f).rare for c in classes for f in dataclasses.fields(c))
    return f"{'--set ' if rare else '--'}{name.replace('_', '-')}"


class Settings:
    """Base of settings classes: checks the bounds of its fields."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            spec_of(field).check(field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings):
    """Shared by all commands that run a model."""

    device: str = option("auto", metavar="auto|cpu|cuda|cuda:N")
    """Device; auto uses a GPU if there is one. For several GPUs use torchrun."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverwriteSettings(Settings):
    """Shared by all commands that write files."""

    overwrite: bool = False
    """Replace an existing output."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeSettings(OverwriteSettings):
    """Shared by all commands that can continue an interrupted run."""

    resume: bool = False
    """Resume an interrupted run; finished work is checked against the input and kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")


def spec_of(field: "dataclasses.Field[Any]") -> OptionSpec:
    """Return the metadata that `option` added to a field."""
    spec = field.metadata.get("option", OptionSpec())
    assert isinstance(spec, OptionSpec)
    return spec


@cache
def _class_docs(source: Path) -> dict[str, dict[str, str]]:
    """Read a source file: class name -> field name -> the string under the field."""
    docs: dict[str, dict[str, str]] = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = docs.setdefault(node.name, {})
        for statement, following in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                fields[statement.target.id] = " ".join(following.value.value.split())
    return docs


def field_docs(settings: type) -> Mapping[str, str]:
    """Return field name -> help text, for a settings class and its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        source = getattr(sys.modules[cls.__module__], "__file__", None)
        if dataclasses.is_dataclass(cls) and source:
            docs.update(_class_docs(Path(source)).get(cls.__name__, {}))
    return docs


def plain(value: Any) -> Any:
    """Return a field's value as JSON and YAML represent it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return getattr(value, "value", value)


def as_json(settings: Any) -> dict[str, Any]:
    """Return settings as a JSON mapping: enums by value, tuples as lists."""
    return {f.name: plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def without_none(kind: Any) -> Any:
    """Return a type without its `None`.

    >>> without_none(int | None)
    <class 'int'>
    """
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def as_type(kind: Any, value: Any) -> Any:
    """Convert a JSON or YAML value to the type of a field.

    Raises:
        ValueError: the value does not fit the type.

    >>> as_type(tuple[int, ...], [12, 10]), as_type(float | None, 1)
    ((12, 10), 1)
    """
    if value is None and type(None) in get_args(kind):
        return None
    kind = without_none(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(as_type(inner[0], item) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {as_type(inner[0], k): as_type(inner[1], v) for k, v in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return from_json(kind, value)
    if isinstance(kind, type):
        if issubclass(kind, Enum) and value in list(kind):
            return kind(value)
        fits = isinstance(value, (int, float) if kind is float else kind)
        if fits and (kind is bool or not isinstance(value, bool)):
            return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        expected = " or ".join(str(choice.value) for choice in kind)
    else:
        expected = _EXPECTED.get(origin or kind, str(kind))
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
    """Convert JSON values to the types of the class's fields.

    Raises:
        UsageError: lists all unknown names and values of the wrong type.
    """
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
    """Build a settings object from the output of `as_json`.

    Raises:
        UsageError: lists all unknown names and values of the wrong type.
    """
    return cls(**typed_values(cls, values))


def changed(settings: T, overrides: Mapping[str, Any]) -> T:
    """Return a copy with the given fields replaced; `None` leaves a field unchanged."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return dataclasses.replace(settings, **given)  # type: ignore[type-var]


def check_shard(shard_id: int, shard_num: int) -> None:
    """Raise a UsageError unless 0 <= shard_id < shard_num."""
    if not 0 <= shard_id < shard_num:
        raise UsageError(
            f"--shard-id {shard_id} of --shard-num {shard_num}",
            f"shards are numbered 0 to {max(shard_num, 1) - 1}",
        )
