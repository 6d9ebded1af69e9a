"""The `denserk` command: its parts, and the one door through which errors leave."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup

from denserk import __version__
from denserk.cli.console import console
from denserk.errors import DenserkError, OutputError, UsageError


class _Row(NamedTuple):
    """A command before it is imported: its module, and its line in the help."""

    module: str
    line: str


COMMANDS = {
    "convert": _Row("convert", "Turn data into another shape of its kind."),
    "encode": _Row("encode", "Turn passages or queries into vectors."),
    "eval": _Row("evaluate", "Measure runs against judgements."),
    "expand": _Row("expand", "Generate queries and continuations of passages."),
    "finetune": _Row("finetune", "Train a retriever or a cross-encoder."),
    "index": _Row("index", "Turn vectors, or the words of a corpus, into an index."),
    "mine-negatives": _Row(
        "mine_negatives", "Mine hard negatives from runs over training queries."
    ),
    "pretrain": _Row("pretrain", "Pre-train a backbone for retrieval."),
    "search": _Row(
        "search",
        "Search an index, rerank a run, or fuse several, and write a run; or run whole suites.",
    ),
    "analyze": _Row("analyze", "Look into trained models."),
}
"""What a user may type first. Only the command that is typed is imported; help needs none."""


class _Commands(TyperGroup):
    """Lists all commands, those that are not imported as well."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command itself where it is imported, else what the help says of it."""
        row = COMMANDS.get(cmd_name)
        return self.commands.get(cmd_name) or (row and TyperCommand(cmd_name, help=row.line))


app = typer.Typer(
    name="denserk",
    cls=_Commands,
    help="Dense passage retrieval, from text to measures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["--help", "-h"],
        "max_content_width": 100,
    },
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"denserk {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Dense passage retrieval, from text to measures."""


class _Shown(Protocol):
    """What typer's own errors can do; its public base class does not say so."""

    exit_code: int

    def show(self) -> None:
        """Prints the message, and where to find help, on stderr."""


def register(command: str | None = None) -> None:
    """Imports a command, or every one; each registers itself on `app`."""
    for name, row in COMMANDS.items():
        if command in (None, name):
            import_module(f"denserk.cli.{row.module}")


def _register_named(arguments: Sequence[str]) -> None:
    command = next((word.replace("_", "-") for word in arguments if word[:1] != "-"), None)
    if command in COMMANDS:
        register(command)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Reject arguments whose bytes the locale cannot decode: no manifest could hold them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"argument {os.fsencode(argument)!r} is not valid {sys.getfilesystemencoding()}",
                "rename the file, or set a UTF-8 locale: export LC_ALL=C.UTF-8",
            ) from None


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit status. No error leaves as a traceback unasked."""
    given = sys.argv[1:] if arguments is None else arguments
    _register_named(given)
    try:
        _check_utf8(given)
        status = app(args=arguments, prog_name="denserk", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:  # wrong usage, told as typer tells it
        shown = cast(_Shown, error)
        shown.show()
        return shown.exit_code
    except DenserkError as error:
        return _tell(error, error.exit_status)
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as end:  # typer ends the process by itself when a command meets a closed pipe
        if isinstance(end.__context__, BrokenPipeError):
            return _closed_pipe()
        raise
    except (KeyboardInterrupt, typer.Abort):
        return _tell(DenserkError("interrupted"), 130)
    except MemoryError:
        return _tell(
            DenserkError("out of memory", "smaller batches (--batch-tokens) or blocks need less"), 1
        )
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        refusal = OutputError if full else DenserkError
        return _tell(refusal(f"{error.filename or 'the system'}: {error.strerror or error}"), 1)
    except Exception as error:  # noqa: BLE001 - the last door: whatever it is, one line leaves
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return _tell(
            DenserkError(
                f"a defect in denserk: {what}", "add --traceback and report what it prints"
            ),
            1,
        )


def _closed_pipe() -> int:
    """Nobody reads on: what is still held back goes nowhere, and the status says so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _tell(error: DenserkError, status: int) -> int:
    if console().settings.traceback:
        traceback.print_exc()
    console().error(error)
    return status
