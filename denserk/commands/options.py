"""Construction of typer commands from settings classes.

A command is a function whose parameters are settings classes (or `Overrides` of one, where every
option is unset unless given). `command` turns their fields into options, and the parsed options
back into settings objects.
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
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from denserk.commands.console import ConsoleSettings, configure
from denserk.config.options import (
    REQUIRED,
    OverwriteSettings,
    as_type,
    field_docs,
    spec_of,
    without_none,
)
from denserk.errors import UsageError

T = TypeVar("T")
# Largest integer that an option accepts.
LARGEST = 2**31 - 1


# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target", "report")


# Inputs that can be given once; the parser would silently use the last one.
ONE_INPUT = ("answers", "baseline", "corpus", "encoded_queries", "qrels", "topics")


# Key of a context's `meta`: the help lists all options.
ALL_OPTIONS = "denserk.help_all"


class Command(TyperCommand):
    """Command whose --help lists common options and examples; --help-all lists all options."""

    common: tuple[str, ...] = ()
    """Parameters that --help shows, in this order; empty: all."""
    examples: tuple[str, ...] = ()
    """Command lines at the end of the help."""
    rare: tuple[tuple[str, str], ...] = ()
    """Help records of the settings that --set takes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UsageError: a repeated input, or a setting given as an option.
        """
        settings = {f"--{record[0].partition('=')[0]}" for record in self.rare}
        for word in args:
            name = word.partition("=")[0].replace("_", "-")
            if name.replace("--no-", "--", 1) in settings or name in settings:
                raise UsageError(
                    f"{word} is a setting, not an option",
                    f"give --set {name.replace('--no-', '--', 1)[2:]}=VALUE",
                )
        order = [parameter.name for parameter in self.make_parser(ctx).parse_args(list(args))[2]]
        for parameter in self.params:
            if ctx.resilient_parsing:  # a shell completes the line
                break
            if parameter.name in ONE_INPUT and order.count(parameter.name) > 1:
                if getattr(parameter, "multiple", False):
                    continue
                raise UsageError(
                    f"{parameter.opts[0]} takes one file and is given "
                    f"{order.count(parameter.name)} times",
                    "run the command once per file",
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the common options as one section, or all options with one section per panel."""
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
                if isinstance(shown, str):  # typer puts a text into parentheses
                    name, text = record
                    record = name, text.replace(f"default: ({shown})", f"default: {shown}")
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                if parameter.param_type_name == "argument":
                    panel, record = "Arguments", (record[0].partition(" <")[0], record[1])
                elif short:
                    panel, record = "Options", (_without_aliases(parameter, record[0]), record[1])
                panels.setdefault(panel, []).append(record)
        if self.rare and not short:
            panels["Settings (as --set NAME=VALUE)"] = list(self.rare)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def _without_aliases(parameter: Any, names: str) -> str:
    """Return the names of an option for the help, without aliases."""
    first = next(name for name in parameter.opts if name[:2] == "--")
    for other in parameter.opts:
        names = (
            names
            if other == first
            else re.sub(rf"(, )?{re.escape(other)}(?![\w-])(, )?", "", names)
        )
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
            "--help-all", is_eager=True, callback=_show_all, help="Show all options and exit."
        ),
    ],
)


class Overrides(Mapping[str, Any], Generic[T]):
    """Given options of a settings class, by field name; the defaults are the model's own."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Any:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


class Given(Overrides[T]):
    """Given options of a settings class, by field name; the defaults are the class's."""


def flag(name: str) -> str:
    """Return the option of a field.

    >>> flag("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def _check_number(option: str, value: Any) -> None:
    """Reject NaN, infinity, and integers of more than 32 bits."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, float) and not math.isfinite(one):
            raise UsageError(f"{option}{one}: a finite number is expected")
        if isinstance(one, int) and abs(one) > LARGEST:
            raise UsageError(f"{option}{one}: at most {LARGEST} is expected")


