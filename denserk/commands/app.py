"""CLI entry point and top-level error handling."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from typing import Annotated, Any, NamedTuple, Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup

from denserk import __version__
from denserk.commands.console import (
    ConsoleSettings,
    configure,
    printable,
    show_error,
    shows_tracebacks,
)
from denserk.errors import DenserkError, Interrupted, OutputError, UsageError


class _Row(NamedTuple):
    """A command that is not imported yet: help section, module and help line."""

    group: str
    module: str
    line: str


# All commands in workflow order. Only the command that runs is imported; the help needs none.
COMMANDS = {
    "pretrain": _Row("Train", "pretrain", "Pre-train a backbone for retrieval."),
    "finetune": _Row("Train", "finetune", "Fine-tune a retriever or a cross-encoder."),
    "mine-negatives": _Row(
        "Train", "mine_negatives", "Mine hard negatives from runs over training queries."
    ),
    "encode": _Row("Retrieve", "encode", "Encode passages or queries into vectors."),
    "index": _Row(
        "Retrieve", "index", "Build an index from vectors, or from the text of a corpus."
    ),
    "search": _Row("Retrieve", "search", "Search an index and write a run."),
    "rerank": _Row("Retrieve", "rerank", "Rerank the hits of a run with a cross-encoder."),
    "fuse": _Row("Retrieve", "fuse", "Fuse several runs into one."),
    "eval": _Row(
        "Evaluate", "evaluate", "Evaluate runs against relevance judgments (qrels) or answers."
    ),
    "benchmark": _Row("Evaluate", "benchmark", "Evaluate runs or a model on named benchmarks."),
    "convert": _Row("Data", "convert", "Convert data between formats."),
    "generate": _Row(
        "Data", "generate", "Generate queries (doc2query) and continuations for passages."
    ),
    "analyze": _Row("Inspect", "analyze", "Analyze trained models."),
    "doctor": _Row("Inspect", "doctor", "Check the installation and this machine."),
}


class _Commands(TyperGroup):
    """Command group that lists commands without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or a placeholder with its help line if it is not imported."""
        row = COMMANDS.get(cmd_name)
        return self.commands.get(cmd_name) or (row and TyperCommand(cmd_name, help=row.line))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group."""
        width = max(map(len, COMMANDS))
        for group, names in groupby(COMMANDS, lambda name: COMMANDS[name].group):
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), COMMANDS[name].line) for name in names])


# Former options from Pyserini, with their replacements.
OF_OTHERS = {
    "--encoder-class": "denserk COMMAND --representation agg|mean|cls --l2-norm",
    "--agg-preset": "denserk COMMAND --set term-weight=abs --set agg-layout=random",
    "--add-sep": "denserk COMMAND --set join=pair",
    "--max-length": "denserk COMMAND --passage-max-length N --query-max-length N",
    "--prefix": "denserk COMMAND --passage-prefix TEXT --query-prefix TEXT",
}

# Old spellings by command and option, with their replacements.
MOVED = {
    "expand": {"": "denserk generate --corpus CORPUS --queries-model MODEL --output FILE"},
    "search": {
        "--rerank": "denserk rerank --model MODEL --run RUN --topics QUERIES --corpus CORPUS "
        "--output RUN",
        "--fuse": "denserk fuse RUN RUN --output RUN",
        "--suite": "denserk benchmark NAME --model MODEL --output FOLDER",
        **OF_OTHERS,
    },
    "encode": OF_OTHERS,
    "eval": {
        "--suite": "denserk benchmark NAME --runs RUN",
        "--against": "denserk benchmark NAME --runs RUN --against PAPER",
        "--list-suites": "denserk benchmark --list",
    },
}

