"""The `denserk` command: its parts, and the one door through which errors leave."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Protocol, cast

import typer

from denserk import __version__
from denserk.cli.console import console
from denserk.errors import DenserkError, OutputError

app = typer.Typer(
    name="denserk",
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


def _register() -> None:
    """Imports every command; each registers itself on `app`."""
    from denserk.cli import (  # noqa: F401
        analyze,
        convert,
        encode,
        evaluate,
        expand,
        finetune,
        index,
        mine_negatives,
        pretrain,
        search,
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit status. No error leaves as a traceback unasked."""
    _register()
    try:
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
