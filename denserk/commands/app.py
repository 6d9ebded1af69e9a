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
    "Serve": {
        "serve": "Serve indexes: a search page, JSON over HTTP, and tools for agents (MCP).",
    },
    "Evaluate": {
        "eval": "Evaluate runs against relevance judgments (qrels) or answers.",
        "benchmark": "Evaluate runs or a model on named benchmarks.",
        "choose": "Choose the best retriever for documents and judged queries.",
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
COMMANDS: dict[str, str] = {}  # help line by name
for _section in SECTIONS.values():
    COMMANDS |= _section


# what other tools call some commands
OTHER_NAMES = {
    "train": "finetune",
    "fit": "finetune",
    "embed": "encode",
    "retrieve": "search",
    "query": "search",
    "evaluate": "eval",
    "trec-eval": "eval",
    "hard-negatives": "mine-negatives",
    "compare": "choose",
}


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
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named; for another word, raise an error with the nearest."""
        name = args[0].replace("_", "-")
        is_option = name.startswith("-")
        if name not in COMMANDS and not is_option and not ctx.resilient_parsing:
            from denserk.config.values import unknown_name  # not needed by the help

            if name in OTHER_NAMES:
                hint = f"that is denserk {OTHER_NAMES[name]}"
                raise UsageError(f"no command is called {name!r}", hint)
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


def _print_version(is_given: bool) -> None:
    if is_given:
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
    if not _are_encodable(words):
        message = f"an argument is not valid {sys.getfilesystemencoding()}"
        hint = "use a UTF-8 locale and names: export LC_ALL=C.UTF-8"
        return _report(UsageError(message, hint))
    command = _first_argument(_words_to_complete() or words)
    if command:
        register(command.replace("_", "-"))
    return _run_app(words)


def _run_app(words: list[str]) -> int:
    """Run a command line whose command is imported; return its exit status."""
    try:
        status = app(args=words, prog_name="denserk", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _report_usage(error)
    except Interrupted as interruption:
        return _report_interruption(interruption)
    except (KeyboardInterrupt, typer.Abort):
        return _report_interruption(Interrupted(signal.SIGINT))
    except BrokenPipeError:
        return _end_after_closed_pipe()
    except SystemExit as exit_of_typer:
        if isinstance(exit_of_typer.__context__, BrokenPipeError):
            return _end_after_closed_pipe()
        raise
    except DenserkError as error:
        return _report(error)
    except Exception as error:  # noqa: BLE001  (reported in one line)
        return _report(_unexpected(error))
    return status if isinstance(status, int) else 0


def _are_encodable(words: Sequence[str]) -> bool:
    """Return whether arguments are text: bytes that are none arrive as surrogates."""
    try:
        " ".join(words).encode()
    except UnicodeEncodeError:
        return False
    return True


def _words_to_complete() -> list[str]:
    """Return the words behind `denserk` of the line that a shell completes; none if it does not."""
    if "_DENSERK_COMPLETE" not in os.environ:
        return []
    line_in_bash = os.environ.get("COMP_WORDS")
    line_in_other_shells = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return (line_in_bash or line_in_other_shells).split()[1:]


def _first_argument(words: Sequence[str]) -> str | None:
    """Return the first word that is no option.

    >>> _first_argument(["--quiet", "search", "--index", "bm25/"])
    'search'
    """
    for word in words:
        if not word.startswith("-"):
            return word
    return None


def _with_help_option(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with `help COMMAND` as `COMMAND --help`.

    >>> _with_help_option(["help", "search"]), _with_help_option(["search", "-h"])
    (['search', '--help'], ['search', '-h'])
    """
    if words and words[0] == "help":
        return [*words[1:], "--help"]
    return list(words)


def _report_usage(error: Any) -> int:
    """Report an error of typer; what its class has depends on typer's version."""
    message = error.format_message()
    if not message.strip() or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context else None
    # the library that typer checks values with begins some of its messages so
    return _report(UsageError(message.replace("Value error, ", ""), hint))


def _unexpected(error: Exception) -> DenserkError:
    """Return an error of denserk for one of Python, of a library or of the system."""
    if isinstance(error, MemoryError):
        return DenserkError("out of memory", "try smaller batches (--batch-tokens) or blocks")
    missing_memory = lack_of_memory(error)
    if missing_memory:
        return DenserkError(
            f"out of memory ({missing_memory})",
            "use less at a time (--batch-tokens, --batch-size), or the CPU (--device cpu)",
        )
    if isinstance(error, OSError):
        message = f"{error.filename or 'the system'}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):  # the disk is full
            return OutputError(message)
        return DenserkError(message)
    return DenserkError(
        f"internal error: {type(error).__name__}: {error}",
        "please report it with the output of --traceback",
    )


def _report_interruption(interruption: Interrupted) -> int:
    """Report a signal that ended the command, and return the status that shells expect then."""
    signal_name = signal.Signals(interruption.signum).name
    if interruption.signum == signal.SIGINT:
        signal_name = "Ctrl-C"
    if interruption.kept:
        error = DenserkError(
            f"interrupted by {signal_name}: finished work is kept in {interruption.kept}",
            "run the command again with --resume and without --overwrite to continue",
        )
    else:
        error = DenserkError(f"interrupted by {signal_name}: no output was written")
    show_error(error)
    return 128 + interruption.signum


def _end_after_closed_pipe() -> int:
    """Return the status of a program whose reader went away, as `head` does, without a message."""
    # what is still buffered would fail once more when Python ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _report(error: DenserkError) -> int:
    """Print an error and return its exit status."""
    if Interrupted.received is not None:  # a library turned the signal into an error
        return _report_interruption(Interrupted.received)
    show_error(error)
    return error.exit_status
