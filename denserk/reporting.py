"""Messages and progress: what long-running work calls, and how the command line shows it.

Messages go to the logger `denserk`, progress to `track`. Nothing is printed unless the caller
configures the logger or calls `configure`, as the command line does: messages and errors on stderr,
a bar on a terminal, elsewhere lines, or JSON lines with --log-json.
"""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event, Thread

from denserk.errors import DenserkError

logger = logging.getLogger("denserk")

LONGEST = 1000  # characters of a message, which may name several files
EVERY = 10.0  # seconds between lines of progress


class Progress:
    """Progress of one task, which a display reads: finished units and a note."""

    done, text = 0, ""

    def advance(self, count: int = 1) -> None:
        """Add `count` finished units."""
        self.done += count

    def note(self, text: str) -> None:
        """Show a note beside the count, e.g. the training loss."""
        self.text = text


Display = Callable[[str, int | None, str], AbstractContextManager[Progress]]
_display: Display | None = None


def show_progress(display: Display | None) -> None:
    """Set the progress display; None: no display."""
    global _display
    _display = display


def track(what: str, total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Show the progress of a task, "encoding passages", of `total` units, "passages"."""
    return nullcontext(Progress()) if _display is None else _display(what, total, unit)


@dataclass(frozen=True)
class ConsoleSettings:
    """Console."""

    quiet: bool = False
    """Print warnings and errors only."""
    log_json: bool = False
    """Write messages and progress to stderr as JSON lines."""
    traceback: bool = False
    """Print the Python traceback of an error."""


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
    logger.addHandler(_Handler())
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    show_progress(None if quiet else _shown)


def printable(text: str, longest: int | None = LONGEST) -> str:
    r"""Escape control characters, and shorten long texts in the middle.

    >>> printable("a\x1b[2Jb"), printable("0123456789", 5)
    ('a\\x1b[2Jb', '01 … 89')
    """
    if longest is not None and len(text) > longest:
        text = f"{text[: longest // 2]} … {text[-(longest // 2) :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _Handler(logging.Handler):
    """Write records to stderr as plain or JSON lines."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop repeated notes: two steps of a command may open the same file."""
        text, is_note = record.getMessage(), record.levelno <= logging.INFO
        is_new = text not in self._shown
        self._shown.add(text)
        return is_new or not is_note or hasattr(record, "progress")

    def emit(self, record: logging.LogRecord) -> None:
        text, hint = printable(record.getMessage()), printable(getattr(record, "hint", None) or "")
        level = record.levelname.lower() if record.levelno > logging.INFO else "note"
        if _settings.log_json:
            level = "progress" if hasattr(record, "progress") else level
            entry = {"level": level, "message": text} | ({"hint": hint} if hint else {})
            text = json.dumps(entry, ensure_ascii=False)
        else:
            text = text if level == "note" else f"{level}: {text}"
            text += f"\n  {hint}" if hint else ""
        # one write a message: two threads may log at once
        print(f"{text}\n", end="", file=sys.stderr)  # noqa: T201


def per_second(rate: float) -> str:
    """Format a rate with at least two significant digits.

    >>> per_second(1234.5), per_second(0.0512)
    ('1,234', '0.051')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@contextmanager
def _shown(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress from a thread, as steps may be slow."""
    progress, ended, start = Progress(), Event(), time.monotonic()

    def state() -> str:
        done, rate = progress.done, progress.done / (time.monotonic() - start)
        of = f" of {total:,}" if total else ""
        left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
        return f"{done:,}{of} {unit}, {per_second(rate)} per second{left}"

    def write_lines() -> None:
        """Log a line every 10 seconds, later every minute, if there is news."""
        lines, logged = 0, (0, "")
        while not ended.wait(EVERY if lines < 12 else 6 * EVERY):
            lines += 1
            if (progress.done, progress.text) == logged:
                continue
            logged = progress.done, progress.text
            note = progress.text and f", {progress.text}"
            logger.info(f"{what}: {state()}{note}", extra={"progress": True})

    def draw_bar() -> None:
        from rich import progress as rich
        from rich.console import Console, RenderableType
        from rich.text import Text

        class Bar(rich.Progress):
            def get_renderables(self) -> Iterator[RenderableType]:  # the note has its own line
                yield from super().get_renderables()
                yield Text(f"  {progress.text}", no_wrap=True, overflow="ellipsis")

        texts = (rich.TextColumn(f"{{task.{name}}}") for name in ("description", "fields[state]"))
        with Bar(next(texts), rich.BarColumn(), next(texts), console=Console(stderr=True)) as bar:
            task, is_last = bar.add_task(what, total=total, state=""), False
            while not is_last:
                is_last = ended.wait(0.1)
                bar.update(task, completed=progress.done, state=state(), refresh=is_last)

    is_bar = sys.stderr.isatty() and not _settings.log_json
    thread = Thread(target=draw_bar if is_bar else write_lines, name="progress", daemon=True)
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
    Console(markup=False).print(table)
