"""Construction of typer commands from settings classes.

A command is a function whose parameters are settings classes (or `Overrides` or `Given` of one,
which hold the given options alone). `command` turns their fields into options, and the parsed
options back into settings objects.
"""

import dataclasses
import functools
import inspect
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
from denserk.config.options import REQUIRED, as_type, field_docs, spec_of, without_none
from denserk.errors import UsageError

T = TypeVar("T")

# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target", "report")
# Inputs that can be given once; the parser would silently use the last one.
ONE_INPUT = ("answers", "baseline", "corpus", "encoded_queries", "qrels", "topics")
# Inputs of which one can be standard input.
INPUTS = (*ONE_INPUT, "data", "files", "input", "run", "runs", "train")
# Largest integer that an option accepts.
LARGEST = 2**31 - 1
# Key of a context's `meta`: the help lists all options.
ALL_OPTIONS = "denserk.help_all"


class Command(TyperCommand):
    """Command whose --help lists common options and examples; --help-all lists all options."""

    common: tuple[str, ...] = ()  # parameters that --help shows, in this order; empty: all
    examples: tuple[str, ...] = ()  # command lines at the end of the help
    rare: Mapping[str, tuple[str, str]] = {}  # the settings that --set takes: help records

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UsageError: a repeated input, or a setting given as an option.
        """
        for word in args:
            name = re.sub("^--(no-)?", "", word.partition("=")[0].replace("_", "-"))
            if word.startswith("--") and name.replace("-", "_") in self.rare:
                raise UsageError(f"{word} is a setting, not an option", f"give --set {name}=VALUE")
        if not ctx.resilient_parsing:  # a shell completes the line
            given = [p.name for p in self.make_parser(ctx).parse_args(list(args))[2]]
            for parameter in self.params:
                several = getattr(parameter, "multiple", False) or given.count(parameter.name) < 2
                if parameter.name in ONE_INPUT and not several:
                    raise UsageError(
                        f"{parameter.opts[0]} takes one file and is given "
                        f"{given.count(parameter.name)} times"
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
            if record is None:
                continue
            names, text = record
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                panel, names = "Arguments", names.partition(" <")[0]
            elif short:
                long = next(name for name in parameter.opts if name[:2] == "--")
                for alias in set(parameter.opts) - {long}:
                    names = re.sub(rf"(, )?{re.escape(alias)}(?![\w-])(, )?", "", names)
                panel = "Options"
            text = re.sub(r"\[default: \((.*)\)\]", r"[default: \1]", text)  # typer's parentheses
            panels.setdefault(panel, []).append((names, text))
        if self.rare and not short:
            panels["Settings (as --set NAME=VALUE)"] = list(self.rare.values())
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Overrides(dict[str, Any], Generic[T]):
    """Given options of a settings class, by field name; the defaults are the model's own."""


class Given(Overrides[T]):
    """Given options of a settings class, by field name; the defaults are the class's."""


