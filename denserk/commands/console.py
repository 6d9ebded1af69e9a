"""Console output: log messages, errors and progress on stderr, results on stdout.

Bars and colours are used on a terminal only; otherwise plain lines, or JSON lines with --log-json.
"""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import Any

from denserk.errors import DenserkError
from denserk.reporting import Progress, show_progress

logger = logging.getLogger("denserk")


@dataclass(frozen=True)
class ConsoleSettings:
    """Console."""

    quiet: bool = False
    """Print warnings and errors only."""
    log_json: bool = False
    """Write messages and progress to stderr as JSON lines."""
    traceback: bool = False
    """Print the Python traceback of an error."""


LONGEST = 400  # characters of a message


def printable(text: str, longest: int | None = LONGEST) -> str:
    r"""Escape control characters, and shorten long texts in the middle.

    >>> printable("a\x1b[2Jb"), printable("0123456789", 5)
    ('a\\x1b[2Jb', '01 … 89')
    """
    if longest is not None and len(text) > longest:
        text = f"{text[: longest // 2]} … {text[-(longest // 2) :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@cache
def _terminal() -> Any:
    """Return the rich console on stderr, shared by messages and bars."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


class _Handler(logging.Handler):
    """Write records to stderr: with rich on a terminal, else as plain or JSON lines."""

    def __init__(self, settings: ConsoleSettings) -> None:
        super().__init__()
        self.settings = settings
        self._shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop repeated notes: two steps of a command may open the same file."""
        if record.levelno > logging.INFO or hasattr(record, "progress"):
            return True
        is_new = record.getMessage() not in self._shown
        self._shown.add(record.getMessage())
        return is_new

    def emit(self, record: logging.LogRecord) -> None:
        text, hint = printable(record.getMessage()), printable(getattr(record, "hint", None) or "")
        level = record.levelname.lower() if record.levelno > logging.INFO else "note"
        if self.settings.log_json:
            level = "progress" if hasattr(record, "progress") else level
            entry = {"level": level, "message": text} | ({"hint": hint} if hint else {})
            text = json.dumps(entry, ensure_ascii=False)
        else:
            text += f"\n  {hint}" if hint else ""
            if level != "note" and sys.stderr.isatty():
                from rich.text import Text

                style = "bold red" if level == "error" else "bold yellow"
                shown = Text.assemble((f"{level}: ", style), text)
                _terminal().print(shown, soft_wrap=True)
                return
            text = text if level == "note" else f"{level}: {text}"
        # one write a message: two threads may log at once
        print(f"{text}\n", end="", file=sys.stderr)  # noqa: T201


EVERY = 10.0  # seconds between lines of progress


def per_second(rate: float) -> str:
    """Format a rate with at least two significant digits.

    >>> per_second(1234.5), per_second(0.0512)
    ('1,234', '0.051')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _write_lines(progress: Progress, ended: Event, what: str, total: int | None, unit: str) -> None:
    """Log a line every 10 seconds, later every minute."""
    start, lines = time.monotonic(), 0
    while not ended.wait(EVERY if lines < 12 else 6 * EVERY):
        lines += 1
        done, rate = progress.done, progress.done / (time.monotonic() - start)
        of = f" of {total:,}" if total else ""
        rest = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
        note = progress.text and f", {progress.text}"
        logger.info(
            f"{what}: {done:,}{of} {unit}, {per_second(rate)} per second{rest}{note}",
            extra={"progress": True},
        )


def _draw_bar(progress: Progress, ended: Event, what: str, total: int | None, unit: str) -> None:
    """Draw a progress bar with count and rate, and the note on its own line."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    count = TextColumn("{task.fields[count]}")
    bars = Bars(TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    task, of = bars.add_task(what, total=total, count=""), "" if total is None else f"/{total:,}"
    with Live(console=_terminal(), auto_refresh=False) as live:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.1)
            done, speed = progress.done, bars.tasks[0].finished_speed or bars.tasks[0].speed
            rate = f"  {per_second(speed)} {unit}/s" if speed else ""
            bars.update(task, completed=done, count=f"{done:,}{of}{rate}")
            notes = [Text(f"  {progress.text}", no_wrap=True, overflow="ellipsis")]
            live.update(Group(bars, *notes * bool(progress.text)), refresh=True)


_settings = ConsoleSettings()


def configure(settings: ConsoleSettings) -> None:
    """Send messages and progress to stderr; with torchrun, those of the main process only.

    All processes show warnings and errors.
    """
    global _settings
    _settings = settings
    quiet = settings.quiet or os.environ.get("RANK", "0") != "0"
    for handler in list(logger.handlers):
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    logger.addHandler(_Handler(settings))
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    show_progress(None if quiet else _progress)


@contextmanager
def _progress(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress from a thread, as steps may be slow: as a bar on a terminal, else as lines."""
    progress, ended = Progress(), Event()
    show = _write_lines if _settings.log_json or not sys.stderr.isatty() else _draw_bar
    given = (progress, ended, what, total, unit)
    thread = Thread(target=show, args=given, name="progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()


def show_error(error: DenserkError) -> None:
    """Write an error and its hint to stderr, after the traceback where --traceback was given."""
    if _settings.traceback:
        for line in traceback.format_exc().splitlines():
            print(printable(line, None), file=sys.stderr)  # noqa: T201
    logger.error(error.message, extra={"hint": error.hint})


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: aligned on a terminal, tab-separated elsewhere."""
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(row))  # noqa: T201
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(printable(cell, None) for cell in row))
    Console().print(table)
