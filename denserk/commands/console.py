"""Console output: log messages, errors and progress on stderr, results on stdout.

Bars and colours are used on a terminal only; otherwise plain lines, or JSON lines with --log-json.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
        text = record.getMessage()
        repeated = text in self._shown
        self._shown.add(text)
        return not repeated

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


class _Count(Progress):
    """Progress without a terminal, for `_plain` to report."""

    def __init__(self, total: int | None) -> None:
        self.total, self.done, self.said = total, 0, ""

    def advance(self, count: int = 1) -> None:
        self.done += count

    def note(self, text: str) -> None:
        self.said = f", {text}"

    def set_total(self, total: int) -> None:
        self.total = total


EVERY = 10.0  # seconds between lines of progress


@contextmanager
def _plain(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Log a line every 10 seconds, later every minute, from a thread: steps may be slow."""
    count, start, left = _Count(total), time.monotonic(), Event()

    def report() -> None:
        lines = 0
        while not left.wait(EVERY if lines < 12 else 6 * EVERY):
            lines += 1
            rate = count.done / (time.monotonic() - start)
            of, rest = (f" of {count.total:,}" if count.total else ""), ""
            if count.total and rate:
                rest = f", {(count.total - count.done) / rate:,.0f} s left"
            logger.info(
                f"{what}: {count.done:,}{of} {unit}, {per_second(rate)} per second"
                f"{rest}{count.said}",
                extra={"progress": True},
            )

    thread = Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield count
    finally:
        left.set()
        thread.join()


def per_second(rate: float) -> str:
    """Format a rate with at least two significant digits.

    >>> per_second(1234.5), per_second(0.0512)
    ('1,234', '0.051')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show a progress bar, with the note of `note` on its own line."""
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    word = Text(no_wrap=True, overflow="ellipsis")

    class WithWord(Bars):
        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table(self.tasks)
            if word:
                yield word

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f"/{task.total:,.0f}" if task.total is not None else ""
            speed = task.finished_speed or task.speed
            rate = f"  {per_second(speed)} {unit}/s" if speed else ""
            return Text(f"{task.completed:,.0f}{of}{rate}")

    columns = (TextColumn("{task.description}"), BarColumn(), Rate(), TimeRemainingColumn())
    with WithWord(*columns, console=_terminal()) as bars:
        task = bars.add_task(what, total=total)

        class Shown(Progress):
            def advance(self, count: int = 1) -> None:
                bars.advance(task, count)

            def note(self, text: str) -> None:
                word.plain = f"  {text}"

            def set_total(self, total: int) -> None:
                bars.update(task, total=total)

        yield Shown()


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


def _progress(what: str, total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Show a progress bar on a terminal, and occasional lines elsewhere."""
    plain = _settings.log_json or not sys.stderr.isatty()
    return (_plain if plain else _bar)(what, total, unit)


def show_error(error: DenserkError) -> None:
    """Write an error and its hint to stderr."""
    logger.error(error.message, extra={"hint": error.hint})


def shows_tracebacks() -> bool:
    """Return whether --traceback was given."""
    return _settings.traceback


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
