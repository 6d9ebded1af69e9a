"""From settings classes to a typer command: one option a field, its docstring the help.

A command is a function whose parameters are settings classes (or `Overrides` of one, where every
option is unset unless given). `command` flattens them into options, builds the objects again when
the command is called, and so keeps defaults, help, refusals and manifests in one place.
"""

import dataclasses
import functools
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from denserk.cli.console import ConsoleSettings, configure
from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, field_docs, shape_of, without_none

T = TypeVar("T")
LARGEST = 2**31 - 1
"""The largest whole number that an option takes."""


OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target", "report")
"""Options that name what a command writes."""


@dataclasses.dataclass(frozen=True)
class OverwriteSettings:
    """For commands whose outputs are files that are written in one pass."""

    overwrite: bool = False
    """Replace an output that exists."""


class _Value(str):
    """A default of its own class's in words, which is a value and no remark."""

    __slots__ = ()


ONE_INPUT = ("answers", "baseline", "corpus", "encoded_queries", "qrels", "topics")
"""Inputs that are one file: the parser would keep the last of several and ignore the others."""


ALL_OPTIONS = "denserk.help_all"
"""Entry of a context's `meta`: the help is to list every option."""


class Command(TyperCommand):
    """A command with a short help: its common options and examples; `--help-all` lists the rest."""

    common: tuple[str, ...] = ()
    """Parameters that --help shows, in this order; none: all of them."""
    examples: tuple[str, ...] = ()
    """Command lines that the help ends with."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments.

        Raises:
            UsageError: an input that can be given once is given again.
        """
        order = [parameter.name for parameter in self.make_parser(ctx).parse_args(list(args))[2]]
        for parameter in self.params:
            if ctx.resilient_parsing:  # a shell completes the line
                break
            if parameter.name in ONE_INPUT and order.count(parameter.name) > 1:
                if getattr(parameter, "multiple", False):
                    continue
                raise UsageError(
                    f"{parameter.opts[0]} is given {order.count(parameter.name)} times, and one is "
                    "read",
                    "run the command once for each, or name one file",
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the common options as one section, or all of them with one section a panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        parameters, short = self.get_params(ctx), self.common and ALL_OPTIONS not in ctx.meta
        if short:
            order = {name: i for i, name in enumerate((*self.common, "help_all", "help"))}
            parameters = sorted(
                (p for p in parameters if p.name in order or p.param_type_name == "argument"),
                key=lambda p: order.get(p.name, -1),
            )
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is not None:
                shown = getattr(parameter, "show_default", None)
                if isinstance(shown, _Value):  # typer takes a text for words about the default
                    name, text = record
                    record = name, text.replace(f"default: ({shown})", f"default: {shown}")
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                if parameter.param_type_name == "argument":
                    panel = "Arguments"
                elif short:
                    panel, record = "Options", (_without_aliases(parameter, record[0]), record[1])
                panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def _without_aliases(parameter: Any, names: str) -> str:
    """The names of an option in the help, without those of other toolkits."""
    first = next(name for name in parameter.opts if name[:2] == "--")
    for other in parameter.opts:
        names = names if other == first else re.sub(rf"(, )?{other}(?![\w-])(, )?", "", names)
    return names


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            is_eager=True,
            callback=_show_all,
            help="Show all options and exit.",
        ),
    ],
)


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


class Given(Overrides[T]):
    """The same where unset options take the class's own defaults, which the help then shows."""


def _comma_list(name: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        flag, what = _flag(name, negatable=False), "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{flag} {text}: a comma list of {what} is expected") from None
    _refuse_extremes(name, values)
    return values


def _refuse_extremes(name: str, value: Any) -> None:
    """Reject numbers that no option means: NaN, infinity, and what fits into no 32 bits.

    Raises:
        UsageError: the value, or one of several, is such a number.
    """
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, float) and not math.isfinite(one):
            raise UsageError(f"{_flag(name, negatable=False)} {one}: a finite number is expected")
        if isinstance(one, int) and abs(one) > LARGEST:
            raise UsageError(f"{_flag(name, negatable=False)} {one}: at most {LARGEST} is expected")


def _flag(name: str, *, negatable: bool) -> str:
    long = "--" + name.replace("_", "-")
    return f"{long}/--no-{long[2:]}" if negatable else long


