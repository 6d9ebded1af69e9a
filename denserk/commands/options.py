"""Registration of functions as typer commands, with options from their settings classes.

A parameter of such a function is a settings object, a `ModelOptions` of several, an argument, or
`Annotated[Given, *classes]`: a mapping of those options of settings classes that the user gave,
without defaults. `command` makes options of the classes' fields, and from parsed options the
settings objects and mappings.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_type_hints

import typer

from denserk.commands.app import app
from denserk.commands.completion import setting_completer
from denserk.commands.help_pages import Command, HelpPage, show_all_options
from denserk.commands.parameters import OptionField, option_fields, option_parameter
from denserk.config.encoding import ModelOptions
from denserk.config.options import build, fields_of, select
from denserk.config.yaml_files import typed_options
from denserk.errors import MissingOptionError, UsageError
from denserk.io.claims import claimed_files, file_outputs
from denserk.reporting import ConsoleSettings, configure

T = TypeVar("T")
Values = Mapping[str, Any]  # of options and arguments, by name

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
    """A parameter of a command's function, or field of its `ModelOptions`, made of options."""

    name: str
    classes: tuple[type[Any], ...]  # their fields are the options
    given_only: bool  # a mapping without defaults instead of a settings object of the one class

    def value(self, option_values: Values) -> Any:
        """Return the value of the parameter, from the given options of all groups."""
        if self.given_only:
            return select(option_values, *self.classes)
        return build(self.classes[0], option_values)


