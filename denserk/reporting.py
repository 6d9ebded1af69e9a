"""Messages and progress: what long-running work calls, and how the command line shows it.

Messages go to the logger `denserk`, progress to `track`. Nothing is printed unless the caller
configures the logger or calls `configure`, as the command line does: messages and errors on stderr,
a bar on a terminal, elsewhere lines, or JSON lines with --log-json.
"""

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from textwrap import fill
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, Self

from denserk.errors import DenserkError

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger("denserk")

LONGEST = 1000  # characters of a message, which may name several files
EVERY = 10.0  # seconds between lines of progress
FIRST_SHARE = 0.05  # of a task, after which its time is estimated against a deadline
FIRST_INTERVALS = 12  # then lines are further apart

NO_VALUE = ("", "-")  # cells of a table
NUMBER = re.compile(r"[+-]?[\d,]+(\.\d+)?%?")


class Progress:
    """Progress of one task, which a display reads: finished units and a note."""

    done = 0
    text = ""

    def advance(self, count: int = 1) -> None:
        """Add `count` finished units."""
        self.done += count

    def note(self, text: str) -> None:
        """Show a note beside the count, e.g. the training loss."""
        self.text = text


Display = Callable[[str, int | None, str], AbstractContextManager[Progress]]
_display: Display | None = None


def set_display(display: Display | None) -> None:
    """Set the progress display; None: no display."""
    global _display
    _display = display


def track(task: str, total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Show the progress of a task, "encoding passages", of `total` units, "passages"."""
    display = _display or _hidden
    return display(task, total, unit)


def _hidden(task: str, total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Count progress, and show nothing."""
    return nullcontext(Progress())


class _DeadlineProgress(Progress):
    """Progress that warns once if a task will probably end after a deadline."""

    def __init__(self, shown: Progress, task: str, total: int, deadline: "_Deadline") -> None:
        self._shown = shown
        self._task = task
        self._total = total
        self._deadline = deadline
        self._start = time.monotonic()
        self._has_warned = False

    def advance(self, count: int = 1) -> None:
        """Add `count` finished units, and look whether the others will be finished in time."""
        super().advance(count)
        self._shown.advance(count)
        if not self._has_warned:
            self._warn_if_late()

    def note(self, text: str) -> None:
        """Show a note beside the count."""
        self._shown.note(text)

    def _warn_if_late(self) -> None:
        """Warn if the rest will take longer than there is time."""
        now = time.monotonic()
        seconds = now - self._start
        is_known = seconds >= EVERY and self.done >= FIRST_SHARE * self._total
        if not is_known:
            return
        remaining_seconds = seconds * (self._total - self.done) / self.done
        budget_seconds = max(0.0, self._deadline.time - now)
        if remaining_seconds <= budget_seconds:
            return
        self._has_warned = True
        logger.warning(
            f"{self._task} will take about {remaining_seconds:,.0f} s more, and "
            f"{budget_seconds:,.0f} s of {self._deadline.name} are left"
        )


class _Deadline(NamedTuple):
    """When something must have ended, by the monotonic clock, and what says so."""

    time: float
    name: str


@contextmanager
def warning_of_deadline(deadline: float | None, name: str) -> Iterator[None]:
    """Warn when a task that `track` shows will probably end after a deadline; None: never.

    The estimate is made when a part of the task is done. `name` says what set the deadline.
    """
    if deadline is None:
        yield
        return
    display = _display or _hidden

    @contextmanager
    def display_with_deadline(task: str, total: int | None, unit: str) -> Iterator[Progress]:
        with display(task, total, unit) as progress:
            if total:
                yield _DeadlineProgress(progress, task, total, _Deadline(deadline, name))
            else:
                yield progress

    display_before = _display
    set_display(display_with_deadline)
    try:
        yield
    finally:
        set_display(display_before)


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


def configure(settings: ConsoleSettings, *, repeats_notes: bool = False) -> None:
    """Send messages and progress to stderr; with torchrun, those of the main process only.

    All processes show warnings and errors. A note that was shown before is left out, unless
    `repeats_notes`.
    """
    global _settings
    _settings = settings
    quiet = settings.quiet or os.environ.get("RANK", "0") != "0"
    _remove_handlers()
    logger.addHandler(_Handler(repeats_notes=repeats_notes))
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    set_display(None if quiet else _shown)


def repeat_notes() -> None:
    """Show notes again that were shown before, and keep none of them: a server runs for weeks."""
    configure(_settings, repeats_notes=True)


def is_configured() -> bool:
    """Return whether messages and progress are shown."""
    return any(isinstance(handler, _Handler) for handler in logger.handlers)


def stop_showing() -> None:
    """Show no messages and no progress any more."""
    _remove_handlers()
    logger.setLevel(logging.NOTSET)
    set_display(None)


def _remove_handlers() -> None:
    for handler in list(logger.handlers):
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)


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

    def __init__(self, *, repeats_notes: bool = False) -> None:
        super().__init__()
        self._repeats_notes = repeats_notes
        self._shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop repeated notes: two steps of a command may open the same file."""
        if self._repeats_notes:
            return True
        message = record.getMessage()
        is_new = message not in self._shown
        self._shown.add(message)
        is_note = record.levelno <= logging.INFO
        is_progress = hasattr(record, "progress")
        return is_new or not is_note or is_progress

    def emit(self, record: logging.LogRecord) -> None:
        message = printable(record.getMessage())
        hint = printable(getattr(record, "hint", None) or "")
        if _settings.log_json:
            text = _json_line(record, message, hint)
        else:
            text = _plain_lines(record, message, hint)
        # one write a message: two threads may log at once
        print(f"{text}\n", end="", file=sys.stderr)  # noqa: T201


def _json_line(record: logging.LogRecord, message: str, hint: str) -> str:
    """Return a record as a JSON object."""
    level = "note"
    if hasattr(record, "progress"):
        level = "progress"
    elif record.levelno > logging.INFO:
        level = record.levelname.lower()
    entry = {"level": level, "message": message}
    if hint:
        entry["hint"] = hint
    return json.dumps(entry, ensure_ascii=False)


def _plain_lines(record: logging.LogRecord, message: str, hint: str) -> str:
    """Return a message with its level, unless it is a note, and the hint below it."""
    text = message
    if record.levelno > logging.INFO:
        text = f"{record.levelname.lower()}: {message}"
    if hint:
        text += f"\n  {hint}"
    return text


def per_second(rate: float) -> str:
    """Format a rate with at least two significant digits.

    >>> per_second(1234.5), per_second(0.0512)
    ('1,234', '0.051')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@contextmanager
