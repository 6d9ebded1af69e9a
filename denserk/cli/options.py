"""From settings classes to a typer command: one option a field, its docstring the help.

A command is a function whose parameters are settings classes (or `Overrides` of one, where every option is
unset unless given). `command` flattens them into options, builds the objects again when the command is called,
and so keeps defaults, help, refusals and manifests in one place.
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from denserk.cli.console import ConsoleSettings, configure
from denserk.settings.options import field_docs, shape_of

T = TypeVar("T")


class Command(TyperCommand):
    """A command whose help lists its options panel by panel, names never cut; plain text, so that it is quick."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section a panel, in the order of the settings groups."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)


class Overrides(Mapping[str, Any], Generic[T]):
    """The options of a settings class that were given on the command line, by field name."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Any:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def _bare(kind: Any) -> Any:
    """The type without `None`."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _comma_list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(name: str, kind: Any) -> str:
    long = "--" + name.replace("_", "-")
    return f"{long}/--no-{name.replace('_', '-')}" if kind is bool else long


def _parameter(
    name: str, field: "dataclasses.Field[Any]", kind: Any, text: str, panel: str, unset: bool
) -> tuple[inspect.Parameter, bool]:
    """One option as a parameter of the typer command, and whether its text is a comma list."""
    shape = shape_of(field)
    bare = _bare(kind)
    default: Any = None if unset or field.default is dataclasses.MISSING else field.default
    required = not unset and field.default is dataclasses.MISSING
    comma = get_origin(bare) is tuple and not shape.repeat
    annotation: Any = bare
    if get_origin(bare) is tuple:
        annotation = str if comma else list[get_args(bare)[0]]  # type: ignore[misc]
        if default is not None:
            default = ",".join(default) if comma else list(default) or None
    if default is None and not required:
        annotation = annotation | None
    if isinstance(bare, type) and issubclass(bare, Enum) and default is not None:
        default = bare(default)
    shown: Any = shape.shown_default or True
    if unset:
        shown = False
    elif default is None and not shape.shown_default:
        shown = False
    info = typer.Option(
        _flag(name, bare),
        *shape.names,
        help=text,
        metavar=shape.metavar or ("A,B,..." if comma else None),
        rich_help_panel=panel,
        show_default=shown,
    )
    parameter = inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[annotation, info],
    )
    return parameter, comma


def command(
    app: typer.Typer, name: str, **panels: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a command; `panels` names the help panel of each settings parameter.

    Parameters that are not settings classes are handed to typer as they stand.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        plain: list[inspect.Parameter] = []
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[type, bool, list[str], set[str]]] = {}
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            unset = get_origin(hint) is Overrides
            settings = get_args(hint)[0] if unset else hint
            if not dataclasses.is_dataclass(settings):
                plain.append(parameter.replace(annotation=hint))
                continue
            assert isinstance(settings, type)
            docs = field_docs(settings)
            kinds = get_type_hints(settings)
            names: list[str] = []
            commas: set[str] = set()
            for field in dataclasses.fields(settings):
                option, comma = _parameter(
                    field.name,
                    field,
                    kinds[field.name],
                    docs[field.name],
                    panels.get(parameter.name, "Options"),
                    unset,
                )
                parameters.append(option)
                names.append(field.name)
                if comma:
                    commas.add(field.name)
            groups[parameter.name] = (settings, unset, names, commas)
        console_docs = field_docs(ConsoleSettings)
        for field in dataclasses.fields(ConsoleSettings):
            parameters.append(
                _parameter(field.name, field, bool, console_docs[field.name], "Console", False)[0]
            )

        @functools.wraps(function)
        def run(**given: Any) -> None:
            configure(
                ConsoleSettings(
                    **{f.name: given.pop(f.name) for f in dataclasses.fields(ConsoleSettings)}
                )
            )
            arguments: dict[str, Any] = {}
            for group, (settings, unset, names, commas) in groups.items():
                values = {n: given.pop(n) for n in names}
                for n in names:
                    if n in commas:
                        values[n] = _comma_list(values[n])
                    elif isinstance(values[n], list):
                        values[n] = tuple(values[n])
                values = {n: v for n, v in values.items() if v is not None}
                arguments[group] = Overrides(values) if unset else settings(**values)
            function(**arguments, **given)

        run.__signature__ = inspect.Signature(plain + parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in plain + parameters}
        app.command(name, cls=Command)(run)
        return run

    return register
