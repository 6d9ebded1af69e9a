"""Registration of functions of settings classes as typer commands.

A command is a function whose parameters are settings classes, or `Annotated[Given, *classes]`: the
given options of some classes. `command` turns their fields into options, and parsed options back
into settings objects.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import typer

from denserk.commands.app import app
from denserk.commands.completion import setting_completer
from denserk.commands.help_pages import Command, HelpPage, show_all_options
from denserk.commands.parameters import OptionField, option_fields, option_parameter
from denserk.config.encoding import ModelOptions
from denserk.config.options import build, fields_of, select
from denserk.config.yaml_files import typed_options
from denserk.errors import UsageError
from denserk.io.claims import claimed_files, file_outputs
from denserk.reporting import ConsoleSettings, configure

T = TypeVar("T")
Values = Mapping[str, Any]  # of options, by name


CONFIG = option_parameter(
    "config",
    str | None,
    "--config",
    metavar="FILE.yaml",
    help="Read options from a YAML file, e.g. the config.yaml of an earlier run; the command line "
    "overrides it.",
)
HELP_ALL = option_parameter(
    "help_all",
    bool,
    "--help-all",
    default=False,
    is_eager=True,
    callback=show_all_options,
    help="Show all options and exit.",
)


@dataclasses.dataclass(frozen=True)
class OptionGroup:
    """A parameter of a command's function whose value is made of options."""

    name: str
    classes: tuple[type[Any], ...]  # their fields are the options
    is_unset: bool  # a mapping of the given options instead of an object of the one class

    def value(self, typed: Values) -> Any:
        """Return the value of the parameter, from the options of all groups."""
        if self.is_unset:
            return select(typed, *self.classes)
        return build(self.classes[0], typed)


@dataclasses.dataclass(frozen=True)
class CommandFunction:
    """A function that is a command, and what it takes."""

    name: str  # of the command
    function: Callable[..., Any]
    groups: tuple[OptionGroup, ...]
    options: tuple[OptionField, ...]  # of all groups
    arguments: tuple[inspect.Parameter, ...]  # parameters that typer gets as they are
    of_models: tuple[str, ...]  # parameters that are a `ModelOptions`, whose fields are groups

    @property
    def classes(self) -> list[type[Any]]:
        """The settings classes of all groups."""
        classes: list[type[Any]] = []
        for group in self.groups:
            classes += group.classes
        return classes


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
        command_function = read_function(name, function)
        parameters = typer_parameters(command_function, has_config=config)
        summary, *examples = inspect.cleandoc(function.__doc__ or "").splitlines()

        class PageCommand(Command):
            page = help_page(command_function.options, common.split(), examples[1:])

        @functools.wraps(function)
        def run(**parsed: Any) -> None:
            run_parsed(command_function, parsed)

        @functools.wraps(function)
        def call(**keywords: Any) -> Any:
            return run_command(command_function, keywords)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, cls=PageCommand, help=summary)(run)
        return call

    return register


def help_page(
    options: Sequence[OptionField], common: Sequence[str], examples: Sequence[str]
) -> HelpPage:
    """Return what the help of a command shows beside the parameters of typer."""
    return HelpPage(
        common=common,
        examples=examples,
        settings={option.name: option.help_record for option in options if option.spec.rare},
        numbers={option.name: option.kind for option in options if option.is_number},
    )


def read_function(name: str, function: Callable[..., Any]) -> CommandFunction:
    """Return what the function of a command takes, by its type hints."""
    hints = get_type_hints(function, include_extras=True)
    groups: list[OptionGroup] = []
    arguments: list[inspect.Parameter] = []
    of_models: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint is ModelOptions:
            of_models.append(parameter.name)
            groups += _groups_of_model()
        elif _is_group(hint):
            groups.append(_group(parameter.name, hint))
        else:
            arguments.append(parameter.replace(annotation=hint))
    options: list[OptionField] = []
    for group in groups:
        for cls in group.classes:
            options += option_fields(cls, is_unset=group.is_unset)
    return CommandFunction(
        name=name,
        function=function,
        groups=tuple(groups),
        options=tuple(options),
        arguments=tuple(arguments),
        of_models=tuple(of_models),
    )