class _Group:
    """Options of one settings class, and the way back from values to its object."""

    def __init__(self, settings: type, panel: str, unset: type | None = None) -> None:
        self._settings, self._panel, self._unset = settings, panel, unset
        self._docs = field_docs(settings)
        self.kinds = {name: without_none(kind) for name, kind in get_type_hints(settings).items()}
        self.fields = {field.name: field for field in dataclasses.fields(settings)}

    def parameters(self, *, config: bool) -> list[inspect.Parameter]:
        """Return one keyword parameter per option, for typer."""
        fields = (field for field in self.fields.values() if not spec_of(field).rare)
        return [self._parameter(field, config=config) for field in fields]

    def rare(self) -> dict[str, tuple[str, str]]:
        """Return the fields that `--set` takes: name -> help record."""
        return {
            field.name: (
                f"{flag(field.name)[2:]}={self._value_of(field)}",
                f"{self._docs[field.name]} [default: {self._default_text(field) or 'none'}]",
            )
            for field in self.fields.values()
            if spec_of(field).rare
        }

    def _value_of(self, field: "dataclasses.Field[Any]") -> str:
        """Return the metavar of a rare field."""
        kind = self.kinds[field.name]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(each.value) for each in kind)
        if get_origin(kind) is tuple:
            return "A,B,..."
        metavars = {bool: "yes|no", int: "INTEGER", float: "NUMBER"}
        return spec_of(field).metavar or metavars.get(kind, "TEXT")

    def _is_comma_list(self, field: "dataclasses.Field[Any]") -> bool:
        return get_origin(self.kinds[field.name]) is tuple and not spec_of(field).repeat

    def _parameter(self, field: "dataclasses.Field[Any]", *, config: bool) -> inspect.Parameter:
        spec, kind = spec_of(field), self.kinds[field.name]
        required = field.default is REQUIRED and not self._unset and not config
        if get_origin(kind) is tuple:
            comma = self._is_comma_list(field)
            annotation: Any = str if comma else types.GenericAlias(list, get_args(kind)[:1])
        else:
            annotation = kind
        name = flag(field.name)
        if kind is bool and (field.default is not False or self._unset):
            name = f"{name}/--no-{name[2:]}"
        info = typer.Option(
            name,
            *spec.names,
            help=self._docs[field.name],
            metavar=spec.metavar or ("A,B,..." if self._is_comma_list(field) else None),
            rich_help_panel=self._panel,
            show_default=self._default_text(field) or False,
        )
        return inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required else None,
            annotation=Annotated[annotation if required else annotation | None, info],
        )

    def _default_text(self, field: "dataclasses.Field[Any]") -> str | None:
        """Return the default as typed, or a description of it."""
        spec, default = spec_of(field), field.default
        if spec.shown_default or self._unset is Overrides:
            return spec.shown_default or "the model's own"
        if default is None or default is REQUIRED:
            return None
        if isinstance(default, bool):
            return "yes" if default else "no" if spec.rare else None
        if isinstance(default, tuple):
            return ",".join(map(str, default))
        return str(default) if str(default).strip() else repr(default) if default else None

    def convert(self, name: str, value: Any) -> Any:
        """Convert a value from the command line, YAML or Python to the type of its field.

        Raises:
            UsageError: the value has the wrong type.
        """
        kind = self.kinds[name]
        if isinstance(value, Path):
            value = str(value)
        if get_origin(kind) is tuple and isinstance(value, str | int | float):
            comma = isinstance(value, str) and self._is_comma_list(self.fields[name])
            value = str(value).split(",") if comma else [value]
            value = [part.strip() if isinstance(part, str) else part for part in value if part]
        if get_origin(kind) is tuple and isinstance(value, Sequence):
            value = [_number(get_args(kind)[0], str(part)) for part in value]
        if isinstance(value, str):
            value = _number(kind, value)
        rare = spec_of(self.fields[name]).rare
        option = f"--set {flag(name)[2:]}=" if rare else f"{flag(name)} "
        try:
            value = None if value is None else as_type(kind, value)
        except ValueError as error:
            raise UsageError(f"{option.rstrip()}: {error}") from None
        _check_number(option, value)
        return value

    def build(self, given: dict[str, Any]) -> Any:
        """Remove the group's values from `given` and build its settings object.

        Raises:
            UsageError: invalid or missing values.
        """
        values = {
            n: self.convert(n, v) for n in self.fields if (v := given.pop(n, None)) is not None
        }
        if self._unset:
            return self._unset(values)
        for name, field in self.fields.items():
            if field.default is REQUIRED and name not in values:
                raise UsageError(f"{flag(name)} must be given")
        return self._settings(**values)