class _Group:
    """The options of one settings class, and the way back from their values to its object."""

    def __init__(self, settings: type, panel: str, unset: type | None = None) -> None:
        self._settings, self._panel, self._unset = settings, panel, unset
        self._docs = field_docs(settings)
        self._kinds = {name: without_none(kind) for name, kind in get_type_hints(settings).items()}
        self._fields = dataclasses.fields(settings)

    def parameters(self) -> list[inspect.Parameter]:
        """One keyword parameter a field, as typer reads it."""
        return [self._parameter(field) for field in self._fields]

    def _is_comma_list(self, field: "dataclasses.Field[Any]") -> bool:
        return get_origin(self._kinds[field.name]) is tuple and not shape_of(field).repeat

    def _parameter(self, field: "dataclasses.Field[Any]") -> inspect.Parameter:
        shape, kind = shape_of(field), self._kinds[field.name]
        required = field.default is REQUIRED and not self._unset
        default: Any = None if self._unset or required else field.default
        if get_origin(kind) is tuple:
            comma = self._is_comma_list(field)
            annotation: Any = str if comma else types.GenericAlias(list, get_args(kind)[:1])
            default = (",".join(map(str, default)) if comma else list(default)) if default else None
        else:
            annotation = kind
        info = typer.Option(
            _flag(field.name, negatable=kind is bool and default is not False),
            *shape.names,
            help=self._docs[field.name],
            metavar=shape.metavar or ("A,B,..." if self._is_comma_list(field) else None),
            rich_help_panel=self._panel,
            show_default=self._shown_default(field, default),
        )
        return inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required else default,
            annotation=Annotated[annotation if required else annotation | None, info],
        )

    def _shown_default(self, field: "dataclasses.Field[Any]", default: Any) -> bool | str:
        """What the help says of the default: nothing, typer's own rendering, or a text."""
        told = shape_of(field).shown_default
        if self._unset is Overrides:
            return told or "the model's own"
        if field.default is False:
            return False
        if self._unset is Given and told is None:
            return field.default not in (None, REQUIRED, ()) and self._in_words(field)
        return told or default is not None

    @staticmethod
    def _in_words(field: "dataclasses.Field[Any]") -> str:
        """A default as one would type it."""
        if field.default is True:
            return _Value(field.name.replace("_", "-"))
        if isinstance(field.default, tuple):
            return _Value(",".join(map(str, field.default)))
        return _Value(field.default)

    def build(self, given: dict[str, Any]) -> Any:
        """Takes the group's values out of what typer parsed, and makes the object."""
        values = {}
        for field in self._fields:
            value = given.pop(field.name)
            if self._is_comma_list(field):
                value = _comma_list(field.name, value, get_args(self._kinds[field.name])[0])
            elif isinstance(value, list):
                value = tuple(value)
            if value is not None:
                values[field.name] = value
        return self._unset(values) if self._unset else self._settings(**values)


def _claimed(settings: Sequence[Any]) -> AbstractContextManager[None]:
    """Guard the outputs that settings objects and mappings name against their inputs and others.

    Of several processes under torchrun the first one holds them for all.
    """
    values: dict[str, Any] = {}
    for group in settings:
        values |= vars(group) if dataclasses.is_dataclass(group) else dict(group or {})
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    if report := values.get("report"):
        outputs[-1:] = [str(Path(report, "index.html"))] * (not Path(report).is_file())
    outputs += [p for s in settings if (p := getattr(s, "picture", None)) and not p.is_dir()]
    if not outputs or os.environ.get("RANK", "0") != "0":
        return nullcontext()
    from denserk.formats.outputs import claim, named_paths

    read = {name: value for name, value in values.items() if name not in (*OUTPUTS, "tag", "plot")}
    return claim(
        outputs,
        inputs=named_paths(read),
        overwrite=bool(values.get("overwrite")),
        resume=bool(values.get("resume")),
    )


def command(
    app: typer.Typer,
    name: str,
    *,
    common: str = "",
    examples: tuple[str, ...] = (),
    **panels: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command.

    Parameters that are not settings classes are handed to typer as they stand.

    Args:
        app: where it is registered.
        name: what one types.
        common: the fields, separated by blanks, whose options --help shows; empty: all.
        examples: command lines for the end of the help.
        panels: the help panel of each settings parameter.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        console_group = _Group(ConsoleSettings, "Console")
        overwrite_group = None
        groups: dict[str, _Group] = {}
        plain: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            unset = get_origin(hint) if get_origin(hint) in (Overrides, Given) else None
            settings = get_args(hint)[0] if unset else hint
            if dataclasses.is_dataclass(settings) and isinstance(settings, type):
                panel = panels.get(parameter.name, "Options")
                groups[parameter.name] = _Group(settings, panel, unset)
            else:
                plain.append(parameter.replace(annotation=hint))
        options = [o for group in groups.values() for o in group.parameters()]
        names = {option.name for option in options}
        if "overwrite" not in names and names & set(OUTPUTS):
            overwrite_group = _Group(OverwriteSettings, "Output")
            options += overwrite_group.parameters()
        options += [*console_group.parameters(), HELP_ALL]
        unknown = set(common.split()) - {parameter.name for parameter in plain + options}
        if unknown:
            raise ValueError(f"{name} has no options {unknown} to show in its help")

        @functools.wraps(function)
        def run(**given: Any) -> None:
            for option, value in given.items():
                _refuse_extremes(option, value)
            del given["help_all"]
            configure(console_group.build(given))
            overwrite = overwrite_group.build(given) if overwrite_group else None
            built = {group: made.build(given) for group, made in groups.items()}
            with _claimed([*built.values(), overwrite, given]):
                function(**built, **given)

        run.__signature__ = inspect.Signature(plain + options)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in plain + options}
        parts = {"common": tuple(common.split()), "examples": examples}
        app.command(name, cls=type("Command", (Command,), parts))(run)
        return run

    return register