def _groups_of_model() -> list[OptionGroup]:
    """Return the fields of a `ModelOptions` as groups."""
    hints = get_type_hints(ModelOptions, include_extras=True)
    return [_group(name, hint) for name, hint in hints.items()]


def _is_group(hint: Any) -> bool:
    """Return whether a type is a settings class, or given options of some."""
    return dataclasses.is_dataclass(hint) or bool(_annotated_classes(hint))


def _group(name: str, hint: Any) -> OptionGroup:
    classes = _annotated_classes(hint)
    if classes:
        return OptionGroup(name, classes, is_unset=True)
    return OptionGroup(name, (hint,), is_unset=False)


def _annotated_classes(hint: Any) -> tuple[type[Any], ...]:
    """Return the classes of `Annotated[Given, *classes]`; none of another type."""
    annotations = getattr(hint, "__metadata__", ())
    return tuple(annotation for annotation in annotations if isinstance(annotation, type))


def typer_parameters(
    command_function: CommandFunction, *, has_config: bool
) -> list[inspect.Parameter]:
    """Return the parameters that typer makes arguments and options of, in the order of the help."""
    options = command_function.options
    parameters = [*command_function.arguments]
    parameters += [option.parameter for option in options if not option.spec.rare]
    if has_config:
        parameters.append(CONFIG)
    settings = [option.name for option in options if option.spec.rare]
    if settings:
        parameters.append(_set_parameter(settings))
    parameters += [option.parameter for option in option_fields(ConsoleSettings)]
    parameters.append(HELP_ALL)
    return parameters


def _set_parameter(settings: Sequence[str]) -> inspect.Parameter:
    """Return the option --set of a command with some settings."""
    return option_parameter(
        "set_",
        list[str] | None,
        "--set",
        metavar="NAME=VALUE",
        help="Set a less common setting (see --help-all); repeatable.",
        autocompletion=setting_completer(settings),
    )


def run_parsed(command_function: CommandFunction, parsed: Values) -> None:
    """Run a command with the values of typer, which include those of --set and of the console."""
    values = dict(parsed)
    console = {name: bool(values.pop(name)) for name in fields_of(ConsoleSettings)}
    configure(ConsoleSettings(**console))
    del values["help_all"]
    for text in values.pop("set_", None) or ():
        name, value = parse_setting(text)
        values[name] = value
    run_command(command_function, values)


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


def run_command(command_function: CommandFunction, given: Values) -> Any:
    """Call the function of a command with options by name; those that are None are not given."""
    values = {name: value for name, value in given.items() if value is not None}
    arguments = {}
    for parameter in command_function.arguments:
        arguments[parameter.name] = _texts(values.pop(parameter.name, parameter.default))
    source = f"denserk {command_function.name}"
    typed = typed_options(source, values, *command_function.classes)
    settings = {group.name: group.value(typed) for group in command_function.groups}
    named_values = arguments | _named_values(settings)
    for name in command_function.of_models:
        settings[name] = ModelOptions(**{part: settings.pop(part) for part in ModelOptions._fields})
    with claimed_files(named_values, file_outputs(*command_function.classes)):
        return command_function.function(**settings, **arguments)


def _named_values(settings: Values) -> dict[str, Any]:
    """Return the values of options by name, and the plot of settings that name one."""
    values: dict[str, Any] = {}
    for group in settings.values():
        values |= group if isinstance(group, Mapping) else vars(group)
        picture = getattr(group, "picture", None)
        if picture is not None:
            values["picture"] = picture
    return values


def _texts(value: Any) -> Any:
    """Return a path, or those in a list, as text."""
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