@dataclasses.dataclass(frozen=True)
class CommandFunction:
    """A function that is a command, and what it takes."""

    name: str  # of the command
    example: str  # a command line
    function: Callable[..., Any]
    groups: tuple[OptionGroup, ...]
    options: tuple[OptionField, ...]  # of all groups
    arguments: tuple[inspect.Parameter, ...]  # parameters that typer gets as they are
    model_parameters: tuple[str, ...]  # those that are a `ModelOptions`, whose fields are groups

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
    """Return a decorator that registers a function as a command of `app`.

    The decorated function takes the options as keywords: strings, numbers, paths, and lists for
    repeatable options. --help shows the first line of the docstring, the options of the fields in
    `common` (empty: all), and the lines after the blank one, which are examples of command lines;
    `config` adds --config, which reads options from a YAML file.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        docstring = inspect.cleandoc(function.__doc__ or "")
        summary, *lines_below = docstring.splitlines()
        examples = lines_below[1:]  # the first one is blank
        command_function = read_function(name, function, examples[0])
        parameters = typer_parameters(command_function, has_config=config)

        class PageCommand(Command):
            page = help_page(command_function.options, common.split(), examples)

        @functools.wraps(function)
        def run_from_command_line(**parsed_values: Any) -> None:
            run_parsed(command_function, parsed_values)

        @functools.wraps(function)
        def run_from_python(**keywords: Any) -> Any:
            return run_command(command_function, keywords)

        # typer makes its options of the signature and the annotations of a function
        signature = inspect.Signature(parameters)
        run_from_command_line.__signature__ = signature  # type: ignore[attr-defined]
        run_from_command_line.__annotations__ = {
            parameter.name: parameter.annotation for parameter in parameters
        }
        app.command(name, cls=PageCommand, help=summary)(run_from_command_line)
        return run_from_python

    return register


def help_page(
    options: Sequence[OptionField], common: Sequence[str], examples: Sequence[str]
) -> HelpPage:
    """Return what the help of a command shows beside the parameters of typer.

    `common` names the options that --help shows; `examples` are command lines.
    """
    return HelpPage(
        common=common,
        examples=examples,
        settings={option.name: option.help_record for option in options if option.spec.rare},
        numbers={option.name: option.kind for option in options if option.is_number},
    )


def read_function(name: str, function: Callable[..., Any], example: str) -> CommandFunction:
    """Return what the function of a command takes, by its type hints."""
    hints = get_type_hints(function, include_extras=True)
    groups: list[OptionGroup] = []
    arguments: list[inspect.Parameter] = []
    model_parameters: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint is ModelOptions:
            model_parameters.append(parameter.name)
            groups += _groups_of_model()
        elif _is_group(hint):
            groups.append(_group(parameter.name, hint))
        else:
            arguments.append(parameter.replace(annotation=hint))
    options: list[OptionField] = []
    for group in groups:
        for cls in group.classes:
            options += option_fields(cls, given_only=group.given_only)
    return CommandFunction(
        name=name,
        example=example,
        function=function,
        groups=tuple(groups),
        options=tuple(options),
        arguments=tuple(arguments),
        model_parameters=tuple(model_parameters),
    )


def _groups_of_model() -> list[OptionGroup]:
    """Return the fields of a `ModelOptions` as groups."""
    hints = get_type_hints(ModelOptions, include_extras=True)
    return [_group(name, hint) for name, hint in hints.items()]


def _is_group(hint: Any) -> bool:
    """Return whether a type is a settings class or `Annotated[Given, *classes]`."""
    return dataclasses.is_dataclass(hint) or bool(_annotated_classes(hint))


def _group(name: str, hint: Any) -> OptionGroup:
    """Return a parameter as a group, by its type: one of which `_is_group` is true."""
    classes = _annotated_classes(hint)
    if classes:
        return OptionGroup(name, classes, given_only=True)
    return OptionGroup(name, (hint,), given_only=False)


def _annotated_classes(hint: Any) -> tuple[type[Any], ...]:
    """Return the classes of `Annotated[Given, *classes]`; of any other type an empty tuple."""
    # arguments of a command are annotated, too, but with objects of typer instead of classes
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
    setting_names = [option.name for option in options if option.spec.rare]
    if setting_names:
        parameters.append(_set_parameter(setting_names))
    parameters += [option.parameter for option in option_fields(ConsoleSettings)]
    parameters.append(HELP_ALL)
    return parameters


def _set_parameter(setting_names: Sequence[str]) -> inspect.Parameter:
    """Return the option --set, for which a shell completes the names of the settings."""
    return option_parameter(
        "set_",
        list[str] | None,
        "--set",
        metavar="NAME=VALUE",
        help="Set a less common setting (see --help-all); repeatable.",
        autocompletion=setting_completer(setting_names),
    )


def run_parsed(command_function: CommandFunction, parsed_values: Values) -> None:
    """Run a command with the values of typer, which include those of --set and of the console."""
    values = dict(parsed_values)
    # flags that are not given are None
    console = {name: bool(values.pop(name)) for name in fields_of(ConsoleSettings)}
    configure(ConsoleSettings(**console))
    del values["help_all"]  # its callback has shown the help
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


def run_command(command_function: CommandFunction, values: Values) -> Any:
    """Call the function of a command with options and arguments by name; None is not given.

    The option `config` is a YAML file, whose options are read, too.
    """
    given_values = {name: value for name, value in values.items() if value is not None}
    arguments = {}
    for parameter in command_function.arguments:
        argument = given_values.pop(parameter.name, parameter.default)
        arguments[parameter.name] = _paths_as_text(argument)
    source = f"denserk {command_function.name}"  # errors begin with it
    option_values = typed_options(source, given_values, *command_function.classes)
    with _showing_example(command_function.example):
        return _call(command_function, arguments, option_values)


def _call(
    command_function: CommandFunction, arguments: dict[str, Any], option_values: Values
) -> Any:
    """Call the function of a command with its arguments and its options, both by name."""
    group_values = {group.name: group.value(option_values) for group in command_function.groups}
    named_values = arguments | _values_by_option(group_values.values())
    keywords = arguments | group_values
    for name in command_function.model_parameters:
        # the function takes these groups as the fields of one parameter
        model_options = {field: keywords.pop(field) for field in ModelOptions._fields}
        keywords[name] = ModelOptions(**model_options)
    with claimed_files(named_values, file_outputs(*command_function.classes)):
        return command_function.function(**keywords)


@contextmanager
def _showing_example(example: str) -> Iterator[None]:
    """Add an example to the error of a missing option, unless that has a hint."""
    try:
        yield
    except MissingOptionError as error:
        error.hint = error.hint or f"e.g. {example}"
        raise


def _values_by_option(group_values: Iterable[Any]) -> dict[str, Any]:
    """Return the values of all options by name, from settings objects and mappings.

    Settings of an analysis also have their `picture`: the file of the plot, by default one beside
    the output. It is a property, and no option.
    """
    values: dict[str, Any] = {}
    for group_value in group_values:
        values |= group_value if isinstance(group_value, Mapping) else vars(group_value)
        picture = getattr(group_value, "picture", None)
        if picture is not None:
            values["picture"] = picture
    return values


def _paths_as_text(value: Any) -> Any:
    """Return a path, or those in a list, as text; any other value as it is."""
    if isinstance(value, list | tuple):
        return [_paths_as_text(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
