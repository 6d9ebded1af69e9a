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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from denserk.commands.console import ConsoleSettings, configure
from denserk.config.options import (
    REQUIRED,
    OptionSpec,
    as_type,
    field_docs,
    read_yaml,
    spec_of,
    without_none,
)
from denserk.errors import UsageError

T = TypeVar("T")

# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target")
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
        """Parse the arguments; a repeated input or a setting given as an option is an error."""
        for word in args:
            name = re.sub("^--(no-)?", "", word.partition("=")[0].replace("_", "-"))
            if word.startswith("--") and name.replace("-", "_") in self.rare:
                raise UsageError(f"{word} is a setting, not an option", f"give --set {name}=VALUE")
        if not ctx.resilient_parsing:  # a shell completes the line
            given = [p.name for p in self.make_parser(ctx).parse_args(list(args))[2]]
            for parameter in self.params:
                count = given.count(parameter.name)
                single = parameter.name in ONE_INPUT and not getattr(parameter, "multiple", False)
                if single and count > 1:
                    raise UsageError(
                        f"{parameter.opts[0]} takes one file and is given {count} times"
                    )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the common options as one section, or all options with one section per panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        parameters, short = self.get_params(ctx), self.common and ALL_OPTIONS not in ctx.meta
        if short:
            order = {name: i for i, name in enumerate((*self.common, "help_all", "help"))}
            shown = [p for p in parameters if p.name in order or p.param_type_name == "argument"]
            parameters = sorted(shown, key=lambda p: order.get(p.name, -1))
        for parameter in parameters:
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            if short and not is_argument:  # no aliases
                panel, parameter = None, copy(parameter)
                parameter.opts = [name for name in parameter.opts if name[:2] == "--"][:1]
            if record := parameter.get_help_record(ctx):
                names = record[0].partition(" <")[0] if is_argument else record[0]
                text = re.sub(r"\[default: \((.*)\)\]", r"[default: \1]", record[1])
                panels.setdefault(panel or "Options", []).append((names, text))
        if self.rare and not short:
            panels["Settings (as --set NAME=VALUE)"] = list(self.rare.values())
        for title, records in panels.items():
            with formatter.section(title):
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


@dataclasses.dataclass(frozen=True)
class _Option:
    """A field of a settings class as an option; `unset` is Overrides or Given of the class."""

    name: str
    kind: Any
    default: Any
    spec: OptionSpec
    text: str
    panel: str
    unset: type | None

    @property
    def metavar(self) -> str:
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return "|".join(str(each.value) for each in self.kind)
        if get_origin(self.kind) is tuple:
            return "A,B,..."
        metavars = {bool: "yes|no", int: "INTEGER", float: "NUMBER"}
        return self.spec.metavar or metavars.get(self.kind, "TEXT")

    @property
    def shown_default(self) -> str | None:
        """The default as typed, or a description of it."""
        if self.spec.shown_default or self.unset is Overrides:
            return self.spec.shown_default or "the model's own"
        if self.default is None or self.default is REQUIRED:
            return None
        if isinstance(self.default, bool):
            return "yes" if self.default else "no" if self.spec.rare else None
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        shown = str(self.default)
        return shown if shown.strip() else repr(shown) if shown else None

    def record(self) -> tuple[str, str]:
        """Return the lines of the help for a field that --set takes."""
        default = f"[default: {self.shown_default or 'none'}]"
        return f"{self.name.replace('_', '-')}={self.metavar}", f"{self.text} {default}"

    def parameter(self) -> inspect.Parameter:
        """Return the keyword parameter for typer."""
        kind, metavar, flag = self.kind, self.spec.metavar, self.spec.flag(self.name)
        if get_origin(kind) is tuple and self.spec.repeat:
            kind = types.GenericAlias(list, get_args(kind)[:1])
        elif get_origin(kind) is tuple:
            kind, metavar = str, metavar or self.metavar
        if kind is bool and (self.default is not False or self.unset):
            flag = f"{flag}/--no-{flag[2:]}"
        required = " [required]" if self.default is REQUIRED and not self.unset else ""
        return _option(
            *(kind | None, self.name, flag, *self.spec.names),
            help=self.text + required,
            metavar=metavar,
            rich_help_panel=self.panel,
            show_default=self.shown_default or False,
        )

    def is_unset(self, value: Any) -> bool:
        """Return True if a value asks for the default; `none` of an enum is one of its choices."""
        is_choice = isinstance(self.kind, type) and issubclass(self.kind, Enum)
        return value is None or (value == "none" and self.default is None and not is_choice)

    def convert(self, value: Any) -> Any:
        """Convert a value from the command line, YAML or Python to the type of the field."""
        kind = self.kind
        try:
            if get_origin(kind) is tuple:
                if isinstance(value, str) and not self.spec.repeat:
                    value = [part.strip() for part in value.split(",") if part]
                parts = value if isinstance(value, list | tuple) else [value]
                return as_type(kind, [_parse(get_args(kind)[0], part) for part in parts])
            number = as_type(kind, _parse(kind, value))
            if isinstance(number, int) and abs(number) > LARGEST:
                raise ValueError(f"{number} is out of range, at most {LARGEST} is expected")
        except ValueError as error:
            raise UsageError(f"{self.spec.flag(self.name)}: {error}") from None
        return number


