"""Fields of settings classes as parameters of typer commands, with their help texts."""

import dataclasses
import inspect
import re
import types
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

import typer

from denserk.commands.completion import completer
from denserk.config.help_texts import help_text, own_defaults
from denserk.config.options import OptionSpec, fields_of, spec_of
from denserk.config.values import type_hints, without_none

METAVARS = {bool: "yes|no", int: "INTEGER", float: "NUMBER"}


@dataclasses.dataclass(frozen=True)
class OptionField:
    """A field of a settings class, as an option of a command."""

    name: str
    kind: Any  # the type, without None
    default: Any
    spec: OptionSpec
    section: str  # of the help
    help: str
    given_only: bool  # without a default: a model or a preset has the value if none is given

    @property
    def is_list(self) -> bool:
        """Whether the value is a tuple."""
        return get_origin(self.kind) is tuple

    @property
    def is_number(self) -> bool:
        """Whether the value is one number."""
        return self.kind in (int, float)

    @property
    def metavar(self) -> str:
        """What stands for the value in the help."""
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return "|".join(str(choice.value) for choice in self.kind)
        if self.spec.metavar is not None:
            return self.spec.metavar
        if self.is_list:
            return "A,B,..."
        return METAVARS.get(self.kind, "TEXT")

    @property
    def help_record(self) -> tuple[str, str]:
        """The name and the help text of a field that --set takes."""
        return f"{self.name.replace('_', '-')}={self.metavar}", self.help

    @property
    def parameter(self) -> inspect.Parameter:
        """The keyword parameter for typer."""
        kind = self.kind
        metavar = self.spec.metavar
        flag = self.spec.flag(self.name)
        if self.is_list and self.spec.repeat:
            kind = types.GenericAlias(list, get_args(kind)[:1])
        elif self.is_list:
            kind = str
            metavar = self.metavar
        elif kind is bool and (self.default is not False or self.given_only):
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        return option_parameter(
            self.name,
            kind | None,
            flag,
            *self.spec.names,
            help=self.help,
            metavar=metavar,
            autocompletion=completer(self.spec.completes) if self.spec.completes else None,
            rich_help_panel=self.section,
        )


def option_fields(settings: type, *, given_only: bool = False) -> list[OptionField]:
    """Return the fields of a settings class as options of a command."""
    return [
        OptionField(
            name=name,
            kind=without_none(type_hints(settings)[name]),
            default=field.default,
            spec=spec_of(field),
            section=_section(settings, name),
            help=help_text(settings, name, given_only=given_only),
            given_only=given_only,
        )
        for name, field in fields_of(settings).items()
    ]


def option_parameter(
    name: str, kind: Any, *flags: str, default: Any = None, **typer_options: Any
) -> inspect.Parameter:
    """Return a keyword parameter that typer makes an option of."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(*flags, show_default=False, **typer_options)],
    )


def _section(settings: type, name: str) -> str:
    """Return the title of a field's section: the docstring's beginning, up to a colon or period.

    A class without fields of its own leaves it to its base that has the field.
    """
    owner = settings
    while not inspect.get_annotations(owner):
        owner = next(base for base in owner.__bases__ if name in fields_of(base))
    title = re.split("[.:]", owner.__doc__ or "")[0]
    if own_defaults(settings):
        return f"{title} (overrides the model's)"
    return title
