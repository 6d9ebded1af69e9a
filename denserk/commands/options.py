"""Construction of typer commands from settings classes.

A command is a function whose parameters are settings classes, or `Annotated[Given, *classes]`: the
given options of some classes. `command` turns their fields into options, and parsed options back
into settings objects.
"""

import dataclasses
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from denserk.commands.app import app
from denserk.config import options
from denserk.config.encoding import ModelOptions
from denserk.config.values import as_type, type_hints, without_none
from denserk.config.yaml_files import read_options
from denserk.errors import UsageError
from denserk.reporting import ConsoleSettings, configure

T = TypeVar("T")

# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target")
# Metavars of outputs that are always a file, or standard output.
FILES = ("FILE", "FILE|-")
# Inputs that can be given once; the parser would silently use the last one.
ONE_INPUT = ("answers", "baseline", "corpus", "encoded_queries", "qrels", "topics")
# Inputs of which one can be standard input.
INPUTS = (*ONE_INPUT, "data", "files", "input", "run", "runs", "train")
# Key of a context's `meta`: the help lists all options.
ALL_OPTIONS = "denserk.help_all"
METAVARS = {bool: "yes|no", int: "INTEGER", float: "NUMBER"}


class Command(TyperCommand):
    """Command whose --help lists common options and examples; --help-all lists all options."""

    common: tuple[str, ...] = ()  # parameters that --help shows, in this order; empty: all
    examples: Sequence[str] = ()  # command lines at the end of the help
    rare: Mapping[str, tuple[str, str]] = {}  # the settings that --set takes: help records
    numbers: Mapping[str, type] = {}  # parameters that are numbers, and their types

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a repeated input or a setting given as an option is an error."""
        for word in args:
            name = re.sub("^--(no-)?", "", word.partition("=")[0].replace("_", "-"))
            if word.startswith("--") and name.replace("-", "_") in self.rare:
                raise UsageError(f"{word} is a setting, not an option", f"give --set {name}=VALUE")
        if not ctx.resilient_parsing:  # a shell completes the line
            values, _, given = self.make_parser(ctx).parse_args(list(args))
            self._check_numbers(ctx, values)
            single = [p for p in given if p.name in ONE_INPUT and not getattr(p, "multiple", False)]
            for parameter in single:
                if (count := single.count(parameter)) > 1:
                    flag = parameter.opts[0]
                    raise UsageError(f"{flag} takes one file and is given {count} times")
        return super().parse_args(ctx, args)

    def _check_numbers(self, ctx: Any, values: Mapping[str, Any]) -> None:
        """Raise a UsageError for a text where an option takes a number."""
        flags = {parameter.name: parameter.opts[0] for parameter in self.get_params(ctx)}
        for name, kind in self.numbers.items():
            value = values.get(name)
            if value is None:
                continue
            try:
                as_type(kind, value)
            except ValueError as error:
                hint = f"see {ctx.command_path} --help"
                raise UsageError(f"{flags[name]}: {error}", hint) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the common options as one section, or all options with one section per panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        parameters = self.get_params(ctx)
        short = bool(self.common) and ALL_OPTIONS not in ctx.meta
        if short:
            order = {name: i for i, name in enumerate((*self.common, "help_all", "help"))}
            shown = [p for p in parameters if p.name in order or p.param_type_name == "argument"]
            parameters = sorted(shown, key=lambda p: order.get(p.name, -1))
        for parameter in parameters:
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            if short and not is_argument:  # no aliases
                panel, parameter = "Options", copy(parameter)
                parameter.opts = [name for name in parameter.opts if name[:2] == "--"][:1]
            if record := parameter.get_help_record(ctx):
                names = record[0].partition(" <")[0] if is_argument else record[0]
                panels.setdefault(panel or "Options", []).append((names, record[1]))
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


class _Option:
    """A field of a settings class as an option; `is_unset`: its default is not passed on."""

    def __init__(self, settings: type, name: str, *, is_unset: bool = False) -> None:
        field, self.name, self._is_unset = options.fields_of(settings)[name], name, is_unset
        self.spec, self._default = options.spec_of(field), field.default
        self._kind = without_none(type_hints(settings)[name])
        own_defaults = getattr(settings, "own_defaults", "")
        owner = settings
        while not inspect.get_annotations(owner):
            owner = next(cls for cls in owner.__bases__ if name in options.fields_of(cls))
        self._panel = re.split("[.:]", owner.__doc__ or "")[0]
        self._panel += " (overrides the model's)" if own_defaults else ""
        self._text = options.field_docs(settings)[name]
        if self._default is options.REQUIRED:
            self._text += "" if is_unset else " [required]"
        elif "[default: " not in self._text:
            default = own_defaults or self._shown(self._default)
            self._text += f" [default: {default}]" if default else ""

    def _shown(self, default: Any) -> str:
        """Return a default as typed; empty: not shown."""
        if default is None or default is False:
            return ("no" if default is False else "none") if self.spec.rare else ""
        if isinstance(default, tuple):
            return ",".join(map(str, default))
        if default is True:
            return "yes"
        return str(default) if str(default).strip() else repr(default) if default else ""

    @property
    def _metavar(self) -> str:
        if isinstance(self._kind, type) and issubclass(self._kind, Enum):
            return "|".join(str(each.value) for each in self._kind)
        is_list = get_origin(self._kind) is tuple
        return self.spec.metavar or ("A,B,..." if is_list else METAVARS.get(self._kind, "TEXT"))

    @property
    def number(self) -> type | None:
        """The type of a field that is one number, else None."""
        return self._kind if self._kind in (int, float) else None

    def record(self) -> tuple[str, str]:
        """Return the lines of the help for a field that --set takes."""
        return f"{self.name.replace('_', '-')}={self._metavar}", self._text

    def parameter(self) -> inspect.Parameter:
        """Return the keyword parameter for typer."""
        kind, metavar, flag = self._kind, self.spec.metavar, self.spec.flag(self.name)
        if get_origin(kind) is tuple and self.spec.repeat:
            kind = types.GenericAlias(list, get_args(kind)[:1])
        elif get_origin(kind) is tuple:
            kind, metavar = str, self._metavar
        if kind is bool and (self._default is not False or self._is_unset):
            flag = f"{flag}/--no-{flag[2:]}"
        names, panel = (flag, *self.spec.names), self._panel
        more = {"help": self._text, "metavar": metavar, "rich_help_panel": panel}
        return _option(kind | None, self.name, *names, **more)


def _option(
    kind: Any, name: str, *flags: str, default: Any = None, **more: Any
) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*flags, show_default=False, **more)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


SET = _option(
    *(list[str] | None, "set_", "--set"),
    metavar="NAME=VALUE",
    help="Set a less common setting (see --help-all); repeatable.",
)
CONFIG = _option(
    *(str | None, "config", "--config"),
    metavar="FILE.yaml",
    help="Read options from a YAML file, e.g. the config.yaml of an earlier run; the command line "
    "overrides it.",
)
HELP_ALL = _option(
    *(bool, "help_all", "--help-all"),
    default=False,
    is_eager=True,
    callback=_show_all,
    help="Show all options and exit.",
)


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


def _guard_files(
    values: Mapping[str, Any], output_files: Sequence[str]
) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    `output_files` are the options whose values must not be folders. Under torchrun only the main
    process locks. Only one input can be standard input.
    """
    from denserk.io.files import refuse_folder

    inputs = [values[name] for name in INPUTS if values.get(name)]
    streams = [v == "-" if isinstance(v, str) else list(v).count("-") for v in inputs]
    if sum(streams) > 1:
        raise UsageError("standard input (-) can be only one of the inputs")
    for name in output_files:
        if values.get(name):
            refuse_folder(values[name])
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    if (report := values.get("report")) and not Path(report).is_file():
        outputs.append(str(Path(report, "index.html")))
    picture = values.get("picture") or values.get("plot")
    if picture:
        refuse_folder(picture)
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