app = typer.Typer(
    name="denserk",
    cls=_Commands,
    help="Dense passage retrieval: training, indexing, search and evaluation.",
    no_args_is_help=True,
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
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Dense passage retrieval: training, indexing, search and evaluation."""


class _Shown(Protocol):
    """Interface of typer's exceptions, which its public base class lacks."""

    exit_code: int
    ctx: Any

    def show(self) -> None:
        """Print the message and a pointer to the help on stderr."""

    def format_message(self) -> str:
        """Return the message; empty if the help is shown instead."""


def register(command: str | None = None) -> None:
    """Import a command, or all commands; each registers itself on `app`."""
    for name, row in COMMANDS.items():
        if command in (None, name):
            import_module(f"denserk.commands.{row.module}")


def _register_named(arguments: Sequence[str]) -> None:
    if "_DENSERK_COMPLETE" in os.environ:  # bash gives the line in the first, others in the second
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        arguments = line.split()[1:]
    command = next((word.replace("_", "-") for word in arguments if word[:1] != "-"), None)
    if command in COMMANDS:
        register(command)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Raise a UsageError for arguments that the locale cannot decode."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"argument {os.fsencode(argument)!r} is not valid {sys.getfilesystemencoding()}",
                "rename the file, or set a UTF-8 locale: export LC_ALL=C.UTF-8",
            ) from None


def _check_moved(arguments: Sequence[str]) -> None:
    """Reject an old spelling with the command that replaces it."""
    words = [word.partition("=")[0].replace("_", "-") for word in arguments]
    old = next((word for word in words if not word.startswith("-")), "")
    for word in ("", *words):
        if new := MOVED.get(old, {}).get(word):
            now = new.replace("COMMAND", old)
            raise UsageError(f"{f'denserk {old} {word}'.rstrip()} is now: {now}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; errors are reported in one line."""
    given = sys.argv[1:] if arguments is None else arguments
    configure(ConsoleSettings(log_json="--log-json" in given))  # for errors of the command line
    _register_named(given)
    try:
        _check_utf8(given)
        _check_moved(given)
        status = app(args=arguments, prog_name="denserk", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        return _usage_error(cast(_Shown, error))
    except (Interrupted, KeyboardInterrupt, typer.Abort) as stop:
        return _interrupted(stop if isinstance(stop, Interrupted) else Interrupted(signal.SIGINT))
    except DenserkError as error:
        return _report(error, error.exit_status)
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as end:  # typer ends the process by itself when a command meets a closed pipe
        if isinstance(end.__context__, BrokenPipeError):
            return _closed_pipe()
        raise
    except Exception as error:  # noqa: BLE001  (reported in one line)
        return _report(_unexpected(error), 1)


def _unexpected(error: Exception) -> DenserkError:
    if isinstance(error, MemoryError):
        return DenserkError("out of memory", "try smaller batches (--batch-tokens) or blocks")
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        raised = OutputError if full else DenserkError
        return raised(f"{error.filename or 'the system'}: {error.strerror or error}")
    what = f"{type(error).__name__}: {error}"
    return DenserkError(
        f"internal error: {what}", "please report it with the output of --traceback"
    )


def _usage_error(error: _Shown) -> int:
    message = error.format_message()
    if not message.strip() or type(error).__name__ == "NoArgsIsHelpError":  # help was asked for
        error.show()
        return error.exit_code
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context else None
    return _report(UsageError(message, hint), error.exit_code)


def _interrupted(stop: Interrupted) -> int:
    name = "Ctrl-C" if stop.signum == signal.SIGINT else signal.Signals(stop.signum).name
    kept, hint = "no output was written", None
    if stop.kept:
        kept = f"finished work is kept in {stop.kept}"
        hint = "run the command again with --resume and without --overwrite to continue"
    return _show(DenserkError(f"interrupted by {name}: {kept}", hint), 128 + stop.signum)


def _closed_pipe() -> int:
    """Discard buffered output after the reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _report(error: DenserkError, status: int) -> int:
    if Interrupted.received is not None:  # a library turned the signal into an error
        return _interrupted(Interrupted.received)
    return _show(error, status)


def _show(error: DenserkError, status: int) -> int:
    if shows_tracebacks():
        for line in traceback.format_exc().splitlines():
            print(printable(line, None), file=sys.stderr)  # noqa: T201
    show_error(error)
    return status