class _Group:
    """Options of one settings class, and the way back from values to its object."""

    def __init__(self, settings: type, unset: type | None = None) -> None:
        self._settings, self._unset = settings, unset
        self._docs = field_docs(settings)
        self._kinds = {name: without_none(kind) for name, kind in get_type_hints(settings).items()}
        self.fields = {field.name: field for field in dataclasses.fields(settings)}
        title = re.split("[.:]", settings.__doc__ or "")[0]
        self._panel = f"{title} (overrides the model's)" if unset is Overrides else title

    def parameters(self) -> list[inspect.Parameter]:
        """Return one keyword parameter per option, for typer."""
        return [self._parameter(f) for f in self.fields.values() if not spec_of(f).rare]

    def rare(self) -> dict[str, tuple[str, str]]:
        """Return the fields that `--set` takes: name -> help record."""
        return {
            name: (
                f"{name.replace('_', '-')}={self._metavar(name)}",
                f"{self._docs[name]} [default: {self._default(name) or 'none'}]",
            )
            for name, field in self.fields.items()
            if spec_of(field).rare
        }

    def _metavar(self, name: str) -> str:
        kind = self._kinds[name]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(each.value) for each in kind)
        if get_origin(kind) is tuple:
            return "A,B,..."
        metavars = {bool: "yes|no", int: "INTEGER", float: "NUMBER"}
        return spec_of(self.fields[name]).metavar or metavars.get(kind, "TEXT")

    def _default(self, name: str) -> str | None:
        """Return the default as typed, or a description of it."""
        spec, default = spec_of(self.fields[name]), self.fields[name].default
        if spec.shown_default or self._unset is Overrides:
            return spec.shown_default or "the model's own"
        if default is None or default is REQUIRED:
            return None
        if isinstance(default, bool):
            return "yes" if default else "no" if spec.rare else None
        if isinstance(default, tuple):
            return ",".join(map(str, default))
        return str(default) if str(default).strip() else repr(default) if default else None

    def _parameter(self, field: "dataclasses.Field[Any]") -> inspect.Parameter:
        spec, kind, metavar = spec_of(field), self._kinds[field.name], spec_of(field).metavar
        if get_origin(kind) is tuple and spec.repeat:
            kind = types.GenericAlias(list, get_args(kind)[:1])
        elif get_origin(kind) is tuple:
            kind, metavar = str, metavar or "A,B,..."
        name = spec.flag(field.name)
        if kind is bool and (field.default is not False or self._unset):
            name = f"{name}/--no-{name[2:]}"
        required = " [required]" if field.default is REQUIRED and not self._unset else ""
        return _option(
            kind | None,
            field.name,
            name,
            *spec.names,
            help=self._docs[field.name] + required,
            metavar=metavar,
            rich_help_panel=self._panel,
            show_default=self._default(field.name) or False,
        )

    def _convert(self, name: str, value: Any) -> Any:
        """Convert a value from the command line, YAML or Python to the type of its field."""
        kind, spec = self._kinds[name], spec_of(self.fields[name])
        if isinstance(value, Path):
            value = str(value)
        if get_origin(kind) is tuple and isinstance(value, str | int | float):
            parts = value.split(",") if isinstance(value, str) and not spec.repeat else [value]
            value = [part.strip() if isinstance(part, str) else part for part in parts if part]
        try:
            if get_origin(kind) is tuple and isinstance(value, Sequence):
                return as_type(kind, [_number(get_args(kind)[0], part) for part in value])
            number = as_type(kind, _number(kind, value))
            if isinstance(number, int) and abs(number) > LARGEST:
                raise ValueError(f"{number} is out of range, at most {LARGEST} is expected")
        except ValueError as error:
            raise UsageError(f"{spec.flag(name)}: {error}") from None
        return number

    def build(self, given: dict[str, Any]) -> Any:
        """Remove the group's values from `given` and build its settings object.

        Raises:
            UsageError: invalid or missing values.
        """
        values = {
            n: self._convert(n, v) for n in self.fields if (v := given.pop(n, None)) is not None
        }
        if self._unset:
            return self._unset(values)
        for name, field in self.fields.items():
            if field.default is REQUIRED and name not in values:
                raise UsageError(f"{spec_of(field).flag(name)} must be given")
        return self._settings(**values)