def _number(kind: Any, text: str) -> Any:
    """Parse a number if one is expected; `as_type` rejects other text."""
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE of `--set`, with the value as in YAML.

    >>> parse_setting("late-mlm=no"), parse_setting("layers=12,10")
    (('late_mlm', False), ('layers', '12,10'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set {text}: NAME=VALUE is expected", "--help-all lists the names")
    values = {"yes": True, "true": True, "no": False, "false": False, "none": None}
    if value.lower() in values:
        return name.strip().replace("-", "_"), values[value.lower()]
    return name.strip().replace("-", "_"), value


def _guard_outputs(settings: Sequence[Any]) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    Under torchrun only the main process does.
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
    from denserk.io.outputs import claim, named_paths

    read = {name: value for name, value in values.items() if name not in (*OUTPUTS, "tag", "plot")}
    return claim(
        outputs,
        inputs=named_paths(read),
        overwrite=bool(values.get("overwrite")),
        resume=bool(values.get("resume")),
    )


def _option(kind: Any, name: str, **more: Any) -> Any:
    parameter = {"--set": "set_"}.get(name, name[2:])
    return inspect.Parameter(
        parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, typer.Option(name, **more)],
    )


SET = _option(
    list[str] | None,
    "--set",
    metavar="NAME=VALUE",
    help="Set a less common setting (see --help-all); repeatable.",
    show_default=False,
)
CONFIG = _option(
    str | None,
    "--config",
    metavar="FILE.yaml",
    help="Read options from a YAML file, e.g. the config.yaml of an earlier run; the command line "
    "overrides it.",
    show_default=False,
)


class _Parsed:
    """Parameters of a command function: settings classes as groups, others unchanged."""

    def __init__(self, name: str, function: Callable[..., Any], panels: Mapping[str, str]) -> None:
        self.name, self.function = name, function
        self.groups: dict[str, _Group] = {}
        self.plain: list[inspect.Parameter] = []
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            unset = get_origin(hint) if get_origin(hint) in (Overrides, Given) else None
            settings = get_args(hint)[0] if unset else hint
            if dataclasses.is_dataclass(settings) and isinstance(settings, type):
                panel = panels.get(parameter.name, "Options")
                self.groups[parameter.name] = _Group(settings, panel, unset)
            else:
                self.plain.append(parameter.replace(annotation=hint))
        names = {name for group in self.groups.values() for name in group.fields}
        self.overwrite = None
        if "overwrite" not in names and names & set(OUTPUTS):
            self.overwrite = _Group(OverwriteSettings, "Output")
        self.owners = {
            field: group
            for group in (*self.groups.values(), *filter(None, [self.overwrite]))
            for field in group.fields
        }
        self.rare = {n: r for group in self.groups.values() for n, r in group.rare().items()}

    def known(self, name: str, where: str) -> str:
        """Return the field name of an option or setting.

        Raises:
            UsageError: unknown option or setting.
        """
        field = name.replace("-", "_")
        if field in self.owners or field in {each.name for each in self.plain}:
            return field
        near = get_close_matches(field, self.owners, n=1)
        meant = f"; did you mean {flag(near[0])[2:]}?" if near else ""
        raise UsageError(
            f"{where}: denserk {self.name} has no setting {name}{meant}",
            f"denserk {self.name} --help-all lists them",
        )

    def call(self, given: dict[str, Any]) -> Any:
        """Call the function with values by field name, with its outputs guarded."""
        overwrite = self.overwrite.build(given) if self.overwrite else None
        built = {name: group.build(given) for name, group in self.groups.items()}
        with _guard_outputs([*built.values(), overwrite, given]):
            return self.function(**built, **given)


def command(
    app: typer.Typer,
    name: str,
    *,
    common: str = "",
    examples: tuple[str, ...] = (),
    config: bool = False,
    **panels: str,
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Register a function of settings classes as a command.

    The returned function takes the options as keywords: strings, numbers, paths, and lists for
    repeatable options.

    Args:
        app: the typer app.
        name: name of the command.
        common: space-separated fields whose options --help shows; empty: all.
        examples: command lines at the end of the help.
        config: add --config, which reads options from a YAML file.
        panels: the help panel of each settings parameter.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        parsed = _Parsed(name, function, panels)
        console = _Group(ConsoleSettings, "Console")
        options = [o for g in parsed.groups.values() for o in g.parameters(config=config)]
        options += parsed.overwrite.parameters(config=config) if parsed.overwrite else []
        options += [CONFIG] * config + [SET] * bool(parsed.rare)
        options += [*console.parameters(config=False), HELP_ALL]
        unknown = set(common.split()) - {parameter.name for parameter in parsed.plain + options}
        if unknown:
            raise ValueError(f"{name} has no options {unknown} to show in its help")

        @functools.wraps(function)
        def run(**given: Any) -> None:
            configure(console.build(given))
            del given["help_all"]
            for text in given.pop("set_", None) or ():
                field, value = parse_setting(text)
                given[parsed.known(field, f"--set {text}")] = value
            parsed.call(_with_config(parsed, given))

        @functools.wraps(function)
        def call(**keywords: Any) -> T:
            given = {parsed.known(n, "denserk"): v for n, v in keywords.items() if n != "config"}
            given |= {"config": keywords["config"]} if "config" in keywords else {}
            given |= {p.name: p.default for p in parsed.plain if p.name not in given}
            found: T = parsed.call(_with_config(parsed, given))
            return found

        run.__signature__ = inspect.Signature(parsed.plain + options)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parsed.plain + options}
        parts = {
            "common": tuple(common.split()),
            "examples": examples,
            "rare": tuple(parsed.rare.values()),
        }
        app.command(name, cls=type("Command", (Command,), parts))(run)
        return call

    return register


def _with_config(parsed: _Parsed, given: dict[str, Any]) -> dict[str, Any]:
    """Add the values of --config that the command line does not give."""
    path = given.pop("config", None)
    if path is None:
        return given
    from denserk.config.recipes import read_yaml

    read = {parsed.known(name, str(path)): value for name, value in read_yaml(path).items()}
    return read | {name: value for name, value in given.items() if value is not None}