def _shown(task: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress from a thread, as steps may be slow."""
    display = _ProgressDisplay(task, total, unit)
    is_bar = sys.stderr.isatty() and not _settings.log_json
    show = display.draw_bar if is_bar else display.write_lines
    thread = Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield display.progress
    finally:
        display.ended.set()
        thread.join()


@dataclass
class _ProgressDisplay:
    """Shows the progress of a task until it has ended."""

    task: str
    total: int | None
    unit: str
    progress: Progress = field(default_factory=Progress)
    ended: Event = field(default_factory=Event)
    start: float = field(default_factory=time.monotonic)

    def state(self) -> str:
        """Return how much is done, and the rate."""
        done = self.progress.done
        rate = done / (time.monotonic() - self.start)
        speed = f"{per_second(rate)} per second"
        if not self.total:
            return f"{done:,} {self.unit}, {speed}"
        text = f"{done:,} of {self.total:,} {self.unit}, {speed}"
        if rate:
            text += f", {(self.total - done) / rate:,.0f} s left"
        return text

    def write_lines(self) -> None:
        """Log a line every 10 seconds, later every minute, if there is news."""
        intervals = 0
        seconds = EVERY
        logged = (0, "")
        while not self.ended.wait(seconds):
            intervals += 1
            if intervals == FIRST_INTERVALS:
                seconds = 6 * EVERY
            news = (self.progress.done, self.progress.text)
            if news == logged:
                continue
            logged = news
            message = f"{self.task}: {self.state()}"
            if self.progress.text:
                message += f", {self.progress.text}"
            logger.info(message, extra={"progress": True})

    def draw_bar(self) -> None:
        """Draw a bar ten times a second."""
        from denserk.progress_bar import Bar

        with Bar() as bar:
            task_id = bar.add_task(self.task, total=self.total, state="")
            is_last = False
            while not is_last:
                is_last = self.ended.wait(0.1)
                bar.note = self.progress.text
                bar.update(
                    task_id, completed=self.progress.done, state=self.state(), refresh=is_last
                )


def show_error(error: DenserkError) -> None:
    """Write an error and its hint to stderr, after the traceback where --traceback was given."""
    if _settings.traceback:
        for line in traceback.format_exc().splitlines():
            print(printable(line, None), file=sys.stderr)  # noqa: T201
    logger.error(error.message, extra={"hint": error.hint})


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: aligned on a terminal, tab-separated elsewhere.

    On a terminal, numbers stand to the right, and a column without a value is left out. Where the
    table is too wide, titles and sentences are broken between words; columns that do not fit even
    then stand in a further table below, after the first column.
    """
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(row))  # noqa: T201
        return
    from rich.console import Console

    columns = []
    for title, *cells in zip(header, *rows, strict=True):
        has_value = any(cell not in NO_VALUE for cell in cells)
        if has_value or not rows:
            columns.append(_Column(title, [printable(cell, None) for cell in cells]))
    console = Console(markup=False)
    if sum(column.width + 2 for column in columns) - 2 <= console.width:
        console.print(_terminal_table(columns))
        return
    columns = [column.with_broken_title() for column in columns]
    widths = [column.least_width for column in columns]
    for number, group in enumerate(columns_that_fit(widths, 1, console.width)):
        if number > 0:
            console.print()
        console.print(_terminal_table([columns[position] for position in group]))