def _texts(value: Any) -> Any:
    """Return a path, or those in a list, as text."""
    if isinstance(value, list | tuple):
        return [*map(_texts, value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class _Parsed:
    """Parameters of a command function: settings classes as groups, others unchanged.

    The fields of a parameter that is a `ModelOptions` are groups, too.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._source, self._function = f"denserk {name}", function
        self._groups: dict[str, tuple[list[type[Any]], bool]] = {}
        self.plain: list[inspect.Parameter] = []
        parameters = inspect.signature(function).parameters
        signature = get_type_hints(function, include_extras=True)
        self._of_models = [name for name, hint in signature.items() if hint is ModelOptions]
        hints: dict[str, Any] = {}
        for name, hint in signature.items():
            inner = name in self._of_models
            hints |= get_type_hints(hint, include_extras=True) if inner else {name: hint}
        for name, hint in hints.items():
            given = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, type)]
            if given or dataclasses.is_dataclass(hint):
                self._groups[name] = given or [hint], bool(given)
            elif name in parameters:
                self.plain.append(parameters[name].replace(annotation=hint))
        groups = [(cls, unset) for classes, unset in self._groups.values() for cls in classes]
        self._classes = [cls for cls, _ in groups]
        self.options = [
            _Option(cls, n, is_unset=u) for cls, u in groups for n in options.fields_of(cls)
        ]
        self._output_files = [
            option.name
            for option in self.options
            if option.name in OUTPUTS and option.spec.metavar in FILES
        ]

    def call(self, given: Mapping[str, Any]) -> Any:
        """Call the function with options by name, which win over those of a --config."""
        values = dict(given)
        plain = {each.name: _texts(values.pop(each.name, each.default)) for each in self.plain}
        typed: dict[str, Any] = {}
        if path := values.pop("config", None):
            typed = options.typed_values(str(path), read_options(path), *self._classes)
        typed |= options.typed_values(self._source, values, *self._classes)
        built: dict[str, Any] = {}
        files = dict(plain)
        for name, (classes, is_unset) in self._groups.items():
            built[name] = (
                options.select(typed, *classes) if is_unset else options.build(classes[0], typed)
            )
            files |= built[name] if is_unset else vars(built[name])
            files |= {"picture": built[name].picture} if hasattr(built[name], "picture") else {}
        for name in self._of_models:
            built[name] = ModelOptions(*map(built.pop, ModelOptions._fields))
        from denserk.io.files import pipes_copied
        from denserk.io.outputs import scratch_folder

        with pipes_copied(scratch_folder), _guard_files(files, self._output_files):
            return self._function(**built, **plain)


def command(
    name: str, *, common: str = "", config: bool = False, app: typer.Typer = app
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Register a function of settings classes as a command.

    The returned function takes the options as keywords: strings, numbers, paths, and lists for
    repeatable options. --help shows the first line of the docstring, the options of the fields in
    `common` (empty: all), and the other lines, which are examples of command lines; `config` adds
    --config, which reads options from a YAML file.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        parsed = _Parsed(name, function)
        console = [_Option(ConsoleSettings, name) for name in options.fields_of(ConsoleSettings)]
        rare = {each.name: each.record() for each in parsed.options if each.spec.rare}
        parameters = [*parsed.plain, *(o.parameter() for o in parsed.options if not o.spec.rare)]
        parameters += [CONFIG] * config + [SET] * bool(rare)
        parameters += [*(each.parameter() for each in console), HELP_ALL]

        def call(**keywords: Any) -> Any:
            return parsed.call({n: v for n, v in keywords.items() if v is not None})

        @functools.wraps(function)
        def run(**given: Any) -> None:
            shown = {each.name: bool(given.pop(each.name)) for each in console}
            configure(ConsoleSettings(**shown))
            del given["help_all"]
            settings = dict(map(parse_setting, given.pop("set_", None) or ()))
            parsed.call({n: v for n, v in given.items() if v is not None} | settings)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        line, *examples = inspect.cleandoc(function.__doc__ or "").splitlines()
        numbers = {each.name: each.number for each in parsed.options if each.number is not None}
        parts = {"common": tuple(common.split()), "examples": examples[1:], "rare": rare}
        parts["numbers"] = numbers
        app.command(name, cls=type("Command", (Command,), parts), help=line)(run)
        return functools.wraps(function)(call)

    return register
