"""What a person sees: notes, warnings, errors and bars on stderr; results on stdout.

Bars and colours only where stderr is a terminal; elsewhere plain lines, or JSON lines under
--log-json.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

from denserk.errors import DenserkError
from denserk.reporting import Progress, Reporter


@dataclass(frozen=True)
class ConsoleSettings:
    """What every command takes."""

    quiet: bool = False
    """No notes and no bars; warnings and errors only."""
    log_json: bool = False
    """Notes, warnings, errors and progress as JSON lines on stderr."""
    traceback: bool = False
    """Show Python's own traceback of an error, for a bug report."""


LONGEST = 400  # characters of a message


def printable(text: str, longest: int | None = LONGEST) -> str:
    r"""A text with its control characters escaped; a long one is cut in the middle.

    >>> printable("a\x1b[2Jb"), printable("0123456789", 5)
    ('a\\x1b[2Jb', '01 … 89')
    """
    if longest is not None and len(text) > longest:
        text = f"{text[: longest // 2]} … {text[-(longest // 2) :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _PlainProgress(Progress):
    """Progress where stderr is not a terminal: a line every 10 seconds, later every minute.

    A thread prints them, so that slow work is reported too.
    """

    every = 10.0

    def __init__(self, console: "Console", what: str, total: int | None, unit: str) -> None:
        self._console, self._what, self._total, self._unit = console, what, total, unit
        self._done, self._word = 0, ""
        self._start = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count

    @contextmanager
    def reported(self) -> Iterator[Progress]:
        """Print lines until left."""
        left = Event()

        def report() -> None:
            lines = 0
            while not left.wait(self.every if lines < 12 else 6 * self.every):
                self._print()
                lines += 1

        thread = Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            left.set()
            thread.join()

    def _print(self) -> None:
        rate = self._done / (time.monotonic() - self._start)
        total = f" of {self._total:,}" if self._total else ""
        left = f", {(self._total - self._done) / rate:,.0f} s left" if self._total and rate else ""
        self._console.event(
            "progress",
            f"{self._what}: {self._done:,}{total} {self._unit}, {per_second(rate)} a second"
            f"{left}{self._word}",
        )

    def tell(self, text: str) -> None:
        self._word = f", {text}"

    def set_total(self, total: int) -> None:
        self._total = total


class Console(Reporter):
    """The reporter of the command line."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings

    def event(self, level: str, text: str, hint: str | None = None) -> None:
        """One line (and a hint's) on stderr."""
        text, hint = printable(text), hint and printable(hint)
        if self.settings.log_json:
            record = {"level": level, "message": text} | ({"hint": hint} if hint else {})
            # one write a line: two threads may report at once
            print(json.dumps(record, ensure_ascii=False) + "\n", end="", file=sys.stderr)  # noqa: T201
            return
        label = {"warning": "warning: ", "error": "error: "}.get(level, "")
        if label and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            label = f"\x1b[1;{31 if level == 'error' else 33}m{label}\x1b[0m"
        print(f"{label}{text}\n", end="", file=sys.stderr)  # noqa: T201
        if hint:
            print(f"  {hint}", file=sys.stderr)  # noqa: T201

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout: aligned on a terminal, tab-separated elsewhere."""
        if not sys.stdout.isatty():
            for row in (header, *rows):
                print("\t".join(row))  # noqa: T201
            return
        from rich.console import Console as Terminal
        from rich.table import Table

        table = Table(*header, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(printable(cell, None) for cell in row))
        Terminal().print(table)

    def entries(self, entries: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Names on stdout, each with its lines beneath, wrapped to the terminal's width."""
        from rich.console import Console as Terminal
        from rich.padding import Padding

        terminal = Terminal(highlight=False, markup=False)
        for name, lines in entries:
            terminal.print(name, style="bold")
            for line in lines:
                terminal.print(Padding(line, (0, 0, 0, 2)))

    def note(self, text: str) -> None:
        """One line, unless quiet."""
        if not self.settings.quiet:
            self.event("note", text)

    def warn(self, text: str) -> None:
        """One line, quiet or not."""
        self.event("warning", text)

    def error(self, error: DenserkError) -> None:
        """Tells a refusal: what was wrong, then what to do."""
        self.event("error", error.message, error.hint)

    @contextmanager
    def track(self, what: str, total: int | None, unit: str) -> Iterator[Progress]:
        """A bar on a terminal, a line now and then elsewhere."""
        if self.settings.quiet:
            yield Progress()
        elif self.settings.log_json or not sys.stderr.isatty():
            with _PlainProgress(self, what, total, unit).reported() as progress:
                yield progress
        else:
            with _bar(what, total, unit) as progress:
                yield progress


def per_second(rate: float) -> str:
    """A rate, with the digits that tell slow ones apart.

    >>> per_second(1234.5), per_second(0.0512)
    ('1,234', '0.051')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """A bar; what is told stands on a line of its own beneath it."""
    from rich.console import Console as Terminal
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
    with WithWord(*columns, console=Terminal(stderr=True)) as bars:
        task = bars.add_task(what, total=total)

        class Shown(Progress):
            def advance(self, count: int = 1) -> None:
                bars.advance(task, count)

            def tell(self, text: str) -> None:
                word.plain = f"  {text}"

            def set_total(self, total: int) -> None:
                bars.update(task, total=total)

        yield Shown()


_console = Console(ConsoleSettings())


def configure(settings: ConsoleSettings) -> None:
    """Sets what the console shows, for this process; of several (torchrun), the first one speaks.

    Errors and warnings are told by each.
    """
    global _console
    first = os.environ.get("RANK", "0") == "0"
    _console = Console(settings if first else replace(settings, quiet=True))


def console() -> Console:
    """The console of this process."""
    return _console