class _Column(NamedTuple):
    """A column of a table on a terminal."""

    title: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        """The number of characters of the longest line."""
        lines = "\n".join((self.title, *self.cells)).split("\n")
        return max(len(line) for line in lines)

    @property
    def least_width(self) -> int:
        """The number of characters of the longest word."""
        words = " ".join((self.title, *self.cells)).split()
        return max((len(word) for word in words), default=0)

    @property
    def is_numeric(self) -> bool:
        """Whether all cells are numbers, or without a value."""
        return all(cell in NO_VALUE or NUMBER.fullmatch(cell) for cell in self.cells)

    def with_broken_title(self) -> Self:
        """Return the column with a title in lines no longer than its longest word or cell."""
        words_and_cells = [*self.title.split(), *self.cells]
        width = max(len(text) for text in words_and_cells)
        return self._replace(title=fill(self.title, max(1, width)))


def columns_that_fit(widths: Sequence[int], repeated: int, width: int) -> list[list[int]]:
    """Return the positions of columns in groups that fit into a width, side by side.

    Each group has the first `repeated` columns, and at least one other. Two spaces separate
    columns.

    >>> columns_that_fit([10, 30, 30, 30], repeated=1, width=80)
    [[0, 1, 2], [0, 3]]
    """
    first_columns = list(range(repeated))
    first_width = sum(widths[:repeated]) + 2 * repeated
    groups = [list(first_columns)]
    taken = first_width
    for column in range(repeated, len(widths)):
        if taken + widths[column] > width and len(groups[-1]) > repeated:
            groups.append(list(first_columns))
            taken = first_width
        groups[-1].append(column)
        taken += widths[column] + 2
    return groups


def _terminal_table(columns: Sequence[_Column]) -> "Table":
    """Return a table of columns, numbers to the right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_numeric else "left")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table


def print_below_table(text: str) -> None:
    """Print a line below a table on a terminal, also with --quiet.

    Elsewhere stdout has the rows of the table alone, and the line is a message.
    """
    if sys.stdout.isatty():
        print(printable(text))  # noqa: T201
    else:
        logger.info(text)