def _number(kind: Any, value: Any) -> Any:
    """Parse a text where a number is expected; `as_type` rejects other texts."""
    try:
        return kind(value) if kind in (int, float) and isinstance(value, str) else value
    except ValueError:
        return value


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE of `--set`, with yes, no and none as in YAML.

    >>> parse_setting("late-mlm=no"), parse_setting("layers=12,10")
    (('late-mlm', False), ('layers', '12,10'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set {text}: NAME=VALUE is expected", "--help-all lists the names")
    words = {"yes": True, "true": True, "no": False, "false": False, "none": None}
    return name.strip(), words.get(value.lower(), value)


def _guard_files(values: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    Under torchrun only the main process does.

    Raises:
        UsageError: two inputs are standard input; or see `denserk.io.outputs.claim`.
    """
    given = [values[name] for name in INPUTS if values.get(name)]
    if (
        sum(each.count("-") if isinstance(each, list | tuple) else each == "-" for each in given)
        > 1
    ):
        raise UsageError("standard input (-) can be only one of the inputs")
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    if report := values.get("report"):
        outputs[-1:] = [str(Path(report, "index.html"))] * (not Path(report).is_file())
    if (picture := values.get("picture")) and not picture.is_dir():
        outputs.append(picture)
    if not outputs or os.environ.get("RANK", "0") != "0":
        return nullcontext()
    from denserk.io.outputs import claim, named_paths

    written = (*OUTPUTS, "tag", "plot", "picture")
    read = {name: value for name, value in values.items() if name not in written}
    return claim(
        outputs,
        inputs=named_paths(read),
        overwrite=bool(values.get("overwrite")),
        resume=bool(values.get("resume")),
    )


def _option(
    kind: Any, parameter: str, *names: str, default: Any = None, **more: Any
) -> inspect.Parameter:
    return inspect.Parameter(
        parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(*names, **more)],
    )


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


SET = _option(
    list[str] | None,
    "set_",
    "--set",
    metavar="NAME=VALUE",
    help="Set a less common setting (see --help-all); repeatable.",
    show_default=False,
)
CONFIG = _option(
    str | None,
    "config",
    "--config",
    metavar="FILE.yaml",
    help="Read options from a YAML file, e.g. the config.yaml of an earlier run; the command line "
    "overrides it.",
    show_default=False,
)
HELP_ALL = _option(
    bool,
    "help_all",
    "--help-all",
    default=False,
    is_eager=True,
    callback=_show_all,
    help="Show all options and exit.",
)


class _Parsed:
    """Parameters of a command function: settings classes as groups, others unchanged."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function
        self.groups: dict[str, _Group] = {}
        self.plain: list[inspect.Parameter] = []
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            unset = get_origin(hint) if get_origin(hint) in (Overrides, Given) else None
            settings = get_args(hint)[0] if unset else hint
            if dataclasses.is_dataclass(settings) and isinstance(settings, type):
                self.groups[parameter.name] = _Group(settings, unset)
            else:
                self.plain.append(parameter.replace(annotation=hint))
        self._names = {"config", *(each.name for each in self.plain)}
        self._names.update(name for group in self.groups.values() for name in group.fields)

    def _known(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return values by field name.

        Raises:
            UsageError: unknown option or setting.
        """
        for name in given:
            if name.replace("-", "_") not in self._names:
                near = get_close_matches(name.replace("-", "_"), self._names, n=1)
                meant = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
                raise UsageError(
                    f"{where}: denserk {self._name} has no setting {name}{meant}",
                    f"denserk {self._name} --help-all lists them",
                )
        return {name.replace("-", "_"): value for name, value in given.items()}

    def call(self, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
        """Call the function with given values, with its outputs guarded.

        Args:
            given: values of options by name; None: not given.
            settings: values of --set.
        """
        values = self._known(given, "denserk") | self._known(settings, "--set")
        if path := values.pop("config", None):
            from denserk.config.recipes import read_yaml

            read = self._known(read_yaml(path), str(path))
            values = read | {name: value for name, value in values.items() if value is not None}
        built = {name: group.build(values) for name, group in self.groups.items()}
        named = {each.name: values.pop(each.name, each.default) for each in self.plain}
        every = dict(named)
        for group in built.values():
            every |= vars(group) if dataclasses.is_dataclass(group) else group
            every |= {"picture": group.picture} if hasattr(group, "picture") else {}
        with _guard_files(every):
            return self._function(**built, **named)


def command(
    app: typer.Typer,
    name: str,
    *,
    common: str = "",
    examples: tuple[str, ...] = (),
    config: bool = False,
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
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        parsed, console = _Parsed(name, function), _Group(ConsoleSettings)
        rare = {n: record for group in parsed.groups.values() for n, record in group.rare().items()}
        parameters = [p for group in parsed.groups.values() for p in group.parameters()]
        parameters += [CONFIG] * config + [SET] * bool(rare) + [*console.parameters(), HELP_ALL]
        parameters = parsed.plain + parameters
        unknown = set(common.split()) - {parameter.name for parameter in parameters}
        if unknown:
            raise ValueError(f"{name} has no options {unknown} to show in its help")

        @functools.wraps(function)
        def run(**given: Any) -> None:
            configure(console.build(given))
            del given["help_all"]
            parsed.call(given, dict(map(parse_setting, given.pop("set_", None) or ())))

        @functools.wraps(function)
        def call(**keywords: Any) -> T:
            found: T = parsed.call(keywords, {})
            return found

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        parts = {"common": tuple(common.split()), "examples": examples, "rare": rare}
        app.command(name, cls=type("Command", (Command,), parts))(run)
        return call

    return register
