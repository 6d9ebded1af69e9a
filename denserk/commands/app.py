"""CLI entry point and top-level error handling."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from denserk.errors import DenserkError, Interrupted, OutputError, UsageError, lack_of_memory
from denserk.reporting import ConsoleSettings, configure, show_error
from denserk.version import __version__

# All commands in workflow order, by section of the help, with their help lines. Only the command
# that runs is imported; the help needs none.
SECTIONS = {
    "Train": {
        "pretrain": "Pre-train a backbone for retrieval.",
        "finetune": "Fine-tune a retriever or a cross-encoder.",
        "mine-negatives": "Mine hard negatives from runs over training queries.",
    },
    "Retrieve": {
        "encode": "Encode passages or queries into vectors.",
        "index": "Build an index from vectors, or from the text of a corpus.",
        "search": "Search an index and write a run, or print hits with their passages.",
        "rerank": "Rerank the hits of a run with a cross-encoder.",
        "fuse": "Fuse several runs into one.",
    },
    "Evaluate": {
        "eval": "Evaluate runs against relevance judgments (qrels) or answers.",
        "benchmark": "Evaluate runs or a model on named benchmarks.",
    },
    "Data": {
        "convert": "Convert data between formats.",
        "generate": "Generate queries for passages, by a model or without one, and continuations.",
    },
    "Inspect": {
        "analyze": "Analyze trained models.",
        "reproduce": "Follow a run's manifests back, re-make it and compare.",
        "doctor": "Check the installation and this machine.",
    },
}
# Key of a context's `meta`: no option stands in front of the command.
STARTS_WITH_COMMAND = "denserk.starts_with_command"
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}


class _Commands(TyperGroup):
    """Command group that lists commands without importing them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options in front of the command."""
        ctx.meta[STARTS_WITH_COMMAND] = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options; none where the command line starts with a command.

        Typer imports a library to check the value of an option, also of one that is not given.
        """
        if ctx.meta.get(STARTS_WITH_COMMAND):
            return []
        return super().get_params(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or a placeholder with its help line if it is not imported."""
        line = COMMANDS.get(cmd_name)
        return self.commands.get(cmd_name) or (line and TyperCommand(cmd_name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named; for another word, raise an error with the nearest."""
        name = args[0].replace("_", "-")
        if name not in COMMANDS and name[:1] != "-" and not ctx.resilient_parsing:
            from denserk.config.values import unknown_name  # not needed by the help

            raise unknown_name("command", name, COMMANDS, "denserk --help lists all")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group."""
        width = max(map(len, COMMANDS))
        for title, lines in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


app = typer.Typer(
    name="denserk",
    cls=_Commands,
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


def register(command: str | None = None) -> None:
    """Import the module of a command, or all; each module registers its commands on `app`."""
    for section, names in SECTIONS.items():
        if command is None or command in names:
            import_module(f"denserk.commands.{section.lower()}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; errors are reported in one line."""
    words = _with_help_option(sys.argv[1:] if arguments is None else arguments)
    configure(ConsoleSettings(log_json="--log-json" in words))  # for errors of the command line
    try:
        " ".join(words).encode()
    except UnicodeEncodeError:
        why = f"an argument is not valid {sys.getfilesystemencoding()}"
        return _report(UsageError(why, "use a UTF-8 locale and names: export LC_ALL=C.UTF-8"))
    typed_words = words
    if "_DENSERK_COMPLETE" in os.environ:  # bash gives the line in the first, others in the second
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        typed_words = line.split()[1:]
    if command := next((word.replace("_", "-") for word in typed_words if word[:1] != "-"), None):
        register(command)
    try:
        status = app(args=words, prog_name="denserk", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as raised:
        error: Any = raised  # what its class has depends on typer's version
        if not error.format_message().strip() or type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return int(error.exit_code)
        context = getattr(error, "ctx", None)
        hint = f"see {context.command_path} --help" if context else None
        # the library that typer checks values with begins some of its messages so
        return _report(UsageError(error.format_message().replace("Value error, ", ""), hint))
    except (KeyboardInterrupt, typer.Abort, Interrupted) as stop:
        return _interrupted(stop if isinstance(stop, Interrupted) else Interrupted(signal.SIGINT))
    except (BrokenPipeError, SystemExit) as end:  # typer ends the process when it meets one
        if not isinstance(end.__context__ if isinstance(end, SystemExit) else end, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        return 141
    except Exception as error:  # noqa: BLE001  (reported in one line)
        return _report(error if isinstance(error, DenserkError) else _unexpected(error))


def _with_help_option(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with `help COMMAND` as `COMMAND --help`.

    >>> _with_help_option(["help", "search"]), _with_help_option(["search", "-h"])
    (['search', '--help'], ['search', '-h'])
    """
    return [*words[1:], "--help"] if words and words[0] == "help" else [*words]


def _unexpected(error: Exception) -> DenserkError:
    if isinstance(error, MemoryError):
        return DenserkError("out of memory", "try smaller batches (--batch-tokens) or blocks")
    if reason := lack_of_memory(error):
        return DenserkError(
            f"out of memory ({reason})",
            "use less at a time (--batch-tokens, --batch-size), or the CPU (--device cpu)",
        )
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        raised = OutputError if full else DenserkError
        return raised(f"{error.filename or 'the system'}: {error.strerror or error}")
    said = f"internal error: {type(error).__name__}: {error}"
    return DenserkError(said, "please report it with the output of --traceback")


def _interrupted(stop: Interrupted) -> int:
    name = "Ctrl-C" if stop.signum == signal.SIGINT else signal.Signals(stop.signum).name
    kept, hint = "no output was written", None
    if stop.kept:
        kept = f"finished work is kept in {stop.kept}"
        hint = "run the command again with --resume and without --overwrite to continue"
    show_error(DenserkError(f"interrupted by {name}: {kept}", hint))
    return 128 + stop.signum


def _report(error: DenserkError) -> int:
    if Interrupted.received is not None:  # a library turned the signal into an error
        return _interrupted(Interrupted.received)
    show_error(error)
    return error.exit_status
