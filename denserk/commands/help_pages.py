"""Commands of typer with two help pages: common options and examples, and all options."""

import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand

from denserk.config.values import as_type
from denserk.errors import UsageError
from denserk.io.claims import ONE_INPUT

# Key of a context's `meta`: the help lists all options.
ALL_OPTIONS = "denserk.help_all"
# Width of the column of names.
NAMES_WIDTH = 34

Record = tuple[str, str]  # names of an option, and its help text


@dataclass(frozen=True)
class HelpPage:
    """What the help pages of a command show beside its parameters."""

    common: Sequence[str]  # parameters that --help shows, in this order; empty: all
    examples: Sequence[str]  # command lines at the end
    settings: Mapping[str, Record]  # the fields that --set takes, by name
    numbers: Mapping[str, type]  # parameters that are numbers, and their types


class Command(TyperCommand):
    """Command whose --help lists common options and examples; --help-all lists all options."""

    page: HelpPage

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a repeated input or a setting given as an option is an error."""
        self._reject_settings(args)
        if not ctx.resilient_parsing:  # a shell completes the line
            values, _, parameters = self.make_parser(ctx).parse_args(list(args))
            self._check_numbers(ctx, values)
            _reject_repeated_inputs(parameters)
        return super().parse_args(ctx, args)

    def _reject_settings(self, words: Sequence[str]) -> None:
        """Raise a UsageError for settings that are spelled as options; name all of them."""
        spelled_words = []
        corrections = []
        for word, next_word in pairwise([*words, ""]):
            spelling, _, value = word.partition("=")
            if not spelling.startswith("--"):
                continue
            flag = spelling.removeprefix("--").replace("_", "-")
            name = flag.removeprefix("no-")
            if name.replace("-", "_") not in self.page.settings:
                continue
            if flag != name:
                value = "no"
            elif not value and not next_word.startswith("-"):
                value = next_word
            spelled_words.append(spelling)
            corrections.append(f"--set {name}={shlex.quote(value) if value else 'VALUE'}")
        if not spelled_words:
            return
        verb = (
            "are settings, not options" if len(spelled_words) > 1 else "is a setting, not an option"
        )
        message = f"{', '.join(spelled_words)} {verb}"
        raise UsageError(message, f"give {' '.join(corrections)}")

    def _check_numbers(self, ctx: Any, values: Mapping[str, Any]) -> None:
        """Raise a UsageError for a text where an option takes a number."""
        flags = {parameter.name: parameter.opts[0] for parameter in self.get_params(ctx)}
        for name, kind in self.page.numbers.items():
            value = values.get(name)
            if value is None:
                continue
            try:
                as_type(kind, value)
            except ValueError as error:
                hint = f"see {ctx.command_path} --help"
                raise UsageError(f"{flags[name]}: {error}", hint) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the common options as one section, or all options with one section per group."""
        if self.page.common and ALL_OPTIONS not in ctx.meta:
            sections = self._common_sections(ctx)
        else:
            sections = self._all_sections(ctx)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=NAMES_WIDTH)

    def _common_sections(self, ctx: Any) -> dict[str, list[Record]]:
        """Return the records of the common options, without aliases, after those of arguments."""
        arguments: list[Record] = []
        record_by_option: dict[str, Record] = {}
        for parameter in self.get_params(ctx):
            if _is_argument(parameter):
                arguments += _records(parameter, ctx)
            else:
                for record in _records(_without_aliases(parameter), ctx):
                    record_by_option[parameter.name] = record
        shown = (*self.page.common, "help_all", "help")
        options = [record_by_option[name] for name in shown if name in record_by_option]
        sections = {"Arguments": arguments, "Options": options}
        return {title: records for title, records in sections.items() if records}

    def _all_sections(self, ctx: Any) -> dict[str, list[Record]]:
        """Return the records of all options and settings by the titles of their sections."""
        sections: dict[str, list[Record]] = {}
        for parameter in self.get_params(ctx):
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            if _is_argument(parameter):
                title = "Arguments"
            for record in _records(parameter, ctx):
                sections.setdefault(title, []).append(record)
        if self.page.settings:
            sections["Settings (as --set NAME=VALUE)"] = list(self.page.settings.values())
        return sections

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        if self.page.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.page.examples))


def show_all_options(ctx: typer.Context, is_given: bool) -> None:
    """Print the page of all options if --help-all is given, and exit."""
    if is_given and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _reject_repeated_inputs(parameters: Sequence[Any]) -> None:
    """Raise a UsageError for an input that takes one file and is given several times."""
    for parameter in parameters:
        takes_several = getattr(parameter, "multiple", False)
        count = parameters.count(parameter)
        if parameter.name in ONE_INPUT and not takes_several and count > 1:
            raise UsageError(f"{parameter.opts[0]} takes one file and is given {count} times")


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _without_aliases(parameter: Any) -> Any:
    """Return a copy of an option with its first long name only."""
    parameter = copy(parameter)
    parameter.opts = [name for name in parameter.opts if name.startswith("--")][:1]
    return parameter


def _records(parameter: Any, ctx: Any) -> list[Record]:
    """Return the names of a parameter and its help text; nothing for a hidden one."""
    record = parameter.get_help_record(ctx)
    if record is None:
        return []
    names, text = record
    if _is_argument(parameter):
        names = names.partition(" <")[0]
    return [(names, text)]