def _parse(kind: Any, value: Any) -> Any:
    """Parse a text where a number is expected (`as_type` rejects other texts), spell a path."""
    if isinstance(value, Path):
        return str(value)
    try:
        return kind(value) if kind in (int, float) and isinstance(value, str) else value
    except ValueError:
        return value


class _Group:
    """Options of one settings class, and the way back from values to its object."""

    def __init__(self, settings: type, unset: type | None = None) -> None:
        self._settings, self._unset = settings, unset
        kinds, docs = get_type_hints(settings), field_docs(settings)
        panel = re.split("[.:]", settings.__doc__ or "")[0]
        panel += " (overrides the model's)" if unset is Overrides else ""
        self.options = {
            f.name: _Option(
                *(f.name, without_none(kinds[f.name]), f.default, spec_of(f)),
                *(docs[f.name], panel, unset),
            )
            for f in dataclasses.fields(settings)
        }

    def build(self, given: dict[str, Any]) -> Any:
        """Remove the group's values from `given` and build its settings object."""
        taken = {name: given.pop(name, None) for name in self.options}
        values = {
            name: option.convert(taken[name])
            for name, option in self.options.items()
            if not option.is_unset(taken[name])
        }
        if self._unset:
            return self._unset(values)
        for name, each in self.options.items():
            if each.default is REQUIRED and name not in values:
                raise UsageError(f"{each.spec.flag(name)} must be given")
        return self._settings(**values)


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE of `--set`, with yes and no as in YAML.

    >>> parse_setting("late-mlm=no"), parse_setting("layers=12,10")
    (('late-mlm', False), ('layers', '12,10'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set {text}: NAME=VALUE is expected", "--help-all lists the names")
    words = {"yes": True, "true": True, "no": False, "false": False}
    return name.strip(), words.get(value.lower(), value)


def _guard_files(values: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    Under torchrun only the main process does. Only one input can be standard input.
    """
    inputs = [values[name] for name in INPUTS if values.get(name)]
    streams = [v == "-" if isinstance(v, str) else list(v).count("-") for v in inputs]
    if sum(streams) > 1:
        raise UsageError("standard input (-) can be only one of the inputs")
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    if (report := values.get("report")) and not Path(report).is_file():
        outputs.append(str(Path(report, "index.html")))
    if (picture := values.get("picture")) and not picture.is_dir():
        outputs.append(picture)
    if not outputs or os.environ.get("RANK", "0") != "0":
        return nullcontext()
    from denserk.io.outputs import claim, named_paths

    written = (*OUTPUTS, "report", "tag", "plot", "picture")
    return claim(
        outputs,
        inputs=named_paths({name: v for name, v in values.items() if name not in written}),
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
    *(list[str] | None, "set_", "--set"),
    metavar="NAME=VALUE",
    help="Set a less common setting (see --help-all); repeatable.",
    show_default=False,
)
CONFIG = _option(
    *(str | None, "config", "--config"),
    metavar="FILE.yaml",
    help="Read options from a YAML file, e.g. the config.yaml of an earlier run; the command line "
    "overrides it.",
    show_default=False,
)
HELP_ALL = _option(
    *(bool, "help_all", "--help-all"),
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
        self.options = [o for group in self.groups.values() for o in group.options.values()]
        self._names = {"config"}.union(p.name for p in self.plain)
        self._names.update(o.name for o in self.options)

    def _known(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return values by field name; unknown options or settings are a UsageError."""
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
        """Call the function with given options and values of --set; None: not given."""
        values = self._known(given, "denserk") | self._known(settings, "--set")
        if path := values.pop("config", None):
            read = self._known(read_yaml(path), str(path))
            values = read | {name: value for name, value in values.items() if value is not None}
        built = {name: group.build(values) for name, group in self.groups.items()}
        plain = {each.name: values.pop(each.name, each.default) for each in self.plain}
        every = dict(plain)
        for group in built.values():
            every |= group if isinstance(group, dict) else vars(group)
            every |= {"picture": group.picture} if hasattr(group, "picture") else {}
        with _guard_files(every):
            return self._function(**built, **plain)


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
    repeatable options. --help shows the options of the fields in `common` (empty: all), and
    `examples` of command lines; `config` adds --config, which reads options from a YAML file.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        parsed, console = _Parsed(name, function), _Group(ConsoleSettings)
        rare = {each.name: each.record() for each in parsed.options if each.spec.rare}
        parameters = [*parsed.plain, *(o.parameter() for o in parsed.options if not o.spec.rare)]
        parameters += [CONFIG] * config + [SET] * bool(rare)
        parameters += [*(each.parameter() for each in console.options.values()), HELP_ALL]

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
